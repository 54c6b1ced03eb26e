"""Servers of LMCache's multi-process mode by their script, against both forms of the service as
processes, one of which is their coordinator.

`tests/integration/test_lmcache_coordinator.py` does the same with LMCache's own code.
"""

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import free_ports
from tests.kafka_fixtures import own_topics, settings_for
from tests.lmcache_service import CHUNK, LmcacheService

pytestmark = pytest.mark.timeout(180)

MODELS = {"models": {"m": {"block_size": CHUNK, "says_all": True}}}


class Served(LmcacheService):
    """A form of the service that is LMCache's coordinator, too."""

    def __init__(self, directory: Path, kafka: KafkaSettings | None) -> None:
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        models = directory / "models.json"
        models.write_text(json.dumps(MODELS))
        options = (
            *("--set", f"lmcache.coordinator=127.0.0.1:{port}"),
            *("--set", f"lmcache.models={models}"),
        )
        super().__init__(directory, kafka, *options)

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        asked = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(asked, timeout=30) as answered:
                content = answered.read()
                return answered.status, json.loads(content) if content else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())


class Server:
    """One server; what it holds is told as it changes."""

    def __init__(self, served: Served, name: str) -> None:
        self._served = served
        self.name = name
        self.incarnation, self.seq = 100, 0

    def register(self) -> None:
        body = {"instance_id": self.name, "ip": "127.0.0.1", "http_port": 1, "chunk_size": CHUNK}
        status, answer = self._served.ask("POST", "/instances", body)
        assert status == 200, answer

    def beat(self) -> int:
        """0 while nobody listens: the coordinator may come up behind what answers clients."""
        try:
            return self._served.ask("PUT", f"/instances/{self.name}/heartbeat")[0]
        except urllib.error.URLError:
            return 0

    def tell(self, kind: str, *chunks: int, tier: str = "l1", backend: str = "dram") -> None:
        self.seq += 1
        key = {"model_name": "m", "kv_rank": 0x01000100}
        batch = {
            "instance_id": self.name,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "event_type": kind,
            "tier": tier,
            "backend": backend,
            "entries": [
                {"key": key | {"chunk_hash_hex": f"{one:064x}"}, "size_bytes": 1} for one in chunks
            ],
        }
        status, answer = self._served.ask("POST", "/events", {"batches": [batch]})
        assert (status, answer) == (200, {"applied": 1, "duplicates": 0, "stale": 0})


@pytest.fixture(scope="module")
def served(
    form: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp(f"coordinator-{form}")
    if form == "embedded":
        with closing(Served(directory, None)) as served:
            yield served
        return
    kafka = request.getfixturevalue("kafka")
    with (
        own_topics(kafka) as prefix,
        closing(Served(directory, settings_for(kafka, prefix))) as served,
    ):
        yield served


@pytest.fixture
def server(served: Served) -> Server:
    server = Server(served, f"mp-{uuid.uuid4().hex[:8]}")
    server.register()
    return server


@pytest.mark.both_forms
def test_what_a_server_stores_and_deletes_is_answered(served: Served, server: Server) -> None:
    server.tell("store", 1, 2, 3)
    server.tell("store", 1, 2, tier="l2", backend="fs")
    served.await_match([1, 2, 3], server.name, 3, 3, 2, "exact")
    server.tell("delete", 2, 3)
    served.await_match([1, 2, 3], server.name, 2, 1, 2, "exact")
    _, listed = served.ask("GET", f"/directory/keys?instance_id={server.name}")
    assert listed["total"] == 2


def test_a_batch_that_is_lost_degrades_what_it_holds(served: Served, server: Server) -> None:
    server.tell("store", 1)
    served.await_match([1], server.name, 1, 1, 0, "exact")
    server.seq += 1
    server.tell("store", 2)
    served.await_match([1, 2], server.name, 2, 2, 0, "degraded")
    server.incarnation, server.seq = 200, 0
    server.tell("store", 1)
    served.await_match([1, 2], server.name, 1, 1, 0, "exact")


def test_one_that_leaves_holds_nothing_in_its_memory(served: Served, server: Server) -> None:
    server.tell("store", 1)
    served.await_match([1], server.name, 1, 1, 0, "exact")
    assert served.ask("DELETE", f"/instances/{server.name}") == (204, None)
    served.until(lambda: served.match([1], server.name)[0] == -1, "its end")


@pytest.mark.both_forms
@pytest.mark.parametrize("in_order", [False, True])
def test_what_it_holds_outlasts_a_restart(served: Served, server: Server, in_order: bool) -> None:
    server.tell("store", 1, 2)
    server.tell("store", 3, tier="l2", backend="fs")
    served.await_match([1, 2, 3], server.name, 3, 2, 0, "exact")
    served.deployment.restart(in_order=in_order)
    served.until(lambda: server.beat() == 404, "the coordinator")
    server.register()
    server.tell("delete", 2)
    served.await_match([1], server.name, 1, 1, 0, "exact")
    server.tell("store", 2)
    served.await_match([1, 2, 3], server.name, 3, 2, 0, "exact")
    assert served.metric("reprise_lmcache_coordinator_gaps_total") == 0
