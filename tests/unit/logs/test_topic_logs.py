"""A topic as logs: which records are read, and which were the last by a time."""

from collections.abc import Coroutine, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.client_types import Partition
from brokers.errors import CorruptRecordException, KafkaError
from brokers.options import ClientOptions
from logs.interface import LogEntry
from logs.loop_thread import LoopThread
from logs.topic_logs import TopicLogs
from schemas.errors import PastError, StorageError
from schemas.identities import Offset
from schemas.positions import LogBounds

FIRST, SECOND = PLACES = [Partition("t", 0), Partition("t", 1)]


class Topic:
    """A topic of two partitions, and Kafka's client of it.

    Attributes:
        begins: what retention has left begins there.
        times_ms: when each record was written, the dropped ones included.
        damaged: records that cannot be read.
        is_away: whether no client can be started.
        readers: clients that are open.
    """

    def __init__(self) -> None:
        self.begins = {FIRST: 0, SECOND: 0}
        self.times_ms = {FIRST: [1000, 2000, 3000], SECOND: [1500, 2500]}
        self.damaged: set[tuple[Partition, int]] = set()
        self.is_away = False
        self.readers = 0
        self._at: dict[Partition, int] = {}

    def log_reader(self) -> "Topic":
        self.readers += 1
        return self

    async def start(self, reader: "Topic") -> None:
        if self.is_away:
            raise KafkaError("away")

    async def stop(self, reader: "Topic") -> None:
        self.readers -= 1

    async def read_past(self, *asked: object) -> list[LogEntry]:
        """As where the damaged batch says of no record that it has been one."""
        return []

    def assign(self, places: Iterable[Partition]) -> None:
        self._at = dict.fromkeys(places, -1)

    def seek(self, place: Partition, offset: int) -> None:
        self._at[place] = offset

    def pause(self, place: Partition) -> None:
        assert place in self._at

    async def position(self, place: Partition) -> int:
        return self._at[place]

    async def beginning_offsets(self, places: Iterable[Partition]) -> dict[Partition, int]:
        return {one: self.begins[one] for one in places}

    async def end_offsets(self, places: Iterable[Partition]) -> dict[Partition, int]:
        return {one: len(self.times_ms[one]) for one in places}

    async def offsets_for_times(self, times: Mapping[Partition, int]) -> dict[Partition, Any]:
        found: dict[Partition, Any] = {}
        for place, since_ms in times.items():
            kept = range(self.begins[place], len(self.times_ms[place]))
            later = [offset for offset in kept if self.times_ms[place][offset] >= since_ms]
            found[place] = SimpleNamespace(offset=later[0]) if later else None
        return found

    async def getmany(self, place: Partition, **bounds: object) -> dict[Partition, Any]:
        offset = self._at[place]
        if (place, offset) in self.damaged:
            raise CorruptRecordException("damaged")
        self._at[place] += 1
        return {place: [SimpleNamespace(offset=offset, value=b"%d" % offset)]}


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr("logs.topic_logs.Clients", lambda options: made)
    monkeypatch.setattr("logs.topic_logs.start_client", made.start)
    monkeypatch.setattr("logs.topic_logs.stop_consumer", made.stop)
    monkeypatch.setattr("logs.topic_logs.read_past_corruption", made.read_past)
    return made


@pytest.fixture
def logs(topic: Topic) -> Iterator[TopicLogs]:
    async def nothing() -> None:
        return

    thread = LoopThread("t", unended="It did not stop")
    made = TopicLogs(cast(ClientOptions, None), "t", len(PLACES), thread.run)
    thread.close_with(made.close)
    work: Coroutine[Any, Any, None] = nothing()
    thread.start(work)
    yield made
    thread.stop()
    assert topic.readers == 0


def offsets_at(logs: TopicLogs, seconds: float) -> list[int]:
    return [one.offset for one in logs.positions_at(seconds, now=9.0)]


def test_each_partition_is_a_log_from_what_retention_left(topic: Topic, logs: TopicLogs) -> None:
    topic.begins[FIRST] = 1
    first, second = logs.logs
    assert (first.bounds, list(first.read(Offset(0)))) == (LogBounds(0, 0), [])
    logs.look()
    assert (first.bounds, first.end_offset, first.complete_from) == (LogBounds(1, 3), 3, 1)
    assert [entry.offset for entry in first.read(Offset(0))] == [1, 2]
    assert [entry.value for entry in second.read(Offset(1))] == [b"1"]
    assert [entry.offset for entry in logs.read(0, 1, 2)] == [1]


def test_the_records_behind_a_damaged_one_are_read(topic: Topic, logs: TopicLogs) -> None:
    logs.look()
    topic.damaged = {(FIRST, 0)}
    assert [entry.offset for entry in logs.logs[0].read(Offset(0))] == [1, 2]


@pytest.mark.parametrize(
    ("seconds", "offsets"),
    [(1.0, [0, -1]), (1.999, [0, 0]), (2.0, [1, 0]), (2.999, [1, 1]), (3.0, [2, 1]), (9, [2, 1])],
)
def test_a_time_is_behind_what_was_written_by_it(
    logs: TopicLogs, seconds: float, offsets: list[int]
) -> None:
    logs.look()
    assert offsets_at(logs, seconds) == offsets


@pytest.mark.parametrize(
    ("begins", "seconds", "reason"),
    [
        (0, 0.999, "as_of_too_old"),
        (0, -1.0, "as_of_too_old"),
        (1, 1.999, "as_of_too_old"),  # what was the last one by then may have been dropped
        (0, 9.001, "as_of_in_future"),
    ],
)
def test_a_time_of_which_the_topic_does_not_tell_is_refused(
    topic: Topic, logs: TopicLogs, begins: int, seconds: float, reason: str
) -> None:
    topic.begins[FIRST] = begins
    logs.look()
    with pytest.raises(PastError) as refused:
        offsets_at(logs, seconds)
    assert refused.value.reason == reason
    if begins:
        assert offsets_at(logs, 2.0) == [1, 0]


def test_a_client_that_cannot_be_started_is_stopped_and_the_next_is_another(
    topic: Topic, logs: TopicLogs
) -> None:
    topic.is_away = True
    with pytest.raises(StorageError, match="Expected t to be asked where it ends, but Kafka gave"):
        logs.look()
    assert topic.readers == 0
    topic.is_away = False
    logs.look()
    assert offsets_at(logs, 2.0) == [1, 0]
