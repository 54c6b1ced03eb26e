"""A worker's tables where no broker is asked."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.options import client_options
from logs.interface import LogEntry, TracedEntry
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import TableLostError
from schemas.folded_work import FoldedWork
from schemas.identities import Offset
from schemas.positions import LogBounds
from schemas.tracing import NO_TRACER, Tracer
from streams.worker import gaps, tables
from streams.worker.tables import OwnedPartition, PartitionTables
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans


def make(path: Path, tracer: Tracer = NO_TRACER, *, clock: Clock = REAL_CLOCK) -> PartitionTables:
    return PartitionTables(
        path,
        client_options(KafkaSettings(bootstrap="127.0.0.1:1")),
        events_topic="events",
        table_topic="table",
        make_fold=lambda: pytest.fail("no table is to be opened"),
        tracer=tracer,
        clock=clock,
    )


def test_after_the_close_nothing_is_opened_any_more(tmp_path: Path) -> None:
    """A consumer that is being stopped may still call its listener: the disk would stay locked."""

    async def scenario() -> None:
        owner = make(tmp_path)
        await owner.close()
        assert await owner.assign([0]) is False
        assert not owner.owned

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("start", "first", "refused"),
    [
        (0, 15, ""),  # marks of transactions, or what a compaction took
        (12, 15, ""),
        (13, 15, "the log has dropped records 3:12 to 12 before they were folded"),
        (15, 15, "the log has dropped records 3:12 to 14 before they were folded"),
        (0, 13, "expected record 3:12, got 3:15"),
    ],
)
def test_records_that_were_there_are_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int, first: int, refused: str
) -> None:
    async def bounds(*_: object) -> dict[int, LogBounds]:
        return {3: LogBounds(Offset(start), Offset(99))}

    async def next_offset(*_: object) -> int:
        return first

    monkeypatch.setattr(gaps, "log_bounds", bounds)
    monkeypatch.setattr(gaps, "next_record_offset", next_offset)
    owner = make(tmp_path)
    if not refused:
        asyncio.run(owner._pass_over(3, 12, 15))
        return
    with pytest.raises(TableLostError, match=refused):
        asyncio.run(owner._pass_over(3, 12, 15))
    assert owner.counters["jumps"] == 1


def test_after_each_flush_comes_some_of_what_was_left_for_later(tmp_path: Path) -> None:
    steps: list[str] = []

    class Driver:
        async def fold_in_thread(self, _: object) -> None:
            steps.append("fold")

        async def flush(self) -> None:
            steps.append("flush")

        async def maintain(self) -> None:
            steps.append("maintain")

    async def scenario() -> None:
        owner = make(tmp_path)
        table = cast(Any, SimpleNamespace(next_offset=0))
        owner.owned[0] = OwnedPartition(table, cast(Any, Driver()), cast(Any, None), asyncio.Lock())
        owner._wanted = frozenset([0])
        await owner.fold({0: []})

    asyncio.run(scenario())
    assert steps == ["fold", "flush", "maintain"]


def test_what_a_batch_took_is_told_without_the_wait_for_brokers(tmp_path: Path) -> None:
    now_s = [100.0]
    topic = SimpleNamespace(waited_s=7.0, stop=lambda: asyncio.sleep(0))

    class Driver:
        async def fold_in_thread(self, _: object) -> None:
            now_s[0] += 3.0

        async def flush(self) -> None:
            now_s[0] += 5.0
            topic.waited_s += 4.0

        async def maintain(self) -> None:
            now_s[0] += 100.0

    async def scenario() -> None:
        owner = make(tmp_path, clock=REAL_CLOCK._replace(monotonic=lambda: now_s[0]))
        table = cast(Any, SimpleNamespace(next_offset=7, close=lambda: None))
        owner.owned[3] = OwnedPartition(
            table, cast(Any, Driver()), cast(Any, topic), asyncio.Lock()
        )
        owner._wanted = frozenset([3])
        assert owner.last_work(3) is None
        await owner.fold({3: [LogEntry(Offset(7), b"123"), LogEntry(Offset(8), b"45")]})
        assert owner.last_work(3) == FoldedWork(records=2, size_bytes=5, took_s=4.0)
        assert owner.last_work(0) is None
        await owner.close()
        assert owner.last_work(3) is None, "of another owner by now"

    asyncio.run(scenario())


def test_a_batch_of_a_partition_has_one_span(tmp_path: Path) -> None:
    spans = KeptSpans()

    class Driver:
        async def fold_in_thread(self, _: object) -> None:
            """Folds nothing."""

        flush = maintain = lambda self: asyncio.sleep(0)

    async def scenario() -> None:
        owner = make(tmp_path, spans.tracer)
        table = cast(Any, SimpleNamespace(next_offset=7))
        owner.owned[3] = OwnedPartition(table, cast(Any, Driver()), cast(Any, None), asyncio.Lock())
        owner._wanted = frozenset([3])
        traced = TracedEntry(Offset(8), b"")
        traced.traceparent = TRACEPARENT
        await owner.fold({3: [LogEntry(Offset(7), b""), traced]})
        await owner.fold({3: []})

    asyncio.run(scenario())
    (kept,) = spans.take()
    assert kept.name == "worker.fold"
    assert (kept.parent, kept.links) == (ROUTER_SPAN, [(TRACE, ROUTER_SPAN)])
    assert kept.attributes == {
        "messaging.batch.message_count": 2,
        "messaging.destination.name": "events",
        "messaging.destination.partition.id": "3",
        "reprise.log": "events",
        "reprise.position": "3:8",
    }


@pytest.mark.parametrize(
    ("end", "later", "is_lost"),
    [(7, 7, False), (9, 7, False), (6, 7, True), (0, 7, True), (6, 9, False)],
    ids=["there", "others write", "shorter", "made again", "written meanwhile"],
)
def test_a_table_topic_that_was_lost_is_seen_though_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int, later: int, is_lost: bool
) -> None:
    topic = SimpleNamespace(end=7)

    async def bounds(_: object, name: str, partitions: object) -> dict[int, LogBounds]:
        assert (name, list(cast("Any", partitions))) == ("table", [3])
        topic.end = later
        return {3: LogBounds(Offset(0), Offset(end))}

    monkeypatch.setattr(tables, "log_bounds", bounds)

    async def scenario() -> None:
        owner = make(tmp_path)
        await owner.check()
        owner.owned[3] = OwnedPartition(
            cast("Any", None), cast("Any", None), cast("Any", topic), asyncio.Lock()
        )
        with (
            pytest.raises(TableLostError, match="3 of table to reach 7, but it ends at")
            if is_lost
            else nullcontext()
        ):
            await owner.check()

    asyncio.run(scenario())
