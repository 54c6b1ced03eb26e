"""Commands of a topic: executed once at the most, and what became of them is in the other topic."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from brokers.broker_settings import KafkaSettings
from lmcache_adapter.commands.executor import Executor
from lmcache_adapter.commands.log import COMMANDS as DECLARED
from lmcache_adapter.commands.topic import CommandTopic
from lmcache_adapter.controller.member import WorkerAddress
from schemas.codec import decode_command
from schemas.command_records import (
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandWorker,
    ResultRecord,
    encode_command,
)
from tests.lmcache_commands import CommandSocket
from tests.memory_topics import MemoryTopics, until

COMMANDS, RESULTS = (KafkaSettings(bootstrap="k:1").topic(one).name for one in DECLARED.topics)
MODULE = "lmcache_adapter.commands.topic"


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
        self.linked_at = 0.0
        self.topics = MemoryTopics()
        self.topics.install(monkeypatch, MODULE)
        monkeypatch.setattr("logs.recent.KAFKA_RETRY_FIRST_S", 0.01)

        async def locate(instance_id: str) -> Mapping[int, WorkerAddress]:
            return {0: WorkerAddress(f"tcp://127.0.0.1:{port}", True, self.linked_at)}

        self.executor = Executor(locate, is_sole=False)
        settings = KafkaSettings(bootstrap="k:1")
        self.service = CommandTopic(settings, cast(Any, {}), self.executor)

    def issue(self, name: str, age_s: float = 0.0) -> None:
        command = CommandRecord(
            command_id=name,
            action=CommandAction.CLEAR,
            instance_id="a",
            location="L",
            workers=(CommandWorker(0), CommandWorker(7)),
            issued_at=time.time() - age_s,
        )
        self.topics.put(COMMANDS, b"a", encode_command(command), age_s)

    def results(self) -> list[ResultRecord]:
        found = map(decode_command, self.topics.values(RESULTS))
        return [one for one in found if isinstance(one, ResultRecord)]

    async def begun(self) -> None:
        await until(lambda: self.service.caught_up.is_set())


Scene = Callable[[Bench], Coroutine[Any, Any, None]]


def play(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> tuple[Bench, list[dict[str, Any]]]:
    """The bench afterwards, and what its worker was asked."""

    async def run() -> tuple[Bench, list[dict[str, Any]]]:
        with CommandSocket() as worker:
            bench = Bench(monkeypatch, worker.port)
            running = asyncio.create_task(bench.service.run())
            await scene(bench)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            return bench, worker.requests

    return asyncio.run(run())


def test_a_command_is_executed_and_its_result_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begun()
        bench.issue("Clear1")
        await until(bench.results)

    bench, asked = play(monkeypatch, scene)
    [result] = bench.results()
    assert (result.command_id, result.worker_id, result.outcome) == ("Clear1", 0, CommandOutcome.OK)
    assert len(asked) == 1
    [message] = [one for log in bench.topics.logs.values() for one in log if b"result" in one.value]
    assert message.key == b"a", "all of an instance's results are in one partition"


def test_what_was_issued_before_it_began_is_not_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        bench.topics.make(COMMANDS)
        bench.issue("before", age_s=1)
        await bench.begun()
        bench.issue("after")
        await until(bench.results)

    bench, asked = play(monkeypatch, scene)
    assert [one.command_id for one in bench.results()] == ["after"]
    assert len(asked) == 1


@pytest.mark.parametrize("linked_s", [-1, 1])
def test_what_was_issued_before_it_was_read_reaches_workers_that_were_linked(
    monkeypatch: pytest.MonkeyPatch, linked_s: int
) -> None:
    async def scene(bench: Bench) -> None:
        bench.linked_at = time.time() + linked_s
        bench.topics.make(COMMANDS)
        bench.issue("before", age_s=-0.1)
        await bench.begun()
        bench.issue("after")
        await until(lambda: "after" in {one.command_id for one in bench.results()})

    bench, asked = play(monkeypatch, scene)
    executed = {one.command_id for one in bench.results()}
    assert executed == ({"before", "after"} if linked_s < 0 else {"after"})
    assert len(asked) == len(executed)


def test_an_outage_loses_none_and_executes_none_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begun()
        bench.issue("1")
        await until(bench.results)
        bench.topics.go_away()
        await until(lambda: not bench.service.caught_up.is_set())
        bench.issue("2")
        bench.issue("late", age_s=60)
        bench.topics.is_away = False
        await until(lambda: len(bench.results()) == 3)

    bench, asked = play(monkeypatch, scene)
    outcomes = {one.command_id: one.outcome for one in bench.results()}
    assert outcomes == {
        "1": CommandOutcome.OK,
        "2": CommandOutcome.OK,
        "late": CommandOutcome.REFUSED,
    }
    assert len(asked) == 2
    assert bench.service.faults == 0


def test_a_result_that_kafka_refuses_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begun()
        bench.topics.is_refusing = True
        bench.issue("1")
        await until(lambda: bench.service.dropped["result_not_written"])

    bench, _ = play(monkeypatch, scene)
    assert bench.results() == []


def test_what_is_no_command_is_counted_and_the_next_one_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        await bench.begun()
        result = ResultRecord(command_id="x", worker_id=0, outcome=CommandOutcome.OK, at=0.0)
        for value in (b"junk", None, encode_command(result)):
            bench.topics.put(COMMANDS, b"a", value)
        bench.issue("1")
        await until(bench.results)

    bench, _ = play(monkeypatch, scene)
    assert bench.service.dropped == {"malformed_record": 2, "not_a_command": 1}
