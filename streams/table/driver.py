"""The one loop that folds records into a table and flushes it: at recovery, in the embedded
service's fold thread, in a worker.
"""

import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Final, NamedTuple

from logs.interface import LogEntry, RecordLog
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import StorageError
from schemas.limits import KIB, MAINTAINED_ENTRIES, TABLE_FLUSH_CHANGES_MAX
from streams.table.fold import INTERNAL_ERROR, NO_OFFSET
from streams.table.recovery import RecoveryPlan
from streams.table.releasing import release_some
from streams.table.skip_log import SkipLog, SkippedRecord
from streams.table.table import Table
from streams.table.threads import in_thread, run_without_loop

REWRITE_AFTER_BYTES: Final = 64 * KIB  # folded; then MAINTAINED_ENTRIES are rewritten beside it

_NEVER: Final = float("inf")


class FlushPace(NamedTuple):
    """When a table is flushed.

    Attributes:
        flush_s: the flush time; without one, whoever calls `flush` keeps it.
        sync_s: how often a flush is made durable; for a table whose log drops what it covers.
        changes_max: changes that may wait.
        contexts_max: contexts with any: some 15 us each to write.
    """

    flush_s: float = _NEVER
    sync_s: float = _NEVER
    changes_max: int = TABLE_FLUSH_CHANGES_MAX
    contexts_max: int = sys.maxsize


NO_PACE: Final = FlushPace()
"""By changes alone."""


