"""What a replica decided is written in its order, however often Kafka is away meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from brokers.broker_settings import KafkaSettings
from brokers.errors import KafkaError, MessageSizeTooLargeError
from logs.shared_condition import SharedCondition
from routing.decisions.queue import RoutingQueue
from routing.fold.fold import RoutingFold
from routing.log.writer import RoutingWriter
from schemas.codec import decode_routing
from schemas.conditions import Conditions, Part
from schemas.routing_records import DecisionsRecord, OutcomesRecord
from schemas.topics import encode_run
from tests.routing import NOW, RUN, decision, load, outcome

SETTINGS = KafkaSettings(bootstrap="k:1")


class Batch:
    """A batch of any size."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes]] = []

    def append(self, *, key: bytes, value: bytes, timestamp: None) -> object:
        self.entries.append((key, value))
        return value


class Broker:
    """Makes producers, and has what they wrote; `failures` are given to the next batches, of which
    `taken` says whether they were written all the same.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, bytes]] = []
        self.failures: list[tuple[Exception, bool]] = []
        self.starts = 0

    async def prepare(self) -> None:
        """As of a topic that is there."""

    async def start(self) -> None:
        self.starts += 1

    async def stop(self) -> None:
        """As a producer's."""

    def create_batch(self) -> Batch:
        return Batch()

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> Any:
        assert (topic, partition) == ("reprise.routing", 0)
        sent = asyncio.get_running_loop().create_future()
        failure, taken = self.failures.pop(0) if self.failures else (None, True)
        if taken:
            self.entries += batch.entries
        if failure is None:
            sent.set_result(SimpleNamespace(offset=0))
        else:
            sent.set_exception(failure)
        return sent

    @property
    def fold(self) -> RoutingFold:
        """Of what was written."""
        fold = RoutingFold()
        for offset, (_, value) in enumerate(self.entries):
            fold.apply(offset, decode_routing(value))
        return fold


class Writing:
    """A writer, its queue, its broker, and its clock."""

    def __init__(self) -> None:
        self.now = NOW
        self.broker = Broker()
        self.conditions = Conditions(lambda: 0.0)
        self.queue = RoutingQueue(items_max=4)
        self.writer = RoutingWriter(
            SETTINGS,
            cast(Any, {}),
            self.queue,
            SharedCondition(self.conditions, Part.ROUTING),
            make_producer=lambda: cast(Any, self.broker),
            prepare=self.broker.prepare,
            clock=lambda: self.now,
        )

    async def until(self, holds: Any) -> None:
        """Runs the writer until then."""
        running = asyncio.create_task(self.writer.run())
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait({running})


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    async def abandon(producer: Any, timeout_s: float) -> None:
        pass

    monkeypatch.setattr("logs.producer.abandon_producer", abandon)
    return Writing()


def test_all_kinds_are_written_in_the_order_in_which_they_came_keyed_by_run(
    writing: Writing,
) -> None:
    writing.queue.push_decision(RUN, decision(0))
    writing.queue.push_outcomes([(RUN + 1, outcome(7))])
    writing.queue.push_samples(load(3).samples)
    asyncio.run(writing.writer.write())
    keys = [key for key, _ in writing.broker.entries]
    assert keys == [encode_run(run) for run in (RUN, RUN + 1, 0)]
    assert (writing.writer.source.written_items, writing.writer.source.unwritten) == (3, 0)
    assert len(writing.broker.fold.bookings) == 1


@pytest.mark.parametrize("taken", [False, True])
def test_what_kafka_may_or_may_not_have_taken_is_written_again_and_booked_once(
    writing: Writing, taken: bool
) -> None:
    writing.queue.push_decision(RUN, decision(0))
    writing.queue.push_outcomes([(RUN, outcome(0))])
    writing.queue.push_decision(RUN, decision(1))
    writing.broker.failures = [(KafkaError("away"), taken)]
    asyncio.run(writing.until(lambda: writing.writer.source.written_items == 3))
    assert writing.broker.starts == 2
    assert len(writing.broker.entries) == (6 if taken else 3)
    assert [one.key for one in writing.broker.fold.bookings.state().bookings] == [(RUN, 1)]
    assert writing.writer.source.unwritten == 0
    assert not writing.conditions.has(Part.ROUTING)


def test_while_it_cannot_be_written_a_condition_says_so_and_the_rest_is_dropped_and_counted(
    writing: Writing,
) -> None:
    writing.queue.push_decision(RUN, decision(0))
    writing.broker.failures = [(KafkaError("away"), False)]
    asyncio.run(writing.until(lambda: writing.conditions.has(Part.ROUTING)))
    assert "the next are dropped" in writing.conditions.problem
    assert writing.conditions.ready
    for number in range(1, 7):
        writing.queue.push_decision(RUN, decision(number))
    assert (writing.queue.kept, writing.queue.dropped) == (5, 2)
    asyncio.run(writing.until(lambda: writing.writer.source.written_items == 5))
    assert len(writing.broker.fold.bookings) == 5


def test_after_an_outage_a_record_has_the_time_at_which_it_is_written(writing: Writing) -> None:
    writing.queue.push_decision(RUN, decision(0))
    writing.broker.failures = [(KafkaError("away"), False)]
    asyncio.run(writing.until(lambda: writing.conditions.has(Part.ROUTING)))
    writing.now = NOW + 600.0
    asyncio.run(writing.until(lambda: writing.writer.source.written_items == 1))
    record = decode_routing(writing.broker.entries[0][1])
    assert isinstance(record, DecisionsRecord)
    assert (record.time, record.decisions[0].time) == (NOW + 600.0, NOW)


def test_what_is_too_large_for_the_broker_is_dropped_and_counted_and_the_next_is_written(
    writing: Writing,
) -> None:
    writing.queue.push_decision(RUN, decision(0))
    writing.broker.failures = [(MessageSizeTooLargeError("too large"), False)]
    asyncio.run(writing.until(lambda: writing.writer.source.unwritten == 1))
    writing.queue.push_outcomes([(RUN, outcome(0))])
    asyncio.run(writing.until(lambda: writing.writer.source.written_items == 1))
    (entry,) = writing.broker.entries
    assert isinstance(decode_routing(entry[1]), OutcomesRecord)


def test_what_no_record_can_have_is_dropped_and_counted_and_the_others_are_written(
    writing: Writing, caplog: pytest.LogCaptureFixture
) -> None:
    impossible = msgspec.structs.replace(decision(0), prompt_tokens=2**64)
    writing.queue.push_decision(RUN, impossible)
    writing.queue.push_outcomes([(RUN, outcome(0))])
    asyncio.run(writing.until(lambda: writing.writer.source.written_items == 1))
    assert writing.writer.source.unwritten == 1
    assert "Dropped 1 decisions that no record can have; the others" in caplog.text
    (entry,) = writing.broker.entries
    assert isinstance(decode_routing(entry[1]), OutcomesRecord)
    assert not writing.conditions.has(Part.ROUTING)


def test_at_its_end_it_writes_what_is_left(writing: Writing) -> None:
    writing.queue.push_decision(RUN, decision(0))
    asyncio.run(writing.writer.close())
    assert len(writing.broker.fold.bookings) == 1
