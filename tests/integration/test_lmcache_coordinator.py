"""LMCache's own code of a server of its multi-process mode against our coordinator, and LMCache's
own coordinator beside ours; a server's cache is made up, and torch absent.

Skipped where `lmcache` is not installed, or is older than 0.5.7: `make lmcache`, or
REPRISE_LMCACHE_PYTHON names a Python that has it. Measured with 0.5.7rc2.
"""

import json
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from devtools import lmcache
from devtools.broker import free_ports
from tests.contract.test_lmcache_coordinator_contract import Served
from tests.lmcache_service import CHUNK, LmcacheProcess
from tests.processes import until
from tests.unit.lmcache_adapter.coordinator.test_recorded import comparable

pytestmark = [
    pytest.mark.skipif(
        not lmcache.has_coordinator(),
        reason=f"no {lmcache.PACKAGE} of 0.5.7 or later;"
        f" {lmcache.VARIABLE} may name a Python that has it",
    ),
    pytest.mark.timeout(300),
]

STEPS: Final = 400


class RealServer(LmcacheProcess):
    """`devtools/lmcache/server_process.py` as a process."""

    def __init__(self, url: str, instance_id: str, directory: Path, incarnation: int = 1) -> None:
        options = {
            "instance_id": instance_id,
            "url": url,
            "chunk_size": CHUNK,
            "heartbeat_s": 0.5,
            "incarnation": incarnation,
        }
        super().__init__(lmcache.SERVER_PROGRAM, options, instance_id, directory)

    def registrations(self) -> int:
        found: int = self.ask("state")["registrations"]
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with closing(Served(tmp_path_factory.mktemp("coordinator"), None)) as served:
        yield served


@pytest.fixture
def name() -> str:
    return f"real-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def server(served: Served, name: str, tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(served.url, name, tmp_path) as server:
        served.until(server.registrations, "its registration")
        yield server


def prompt(name: str) -> list[int]:
    """Three chunks, and a token more."""
    return [ord(one) for one in 2 * name.removeprefix("real-")][: 3 * CHUNK + 1]


def test_it_registers_publishes_and_looks_up(served: Served, server: RealServer) -> None:
    tokens = prompt(server.name)
    server.ask("store", tokens=tokens)
    chunks = server.hashes(tokens)
    served.await_match(chunks, server.name, 3, 3, 0, "exact")
    server.ask("store", tokens=tokens[: 2 * CHUNK], tier="l2")
    served.await_match(chunks, server.name, 3, 3, 2, "exact")
    found = server.ask("look_up", tokens=tokens)
    assert found["chunks"] == 3
    assert [len(one["placements"]) for one in found["results"]] == [2, 2, 1]
    assert {place["instance_id"] for one in found["results"] for place in one["placements"]} == {
        server.name
    }
    server.ask("delete", tokens=tokens)
    served.await_match(chunks, server.name, 2, 0, 2, "exact")
    assert server.ask("blend", tokens=tokens) == 0
    _, usage = served.ask("GET", f"/instances/{server.name}/usage")
    assert usage["declared_capacity"]


def test_a_post_that_fails_degrades_it_until_its_next_process(
    served: Served, server: RealServer, tmp_path: Path
) -> None:
    tokens = prompt(server.name)
    server.ask("store", tokens=tokens[:CHUNK])
    chunks = server.hashes(tokens)
    served.await_match(chunks, server.name, 1, 1, 0, "exact")
    server.ask("cut", is_cut=True)
    server.ask("store", tokens=tokens[: 2 * CHUNK])
    until(lambda: server.ask("state")["dropped"], what="its failure", timeout_s=60.0)
    server.ask("cut", is_cut=False)
    server.ask("store", tokens=tokens)
    served.await_match(chunks, server.name, 3, 3, 0, "degraded")
    server.kill()
    with RealServer(served.url, server.name, tmp_path, incarnation=2) as again:
        again.ask("store", tokens=tokens[:CHUNK])
        served.await_match(chunks, server.name, 1, 1, 0, "exact")


def test_it_leaves(served: Served, server: RealServer) -> None:
    tokens = prompt(server.name)
    server.ask("store", tokens=tokens)
    served.await_match(server.hashes(tokens), server.name, 3, 3, 0, "exact")
    server.ask("leave")
    served.until(
        lambda: served.match(server.hashes(tokens), server.name)[0] == -1, "that it holds nothing"
    )
    assert server.ask("look_up", tokens=tokens)["results"][0]["placements"] == []


