"""Commands on replicas: every one of them comes to the same end, whoever dies."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, cast

import msgspec
import pytest

from brokers.broker_settings import KafkaSettings
from lmcache_adapter.commands import replica as commands_module
from lmcache_adapter.commands.log import COMMANDS as DECLARED
from lmcache_adapter.commands.replica import ReplicaCommands
from query_api.http.errors import RequestError
from schemas.codec import decode_command
from schemas.command_records import (
    ClosedRecord,
    CommandAction,
    CommandOutcome,
    CommandRecord,
    CommandState,
    CommandWorker,
    ResultRecord,
    encode_command,
)
from schemas.errors import StorageError
from tests.memory_topics import MemoryTopics, until
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans

SETTINGS = KafkaSettings(bootstrap="k:1")
COMMANDS, RESULTS = (SETTINGS.topic(one).name for one in DECLARED.topics)
MODULE = "lmcache_adapter.commands.replica"


class Thread:
    """The thread of a replica: its loop is the test's own here."""

    def __init__(self) -> None:
        self.closers: list[Callable[[], Awaitable[None]]] = []

    def run(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(work, asyncio.get_running_loop())

    async def call(self, work: Coroutine[Any, Any, Any], within_s: float, unanswered: str) -> Any:
        async with asyncio.timeout(within_s):
            return await work

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        self.closers.append(close)

    async def close(self) -> None:
        for close in self.closers:
            await close()


class Bench:
    """Replicas over topics in memory, which are there or not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_topics: bool = True) -> None:
        self.topics = MemoryTopics(*((COMMANDS, RESULTS) if has_topics else ()))
        self.topics.install(monkeypatch, MODULE)
        self.threads: list[Thread] = []
        self.spans = KeptSpans()

    def replica(self) -> ReplicaCommands:
        thread = Thread()
        self.threads.append(thread)
        replica = ReplicaCommands(
            SETTINGS, cast(Any, {}), cast(Any, thread), tracer=self.spans.tracer
        )
        replica.start()
        return replica

    async def die(self, number: int) -> None:
        await self.threads.pop(number).close()

    def answer(self, name: str, outcome: CommandOutcome = CommandOutcome.OK, rank: int = 0) -> None:
        result = ResultRecord(command_id=name, worker_id=rank, outcome=outcome, tokens=5, at=2.0)
        self.topics.put(RESULTS, b"a", encode_command(result))

    def closed(self) -> list[ClosedRecord]:
        found = map(decode_command, self.topics.values(RESULTS))
        return [one for one in found if isinstance(one, ClosedRecord)]


def command(name: str = "Clear1") -> CommandRecord:
    return CommandRecord(
        command_id=name,
        action=CommandAction.CLEAR,
        instance_id="a",
        location="L",
        workers=(CommandWorker(0),),
        issued_at=time.time(),
    )


Scene = Callable[[Bench], Coroutine[Any, Any, None]]


def play(monkeypatch: pytest.MonkeyPatch, scene: Scene, *, has_topics: bool = True) -> None:
    async def run() -> None:
        bench = Bench(monkeypatch, has_topics=has_topics)
        try:
            async with asyncio.timeout(30):
                await scene(bench)
        finally:
            for thread in bench.threads:
                await thread.close()

    asyncio.run(run())


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "COMMAND_CLOSE_S", 0.05)
    monkeypatch.setattr(commands_module, "COMMAND_OTHERS_S", 0.05)


async def issue(replica: ReplicaCommands, name: str = "Clear1", **fields: Any) -> None:
    """Once it follows the topics: before that it would say that it does not."""
    while True:
        try:
            await replica.issue(msgspec.structs.replace(command(name), **fields))
            return
        except RequestError as error:
            if error.reason != "recovering":
                raise
            await asyncio.sleep(0)


async def state(replica: ReplicaCommands, name: str = "Clear1") -> CommandState | None:
    found = await replica.find(name)
    return None if found is None else found.state


async def end(replica: ReplicaCommands, name: str = "Clear1") -> CommandState:
    """Its state once it has ended."""
    await until(lambda: replica.book.find(name) and replica.book.is_closed(name))
    found = await state(replica, name)
    assert found is not None
    return found


def test_a_command_is_known_at_once_and_ended_by_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        replica = bench.replica()
        await issue(replica)
        assert await state(replica) is CommandState.PENDING
        bench.answer("Clear1")
        found = await replica.ended("Clear1")
        assert found is not None
        assert (found.state, found.results[0].tokens) == (CommandState.DONE, 5)
        assert replica.book.ignored == {}, "it has read its own command, too"
        assert bench.closed() == []
        folded = replica._folded
        assert (folded.own, folded._closing, folded._echoes) == ({}, {}, set())

    play(monkeypatch, scene)


def test_where_nobody_executes_it_it_is_closed_once_and_all_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hasten(monkeypatch)

    async def scene(bench: Bench) -> None:
        replica, other = bench.replica(), bench.replica()
        await issue(replica)
        found = await replica.ended("Clear1")
        assert found is not None
        assert (found.state, found.reason) == (CommandState.FAILED, commands_module.UNEXECUTED)
        bench.answer("Clear1")
        await until(lambda: replica.book.ignored["late"] and other.book.ignored["late"])
        assert await replica.find("Clear1") == await other.find("Clear1") == found

    play(monkeypatch, scene)


def test_another_replica_ends_what_a_dead_one_has_issued(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        dead = bench.replica()
        await issue(dead)
        await bench.die(0)
        hasten(monkeypatch)
        assert await end(bench.replica()) is CommandState.FAILED
        assert len(bench.closed()) == 1

    play(monkeypatch, scene)


def test_a_new_replica_knows_what_was_issued_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(bench: Bench) -> None:
        bench.topics.put(COMMANDS, b"a", encode_command(command("1")))
        result = ResultRecord(command_id="1", worker_id=0, outcome=CommandOutcome.REFUSED, at=2.0)
        bench.topics.put(RESULTS, b"a", encode_command(result))
        assert await end(bench.replica(), "1") is CommandState.FAILED

    play(monkeypatch, scene)


def test_without_topics_nothing_is_known_and_the_first_command_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        replica = bench.replica()
        await until(lambda: replica._folded.is_absent)
        assert await state(replica) is None
        assert not bench.topics.logs, "a question makes no topic"
        await issue(replica)
        assert {place.topic for place in bench.topics.logs} == {COMMANDS, RESULTS}
        bench.answer("Clear1")
        assert await end(replica) is CommandState.DONE

    play(monkeypatch, scene, has_topics=False)


def test_a_command_that_kafka_does_not_take_is_not_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        replica = bench.replica()
        await issue(replica, "before")
        bench.topics.is_refusing = True
        with pytest.raises(StorageError, match="Cannot write the command"):
            await replica.issue(command("2"))
        assert replica.issued.waiting == 1
        assert await state(replica, "2") is None
        bench.topics.is_refusing = False
        await issue(replica, "3")

    play(monkeypatch, scene)


def test_an_end_that_kafka_does_not_take_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    hasten(monkeypatch)
    monkeypatch.setattr("logs.entry_writer.KAFKA_RETRY_FIRST_S", 0.01)

    async def scene(bench: Bench) -> None:
        replica = bench.replica()
        await issue(replica, "before")
        await end(replica, "before")
        await issue(replica)
        bench.topics.is_refusing = True
        await until(lambda: replica._folded.problem)
        assert await state(replica) is CommandState.PENDING
        bench.topics.is_refusing = False
        assert await end(replica) is CommandState.FAILED

    play(monkeypatch, scene)


def test_what_is_no_record_or_in_the_wrong_topic_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        replica = bench.replica()
        await issue(replica)
        bench.topics.put(RESULTS, b"a", b"junk")
        bench.topics.put(RESULTS, b"a", encode_command(command("strange")))
        bench.topics.put(COMMANDS, b"a", None)
        bench.answer("Clear1")
        assert await end(replica) is CommandState.DONE
        await until(lambda: replica._folded.dropped.total() == 3)
        assert await state(replica, "strange") is None

    play(monkeypatch, scene)


def test_a_command_has_a_span_from_its_request_to_its_last_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        replica, other = bench.replica(), bench.replica()
        workers = (CommandWorker(0), CommandWorker(1))
        traced = {"traceparent": TRACEPARENT, "tracestate": "a=1"}
        await issue(replica, workers=workers, tokens=bytes(16), **traced)
        bench.spans.take()  # of attempts before it followed the topics
        bench.answer("Clear1")
        await until(lambda: (found := replica.book.find("Clear1")) and found.results)
        assert bench.spans.take() == [], "one has not answered yet"
        bench.answer("Clear1", CommandOutcome.REFUSED, rank=1)
        assert await end(replica) is CommandState.PARTIAL
        assert await end(other) is CommandState.PARTIAL
        (kept,) = bench.spans.take()
        assert (kept.name, kept.trace, kept.parent) == ("command", TRACE, ROUTER_SPAN)
        assert kept.attributes == {
            "reprise.command.action": "clear",
            "reprise.command.id": "Clear1",
            "reprise.command.results.ok": 1,
            "reprise.command.results.refused": 1,
            "reprise.command.state": "partial",
            "reprise.command.tokens": 4,
            "reprise.command.workers": 2,
            "reprise.instance": "a",
        }
        (written,) = map(decode_command, bench.topics.values(COMMANDS))
        assert isinstance(written, CommandRecord)
        assert (written.traceparent, written.tracestate) == (kept.traceparent, "a=1")

    play(monkeypatch, scene)


def test_a_command_that_kafka_does_not_take_has_a_span_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(bench: Bench) -> None:
        replica = bench.replica()
        await issue(replica)
        bench.spans.take()
        bench.topics.is_refusing = True
        with pytest.raises(StorageError):
            await replica.issue(msgspec.structs.replace(command("Clear2"), origin="advice"))
        (kept,) = bench.spans.take()
        assert (kept.name, kept.parent) == ("command", "")
        assert kept.attributes == {
            "reprise.command.id": "Clear2",
            "reprise.command.state": "unwritten",
        }

    play(monkeypatch, scene)
