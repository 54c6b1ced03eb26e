"""Conductor's example proxy before both forms of the service: its messages, and its own code.

The latter is `mooncake-conductor/example/cache_aware_disagg_proxy.py` of Mooncake's sources;
REPRISE_CONDUCTOR_PROXY may name it, and its test is skipped where it does not.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from devtools.broker import free_ports
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockRemoved, BlockStored
from tests.conductor_proxy import PROFILE, Prefills, Proxy
from tests.contract.deployments import Tenant
from tests.processes import Api, until

pytestmark = pytest.mark.timeout(180)

VARIABLE = "REPRISE_CONDUCTOR_PROXY"
PROGRAM = os.environ.get(VARIABLE, "")
SIZE = 16
TOKENS = list(range(1000, 1064))


@pytest.fixture
def publishers() -> Iterator[list[Publisher]]:
    """Of instance `p0` both ranks, and that of `p1`."""
    with ExitStack() as stack:
        opened = [Publisher(PublisherOptions(), dp_rank=rank) for rank in (0, 1, 0)]
        for one in opened:
            stack.callback(one.close)
        yield opened


def stored(tokens: Sequence[int]) -> BlockStored:
    return BlockStored(
        block_hashes=list(range(1, 1 + len(tokens) // SIZE)),
        parent_block_hash=None,
        token_ids=list(tokens),
        block_size=SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


def removed(*hashes: int) -> BlockRemoved:
    return BlockRemoved(block_hashes=list(hashes), medium="GPU")


def endpoints(publishers: Sequence[Publisher]) -> dict[str, list[str]]:
    first, second, other = (one.endpoint for one in publishers)
    return {"p0": [first, second], "p1": [other]}


def test_what_the_proxy_sends_has_the_prompt_go_to_who_holds_most_of_it(
    tenant: Tenant, publishers: list[Publisher]
) -> None:
    prefills = Prefills(endpoints(publishers), SIZE, tenant.tenant_id)

    async def run() -> None:
        async with httpx.AsyncClient(base_url=tenant.api.base_url) as client:
            proxy = Proxy(client, prefills)
            await proxy.start()
            await proxy.start()  # it registers again whenever it is started
            assert len(tenant.services()) == len(publishers)
            await asyncio.to_thread(tenant.await_links, *publishers)
            assert await proxy.choose({"model": "m"}, TOKENS) is None
            publishers[1].publish([stored(TOKENS[:32])])
            publishers[2].publish([stored(TOKENS[:48])])
            for name, held in (("p0", 32), ("p1", 48)):
                await asyncio.to_thread(tenant.await_longest, TOKENS, held, instance_id=name)
            assert await proxy.choose({"model": "m"}, TOKENS) == "p1"
            assert await proxy.choose({"model": "m", "cache_salt": None}, TOKENS) == "p1"
            assert await proxy.choose({"model": "m", "cache_salt": "x"}, TOKENS) is None
            assert await proxy.choose({"model": "unknown"}, TOKENS) is None
            publishers[2].publish([removed(3)])
            await asyncio.to_thread(tenant.await_longest, TOKENS, 32, instance_id="p1")
            ties = [await proxy.choose({"model": "m"}, TOKENS) for _ in range(3)]
            assert ties == ["p0", "p1", "p0"]

    asyncio.run(run())


class Engine(BaseHTTPRequestHandler):
    """An engine's HTTP, as far as the proxy needs it: a token is a number of the prompt."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            answer: object = {"tokens": [int(word) for word in request["prompt"].split()]}
        else:
            answer = {"kv_transfer_params": {"by": self.connection.getsockname()[1]}} | (
                {"prefilled_by": request["kv_transfer_params"].get("by")}
            )
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def engine_http() -> Iterator[int]:
    """The port of an engine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def proxy_process(config: dict[str, Any], directory: Path) -> Iterator[Api]:
    """Conductor's own proxy, as it is; once it has registered its instances."""
    [port] = free_ports(1)
    path, log = directory / "proxy.json", directory / "proxy.log"
    path.write_text(json.dumps(config))
    command = [sys.executable, PROGRAM, "--config", str(path), "--port", str(port)]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    api = Api()
    api.base_url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            return api.get("/healthcheck")[0] == 200
        except OSError:
            return False

    try:
        until(answers, what=f"the proxy:\n{log.read_text()[-3000:]}")
        yield api
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.skipif(not PROGRAM, reason=f"no cache_aware_disagg_proxy.py; {VARIABLE} names one")
def test_the_proxy_itself_sends_a_prompt_to_who_holds_most_of_it(
    tenant: Tenant, publishers: list[Publisher], tmp_path: Path
) -> None:
    with engine_http() as first, engine_http() as second, engine_http() as decoding:
        ports = {"p0": first, "p1": second}
        names = {port: name for name, port in ports.items()}
        config = {
            "conductor": {"address": tenant.api.base_url},
            "prefill": {
                "config": {
                    "modelname": "m",
                    "block_size": SIZE,
                    "tenant_id": tenant.tenant_id,
                    "hash_profile": PROFILE,
                },
                "instances": [
                    {
                        "instance_id": name,
                        "http_endpoint": f"http://127.0.0.1:{ports[name]}",
                        "registrations": [
                            {"endpoint": endpoint, "dp_rank": rank}
                            for rank, endpoint in enumerate(ranks)
                        ],
                    }
                    for name, ranks in endpoints(publishers).items()
                ],
            },
            "decode": {"instances": [{"http_endpoint": f"http://127.0.0.1:{decoding}"}]},
        }
        with proxy_process(config, tmp_path) as proxy:
            tenant.await_links(*publishers)

            def chosen() -> str:
                fields = {"model": "m", "prompt": " ".join(map(str, TOKENS))}
                status, answer = proxy.post("/v1/completions", fields)
                assert status == 200, answer
                return names[answer["prefilled_by"]]

            assert [chosen() for _ in range(4)] == ["p0", "p1", "p0", "p1"]  # nobody has anything
            publishers[1].publish([stored(TOKENS[:32])])
            publishers[2].publish([stored(TOKENS[:48])])
            for name, held in (("p0", 32), ("p1", 48)):
                tenant.await_longest(TOKENS, held, instance_id=name)
            assert [chosen() for _ in range(3)] == ["p1", "p1", "p1"]
            publishers[2].publish([removed(1)])
            tenant.await_longest(TOKENS, 0, instance_id="p1")
            assert [chosen() for _ in range(3)] == ["p0", "p0", "p0"]
