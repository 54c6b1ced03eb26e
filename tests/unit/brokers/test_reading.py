"""Reading a partition in memory: late answers, holes, and what fails its checksum."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from brokers import reading
from brokers.client_types import Consumer, Partition
from brokers.errors import CorruptRecordException, DamagedPartitionError, KafkaTimeoutError
from brokers.reading import (
    first_offset_from,
    read_batches,
    read_one_by_one,
    read_to_end,
    stop_consumer,
)

T = TypeVar("T")
PART = Partition("t", 0)


class FakeReader:
    """A partition that has messages at some offsets; the first polls may bring nothing."""

    def __init__(
        self,
        offsets: Sequence[int],
        *,
        end: int | None = None,
        late_polls: int = 0,
        corrupt: Sequence[int] = (),
    ) -> None:
        self.offsets = list(offsets)
        self.end = max(offsets, default=-1) + 1 if end is None else end
        self.late_polls = late_polls
        self.corrupt = set(corrupt)
        self.at = 0
        self.polls = 0

    def assign(self, partitions: Sequence[Partition]) -> None:
        assert list(partitions) == [PART]

    def seek(self, partition: Partition, offset: int) -> None:
        self.at = offset

    async def position(self, partition: Partition) -> int:
        return self.at

    async def beginning_offsets(self, _: object) -> Mapping[Partition, int]:
        return {PART: min(self.offsets, default=0)}

    async def end_offsets(self, _: object) -> Mapping[Partition, int]:
        return {PART: self.end}

    async def getmany(
        self, *_: Partition, timeout_ms: int, max_records: int | None = None
    ) -> Mapping[Partition, Any]:
        self.polls += 1
        if self.polls <= self.late_polls:
            return {}
        found = [offset for offset in self.offsets if offset >= self.at][: max_records or 3]
        if self.corrupt.intersection(range(self.at, found[-1] + 1 if found else self.end)):
            raise CorruptRecordException("Invalid CRC")
        self.at = found[-1] + 1 if found else self.end
        return {PART: [SimpleNamespace(partition=0, offset=offset) for offset in found]}


def of(reader: FakeReader) -> Consumer:
    return cast(Consumer, reader)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.mark.parametrize("late_polls", [0, 1, 5])
def test_an_answer_that_is_late_is_waited_for(late_polls: int) -> None:
    reader = FakeReader([3, 7, 8], late_polls=late_polls)
    assert run(first_offset_from(of(reader), PART, 4)) == 7


def test_a_partition_that_has_nothing_from_there_on_says_so() -> None:
    assert run(first_offset_from(of(FakeReader([3], end=9)), PART, 4)) is None
    assert run(first_offset_from(of(FakeReader([3])), PART, 4)) is None


def test_a_broker_that_never_answers_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_STALLED_POLLS_MAX", 3)
    reader = FakeReader([3, 7], late_polls=100)
    with pytest.raises(KafkaTimeoutError, match="No message of t:0 in 3 s"):
        run(first_offset_from(of(reader), PART, 4))
    assert reader.polls == 3


async def all_of(reader: FakeReader, start: int, end: int) -> list[tuple[int, bool]]:
    found = read_one_by_one(of(reader), PART, start, end)
    return [(offset, message is not None) async for offset, message in found]


def test_each_offset_that_fails_its_checksum_is_named() -> None:
    reader = FakeReader([1, 2, 3, 4, 6], corrupt=[2, 3], late_polls=2)
    assert run(all_of(reader, 1, 7)) == [
        (1, True),
        (2, False),
        (3, False),
        (4, True),
        (6, True),
    ]


class Unfindable(FakeReader):
    """A broker that finds nothing from one offset on to another, and does not say to which; or says
    so of any offset, for some times.
    """

    def __init__(
        self,
        offsets: Sequence[int],
        unreadable: range,
        *,
        says: int | None = None,
        is_proven: bool = False,
        faults: int = 0,
    ) -> None:
        super().__init__(offsets)
        self.unreadable = unreadable
        self.says = says
        self.is_proven = is_proven
        self.faults = faults
        self.refused = 0

    async def getmany(self, *args: Partition, **options: Any) -> Mapping[Partition, Any]:
        if self.at in self.unreadable or self.faults > 0:
            self.refused += 1
            self.faults -= 1
            raise DamagedPartitionError(PART, self.at, self.says, is_proven=self.is_proven)
        return await super().getmany(*args, **options)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FETCH_LOST_S", 0.1)
    monkeypatch.setattr(reading, "READ_POLL_MS", 10)


@pytest.mark.parametrize("count", [1, 2, 3, 100, 777, 969])
@pytest.mark.parametrize("is_said", [True, False])
@pytest.mark.parametrize("is_proven", [True, False])
def test_where_it_can_be_read_again_is_said_or_found_in_few_steps(
    count: int, is_said: bool, is_proven: bool
) -> None:
    unreadable = range(30, 30 + count)
    says = unreadable.stop if is_said else None
    reader = Unfindable(range(1000), unreadable, says=says, is_proven=is_proven)
    found = run(all_of(reader, 28, 1000))
    assert found == [(offset, offset not in unreadable) for offset in range(28, 1000)]
    assert reader.refused <= (1 if is_said else 2 * count.bit_length() + 3)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("is_proven", [True, False])
def test_that_nothing_can_be_read_up_to_the_end_is_believed_at_once_only_where_bytes_show_it(
    is_proven: bool,
) -> None:
    reader = Unfindable(range(100), range(30, 100), is_proven=is_proven)
    assert run(all_of(reader, 28, 100)) == [(offset, offset < 30) for offset in range(28, 100)]
    assert (reader.refused < 20) == is_proven


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("faults", [1, 2, 5, 8, 12, 20, 60])
def test_a_broker_that_cannot_read_for_a_moment_has_lost_nothing(faults: int) -> None:
    reader = Unfindable(range(1000), range(0), faults=faults)
    assert run(all_of(reader, 28, 1000)) == [(offset, True) for offset in range(28, 1000)]


def test_reading_one_by_one_gives_up_where_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_STALLED_POLLS_MAX", 3)
    with pytest.raises(KafkaTimeoutError):
        run(all_of(FakeReader([1], late_polls=100), 1, 2))


def test_reading_to_the_end_goes_on_past_corruption_and_tells_of_it() -> None:
    reader = FakeReader([0, 1, 2, 3, 5, 6, 7], corrupt=[5])
    taken: list[int] = []
    corrupt: list[tuple[int, int]] = []
    ends = run(
        read_to_end(
            of(reader),
            "t",
            {0: 1},
            lambda message: taken.append(message.offset),
            lambda *place: corrupt.append(place),
        )
    )
    assert ends == {0: 8}
    assert taken == [1, 2, 3, 6, 7]
    assert corrupt == [(0, 4), (0, 5)], "no offset is passed over unsaid"


def test_reading_to_the_end_raises_where_nothing_may_be_corrupt() -> None:
    with pytest.raises(CorruptRecordException):
        run(read_to_end(of(FakeReader([0, 1], corrupt=[1])), "t", {0: 0}, lambda _: None))


async def batches_of(reader: FakeReader, start: int) -> list[int]:
    found = read_batches(of(reader), PART, start)
    return [message.offset async for messages in found for message in messages]


def test_batches_begin_at_what_is_kept_and_end_where_the_partition_did() -> None:
    assert run(batches_of(FakeReader([5, 6, 9], end=12), 2)) == [5, 6, 9]


class Connections:
    closed = False

    async def close(self) -> None:
        self.closed = True


class Stopping:
    def __init__(self, failure: BaseException | None, waits_s: float = 0.0) -> None:
        self.failure = failure
        self.waits_s = waits_s
        self._client = Connections()

    async def stop(self) -> None:
        await asyncio.sleep(self.waits_s)
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize(
    ("consumer", "in_order"),
    [
        (Stopping(None), True),
        (Stopping(KafkaTimeoutError()), False),
        (Stopping(asyncio.CancelledError()), False),
        (Stopping(None, waits_s=60.0), False),
    ],
    ids=["in order", "by an error", "by a cancellation of its own", "never"],
)
def test_a_consumer_is_stopped_whatever_it_does(consumer: Any, in_order: bool) -> None:
    assert run(stop_consumer(consumer, timeout_s=0.05)) is in_order
    assert consumer._client.closed is not in_order, "what its own stop did not get to"
