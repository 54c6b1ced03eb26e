"""The tables of a worker's partitions, which its Faust app (`streams.worker.app`) folds into.

The group gives partitions (`assign`), and each is read on from the offset that its table covers,
whatever the group has committed: that offset only informs. A batch of records is folded and what it
changed written, all partitions side by side.

What takes long, loading rows and folding, runs in threads: the kernel works without the
interpreter's lock, so the app answers the group meanwhile.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from brokers.options import ClientOptions
from brokers.reading import log_bounds
from logs.interface import LogEntry, TracedEntry
from logs.topic import read_past_corruption, records_up_to
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import DiskError, TableLostError
from schemas.folded_work import FoldedWork
from schemas.positions import LogBounds
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes
from streams.table.driver import FoldDriver
from streams.table.fold import INTERNAL_ERROR, Fold
from streams.table.history_interface import NO_HISTORY, RowHistory
from streams.table.other_log import contradiction
from streams.table.skip_log import SkipLog
from streams.table.table import Table
from streams.table.topic import KafkaTableTopic
from streams.worker.gaps import check_gap

logger = logging.getLogger(__name__)


class OwnedPartition(NamedTuple):
    """A partition of this worker. Whoever holds the lock may fold and write it."""

    table: Table
    driver: FoldDriver
    topic: KafkaTableTopic | None
    lock: asyncio.Lock

    @property
    def waited_s(self) -> float:
        """How long brokers were waited for, in all."""
        return 0.0 if self.topic is None else self.topic.waited_s


class PartitionTables:
    """The tables of the partitions that this worker has.

    Attributes:
        owned: by partition.
        counters: `records`, `skipped_*`, `jumps`, `not_owned`.
    """

    def __init__(
        self,
        data: Path,
        options: ClientOptions,
        *,
        events_topic: str,
        table_topic: str | None,
        make_fold: Callable[[], Fold],
        history: Callable[[int], RowHistory] = lambda partition: NO_HISTORY,
        tracer: Tracer = NO_TRACER,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Args:
        data: where each table's rows are, in a directory of its own.
        table_topic: where the rows go; None for tables of this process alone.
        make_fold: an empty fold with a kernel of its own.
        """
        self.owned: dict[int, OwnedPartition] = {}
        self.counters: Counter[str] = Counter()
        self._work: dict[int, FoldedWork] = {}  # the last one, by partition
        self._skip_log = SkipLog(clock.monotonic)
        self._wanted: frozenset[int] | None = None
        self._closed = False
        self._assigning = asyncio.Lock()
        self._data = data
        self._options = options
        self._events_topic = events_topic
        self._table_topic = table_topic
        self._make_fold = make_fold
        self._history = history
        self._tracer = tracer
        self._clock = clock

    @property
    def internal_errors(self) -> int:
        """Records on which a fold failed unexpectedly."""
        return self.counters[f"skipped_{INTERNAL_ERROR}"]

    # Ownership

    async def assign(self, partitions: Iterable[int]) -> bool:
        """Opens the tables of these partitions and closes all others.

        A table that this worker had before stays open where no other worker has written it since.

        Returns:
            Whether they are to be folded now; False where `release` or another `assign` has come
            meanwhile, which leaves open what this one has opened, and after `close`.

        Raises:
            KafkaError, RepriseError: none of them can be folded now.
        """
        if self._closed:
            return False  # a consumer that is being stopped may still call its listener
        wanted = self._wanted = frozenset(partitions)
        async with self._assigning:
            try:
                if self._wanted is wanted:
                    await self._assign(wanted)
            except Exception:
                if self._wanted is wanted:
                    raise  # else others may have them by now, and be why
        return self._wanted is wanted

    async def release(self) -> None:
        """Nothing is folded until the next `assign`; returns once no fold or flush is under way."""
        self._wanted = None
        for owned in list(self.owned.values()):
            async with owned.lock:
                pass

    async def _assign(self, wanted: frozenset[int]) -> None:
        for partition in list(self.owned):
            if partition not in wanted:
                await self._close(partition)
        for partition in list(self.owned):
            if self._wanted is wanted and not await self._take_again(partition):
                await self._close(partition)
        missing = sorted(wanted - self.owned.keys())
        if missing:
            bounds = await log_bounds(self._options, self._events_topic, missing)
            await _all_of(self._open(partition, bounds[partition], wanted) for partition in missing)

    async def _take_again(self, partition: int) -> bool:
        owned = self.owned[partition]
        async with owned.lock:
            if not await owned.table.take_again():
                return False
            return not await self._other_log(partition, owned.table.fold)

    async def _open(self, partition: int, bounds: LogBounds, wanted: frozenset[int]) -> None:
        if self._wanted is not wanted:
            return  # to open it would take it from its next owner, as `_take_again` would
        started = self._clock.monotonic()
        topic = self._open_topic(partition)
        table = Table(
            self._data / f"table-{partition}",
            self._make_fold,
            topic,
            history=self._history(partition),
        )
        try:
            plan = await table.open(bounds, now=self._clock.unix())
            if other := await self._other_log(partition, table.fold):
                logger.error(
                    "The log of partition %d is not the one that its table was folded from: %s."
                    " The table is built again; what engines hold that went on is not known",
                    partition,
                    other,
                )
                # As of a log that ends before what the table covers.
                anew = LogBounds(bounds.start, bounds.start)
                plan = await table.open(anew, now=self._clock.unix())
            # Of a rebuilt one, what it has without records.
            await table.flush(now=self._clock.unix())
        except BaseException:
            table.close()
            if topic is not None:
                await topic.stop()
            raise
        driver = FoldDriver(
            table,
            place=partition,
            counters=self.counters,
            skip_log=self._skip_log,
            clock=self._clock.monotonic,
            unix=self._clock.unix,
        )
        self.owned[partition] = OwnedPartition(table, driver, topic, asyncio.Lock())
        logger.info(
            "Opened the table of partition %d in %.2f s: %s (%s), folding from %d",
            partition,
            self._clock.monotonic() - started,
            plan.action,
            plan.reason,
            plan.start,
        )

    async def _other_log(self, partition: int, fold: Fold) -> str:
        """Why the log is not the one that was folded, or "". Reads some of its records."""
        if fold.offset < 0:
            return ""
        records = await records_up_to(self._options, self._events_topic, partition, fold.offset)
        return contradiction(fold, records)

    def _open_topic(self, partition: int) -> KafkaTableTopic | None:
        if self._table_topic is None:
            return None
        return KafkaTableTopic(
            self._options,
            self._table_topic,
            partition,
            transactional_id=f"{self._table_topic}.{partition}",
        )

    async def _close(self, partition: int) -> None:
        owned = self.owned.pop(partition)
        self._work.pop(partition, None)
        async with owned.lock:
            try:
                owned.table.close()
            except DiskError as error:  # what was flushed is in the topic; the others close, too
                logger.warning(
                    "Cannot close the local store of partition %d: %s. Its next owner reads the"
                    " table from Kafka",
                    *(partition, error),
                )
            if owned.topic is not None:
                await owned.topic.stop()

    async def close(self) -> None:
        """Closes all tables for good, after whatever is being opened or flushed."""
        self._closed, self._wanted = True, None
        async with self._assigning:
            for partition in list(self.owned):
                await self._close(partition)

    def next_offset(self, partition: int) -> int | None:
        """Where to read on; None where the table is not open."""
        owned = self.owned.get(partition)
        return None if owned is None else owned.table.next_offset

    def covered(self, partition: int) -> int | None:
        """The offset after the last that its table topic covers; None where it is not open."""
        owned = self.owned.get(partition)
        return None if owned is None else owned.table.flushed + 1

    def last_work(self, partition: int) -> FoldedWork | None:
        """See `PartitionOwner`."""
        return self._work.get(partition)

    async def check(self) -> None:
        """See `PartitionOwner`: a table topic that was made again, while nothing comes."""
        topics = {one: owned.topic for one, owned in self.owned.items() if owned.topic is not None}
        ends = {one: topic.end for one, topic in topics.items()}
        if self._table_topic is None or not ends:
            return
        logs = await log_bounds(self._options, self._table_topic, ends)
        for partition, end in ends.items():
            found = logs[partition].end
            if found < end == topics[partition].end:  # else a write tells by itself
                raise TableLostError(
                    f"expected partition {partition} of {self._table_topic} to reach {end}, but it"
                    f" ends at {found}: it is another topic of that name"
                )

    # Records

    async def fold(self, records: Mapping[int, Sequence[LogEntry]]) -> None:
        """Folds records and writes what they changed; the table topic covers them on return.

        Raises:
            TableLostError, DiskError, KafkaError: the tables have to be reopened.
        """
        await _all_of(self._fold(partition, entries) for partition, entries in records.items())

    async def _fold(self, partition: int, entries: Sequence[LogEntry]) -> None:
        owned = self.owned.get(partition)
        if owned is None:
            self.counters["not_owned"] += len(entries)
            return
        async with owned.lock:
            if self._wanted is not None and self.owned.get(partition) is owned:
                began_ns = self._clock.unix_ns()
                took_s = -self._clock.monotonic() + owned.waited_s
                await self._fold_owned(partition, owned, entries)
                await owned.driver.flush()
                took_s += self._clock.monotonic() - owned.waited_s
                size_bytes = sum(len(entry.value) for entry in entries)
                self._work[partition] = FoldedWork(len(entries), size_bytes, max(took_s, 0.0))
                if self._tracer.is_on and entries:
                    self._trace(partition, entries, began_ns)
                await owned.driver.maintain()

    def _trace(self, partition: int, entries: Sequence[LogEntry], began_ns: int) -> None:
        attributes = batch_attributes(
            "events", len(entries), partition, entries[-1].offset, topic=self._events_topic
        )
        traces = (entry.traceparent for entry in entries if isinstance(entry, TracedEntry))
        self._tracer.batch(SpanName.FOLD, began_ns, traces, attributes)

    async def _fold_owned(
        self, partition: int, owned: OwnedPartition, entries: Sequence[LogEntry]
    ) -> None:
        expected, begin = owned.table.next_offset, 0
        for index, entry in enumerate(entries):
            if entry.offset > expected:
                await owned.driver.fold_in_thread(entries[begin:index])
                await self._pass_over(partition, expected, entry.offset)
                begin = index
            expected = max(expected, entry.offset + 1)
        await owned.driver.fold_in_thread(entries[begin:])

    async def read_past(self, partition: int, start: int) -> list[LogEntry]:
        """The records from `start` on, up to and with the first batch that is corrupt.

        Raises:
            KafkaError: the broker is away.
        """
        logger.error("Corrupt records from %d:%d on; reading past them", partition, start)
        return await read_past_corruption(self._options, self._events_topic, partition, start)

    async def _pass_over(self, partition: int, expected: int, got: int) -> None:
        """Raises TableLostError where the records between are in the log, and were not brought, or
        were there and are not any more.
        """
        try:
            await check_gap(self._options, self._events_topic, partition, expected, got)
        except TableLostError:
            self.counters["jumps"] += 1
            raise


async def _all_of(tasks: Iterable[Coroutine[None, None, None]]) -> None:
    """Lets all of them end, then raises the first one's error."""
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
