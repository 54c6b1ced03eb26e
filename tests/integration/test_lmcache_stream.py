"""LMCache's own code of a server of its multi-process mode streams to the embedded form; its cache
is made up, and torch absent.

Skipped where `lmcache` is not installed with grpcio, or is older than 0.5.7: `make lmcache`, or
REPRISE_LMCACHE_PYTHON names a Python that has both. Tried with 0.5.7rc2.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devtools import lmcache
from tests.lmcache_service import CHUNK, LmcacheProcess, LmcacheService

pytestmark = [
    pytest.mark.skipif(
        not lmcache.has_stream(),
        reason=f"no {lmcache.PACKAGE} of 0.5.7 or later with grpcio;"
        f" {lmcache.VARIABLE} may name a Python that has both",
    ),
    pytest.mark.timeout(300),
]

PROMPT = list(range(1, 3 * CHUNK + 1))


class RealServer(LmcacheProcess):
    """`devtools/lmcache/stream_process.py` as a process."""

    def __init__(self, directory: Path, name: str = "mp-1", **options: object) -> None:
        options = {"chunk_size": CHUNK} | options
        super().__init__(lmcache.STREAM_PROGRAM, options, name, directory)
        self.port: int = self.ask("state")["port"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LmcacheService]:
    with closing(LmcacheService(tmp_path, None)) as served:
        yield served


def register(served: LmcacheService, server: RealServer, model: str = "m") -> None:
    body = {
        "endpoint": f"grpc://127.0.0.1:{server.port}",
        "type": "LMCache-MP",
        "model": model,
        "instance_id": server.name,
        "block_size": CHUNK,
        "kv_cache_groups": "one",
        "kv_offloading": "native",
    }
    status, answer, _ = served.deployment.api.exchange("/register", body)
    assert status == 200, answer


def test_what_it_stores_and_evicts_is_answered(served: LmcacheService, tmp_path: Path) -> None:
    with RealServer(tmp_path) as server:
        server.ask("store", tokens=PROMPT)
        server.ask("store", tokens=PROMPT, model="other")
        register(served, server)
        register(served, server, model="other")
        chunks = server.hashes(PROMPT)
        served.await_match(chunks, server.name, 3, 3, 0, "exact")
        server.ask("delete", tokens=PROMPT, model="other")
        server.ask("delete", tokens=PROMPT[: 2 * CHUNK])
        served.await_match(chunks, server.name, 0, 0, 0, "exact")
        server.ask("store", tokens=PROMPT[:CHUNK])
        served.await_match(chunks, server.name, 1, 1, 0, "exact")
        assert server.ask("state")["subscribers"] == 2
        served.deployment.restart()
        server.ask("store", tokens=PROMPT[: 2 * CHUNK])
        served.await_match(chunks, server.name, 3, 3, 0, "exact")


def test_its_next_process_begins_anew(served: LmcacheService, tmp_path: Path) -> None:
    with RealServer(tmp_path) as server:
        register(served, server)
        server.ask("store", tokens=PROMPT)
        chunks = server.hashes(PROMPT)
        served.await_match(chunks, server.name, 3, 3, 0, "exact")
        server.kill()
        served.await_match(chunks, server.name, 3, 3, 0, "unconfirmed")
        with RealServer(tmp_path, port=server.port) as again:
            again.ask("store", tokens=PROMPT[:CHUNK])
            served.await_match(chunks, server.name, 1, 1, 0, "exact")


def test_what_its_bus_drops_degrades_it(served: LmcacheService, tmp_path: Path) -> None:
    with RealServer(tmp_path, places=8) as server:
        register(served, server)
        server.ask("store", tokens=PROMPT[:CHUNK])
        chunks = server.hashes(PROMPT)
        served.await_match(chunks, server.name, 1, 1, 0, "exact")
        assert server.ask("overflow", tokens=PROMPT)["lost_markers"] == 1
        served.until(lambda: served.match(chunks, server.name)[3] == "degraded", "what it lacks")
        server.ask("store", tokens=PROMPT)
        served.await_match(chunks, server.name, 3, 3, 0, "degraded")


def test_a_log_that_is_shorter_than_its_past_is_partly_known(
    served: LmcacheService, tmp_path: Path
) -> None:
    with RealServer(tmp_path, log_size=2) as server:
        server.ask("store", tokens=PROMPT)
        register(served, server)
        chunks = server.hashes(PROMPT)
        served.await_match(chunks[1:], server.name, 2, 2, 0, "unconfirmed")


def test_a_call_that_its_server_ends_for_want_of_pings_goes_on(
    served: LmcacheService, tmp_path: Path
) -> None:
    with RealServer(tmp_path, reap_s=0.5) as server:
        register(served, server)
        server.ask("store", tokens=PROMPT[:CHUNK])
        chunks = server.hashes(PROMPT)
        served.await_match(chunks, server.name, 1, 1, 0, "exact")
        served.until(lambda: "No longer streaming" in served.deployment.log(), "its end")
        server.ask("store", tokens=PROMPT)
        served.await_match(chunks, server.name, 3, 3, 0, "exact")


def test_a_server_that_records_nothing_is_named_with_the_remedy(
    served: LmcacheService, tmp_path: Path
) -> None:
    with RealServer(tmp_path, log_size=0) as server:
        register(served, server)
        served.until(
            lambda: "--kv-event-log-size above 0" in served.deployment.log(), "what is said of it"
        )
