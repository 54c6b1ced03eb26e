"""The partitions of a topic as logs that can be read from any thread.

A log is read by code that waits for nothing but the disk; Kafka's client lives on an event loop. So
each read is handed to that loop, and waited for within a bound.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from brokers.availability import describe
from brokers.client_internals import start_client
from brokers.client_types import Consumer, Partition
from brokers.clients import Clients
from brokers.errors import AWAY, CorruptRecordException, KafkaTimeoutError
from brokers.options import ClientOptions
from brokers.reading import stop_consumer
from logs.interface import LogEntry
from logs.topic import entries_of, read_past_corruption
from schemas.errors import PastError, StorageError
from schemas.identities import Offset
from schemas.limits import HISTORY_ANSWER_S, READ_POLL_MS, READ_STALLED_POLLS_MAX
from schemas.positions import LogBounds, Position

LOG_READ_RECORDS_MAX: Final = 4096  # of the events topic, given to one that reads it as a log

T = TypeVar("T")
LoopCaller = Callable[[Coroutine[Any, Any, T]], "Future[T]"]
"""Hands a coroutine to the loop, from any other thread."""

_NOTHING = LogBounds(0, 0)


class _FetchedRecords(NamedTuple):
    """Records that follow on each other, and the offset behind them."""

    entries: list[LogEntry]
    following: int


class TopicLogs:
    """See the module. Bounds are those of the last `look`.

    Args:
        topic: not compacted, as the events.
        partitions: how many it has.
        run: hands work to the loop. One thread reads at a time.
    """

    def __init__(
        self, options: ClientOptions, topic: str, partitions: int, run: LoopCaller[Any]
    ) -> None:
        self._options = options
        self._topic = topic
        self._places = [Partition(topic, number) for number in range(partitions)]
        self._run = run
        self._reader: Consumer | None = None
        self._using = asyncio.Lock()
        self._next: tuple[int, int] | None = None
        self.bounds: Mapping[int, LogBounds] = {}
        self.logs = [TopicLog(self, number) for number in range(partitions)]

    # From any thread but the loop's

    def look(self) -> None:
        """Asks where the logs begin and end now.

        Raises:
            StorageError: Kafka is away.
        """
        self._wait_for(self.fetch_bounds(), "be asked where it ends")

    def positions_at(self, seconds: float, *, now: float) -> tuple[Position, ...]:
        """Of each partition, the last record that was written by a time; -1 for none.

        Args:
            seconds: Unix seconds; by the clock of the bridge that wrote each record.
            now: the same.

        Raises:
            PastError: it is in the future, or before everything that the logs have.
            StorageError: Kafka is away.
        """
        if seconds > now:
            raise PastError(
                "as_of_in_future",
                f"Expected a time that has been, got one {seconds - now:.3f} s ahead",
            )
        found: dict[int, int] = {}
        if seconds >= 0:  # Kafka knows no others
            found = self._wait_for(self._fetch_offsets_at(seconds), "be asked for a time")
        if not found or self._is_before(found):
            starts = ",".join(f"{number}:{log.start}" for number, log in self.bounds.items())
            raise PastError(
                "as_of_too_old",
                f"Expected a time from the log's oldest records on, which are at {starts[:200]}",
            )
        return tuple(Position(number, offset - 1) for number, offset in sorted(found.items()))

    def _is_before(self, found: Mapping[int, int]) -> bool:
        """Whether of any partition it is not known what its last record was by then: it may be one
        of those that were dropped.
        """
        dropped = any(
            found[number] == log.start < log.end and log.start > 0
            for number, log in self.bounds.items()
        )
        return dropped or all(found[number] <= log.start for number, log in self.bounds.items())

    def read(self, partition: int, start: int, end: int) -> Iterator[LogEntry]:
        """The records from `start` to before `end`, in order; those that are damaged are empty.

        Raises:
            StorageError: Kafka is away, or has dropped some of them meanwhile.
        """
        while start < end:
            fetching = self._fetch(partition, start)
            found = self._wait_for(fetching, f"be read at {partition}:{start}")
            for entry in found.entries:
                if entry.offset >= end:
                    return
                yield entry
            start = found.following

    def _wait_for(self, work: Coroutine[Any, Any, T], what: str) -> T:
        future: Future[T] = self._run(work)
        try:
            return future.result(HISTORY_ANSWER_S)
        except AWAY as error:
            future.cancel()
            text = f"Expected {self._topic} to {what}, but Kafka gave: {describe(error)}"
            raise StorageError(text) from error

    # On the loop

    async def fetch_bounds(self) -> Mapping[int, LogBounds]:
        """Where the logs begin and end now.

        Raises:
            KafkaError: a broker is away.
        """
        async with self._using:
            reader = await self._opened()
            starts = await reader.beginning_offsets(self._places)
            ends = await reader.end_offsets(self._places)
        self.bounds = {
            place.partition: LogBounds(starts[place], ends[place]) for place in self._places
        }
        return self.bounds

    async def _fetch_offsets_at(self, seconds: float) -> dict[int, int]:
        """By partition, the first offset that was written later."""
        later_ms = int(seconds * 1000) + 1
        async with self._using:
            reader = await self._opened()
            found = await reader.offsets_for_times(dict.fromkeys(self._places, later_ms))
        offsets = {}
        for place in self._places:
            at_time = found.get(place)
            end = self.bounds.get(place.partition, _NOTHING).end
            offsets[place.partition] = end if at_time is None else min(at_time.offset, end)
        return offsets

    async def _fetch(self, partition: int, start: int) -> _FetchedRecords:
        place = self._places[partition]
        async with self._using:
            try:
                return await self._read_on(place, start)
            except CorruptRecordException:
                self._next = None
                entries = await read_past_corruption(self._options, self._topic, partition, start)
                return _FetchedRecords(entries, entries[-1].offset + 1 if entries else start + 1)
            except BaseException:
                await self._close()
                raise

    async def _read_on(self, place: Partition, start: int) -> _FetchedRecords:
        reader = await self._opened()
        if self._next != (place.partition, start):
            reader.assign([place])
            reader.seek(place, start)
        for _ in range(READ_STALLED_POLLS_MAX):
            found = await reader.getmany(
                place, timeout_ms=READ_POLL_MS, max_records=LOG_READ_RECORDS_MAX
            )
            following = await reader.position(place)
            self._next = place.partition, following
            entries = entries_of(chain.from_iterable(found.values()))
            if entries or following > start:
                if following >= self.bounds.get(place.partition, _NOTHING).end:
                    reader.pause(place)  # it would be asked again and again for what comes
                    self._next = None
                return _FetchedRecords(entries, following)
        raise KafkaTimeoutError(f"no record of {place.topic}:{place.partition} from {start} on")

    async def _opened(self) -> Consumer:
        if self._reader is None:
            reader = Clients(self._options).log_reader()
            try:
                await start_client(reader)
            except BaseException:
                await stop_consumer(reader)
                raise
            self._reader = reader
        return self._reader

    async def _close(self) -> None:
        reader, self._reader, self._next = self._reader, None, None
        if reader is not None:
            await stop_consumer(reader)

    async def close(self) -> None:
        """Stops reading."""
        async with self._using:
            await self._close()


class TopicLog:
    """One partition; implements `logs.interface.ReadableLog`."""

    def __init__(self, logs: TopicLogs, partition: int) -> None:
        self._logs = logs
        self._partition = partition

    @property
    def bounds(self) -> LogBounds:
        """See `ReadableLog`."""
        return self._logs.bounds.get(self._partition, _NOTHING)

    @property
    def end_offset(self) -> Offset:
        """See `ReadableLog`."""
        return Offset(self.bounds.end)

    @property
    def complete_from(self) -> Offset:
        """See `ReadableLog`: a topic drops its oldest records, and no others."""
        return Offset(self.bounds.start)

    def read(self, start: Offset) -> Iterator[LogEntry]:
        """See `ReadableLog`, and `TopicLogs.read` for what it raises."""
        begin, end = self.bounds
        yield from self._logs.read(self._partition, max(start, begin), end)
