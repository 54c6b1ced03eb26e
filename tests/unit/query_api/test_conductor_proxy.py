"""What Conductor's example proxy sends and expects."""

import asyncio

import httpx
import pytest

from reprise.application import create_app
from tests.conductor_proxy import Prefills, Proxy
from tests.fakes import FakeTable

PREFILLS = Prefills({"p0": ["tcp://p0:5557", "tcp://p0:5558"], "p1": ["tcp://p1:5557"]}, 4)


def test_the_proxy_starts_and_routes(table: FakeTable) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(app=create_app(table, table))
        async with httpx.AsyncClient(transport=transport, base_url="http://conductor") as client:
            proxy = Proxy(client, PREFILLS)
            await proxy.start()
            await proxy.start()
            keys = [service.registration.service_key for service in table.services()]
            assert keys == ["p0|default|0", "p0|default|1", "p1|default|0"]
            tokens = list(range(16))
            assert await proxy.choose({"model": "m"}, tokens) is None
            assert await proxy.choose({"model": "unknown"}, tokens) is None
            owner = {service.registration.service_key: service for service in table.services()}
            for key, blocks in (("p0|default|1", 2), ("p1|default|0", 3)):
                known = owner[key].registration
                publisher = table.kernel.open_publisher(known.stream, known.dp_rank)
                table.store(publisher, range(4 * blocks), hashes=range(1, blocks + 1))
            assert await proxy.choose({"model": "m"}, tokens) == "p1"
            assert await proxy.choose({"model": "m", "cache_salt": None}, tokens) == "p1"
            assert await proxy.choose({"model": "m", "cache_salt": "x"}, tokens) is None
            ties = [await proxy.choose({"model": "m"}, tokens[:8]) for _ in range(3)]
            assert ties == ["p0", "p1", "p0"]
            table.ready = False
            with pytest.raises(httpx.HTTPStatusError):
                await proxy.choose({"model": "m"}, tokens)

    asyncio.run(run())
