"""One partition's table: the fold, its copy on this disk, and its rows in the table topic.

A flush, in this order; the order is the guarantee:

    Step 1. the rows go to the topic, all or none of them (`TableTopic.write`).
    Step 2. the same rows go to this disk, with the topic's offset of their `covered` row.
    Step 3. only then may more be folded.

So the disk is never ahead of the topic, unless the topic was lost, and the topic is never ahead of
the events it covers. A worker that dies at any step leaves a table that covers some offset; whoever
opens it next folds on from there:

    this disk                 the table topic         the events           decision
    ------------------------  ----------------------  -------------------  -------------------
    a copy up to p            goes on from p          all after it         RESUME: rows from p on
    none, stale, corrupt, or  has a table             all after it         RESUME: all of its rows
      of another table
    a copy up to p            ends before p (lost)    all after it         PUBLISH: send the copy
    any                       none, corrupt, or of    any                  REBUILD: fold the events
                                another seed                                from their beginning
    any                       any                     end before the       REBUILD
                                                        table, or begin
                                                        after it

A copy is stale once the cleaner may have removed tombstones that it has not seen. A rebuilt table
has a name of its own, by which everyone who follows the old one knows to begin anew.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from schemas.errors import RepriseError, RowCorruptError
from schemas.identities import Offset
from schemas.limits import KIB
from streams.log.interface import LogEntry
from streams.table import rows
from streams.table.fold import NO_OFFSET, Fold, SkippedRecord
from streams.table.row_writer import RowWrite, TableWriter
from streams.table.rows import RowKind
from streams.table.store import Local, TableStore
from streams.threads import in_thread

COPY_AGE_MAX_S: Final = 6 * 3600.0
"""Half and less of the time for which the table topic keeps tombstones (`schemas.topics`)."""

GENERATION_MIN_BYTES: Final = 64 * KIB
"""Less than the embedded service's: many small contexts share a topic, and each may grow to it."""


class TableLostError(RepriseError):
    """The table cannot be written: another worker owns it, or the broker is away.

    Operator action: none; the worker opens it again where it is still the owner.
    """


class TopicRow(NamedTuple):
    """A row as it stands in the table topic."""

    offset: int
    key: bytes
    value: bytes | None


class TableTopic(Protocol):
    """One partition of the table topic. To be taken before anything else."""

    async def take(self) -> bool:
        """Makes this the only writer: nothing that an owner before sends from now on is written.

        Returns:
            Whether nobody else took it since this object did, and wrote what it wrote last.
        """
        ...

    def read(self, start: int) -> AsyncIterator[list[TopicRow]]:
        """Committed rows from `start` to the end as of the call, in order."""
        ...

    async def write(self, written: list[RowWrite]) -> list[int]:
        """Writes the rows, all or none of them; returns their offsets.

        Raises:
            TableLostError: another worker owns the partition now, or what was written is unknown:
                all of the rows or none.
        """
        ...


class Action(StrEnum):
    """What was decided at opening; see the module."""

    RESUME = "resume"
    PUBLISH = "publish"
    REBUILD = "rebuild"


class Plan(NamedTuple):
    """A decision, where folding starts, and the reason in words."""

    action: Action
    start: Offset
    reason: str


class LogBounds(NamedTuple):
    """The first offset that the events' partition still has, and the one after its last."""

    start: int
    end: int


def plan_opening(
    *, covered: Offset | None, same_seed: bool, events: LogBounds, copied: bool
) -> Plan:
    """The decision once the topic's rows are here; see the module.

    Args:
        covered: what the rows cover; None where there are none or they cannot be used.
        same_seed: whether they were made with the seed in use.
        events: what the events' partition has.
        copied: whether the topic has them; False where it was lost.
    """
    beginning = Offset(events.start)
    if covered is None:
        return Plan(Action.REBUILD, beginning, "there is no table")
    if not same_seed:
        return Plan(Action.REBUILD, beginning, "the table was made with another hash seed")
    start = Offset(covered + 1)
    if not events.start <= start <= events.end:
        reason = f"the table covers {covered}, the events are {events.start} to {events.end - 1}"
        return Plan(Action.REBUILD, beginning, reason)
    if not copied:
        return Plan(Action.PUBLISH, start, f"the topic was lost, this disk covers {covered}")
    return Plan(Action.RESUME, start, f"the table covers {covered}")