def test_it_goes_on_with_a_coordinator_that_was_killed(served: Served, server: RealServer) -> None:
    tokens = prompt(server.name)
    server.ask("store", tokens=tokens)
    chunks = server.hashes(tokens)
    served.await_match(chunks, server.name, 3, 3, 0, "exact")
    before = server.registrations()
    served.deployment.restart()
    served.until(lambda: server.registrations() > before, "its next registration")
    served.await_match(chunks, server.name, 3, 3, 0, "exact")
    server.ask("delete", tokens=tokens[:CHUNK])
    served.until(
        lambda: len(server.ask("look_up", tokens=tokens)["results"][0]["placements"]) == 0,
        "what it deletes",
    )
    assert len(server.ask("look_up", tokens=tokens)["results"][2]["placements"]) == 1


# LMCache's own coordinator beside ours


@contextmanager
def own_coordinator() -> Iterator[str]:
    [port] = free_ports(1)
    program = [lmcache.interpreter(), str(lmcache.COORDINATOR_PROGRAM), str(port), str(CHUNK)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: reaches(url), what="LMCache's coordinator", timeout_s=60.0)
        yield url
    finally:
        process.kill()
        process.communicate()


def reaches(url: str) -> bool:
    try:
        return exchange(url, "GET", "/healthz")[0] == 200
    except OSError:
        return False


def exchange(url: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(url + path, content, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answered:
            found = answered.read()
            return answered.status, json.loads(found) if found else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class History:
    """What servers may do, in an order of its own for each seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._names = [f"h{seed}-{one}" for one in "abc"]
        self._seqs: dict[tuple[str, int], int] = {}
        self._incarnations = dict.fromkeys(self._names, 5)
        self._dropped = dict.fromkeys(self._names, 0)

    def next(self) -> tuple[str, str, object]:
        """One request."""
        chance, name = self._random, self._random.choice(self._names)
        roll = chance.random()
        if roll < 0.06:
            body = {"instance_id": name, "ip": "10.0.0.1", "http_port": 9}
            return "POST", "/instances", body
        if roll < 0.09:
            return "DELETE", f"/instances/{name}", None
        if roll < 0.12:
            return "PUT", f"/instances/{name}/heartbeat", None
        if roll < 0.15:
            self._incarnations[name] += chance.choice((-1, 1, 1))
        if roll < 0.8:
            batches = [self._batch(name) for _ in range(chance.randint(1, 3))]
            return "POST", "/events", {"batches": batches}
        if roll < 0.95:
            keys = [self._key() for _ in range(chance.randint(1, 5))]
            return "POST", "/directory/lookup", {"keys": keys}
        paths = ("/directory/keys", "/directory/stats", "/quota", "/quota?tier=l1")
        return "GET", chance.choice((*paths, "/instances/usage", "/instances")), None

    def beats(self) -> list[tuple[str, str, object]]:
        """A heartbeat of each."""
        return [("PUT", f"/instances/{name}/heartbeat", None) for name in self._names]

    def _key(self) -> dict[str, object]:
        return {
            "chunk_hash_hex": f"{self._random.randrange(8):064x}",
            "model_name": self._random.choice(("m", "n")),
            "kv_rank": self._random.choice((0x01000100, 0x02000200, 0x02010201)),
            "object_group_id": self._random.choice((0, 0, 1)),
            "cache_salt": self._random.choice(("", "", "tenant")),
        }

    def _batch(self, name: str) -> dict[str, object]:
        chance, incarnation = self._random, self._incarnations[name]
        self._dropped[name] += chance.random() < 0.05
        seq = self._seqs.get((name, incarnation), 0) + chance.choice((1,) * 12 + (0, 2))
        self._seqs[name, incarnation] = seq = max(seq, 1)
        kind = chance.choice(("store", "store", "store", "delete", "access", "config"))
        tier, backend, shared = chance.choice(
            # Of memory that is shared its usage is another than its directory's, once one leaves.
            (("l1", "dram", False), ("l2", "fs", False), ("l2", "s3", True))
        )
        entries = [
            {"key": self._key(), "size_bytes": chance.randrange(1, 9)}
            for _ in range(chance.randint(1, 4))
        ]
        return {
            "instance_id": name,
            "incarnation": incarnation,
            "seq": seq,
            "event_type": kind,
            "tier": tier,
            "backend": "" if kind == "access" else backend,
            "shared": shared,
            "entries": [] if kind == "config" else entries,
            "capacity_bytes": 100 if kind == "config" else 0,
            "capacity_revision": seq if kind == "config" else 0,
            "dropped_events": self._dropped[name],
        }


@pytest.mark.parametrize("seed", range(4))
def test_it_answers_as_lmcaches_own_after_any_history(tmp_path: Path, seed: int) -> None:
    history = History(seed)
    with own_coordinator() as own, closing(Served(tmp_path, None)) as served:
        served.until(lambda: reaches(served.url), "ours")
        for step in range(STEPS):
            asked = history.next()
            expected, answered = exchange(own, *asked), exchange(served.url, *asked)
            said = f"seed {seed}, step {step}: {asked}"
            assert answered[0] == expected[0], f"{said}: {answered} for {expected}"
            assert comparable(answered[1]) == comparable(expected[1]), said
