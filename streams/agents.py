"""The agent that folds: records of one partition in, rows of its table out. No rules are here.

Faust says which partitions are this worker's (`assign`), where to read on (`next_offset`), and
brings records in batches (`fold`). Each batch is folded and flushed before its body returns, so
whatever offset Faust commits, the table topic covers it. The committed offset only informs: a
partition is always read on from the offset that its table covers.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import faust
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]
from faust.types import EventT

from schemas.errors import RepriseError
from schemas.identities import Offset
from schemas.kafka_clients import ClientOptions
from schemas.limits import TABLE_FLUSH_CHANGES_MAX
from streams.log.interface import LogEntry
from streams.log.kafka import KafkaTableTopic, first_offset_from, log_bounds
from streams.table.fold import Fold
from streams.table.partition import LogBounds, PartitionTable, TableLostError

logger = logging.getLogger(__name__)

BATCH_RECORDS_MAX: Final = 1_000


class Owned(NamedTuple):
    """A partition of this worker. Whoever holds the lock may fold and write it."""

    table: PartitionTable
    topic: KafkaTableTopic
    lock: asyncio.Lock


class PartitionTables:
    """The tables of the partitions that this worker has.

    Attributes:
        owned: by partition.
        failure: set once a table cannot go on; the worker then begins anew.
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
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.counters: Counter[str] = Counter()
        self._assigning = asyncio.Lock()
        self._assigned: set[int] = set()
        self._data = data
        self._options = options
        self._events_topic = events_topic
        self._table_topic = table_topic
        self._make_fold = make_fold

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
        if wanted == self._assigned:
            return
        self._assigned = set()
        for partition in list(self.owned):
            if partition not in wanted or not await self._take_again(partition):
                await self._close(partition)
        missing = sorted(wanted - self.owned.keys())
        if missing:
            bounds = await log_bounds(self._options, self._events_topic, missing)
            await asyncio.gather(*(self._open(one, bounds[one]) for one in missing))
        self._assigned = wanted

    async def _take_again(self, partition: int) -> bool:
        owned = self.owned[partition]
        async with owned.lock:
            await owned.topic.start()
            return await owned.table.is_current()

    async def _open(self, partition: int, bounds: LogBounds) -> None:
        started = time.monotonic()
        topic = KafkaTableTopic(
            self._options,
            self._table_topic,
            partition,
            transactional_id=f"{self._table_topic}.{partition}",
        )
        await topic.start()
        try:
            table = PartitionTable(
                self._data / f"table-{partition}",
                topic,
                self._make_fold,
                make_name=lambda: os.urandom(8),
            )
        except BaseException:
            await topic.stop()
            raise
        try:
            plan = await table.open(bounds, now=time.time())
        except BaseException:
            table.close()
            await topic.stop()
            raise
        self.owned[partition] = Owned(table, topic, asyncio.Lock())
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
            owned.table.close()
            await owned.topic.stop()

    async def close(self) -> None:
        """Closes all tables, after whatever is being flushed."""
        for partition in list(self.owned):
            await self._close(partition)

    async def settle(self) -> None:
        """Returns once no flush is under way; the next `assign` looks at every table again."""
        self._assigned = set()
        for owned in list(self.owned.values()):
            async with owned.lock:
                pass

    def next_offset(self, partition: int) -> int | None:
        """Where to read on, or None for a partition that is not open here."""
        owned = self.owned.get(partition)
        return None if owned is None else owned.table.next_offset

    # Records

    async def fold(self, partition: int, entries: Sequence[LogEntry]) -> None:
        """Folds records and flushes; on return the table topic covers them.

        Goes on to the end of its flush where the caller is cancelled.
        """
        task = asyncio.ensure_future(self._fold(partition, entries))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_retrieve)
            raise

    async def _fold(self, partition: int, entries: Sequence[LogEntry]) -> None:
        owned = self.owned.get(partition)
        if owned is None:
            self.counters["not_owned"] += len(entries)
            return
        try:
            async with owned.lock:
                if self.owned.get(partition) is owned:
                    await self._fold_owned(partition, owned.table, entries)
        except (RepriseError, KafkaError, OSError) as error:
            self.fail(error)

    async def _fold_owned(
        self, partition: int, table: PartitionTable, entries: Sequence[LogEntry]
    ) -> None:
        for entry in entries:
            if entry.offset > table.next_offset:
                await self._pass_over(partition, table.next_offset, entry.offset)
            for skipped in table.apply([entry]):
                self.counters[f"skipped_{skipped.reason}"] += 1
                logger.warning("Skipped the record at %d:%d (%s): %s", partition, *skipped)
            self.counters["records"] += 1
            if table.fold.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
                await table.flush(now=time.time())
        await table.flush(now=time.time())

    async def _pass_over(self, partition: int, expected: int, got: int) -> None:
        """Raises TableLostError where the records between are in the log, and were not brought."""
        first = await first_offset_from(self._options, self._events_topic, partition, expected)
        if first != got:
            self.counters["jumps"] += 1
            raise TableLostError(f"expected record {partition}:{expected}, got {partition}:{got}")

    def fail(self, error: BaseException) -> None:
        """Notes that the worker has to begin anew; the first reason stays."""
        if not self.failure.done():
            self.failure.set_result(error)


def _retrieve(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()


def add_agent(
    app: faust.App, topic: Any, tables: Callable[[], PartitionTables], *, flush_s: float
) -> None:
    """Lets the app fold the topic: one instance of the agent a partition, batches of up to
    `flush_s`.
    """

    async def fold_records(stream: Any) -> None:
        async for batch in stream.take_events(BATCH_RECORDS_MAX, within=flush_s):
            partition = batch[0].message.partition
            await tables().fold(partition, [_entry(event) for event in batch])

    app.agent(topic, name="fold", isolated_partitions=True)(fold_records)


def _entry(event: EventT[bytes]) -> LogEntry:
    return LogEntry(Offset(event.message.offset), event.message.value or b"")
