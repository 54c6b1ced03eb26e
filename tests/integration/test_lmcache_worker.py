"""LMCache's own worker code against both forms of the service; its engine is a set of keys.

Skipped where `lmcache` is not installed: `make lmcache`, or REPRISE_LMCACHE_PYTHON names a Python
that has it. Measured with 0.5.6.
"""

import json
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from devtools import lmcache
from devtools.broker import free_ports
from tests.contract.test_lmcache_contract import Served, served
from tests.lmcache_service import CHUNK

__all__ = ["served"]

pytestmark = [
    pytest.mark.skipif(
        not lmcache.interpreter(),
        reason=f"no {lmcache.PACKAGE}; {lmcache.VARIABLE} may name a Python that has it",
    ),
    pytest.mark.timeout(300),
]

BATCH = 400


class RealWorker:
    """`devtools/lmcache/worker_process.py` as a process."""

    def __init__(self, ports: Sequence[int], instance_id: str, directory: Path) -> None:
        """Starts it; returns when it runs, registered or not."""
        self._ports = free_ports(3)
        options = {
            "instance_id": instance_id,
            "worker_id": 0,
            "pull": f"127.0.0.1:{ports[0]}",
            "reply": f"127.0.0.1:{ports[1]}",
            "ports": self._ports,
            "chunk_size": CHUNK,
            "batch_size": BATCH,
        }
        self.peer_url = f"127.0.0.1:{self._ports[1]}"
        self.log = directory / f"{instance_id}.log"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [lmcache.interpreter(), str(lmcache.PROGRAM), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PYTHONHASHSEED": "0"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, do: str, **fields: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do} | fields) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"it has ended:\n{self.log.read_text()[-3000:]}"
        return json.loads(line)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("state")
        return found


@pytest.fixture
def name() -> str:
    return f"real-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def worker(served: Served, name: str, tmp_path: Path) -> Iterator[RealWorker]:
    with RealWorker(served.ports, name, tmp_path) as worker:
        served.until(lambda: worker.state()["heartbeat_url"], "its registration")
        yield worker


def test_it_registers_and_what_it_stores_and_evicts_is_answered(
    served: Served, worker: RealWorker, name: str
) -> None:
    assert worker.state()["heartbeat_url"] == f"127.0.0.1:{served.ports[2]}"
    keys = list(range(1, 1001))
    worker.ask("admit", keys=keys)
    served.await_match(keys, name, 1000, 1000, 0, "exact")
    worker.ask("evict", keys=keys[500:])
    served.await_match(keys, name, 500, 500, 0, "exact")
    [listed] = served.workers(name)
    assert listed["key_count"] == 500
    assert listed["peer_init_url"] == worker.peer_url
    assert worker.state()["freezes"] == 0


def test_its_losses_are_repaired_by_its_full_sync(
    served: Served, worker: RealWorker, name: str
) -> None:
    worker.ask("admit", keys=list(range(1, 501)))
    served.await_match(range(1, 501), name, 500, 500, 0, "exact")
    worker.ask("lose", keys=list(range(501, 1001)))
    worker.ask("admit", keys=[1001])  # the jump shows, and its next heartbeat is answered by it
    keys = list(range(1, 1002))
    served.await_match(keys, name, 1001, 1001, 0, "exact")
    served.until(lambda: not worker.state()["frozen"], "the end of the freeze")
    state = worker.state()
    assert state["freezes"] == 1
    print(f"1,001 keys in batches of {BATCH}: its cache was frozen for {state['frozen_s']:.2f} s")
    worker.ask("admit", keys=[1002])
    served.await_match([*keys, 1002], name, 1002, 1002, 0, "exact")


def test_it_finds_peers(served: Served, worker: RealWorker, name: str, tmp_path: Path) -> None:
    keys = [int(name[-8:], 16) + number for number in range(4)]
    worker.ask("admit", keys=keys[:3])
    served.await_match(keys, name, 3, 3, 0, "exact")
    with RealWorker(served.ports, f"{name}-other", tmp_path) as other:
        served.until(lambda: other.state()["heartbeat_url"], "its registration")
        found = other.ask("look_up", hashes=keys)
        assert found == [[name, "LocalCPUBackend", 3, worker.peer_url]]
        assert other.ask("look_up", hashes=[1]) == [["", "", 0, ""]]


def test_its_hashes_of_tokens_are_ours(served: Served, worker: RealWorker, name: str) -> None:
    tokens = [ord(one) for one in name][: 3 * CHUNK]
    hashes = worker.ask("hash", tokens=tokens)
    assert len(hashes) == 3
    worker.ask("admit", keys=hashes[:2])
    served.await_match([one % 2**64 for one in hashes], name, 2, 2, 0, "exact")
    status, answer = served.deployment.api.post("/lookup", {"tokens": tokens})
    assert status == 200, answer
    assert answer["layout_info"][name] == ["LocalCPUBackend", 2 * CHUNK]


def test_it_leaves(served: Served, worker: RealWorker, name: str) -> None:
    worker.ask("admit", keys=[1])
    served.await_match([1], name, 1, 1, 0, "exact")
    worker.ask("leave")
    served.until(lambda: not served.workers(name), "its end")


@pytest.mark.both_forms
def test_after_kill_9_of_all_it_syncs_by_itself(
    served: Served, worker: RealWorker, name: str
) -> None:
    keys = list(range(1, 1001))
    worker.ask("admit", keys=keys)
    served.await_match(keys, name, 1000, 1000, 0, "exact")
    served.deployment.restart()
    worker.ask("evict", keys=keys[900:])
    served.await_match(keys, name, 900, 900, 0, "exact")
    served.until(lambda: not worker.state()["frozen"], "the end of the freeze")
    assert worker.state()["freezes"] >= 1
