"""What a replica's queue kept is written, and a broker that is away costs nothing else."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.broker_settings import KafkaSettings
from brokers.errors import KafkaError
from schemas.answer_records import encode_answer
from schemas.codec import decode_answers
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError
from schemas.limits import AUDIT_QUEUE_BYTES, RECORD_SEND_BYTES_MAX
from streams.audit.queue import AUDIT_RECORD_BYTES, open_audit_queue
from streams.audit.source import AnswersSource
from streams.audit.topic import AnswersWriter

SETTINGS = KafkaSettings(bootstrap="k:1")
ANSWER = encode_answer(
    [(0, 7), (1, 3)],
    ("default", "m", "", 16, ""),
    None,
    hits_only=False,
    tokens=16,
    hashes=bytes(8),
    instances=(),
)


class Batch:
    """A batch of some bytes."""

    def __init__(self, room: int) -> None:
        self.values: list[bytes] = []
        self._room = room

    def append(self, *, key: bytes, value: bytes, timestamp: None) -> object | None:
        if self.values and sum(map(len, self.values)) + len(value) > self._room:
            return None
        self.values.append(value)
        return value


class Broker:
    """Makes producers, and has what they wrote; `failures` are given to the next batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.partitions: set[int] = set()
        self.failures: list[BaseException] = []
        self.starts = 0
        self.is_refusing = False
        self.is_silent = False
        self.waiting: list[asyncio.Future[Any]] = []

    def make_producer(self) -> Any:
        return self

    async def prepare(self) -> None:
        if self.is_refusing:
            raise ConfigurationError("the topic is of another shape")

    async def start(self) -> None:
        self.starts += 1

    async def stop(self) -> None:
        """As a producer's."""

    def create_batch(self) -> Batch:
        return Batch(2 * AUDIT_RECORD_BYTES)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> Any:
        assert topic == "reprise.answers"
        sent = asyncio.get_running_loop().create_future()
        self.partitions.add(partition)
        if self.failures:
            sent.set_exception(self.failures.pop(0))
        elif self.is_silent:
            self.waiting.append(sent)
        else:
            self.batches.append(batch)
            sent.set_result(SimpleNamespace(offset=0))
        return sent

    @property
    def kept(self) -> list[int]:
        records = [value for batch in self.batches for value in batch.values]
        decoded = [decode_answers(value) for value in records]
        assert all(record.replica == "host:1" for record, _ in decoded)
        return [given.sequence for _, answers in decoded for given in answers]


