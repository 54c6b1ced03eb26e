"""The tables of a worker's partitions, and the reader that folds records into them. No rules here.

The group gives partitions (`assign`), and each is read on from the offset that its table covers,
whatever the group has committed: that offset only informs. Records are folded as they come, and
what they changed is written once a flush time, all partitions side by side.

The hot topic is read by a bare consumer, not by a Faust agent: see `streams.worker.app`.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from brokers.clients import Clients, subscribe
from brokers.errors import CorruptRecordException, KafkaError
from brokers.interface import Message, Partition
from brokers.options import ClientOptions
from brokers.reading import stop_consumer
from schemas.errors import DiskError, RepriseError, TableLostError
from schemas.identities import Offset
from schemas.positions import LogBounds
from streams.log.interface import LogEntry
from streams.log.kafka import log_bounds, next_record_offset, read_past_corruption
from streams.table.driver import FoldDriver
from streams.table.fold import INTERNAL_ERROR, Fold
from streams.table.skip_log import SkippedRecords
from streams.table.table import Table
from streams.table.topic import KafkaTableTopic

logger = logging.getLogger(__name__)

TURN_RECORDS_MAX: Final = 4_096
POLL_MS: Final = 200
COMMIT_S: Final = 2.0


class Owned(NamedTuple):
    """A partition of this worker. Whoever holds the lock may fold and write it."""

    table: Table
    driver: FoldDriver
    topic: KafkaTableTopic
    lock: asyncio.Lock


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
        table_topic: str,
        make_fold: Callable[[], Fold],
    ) -> None:
        self.owned: dict[int, Owned] = {}
        self.counters: Counter[str] = Counter()
        self._skipped = SkippedRecords()
        self._assigning = asyncio.Lock()
        self._data = data
        self._options = options
        self._events_topic = events_topic
        self._table_topic = table_topic
        self._make_fold = make_fold

    @property
    def internal_errors(self) -> int:
        """Records on which a fold failed for a reason that nobody foresaw."""
        return self.counters[f"skipped_{INTERNAL_ERROR}"]

    # Ownership

    async def assign(self, partitions: Iterable[int]) -> None:
        """Opens the tables of these partitions and closes all others.

        A table that this worker had before stays open where nobody else has written it since.

        Raises:
            KafkaError, RepriseError: none of them can be folded now.
        """
        wanted = set(partitions)
        async with self._assigning:
            await self._assign(wanted)

    async def _assign(self, wanted: set[int]) -> None:
        for partition in list(self.owned):
            if partition not in wanted or not await self._take_again(partition):
                await self._close(partition)
        missing = sorted(wanted - self.owned.keys())
        if missing:
            bounds = await log_bounds(self._options, self._events_topic, missing)
            await _all_of(self._open(one, bounds[one]) for one in missing)

    async def _take_again(self, partition: int) -> bool:
        owned = self.owned[partition]
        async with owned.lock:
            return await owned.table.take_again()

    async def _open(self, partition: int, bounds: LogBounds) -> None:
        started = time.monotonic()
        topic = KafkaTableTopic(
            self._options,
            self._table_topic,
            partition,
            transactional_id=f"{self._table_topic}.{partition}",
        )
        table = Table(self._data / f"table-{partition}", self._make_fold, topic)
        try:
            plan = await table.open(bounds, now=time.time())
        except BaseException:
            table.close()
            await topic.stop()
            raise
        driver = FoldDriver(table, place=partition, counters=self.counters, skipped=self._skipped)
        self.owned[partition] = Owned(table, driver, topic, asyncio.Lock())
        logger.info(
            "Opened the table of partition %d in %.2f s: %s (%s), reading on from %d",
            partition,
            time.monotonic() - started,
            plan.action,
            plan.reason,
            plan.start,
        )

    async def _close(self, partition: int) -> None:
        owned = self.owned.pop(partition)
        async with owned.lock:
            try:
                owned.table.close()
            except DiskError as error:  # what was flushed is in the topic; the others close, too
                logger.warning("Gave up the copy of partition %d: %s", partition, error)
            await owned.topic.stop()

    async def close(self) -> None:
        """Closes all tables, after whatever is being flushed."""
        for partition in list(self.owned):
            await self._close(partition)

    async def settle(self) -> None:
        """Returns once no flush is under way."""
        for owned in list(self.owned.values()):
            async with owned.lock:
                pass

    def next_offset(self, partition: int) -> int:
        """Where to read on."""
        return self.owned[partition].table.next_offset

    # Records

    async def fold(self, partition: int, entries: Sequence[LogEntry]) -> None:
        """Folds records, and flushes where they have changed much.

        Raises:
            TableLostError, DiskError, KafkaError: the table has to be opened anew.
        """
        owned = self.owned.get(partition)
        if owned is None:
            self.counters["not_owned"] += len(entries)
            return
        async with owned.lock:
            if self.owned.get(partition) is owned:
                await self._fold_owned(partition, owned, entries)

    async def _fold_owned(self, partition: int, owned: Owned, entries: Sequence[LogEntry]) -> None:
        expected, begin = owned.table.next_offset, 0
        for place, entry in enumerate(entries):
            if entry.offset > expected:
                await owned.driver.fold(entries[begin:place])
                await self._pass_over(partition, expected, entry.offset)
                begin = place
            expected = max(expected, entry.offset + 1)
        await owned.driver.fold(entries[begin:])

    async def flush(self) -> None:
        """Writes what was folded, all partitions side by side; the table topic covers it then.

        Raises:
            TableLostError, DiskError: the table has to be opened anew.
        """
        await _all_of(self._flush(owned) for owned in list(self.owned.values()))

    async def _flush(self, owned: Owned) -> None:
        async with owned.lock:
            if owned in self.owned.values():
                await owned.driver.flush()

    async def _pass_over(self, partition: int, expected: int, got: int) -> None:
        """Raises TableLostError where the records between are in the log, and were not brought."""
        first = await next_record_offset(self._options, self._events_topic, partition, expected)
        if first != got:
            self.counters["jumps"] += 1
            raise TableLostError(f"expected record {partition}:{expected}, got {partition}:{got}")


class EventsReader:
    """A member of the group that folds what it is given. To be used once.

    Attributes:
        generation: how often partitions came or went. What was fetched in another one, or between
            two, is dropped and read again where its partition is ours.
    """

    def __init__(
        self,
        tables: PartitionTables,
        options: ClientOptions,
        *,
        group: str,
        topic: str,
        flush_s: float,
        session_timeout_s: float,
    ) -> None:
        self.generation = 0
        self._settled = False
        self._options = options
        self._tables = tables
        self._flush_s = flush_s
        self._failure: Exception | None = None
        self._commit_at = self._flush_at = 0.0
        self._consumer = Clients(options).worker_consumer(group, session_s=session_timeout_s)
        self._topic = topic

    async def run(self, stopping: asyncio.Event) -> None:
        """Folds until stopped; then writes what was folded, commits and leaves the group.

        Raises:
            RepriseError, KafkaError, OSError: why it cannot go on.
        """
        subscribe(self._consumer, self._topic, self)
        try:
            await self._consumer.start()
            while not stopping.is_set() and self._failure is None:
                await self._turn()
            if self._settled and self._failure is None:
                await self._tables.flush()
                await self._commit()
        finally:
            await stop_consumer(self._consumer)
        if self._failure is not None:
            raise self._failure

    async def _turn(self) -> None:
        generation = self.generation
        wait_s = min(max(self._flush_at - time.monotonic(), 0.001), POLL_MS / 1000)
        try:
            batches = await self._consumer.getmany(
                timeout_ms=int(1000 * wait_s) + 1, max_records=TURN_RECORDS_MAX
            )
        except CorruptRecordException as error:
            logger.error("Reading past records that are corrupt: %s", error)
            await self._read_past(generation)
            return
        if not self._is_settled(generation):
            self._read_again(batches)
            return
        await _all_of(
            self._tables.fold(part.partition, [_entry(record) for record in records])
            for part, records in batches.items()
        )
        now = time.monotonic()
        if now >= self._flush_at:
            self._flush_at = now + self._flush_s
            await self._tables.flush()
        if now >= self._commit_at:
            self._commit_at = now + COMMIT_S
            await self._commit()

    def _read_again(self, dropped: Iterable[Partition]) -> None:
        """Some of what is dropped may have been fetched after its partition was sought."""
        if self._settled:
            for part in self._consumer.assignment().intersection(dropped):
                self._consumer.seek(part, self._tables.next_offset(part.partition))

    async def _read_past(self, generation: int) -> None:
        """Folds each partition on from where it stands, past what fails its checksum."""
        for part in self._consumer.assignment():
            if not self._is_settled(generation):
                return  # whoever has the partition now meets it again
            topic, partition = part
            start = self._tables.next_offset(partition)
            entries = await read_past_corruption(self._options, topic, partition, start)
            if self._is_settled(generation):
                await self._tables.fold(partition, entries)
            if self._is_settled(generation):
                self._consumer.seek(part, self._tables.next_offset(partition))

    def _is_settled(self, generation: int) -> bool:
        """Whether the partitions are those of then, and ours."""
        return self._settled and generation == self.generation

    async def _commit(self) -> None:
        """Tells the group how far it is; whoever measures lag reads it, nothing else does."""
        offsets = {
            part: self._tables.owned[part.partition].table.flushed + 1
            for part in self._consumer.assignment()
            if part.partition in self._tables.owned
        }
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:  # a rebalance is under way; the next one will do
            logger.debug("Could not commit: %s", error)

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        """No partition is ours until the next assignment; returns once nothing is being written."""
        self._settled = False
        await self._tables.settle()

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        """These are ours: opens their tables and reads on from what they cover."""
        try:
            await self._tables.assign(part.partition for part in assigned)
            for part in assigned:
                self._consumer.seek(part, self._tables.next_offset(part.partition))
        except (RepriseError, KafkaError, OSError) as error:
            self._failure = error
        self.generation += 1
        self._settled = True


async def _all_of(tasks: Iterable[Coroutine[None, None, None]]) -> None:
    """Lets all of them end, then raises the first one's error."""
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _entry(record: Message) -> LogEntry:
    return LogEntry(Offset(record.offset), record.value or b"")
