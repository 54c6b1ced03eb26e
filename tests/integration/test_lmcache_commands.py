"""Commands while LMCache's workers are killed, frozen and started again, in both forms.

    every command ends once, within 6 s
    what the service says was done is what the workers' journals have: once, with as many tokens
    what it says was refused no worker has done
    once the workers are left alone each of them executes commands again

With LMCache's own worker code (`make lmcache`) it is a thousand commands, and skipped without; with
a worker by its script it is fewer, and always runs.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brokers.broker_settings import KafkaSettings
from devtools import lmcache
from devtools.broker import free_ports
from tests.contract.test_lmcache_commands_contract import END_S
from tests.contract.test_lmcache_contract import Served, name, served
from tests.lmcache import CPU
from tests.lmcache_service import CHUNK
from tests.processes import START_S
from tests.roles import Role

__all__ = ["name", "served"]

pytestmark = pytest.mark.timeout(420)

ROOT = Path(__file__).parents[2]
CLIENTS = 24
SCRIPTED_COMMANDS = 150
REAL_COMMANDS = 1000
COMMANDS_PER_TROUBLE = 25
WORKERS = 4
SEED = 20261125


class Worker:
    """A worker process of either kind, at the same ports whenever it is started."""

    def __init__(
        self, ports: Sequence[int], instance_id: str, rank: int, directory: Path, *, is_real: bool
    ) -> None:
        own = free_ports(3)
        self.instance_id, self.rank = instance_id, rank
        self.journal = directory / f"{instance_id}-{rank}.journal"
        self._log = directory / f"{instance_id}-{rank}.log"
        options: dict[str, object] = {
            "instance_id": instance_id,
            "worker_id": rank,
            "journal": str(self.journal),
        }
        if is_real:
            options |= {
                "pull": f"127.0.0.1:{ports[0]}",
                "reply": f"127.0.0.1:{ports[1]}",
                "ports": own,
                "chunk_size": CHUNK,
                "batch_size": 400,
            }
            self._command = [lmcache.interpreter(), str(lmcache.PROGRAM), json.dumps(options)]
        else:
            options |= {"ports": list(ports), "command_port": own[0]}
            module = "tests.lmcache_worker_process"
            self._command = [sys.executable, "-m", module, json.dumps(options)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=ROOT,
                env={"PYTHONHASHSEED": "0", "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=START_S)
            self._process = None

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def executed(self) -> list[tuple[str, int]]:
        if not self.journal.exists():
            return []
        return [tuple(json.loads(line)) for line in self.journal.read_text().splitlines()]


class Answer(NamedTuple):
    """What one command was answered, and how long that took."""

    command_id: str
    location: str
    status: int
    document: dict[str, Any]
    seconds: float


class Scene:
    """A service with workers, who commands them, and who troubles them."""

    def __init__(self, served: Served, workers: list[Worker]) -> None:
        self.served = served
        self.workers = workers
        self.answers: list[Answer] = []
        self.troubles: Counter[str] = Counter()
        self._random = random.Random(SEED)
        self._is_over = threading.Event()
        self._has_begun = threading.Condition()

    def until_all_answer(self) -> None:
        """No socket to any of them is left in a state in which nothing goes through."""
        instances = {one.instance_id for one in self.workers}
        ranks = Counter(one.instance_id for one in self.workers)

        def is_well(instance_id: str) -> bool:
            body = {"instance_id": instance_id}
            status, document, _ = self.served.deployment.api.exchange("/health", body)
            codes = {str(rank): 0 for rank in range(ranks[instance_id])}
            return status == 200 and document["error_codes"] == codes

        for instance_id in sorted(instances):
            self.served.until(partial(is_well, instance_id), f"health of {instance_id}")

    def command(self, number: int) -> Answer:
        chance = random.Random(SEED + number)
        target = chance.choice(self.workers).instance_id
        location = CPU
        tokens: dict[str, object] = {"tokens": list(range(1 + number % 50))}
        kind = chance.choice(("pin", "pin", "clear", "compress"))
        body: dict[str, object] = {"instance_id": target}
        if kind == "clear":  # a worker is not told the name of such a command
            location = f"Place{number}"
            body |= {"location": location}
        else:
            body |= {"location": location, "method": "cachegen"} | tokens
        began = time.monotonic()
        status, document, headers = self.served.deployment.api.exchange(f"/{kind}", body)
        took = time.monotonic() - began
        command_id = document.get("event_id") or headers.get("location", "").rpartition("/")[2]
        return Answer(command_id, location, status, document, took)

    def command_all(self, count: int) -> None:
        numbers = iter(range(count))
        lock = threading.Lock()

        def ask() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                with self._has_begun:
                    wanted = number // COMMANDS_PER_TROUBLE
                    self._has_begun.wait_for(partial(self._has_had, wanted))
                answer = self.command(number)
                with lock:
                    self.answers.append(answer)

        threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(self.answers) == count, "a client has failed"

    def _has_had(self, troubles: int) -> bool:
        return self.troubles.total() >= troubles

    def _note(self, trouble: str) -> None:
        with self._has_begun:
            self.troubles[trouble] += 1
            self._has_begun.notify_all()

    def trouble(self, also: Sequence[Callable[[], None]] = ()) -> None:
        """Kills and freezes one worker after the other, until the commands are over."""
        waiting = list(also)
        while not self._is_over.is_set():
            victim = self._random.choice(self.workers)
            if self._random.random() < 0.5:
                victim.kill()
                self._note("killed")
                self._is_over.wait(self._random.uniform(0.0, 1.0))
                victim.start()
            else:
                victim.send(signal.SIGSTOP)
                self._note("frozen")
                self._is_over.wait(self._random.choice((0.3, 1.0, 6.5)))
                victim.send(signal.SIGCONT)
            if waiting and self.troubles.total() >= 3:
                self._note("others")
                waiting.pop()()
            self._is_over.wait(self._random.uniform(0.1, 0.5))

    def play(self, count: int, also: Sequence[Callable[[], None]] = ()) -> None:
        troubling = threading.Thread(target=self.trouble, args=(also,))
        troubling.start()
        try:
            self.command_all(count)
        finally:
            self._is_over.set()
            troubling.join()

    # What must hold

    def check(self) -> None:
        executed = {
            (one.instance_id, one.rank): self._counted(one.executed()) for one in self.workers
        }
        outcomes: Counter[str] = Counter()
        slowest = 0.0
        for answer in self.answers:
            assert answer.status in (200, 409, 504), answer
            found = self._state_of(answer.command_id)
            assert found["state"] in ("done", "partial", "failed"), found
            assert (answer.status == 200) == (found["state"] == "done"), found
            took = found["closed_at"] - found["issued_at"]
            assert took < END_S, found
            slowest = max(slowest, took)
            for result in found["workers"]:
                outcomes[result["outcome"]] += 1
                worker_id = result["worker_id"]
                its = executed[found["instance_id"], worker_id]
                mark = f"Worker{worker_id}{answer.command_id}"
                self._check_result(its.get(answer.location, its.get(mark, [])), result)
        api = self.served.deployment.api
        ended = api.metric("reprise_commands_ended_total")
        assert ended == api.metric("reprise_commands_issued_total"), "each of them once"
        print(
            f"{len(self.answers)} commands, {dict(self.troubles)}: {dict(outcomes)}, the slowest"
            f" ended after {slowest:.2f} s, and was answered after"
            f" {max(one.seconds for one in self.answers):.2f} s"
        )
        assert outcomes["ok"] > len(self.answers) / 4, "most workers run, most of the time"
        assert outcomes["ok"] < outcomes.total(), "and not all of them"

    @staticmethod
    def _counted(lines: list[tuple[str, int]]) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for mark, tokens in lines:
            found.setdefault(mark, []).append(tokens)
        return found

    @staticmethod
    def _check_result(done: list[int], result: dict[str, Any]) -> None:
        assert len(done) <= 1, f"executed twice: {result}"
        match result["outcome"]:
            case "ok":
                assert done == [result["num_tokens"]], result
            case "timeout" | "none":  # it may have been executed, and may be yet
                pass
            case _:
                assert done == [], f"executed, but: {result}"

    def _state_of(self, command_id: str) -> dict[str, Any]:
        status, found = self.served.deployment.api.get(f"/commands/{command_id}")
        assert status == 200, (command_id, found)
        document: dict[str, Any] = found
        return document


@pytest.fixture
def scene_of(served: Served, name: str, tmp_path: Path) -> Iterator[Callable[[bool], Scene]]:
    with ExitStack() as ending:

        def make(is_real: bool) -> Scene:
            places = [(f"{name}-0", 0), (f"{name}-0", 1)]
            places += [(f"{name}-{number}", 0) for number in range(1, WORKERS - 1)]
            workers = [
                Worker(served.ports, instance_id, rank, tmp_path, is_real=is_real)
                for instance_id, rank in places
            ]
            for worker in workers:
                ending.callback(worker.kill)
                worker.start()
            scene = Scene(served, workers)
            scene.until_all_answer()
            return scene

        yield make


def play(scene: Scene, count: int, directory: Path) -> None:
    bridge = scene.served.bridge
    also: list[Callable[[], None]] = []
    if bridge is not None:

        def restart() -> None:
            bridge.kill()
            bridge.start()

        also.append(restart)
    scene.play(count, also)
    scene.until_all_answer()
    scene.check()
    if scene.served.kafka is not None:
        check_with_another_replica(scene, scene.served.kafka, directory)


def check_with_another_replica(scene: Scene, kafka: KafkaSettings, directory: Path) -> None:
    """One that has read all of it says the same of each command."""
    other = Role("serve", directory / "other", kafka)
    other.start()
    try:
        scene.served.until(other.is_ready, "another replica")
        for answer in scene.answers:
            path = f"/commands/{answer.command_id}"
            assert scene.served.deployment.api.get(path) == (200, other.get(path))
    finally:
        other.kill()


@pytest.mark.both_forms
def test_each_command_ends_once_and_as_scripted_workers_did(
    scene_of: Callable[[bool], Scene], tmp_path: Path
) -> None:
    play(scene_of(False), SCRIPTED_COMMANDS, tmp_path)


@pytest.mark.skipif(
    not lmcache.interpreter(),
    reason=f"no {lmcache.PACKAGE}; {lmcache.VARIABLE} may name a Python that has it",
)
def test_each_command_ends_once_and_as_lmcaches_own_workers_did(
    scene_of: Callable[[bool], Scene], tmp_path: Path
) -> None:
    play(scene_of(True), REAL_COMMANDS, tmp_path)