class FoldDriver:
    """Folds into one table, logs what is skipped, and flushes when that is due.

    A flush is due once a flush time has passed since the last one, or earlier where the changes
    that wait are many: they are held in memory. While flushes fail only time makes one due.

    Attributes:
        table: opened.
        counters: `records`, and `skipped_*` by reason.
    """

    def __init__(
        self,
        table: Table,
        *,
        place: object = "",
        pace: FlushPace = NO_PACE,
        counters: Counter[str] | None = None,
        skip_log: SkipLog | None = None,
        on_flush: Callable[[StorageError | None], None] | None = None,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        unix: Callable[[], float] = REAL_CLOCK.unix,
    ) -> None:
        """Args:
        place: what offsets are of, for people: a partition, or "".
        pace: when it flushes by itself.
        counters, skip_log: shared with other drivers.
        on_flush: called after each flush with None or its error; a failed one is retried later.
            Without it the error is raised.
        clock: monotonic seconds.
        unix: Unix seconds.
        """
        self.table = table
        self.counters = Counter() if counters is None else counters
        self._place = place
        self._pace = pace
        self._skip_log = SkipLog() if skip_log is None else skip_log
        self._on_flush = on_flush
        self._clock = clock
        self._unix = unix
        self._flush_at = clock() + pace.flush_s
        self._sync_at = clock() + pace.sync_s
        self._failing = False
        self._folded_bytes = 0

    @property
    def faults(self) -> int:
        """Records on which the fold itself failed."""
        return self.counters[f"skipped_{INTERNAL_ERROR}"]

    @property
    def has_unflushed(self) -> bool:
        """Whether anything was folded that the rows do not cover."""
        return self.table.fold.offset != self.table.flushed

    async def fold(self, entries: Iterable[LogEntry]) -> None:
        """Folds records in order, and flushes where many changes wait.

        Nothing about a record ends it: what cannot be folded is skipped, counted and logged.

        Raises:
            StorageError, TableLostError: a flush failed, and there is no `on_flush`.
        """
        for entry in entries:
            self._count(1, self.table.apply((entry,)))
            if self._is_full:
                await self._flush_full()
            # What goes on beside it is as much as what is folded, so neither waits for the other.
            self._folded_bytes += len(entry.value)
            if self._folded_bytes > REWRITE_AFTER_BYTES:
                await self._rewrite()

    async def fold_in_thread(self, entries: Sequence[LogEntry]) -> None:
        """As `fold`, with the folding in threads: the kernel works without the interpreter's lock,
        and the loop goes on meanwhile.
        """
        rest = entries
        while rest:
            count, skipped = await in_thread(self._fold_some, rest)
            self._count(count, skipped)
            rest = rest[count:]
            if self._is_full:
                await self.flush()

    def _fold_some(self, entries: Sequence[LogEntry]) -> tuple[int, list[SkippedRecord]]:
        """Folds the first ones, until a flush is due; how many, and which of them were skipped."""
        skipped: list[SkippedRecord] = []
        count = 0
        for entry in entries:
            skipped += self.table.apply((entry,))
            count += 1
            if self._is_full:
                break
        return count, skipped

    @property
    def _is_full(self) -> bool:
        if self._failing:
            return False
        table = self.table
        return (
            table.pending_changes >= self._pace.changes_max
            or table.pending_contexts >= self._pace.contexts_max
        )

    def _count(self, records: int, skipped: Iterable[SkippedRecord]) -> None:
        self.counters["records"] += records
        for record in skipped:
            self.counters[f"skipped_{record.reason}"] += 1
            self._skip_log.log(self._place, record)

    # Maintenance

    @property
    def needs_maintenance(self) -> bool:
        """Whether `maintain` has something to do now."""
        return self.table.can_rewrite or self.table.fold.kernel.release_left(0) > 0

    async def maintain(self) -> None:
        """Goes on with what folding leaves for later: releases what large clears left, and rewrites
        contexts that are heavy. To be called again and again where nothing waits to be folded; some
        2 ms.

        Raises:
            StorageError, TableLostError: as `flush`.
        """
        release_some(self.table.fold.kernel.release_left, MAINTAINED_ENTRIES, clock=self._clock)
        await self._rewrite()

    async def _rewrite(self) -> None:
        self._folded_bytes = 0
        try:
            await self.table.rewrite(MAINTAINED_ENTRIES, now=self._unix())
        except StorageError as error:
            self._note_failure(error)

    # Flushing

    def flush_in(self) -> float:
        """Seconds until a flush is due, 0 where one is, or is under way."""
        return 0.0 if self.table.is_flushing else max(self._flush_at - self._clock(), 0.0)

    async def flush_if_due(self) -> None:
        """Begins a flush once the flush time has passed, or goes on with one, some 2 ms; to be
        called beside what is folded. See `Table.flush_some`.

        Raises:
            StorageError, TableLostError: as `flush`.
        """
        if self.table.is_flushing:
            await self._flush(self.table.flush_some)
        elif not self.flush_in():
            await self._begin_flush()

    async def _flush_full(self) -> None:
        """Begins a flush, or goes on with the one that is under way: its owner may not do that as
        often as it takes, and a record has up to as many changes as a step writes.
        """
        table = self.table
        if not table.is_flushing:
            await self._begin_flush()
        elif table.pending_changes < 2 * self._pace.changes_max:
            await self._flush(table.flush_some)
        else:
            await self.flush()

    async def _begin_flush(self) -> None:
        self._flush_at = self._clock() + self._pace.flush_s
        await self._flush(self.table.flush_some)

    async def flush(self) -> None:
        """Flushes now, all of it; see `Table.flush`.

        Raises:
            StorageError, TableLostError: it failed, and there is no `on_flush`.
        """
        self._flush_at = self._clock() + self._pace.flush_s
        await self._flush(self.table.flush)

    async def _flush(self, flush: Callable[..., Coroutine[object, None, object]]) -> None:
        try:
            await flush(now=self._unix())
            if self._clock() >= self._sync_at and not self.table.is_flushing:
                self._sync_at = self._clock() + self._pace.sync_s
                self.table.sync()
        except StorageError as error:
            self._note_failure(error)
            return
        self._failing = False
        if self._on_flush is not None:
            self._on_flush(None)

    def _note_failure(self, error: StorageError) -> None:
        if self._on_flush is None:
            raise error
        self._failing = True
        self._on_flush(error)


class RecoveryResult(NamedTuple):
    """What a recovery did, and how many records were folded."""

    plan: RecoveryPlan
    records: int


def recover(
    table: Table,
    log: RecordLog,
    *,
    flush_changes_max: int = TABLE_FLUSH_CHANGES_MAX,
    clock: Clock = REAL_CLOCK,
) -> RecoveryResult:
    """Brings a table without a topic up to the end of its log, from whatever its rows and the log
    still have. On return its rows cover the end of the log.

    Raises:
        RowVersionError: a newer Reprise wrote the rows; nothing was changed.
        DiskError: the disk failed; reopen both, and retry.
    """
    plan = run_without_loop(table.open(log.bounds, now=clock.unix()))
    driver = FoldDriver(
        table, pace=FlushPace(changes_max=flush_changes_max), clock=clock.monotonic, unix=clock.unix
    )
    run_without_loop(driver.fold(log.read(plan.start)))
    if table.fold.offset != NO_OFFSET:
        run_without_loop(driver.flush())
    return RecoveryResult(plan, driver.counters["records"])
