"""A consumer as Conductor ships one: what its example proxy sends, how it judges the reply.

Source: Mooncake, mooncake-conductor/example/cache_aware_disagg_proxy.py (generation G3).
"""

import asyncio
import struct
from typing import Any

import httpx
import msgspec
import pytest

from query_api.http.app import create_app
from tests.fakes import FakeTable

INSTANCES = {"p0": [0, 1], "p1": [0]}
PROFILE = {
    "strategy": "vllm_v1",
    "algorithm": "sha256_cbor",
    "python_hash_seed": "0",
    "index_projection": "low64_be",
}


class ProxyProtocolError(Exception):
    """What makes the proxy fall back, or its startup fail."""


class Proxy:
    """Registers at startup, then picks an instance for each prompt."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._ties: dict[tuple[str, ...], int] = {}

    async def _post(self, path: str, document: dict[str, Any], **headers: str) -> dict[str, Any]:
        response = await self._client.post(
            path,
            content=msgspec.msgpack.encode(document),
            headers={"Content-Type": "application/msgpack", **headers},
            timeout=1.0,
        )
        response.raise_for_status()
        body = msgspec.msgpack.decode(response.content)
        if not isinstance(body, dict):
            raise ProxyProtocolError("expected a map")
        return body

    async def start(self) -> None:
        for instance_id, ranks in INSTANCES.items():
            for dp_rank in ranks:
                body = await self._post(
                    "/register",
                    {
                        "endpoint": f"tcp://{instance_id}:{5557 + dp_rank}",
                        "type": "vLLM",
                        "modelname": "m",
                        "instance_id": instance_id,
                        "block_size": 4,
                        "dp_rank": dp_rank,
                        "tenant_id": "default",
                        "lora_name": "",
                        "hash_profile": PROFILE,
                    },
                )
                echoed = body.get("status"), body.get("instance_id")
                if echoed != ("registered successfully", instance_id):
                    raise ProxyProtocolError("unexpected success body")

    async def choose(self, request: dict[str, Any], tokens: list[int]) -> str | None:
        """The instance to send the prompt to; None for the proxy's round-robin."""
        payload = {
            "model": request["model"],
            "block_size": 4,
            "token_ids": struct.pack(f"<{len(tokens)}i", *tokens),
            "tenant_id": "default",
            "lora_name": "",
        }
        if "cache_salt" in request:
            payload["cache_salt"] = request["cache_salt"]
        headers = {"X-Request-Id": "4a8b0a4c"}
        answer = (await self._post("/query", payload, **headers)).get("instances")
        if not isinstance(answer, dict):
            raise ProxyProtocolError("expected instances")
        hits: dict[str, int] = {}
        for instance_id, result in answer.items():
            if instance_id in INSTANCES and isinstance(result, dict):
                longest = result.get("longest_matched")
                if type(longest) is int and longest >= 0:
                    hits[instance_id] = longest
        best = max(hits.values(), default=0)
        if not best:
            return None
        leaders = tuple(sorted(name for name, hit in hits.items() if hit == best))
        turn = self._ties.get(leaders, 0)
        self._ties[leaders] = turn + 1
        return leaders[turn % len(leaders)]


def test_the_proxy_starts_and_routes(table: FakeTable) -> None:
    async def run() -> None:
        transport = httpx.ASGITransport(app=create_app(table, table))
        async with httpx.AsyncClient(transport=transport, base_url="http://conductor") as client:
            proxy = Proxy(client)
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