class PartitionTable:
    """The table of one partition of the events. One owner; calls may not overlap.

    Attributes:
        fold: the state in memory; its offset is the last event folded.
        flushed: the last offset that the topic covers.
    """

    def __init__(
        self,
        path: Path,
        topic: TableTopic,
        make_fold: Callable[[], Fold],
        *,
        make_name: Callable[[], bytes],
        generation_min_bytes: int = GENERATION_MIN_BYTES,
    ) -> None:
        """Opens the copy on this disk.

        Raises:
            DataDirectoryInUseError: another process has it open.
            StorageError: it cannot be opened.
        """
        self._topic = topic
        self._make_fold = make_fold
        self._make_name = make_name
        self._store = TableStore(path, generation_min_bytes=generation_min_bytes)
        self.fold = make_fold()
        self._start = 0
        self.flushed = NO_OFFSET
        self.written_rows = 0
        self.written_bytes = 0
        self.generations = 0

    # Opening

    async def open(self, events: LogBounds, *, now: float) -> Plan:
        """Brings the table to where its topic is, and decides where folding starts.

        Args:
            events: what the events' partition has.
            now: Unix seconds.

        Raises:
            RowVersionError: a newer Reprise wrote the table.
            DiskError, TableLostError: close it, and open it anew.
        """
        await self._topic.take()
        copied, reason = await self._copy(now)
        try:
            covered, same_seed = await in_thread(self._load)
        except RowCorruptError as error:
            reason = str(error)
            await self._copy_all(now)
            copied = True
            try:
                covered, same_seed = await in_thread(self._load)
            except RowCorruptError as again:
                reason = f"the table topic has: {again}"
                covered, same_seed = None, True
        plan = plan_opening(covered=covered, same_seed=same_seed, events=events, copied=copied)
        self._start, self.flushed = plan.start, self.fold.offset
        if plan.action is Action.REBUILD:
            self._clear()
            # So that a table without events says, too, that it has what the events still have.
            self.fold.restore(Offset(plan.start - 1), {}, {})
            self.flushed = NO_OFFSET
        elif plan.action is Action.PUBLISH:
            await self._publish(now)
        return plan._replace(reason=f"{plan.reason}; {reason}") if reason else plan

    async def _copy(self, now: float) -> tuple[bool, str]:
        """Reads what the topic has beyond this disk's copy.

        Returns:
            Whether the topic has what this disk has, and why its copy was given up, or "".
        """
        try:
            local, table = self._store.local(), self._store.table()
        except RowCorruptError as error:
            await self._copy_all(now)
            return True, str(error)
        if local is None:
            await self._copy_all(now)
            return True, ""
        if await _is_empty(self._topic, local.position):
            if await _is_empty(self._topic, 0):
                return False, ""
            await self._copy_all(now)
            return True, "the topic was made anew"
        if now - local.written_at > COPY_AGE_MAX_S:
            await self._copy_all(now)
            return True, "this disk's copy was too old"
        if not await self._copy_from(local.position, now, table=table):
            await self._copy_all(now)
            return True, "this disk had another table"
        return True, ""

    async def _copy_all(self, now: float) -> None:
        self._store.set_aside()
        await self._copy_from(0, now, table=None)

    async def _copy_from(self, start: int, now: float, *, table: bytes | None) -> bool:
        """Copies rows from `start` on; False where they are not those of the table named."""
        position = None
        async for batch in self._topic.read(start):
            for row in batch:
                if row.key != rows.COVERED_KEY or row.value is None:
                    continue
                position = row.offset
                if table is not None and _table_named(row.value) != table:
                    return False
            self._store.copy([RowWrite(row.key, row.value) for row in batch], keep_local=True)
        if position is not None:
            self._store.copy([], Local(position, now))
        return table is None or position is not None

    def _load(self) -> tuple[Offset | None, bool]:
        """What this disk's rows cover, None for nothing, and whether they have the seed in use."""
        self.fold = self._make_fold()
        self._store.load_into(self.fold)
        same_seed = self._store.seed() in (None, self.fold.kernel.seed)
        return None if self._store.covered() is None else self.fold.offset, same_seed

    async def _publish(self, now: float) -> None:
        """Sends this disk's copy under a name of its own: an older copy may have the one it had."""
        self.writer.table = self._make_name()
        written = [row for row in self._store.all_rows() if row.key != rows.COVERED_KEY]
        covered = rows.encode_row(RowKind.DELTA, self.fold.offset, self.writer.table)
        await self._write([*written, RowWrite(rows.COVERED_KEY, covered)], now)

    def _clear(self) -> None:
        """Begins a table of another name; its first flush removes every row of the old one."""
        old = [row.key for row in self._store.all_rows() if row.key != rows.COVERED_KEY]
        self._store.set_aside()
        self.writer.table = self._make_name()
        self.writer.strays = old
        self.fold = self._make_fold()

    # Folding

    @property
    def writer(self) -> TableWriter:
        """What the next flush follows on."""
        return self._store.writer

    @property
    def next_offset(self) -> int:
        """The offset of the record to fold next."""
        return max(self.fold.offset + 1, self._start)

    def apply(self, batch: Iterable[LogEntry]) -> list[SkippedRecord]:
        """Folds records in order; those at or below the fold's offset are passed over.

        Returns:
            Those that were skipped; all others are folded.
        """
        skipped = [self.fold.apply(entry.offset, entry.value) for entry in batch]
        return [one for one in skipped if one is not None]

    async def flush(self, *, now: float) -> int:
        """Writes what was folded since the last flush; returns how many rows that took.

        Raises:
            TableLostError, DiskError: close the table, and open it anew.
        """
        if self.fold.offset == self.flushed:
            return 0
        changes = self.fold.take_changes()
        flush = self.writer.flush(self.fold, changes)
        self.writer.note(flush)
        written = flush.rows
        for rewrite in self.writer.rewrites(self.fold, flush):
            written = written + rewrite.chunks + rewrite.switch
            self.writer.note_rewritten(rewrite)
            self.generations += 1
        if written is not flush.rows:
            # A follower lets rows count at a `covered` row: what it has gathered then is empty.
            written.append(flush.rows[-1])
        await self._write(written, now)
        self.flushed = changes.offset
        return len(written)

    async def _write(self, written: list[RowWrite], now: float) -> None:
        # Step 1.
        offsets = await self._topic.write(written)
        # Step 2.
        assert written[-1].key == rows.COVERED_KEY, "a flush ends in the row that commits it"
        position = offsets[-1]
        self._store.copy(written, Local(position, now))
        self.written_rows += len(written)
        self.written_bytes += sum(len(row.key) + len(row.value or b"") for row in written)

    async def take_again(self) -> bool:
        """Whether nobody else had the table since this object did; if so it may go on."""
        return await self._topic.take()

    def close(self) -> None:
        """Closes this disk's copy; what was flushed stays."""
        self._store.close()


def _table_named(covered: bytes) -> bytes | None:
    """The table that a `covered` row names; None where it cannot be read."""
    try:
        return rows.decode_row(rows.COVERED_KEY, covered).body
    except RowCorruptError:
        return None


async def _is_empty(topic: TableTopic, start: int) -> bool:
    async for batch in topic.read(start):
        if batch:
            return False
    return True
