"""The fold of the routing log as a worker has it; Kafka is left out."""

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from brokers.broker_settings import KafkaSettings
from brokers.errors import KafkaError
from logs.interface import LogEntry
from routing.bounds import ROUTING_CHECKPOINT_S
from routing.fold.fold import RoutingFold
from routing.log.recovery import RecoveredFold, place_fold
from routing.log.topics import RoutingTopics
from routing.worker import table as routing_table
from routing.worker.table import RoutingTable
from routing.worker.worker import RoutingWorker
from schemas.conditions import Conditions, Part
from schemas.errors import NewerVersionError, TableLostError
from schemas.identities import Offset
from schemas.positions import LogBounds
from schemas.routing_records import RoutingRecord, encode_routing
from schemas.tracing import NO_TRACER, Tracer
from streams.worker.runner import AppRunner
from streams.worker.worker_settings import StreamsSettings
from tests.routing import RUN, decision, decisions, outcomes
from tests.spans import ROUTER_SPAN, TRACE, TRACEPARENT, KeptSpans

TOPICS = RoutingTopics.of(KafkaSettings(bootstrap="k:1"))
RECORDS = (decisions(0, 1), outcomes(0), decisions(2))


class State:
    """Checkpoints that were written, the last one counts; `owner` may write the next."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, bytes]] = []
        self.end = 0
        self.owner: Any = None
        self.failures: list[Exception] = []

    def of(self, owner: object) -> Any:
        state = self

        class Owned:
            async def take(self) -> RecoveredFold:
                state.owner = owner
                fold = RoutingFold.load(state.kept[-1][1]) if state.kept else RoutingFold()
                return place_fold(fold, LogBounds(Offset(0), Offset(state.end)))

            async def write(self, offset: int, encoded: bytes) -> None:
                if state.failures:
                    raise state.failures.pop(0)
                if state.owner is not owner:
                    raise KafkaError("fenced")
                state.kept.append((offset, encoded))

            async def stop(self) -> None:
                """As a producer's."""

        return Owned()


class Owner:
    """A table, and its clock."""

    def __init__(self, state: State, tracer: Tracer = NO_TRACER) -> None:
        self.now = 0.0
        self.table = RoutingTable(
            cast(Any, {}), TOPICS, state=state.of(self), clock=lambda: self.now, tracer=tracer
        )

    async def fold(self, *records: RoutingRecord | bytes, start: int = 0) -> None:
        entries = [
            LogEntry(Offset(offset), one if isinstance(one, bytes) else encode_routing(one))
            for offset, one in enumerate(records, start)
        ]
        await self.table.fold({0: entries})


@pytest.fixture
def state() -> State:
    return State()


@pytest.fixture
def owner(state: State) -> Owner:
    return Owner(state)


def fresh(*records: RoutingRecord) -> RoutingFold:
    fold = RoutingFold()
    for offset, record in enumerate(records):
        fold.apply(offset, record)
    return fold


def test_a_checkpoint_is_written_now_and_then_and_where_to_read_on_is_what_is_folded(
    state: State, owner: Owner
) -> None:
    async def scenario() -> None:
        assert await owner.table.assign([0])
        await owner.fold(*RECORDS)
        assert (state.kept, owner.table.covered(0), owner.table.next_offset(0)) == ([], 0, 3)
        owner.now += ROUTING_CHECKPOINT_S
        await owner.fold(decisions(3), start=3)
        assert (owner.table.covered(0), owner.table.kept, owner.table.folded) == (4, 3, 3)
        owner.now += ROUTING_CHECKPOINT_S
        await owner.fold()

    asyncio.run(scenario())
    assert state.kept == [(3, fresh(*RECORDS, decisions(3)).dump())]


def test_before_it_gives_the_partition_away_it_keeps_what_is_new(
    state: State, owner: Owner
) -> None:
    async def scenario() -> None:
        await owner.table.assign([0])
        await owner.fold(*RECORDS)
        await owner.table.release()
        await owner.table.release()
        await owner.fold(decisions(9), start=3)  # which another one has by now
        await owner.table.assign([])
        assert owner.table.next_offset(0) is None
        assert owner.table.covered(0) is None

    asyncio.run(scenario())
    assert state.kept == [(2, fresh(*RECORDS).dump())]
    assert owner.table.counters["not_owned"] == 1


def test_the_next_owner_goes_on_and_the_last_one_can_write_no_more(state: State) -> None:
    async def scenario() -> None:
        first, second = Owner(state), Owner(state)
        await first.table.assign([0])
        await first.fold(*RECORDS[:2])
        await first.table.release()
        state.end = 3
        assert await second.table.assign([0])
        assert second.table.next_offset(0) == 2
        await second.fold(RECORDS[2], start=2)
        await second.table.release()
        first.table._wanted = frozenset({0})  # which was paused, and believes that it has it
        first.now = ROUTING_CHECKPOINT_S
        with pytest.raises(KafkaError, match="fenced"):
            await first.fold(decisions(7), start=2)

    asyncio.run(scenario())
    assert [offset for offset, _ in state.kept] == [1, 2]
    assert RoutingFold.load(state.kept[-1][1]).digest == fresh(*RECORDS).digest