class Writing:
    """A writer, its queue, and its broker."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.conditions = Conditions(lambda: 0.0)
        self.queue = open_audit_queue(1.0)
        self.answers = AnswersSource(self.queue, seed=1337, replica="host:1")
        self.writer = AnswersWriter(
            SETTINGS,
            cast(Any, {}),
            self.answers,
            self.conditions,
            make_producer=self.broker.make_producer,
            prepare=self.broker.prepare,
        )

    def give(self, count: int = 1, answer: bytes = ANSWER) -> None:
        for _ in range(count):
            self.queue.push(answer, 0.0, "exact")

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.answers.written, self.answers.dropped, self.answers.unsettled


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    async def abandon(producer: Any, timeout_s: float) -> None:
        pass

    monkeypatch.setattr("logs.producer.abandon_producer", abandon)
    return Writing()


def test_one_that_never_ran_still_writes_what_is_left(writing: Writing) -> None:
    writing.give(2)
    asyncio.run(writing.writer.close())
    assert (writing.broker.kept, writing.counts) == ([0, 1], (2, 0, 0))


async def until(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_what_the_queue_has_is_written_to_one_partition_in_order(writing: Writing) -> None:
    writing.give(3)
    asyncio.run(writing.writer.write())
    writing.give(2)
    asyncio.run(writing.writer.write())
    assert writing.broker.kept == [0, 1, 2, 3, 4]
    assert (writing.counts, len(writing.broker.partitions)) == ((5, 0, 0), 1)


def test_many_records_are_several_batches(writing: Writing) -> None:
    large = ANSWER.replace(b"\xc4\x08" + bytes(8), b"\xc6" + (1 << 17).to_bytes(4) + bytes(1 << 17))
    writing.give(20, large)
    asyncio.run(writing.writer.write())
    assert writing.broker.kept == list(range(20))
    assert len(writing.broker.batches) > 2


def test_what_is_too_large_for_a_message_is_dropped_and_counted(writing: Writing) -> None:
    size = RECORD_SEND_BYTES_MAX
    large = ANSWER.replace(b"\xc4\x08" + bytes(8), b"\xc6" + size.to_bytes(4) + bytes(size))
    writing.give(1, large)
    writing.give(1)
    asyncio.run(writing.writer.write())
    assert (writing.broker.kept, writing.counts) == ([1], (1, 1, 0))


def test_what_is_refused_is_dropped_and_counted_and_the_next_ones_are_written(
    writing: Writing,
) -> None:
    async def run() -> None:
        writing.give(3)
        writing.broker.failures = [KafkaError("refused")]
        running = asyncio.create_task(writing.writer.run())
        await until(lambda: writing.conditions.has(Part.AUDIT))
        assert writing.conditions.ready
        writing.give(2)
        await until(lambda: writing.broker.kept == [3, 4])
        await until(lambda: not writing.conditions.has(Part.AUDIT))
        running.cancel()

    asyncio.run(run())
    assert (writing.counts, writing.broker.starts) == ((2, 3, 0), 2)


def test_a_topic_that_cannot_be_used_is_said_and_what_waits_is_written_once_it_can(
    writing: Writing,
) -> None:
    async def run() -> None:
        writing.broker.is_refusing = True
        writing.give(3)
        running = asyncio.create_task(writing.writer.run())
        await until(lambda: writing.conditions.has(Part.AUDIT))
        assert "another shape" in writing.conditions.problem
        writing.broker.is_refusing = False
        await until(lambda: writing.broker.kept == [0, 1, 2])
        running.cancel()

    asyncio.run(run())
    assert writing.counts == (3, 0, 0)


def test_while_kafka_is_away_what_waits_is_bounded_and_the_rest_is_dropped_and_counted(
    writing: Writing,
) -> None:
    filler = ANSWER.replace(
        b"\xc4\x08" + bytes(8), b"\xc6" + (1 << 20).to_bytes(4) + bytes(1 << 20)
    )
    room = AUDIT_QUEUE_BYTES // len(filler)

    async def run() -> None:
        writing.broker.is_silent = True
        writing.give(1)
        running = asyncio.create_task(writing.writer.run())
        await until(lambda: writing.broker.waiting)
        writing.give(room + 3, filler)
        assert writing.counts == (1 + room, 3, 0)
        writing.broker.is_silent = False
        writing.broker.waiting[0].set_result(SimpleNamespace(offset=0))
        await until(lambda: len(writing.broker.kept) == room)
        running.cancel()

    asyncio.run(run())


def test_at_its_end_it_writes_what_is_left(writing: Writing) -> None:
    async def run() -> None:
        writing.broker.is_silent = True
        writing.give(2)
        running = asyncio.create_task(writing.writer.run())
        await until(lambda: writing.broker.waiting)
        writing.give(1)
        writing.broker.is_silent = False
        writing.broker.waiting[0].set_result(SimpleNamespace(offset=0))
        await writing.writer.close()
        assert running.cancelled()

    asyncio.run(run())
    assert (writing.broker.kept, writing.counts) == ([2], (3, 0, 0))


def test_what_kafka_does_not_take_by_its_end_is_counted(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logs.topic_writer.WINDOW_LEAVE_S", 0.01)

    async def run() -> None:
        writing.broker.is_silent = True
        writing.give(2)
        running = asyncio.create_task(writing.writer.run())
        await until(lambda: writing.broker.waiting)
        writing.give(3)
        await writing.writer.close()
        assert running.cancelled()

    asyncio.run(run())
    assert writing.counts == (0, 5, 0)