def test_what_cannot_be_used_is_skipped_counted_and_passed(state: State, owner: Owner) -> None:
    async def scenario() -> None:
        await owner.table.assign([0])
        await owner.fold(RECORDS[0], b"\xc1", b"", decisions(2))

    asyncio.run(scenario())
    assert owner.table.counters == {"records": 2, "skipped": 2}
    assert (owner.table.next_offset(0), owner.table.folded) == (4, 3)


def test_records_that_come_again_are_folded_once(state: State, owner: Owner) -> None:
    async def scenario() -> None:
        await owner.table.assign([0])
        await owner.fold(*RECORDS)
        await owner.fold(*RECORDS)

    asyncio.run(scenario())
    assert owner.table.counters["records"] == 3


def test_records_that_were_not_brought_end_the_app(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gap(options: Any, topic: str, partition: int, expected: int, got: int) -> None:
        raise TableLostError(f"expected {topic}:{partition}:{expected}, got {got}")

    monkeypatch.setattr(routing_table, "check_gap", gap)

    async def scenario() -> None:
        await owner.table.assign([0])
        await owner.fold(RECORDS[0])
        with pytest.raises(TableLostError, match=r"expected reprise\.routing:0:1, got 5"):
            await owner.fold(RECORDS[1], start=5)
        assert owner.table.next_offset(0) == 1

    asyncio.run(scenario())


def test_a_checkpoint_that_cannot_be_written_ends_the_app_but_not_a_release(
    state: State, owner: Owner
) -> None:
    async def scenario() -> None:
        await owner.table.assign([0])
        owner.now = ROUTING_CHECKPOINT_S
        state.failures = [KafkaError("away"), KafkaError("away")]
        with pytest.raises(KafkaError):
            await owner.fold(*RECORDS)
        await owner.table.release()

    asyncio.run(scenario())
    assert state.kept == []


def test_after_its_end_nothing_is_opened(owner: Owner) -> None:
    async def scenario() -> None:
        await owner.table.close()
        assert not await owner.table.assign([0])

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("start", "end", "expected", "kept"),
    [(0, 9, 3, 2), (0, 3, 3, 2), (5, 9, 5, 2), (0, 1, 0, -1), (2, 2, 2, 1)],
    ids=["behind it", "at its end", "it lost some", "another log", "another log that lost some"],
)
def test_a_fold_goes_on_where_its_log_has_what_follows(
    start: int, end: int, expected: int, kept: int
) -> None:
    fold = fresh(*RECORDS)
    found = place_fold(fold, LogBounds(Offset(start), Offset(end)))
    assert (found.start, found.fold.offset, found.end) == (expected, kept, end)
    assert len(found.fold.bookings) == 2
    assert found.fold.bookings.knows_run(RUN)


def test_a_batch_has_one_span_linked_to_what_was_decided_in_it(state: State) -> None:
    spans = KeptSpans()
    owner = Owner(state, spans.tracer)
    contexts = [TRACEPARENT, "no context", TRACEPARENT, f"00-{2:032x}-{3:016x}-01"]
    traced = [
        msgspec.structs.replace(decision(number), traceparent=context)
        for number, context in enumerate(contexts)
    ]
    record = msgspec.structs.replace(decisions(0), decisions=tuple(traced))

    async def scenario() -> None:
        await owner.table.assign([0])
        await owner.fold(record, b"\xc1", outcomes(0))
        await owner.fold()

    asyncio.run(scenario())
    (kept,) = spans.take()
    assert (kept.name, kept.trace, kept.parent) == ("worker.fold", TRACE, ROUTER_SPAN)
    assert kept.links == [(TRACE, ROUTER_SPAN), (f"{2:032x}", f"{3:016x}")]
    assert kept.attributes == {
        "messaging.batch.message_count": 3,
        "messaging.destination.name": TOPICS.log.name,
        "messaging.destination.partition.id": "0",
        "reprise.log": "routing",
        "reprise.position": "0:2",
    }
    assert owner.table.counters == {"records": 2, "skipped": 1}


def test_a_checkpoint_of_a_newer_version_is_told_of_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = StreamsSettings(kafka=KafkaSettings(bootstrap="k:1"), data=tmp_path, seed=1)
    worker = RoutingWorker(settings, Conditions(lambda: 0.0))
    found = NewerVersionError("a checkpoint of routing", version=2, supported=1, where="topic t")
    runs: list[bool] = []

    async def run(_: AppRunner) -> None:
        runs.append(worker.conditions.has(Part.ROUTING))
        if len(runs) < 2:
            raise found
        worker.stop()

    monkeypatch.setattr(AppRunner, "run", run)
    monkeypatch.setattr("routing.worker.worker.ROUTING_REFUSED_S", 0.0)
    asyncio.run(worker.run())
    assert runs == [False, True]
    (condition,) = worker.conditions.all()
    assert (condition.reason, condition.message) == ("refused", str(found))
