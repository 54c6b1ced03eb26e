"""The table of one log, or of one partition of it: the fold, its rows on this disk, and the table
topic where there is one.

`flush` writes what was folded since the last one. The order is the guarantee:

    Step 1. the source is made durable: `sync` of a log of our own; what a topic has is.
    Step 2. the rows go to the table topic, where there is one: all or none of them.
    Step 3. the same rows go to this disk in one WriteBatch, with where the topic has them.
    Step 4. they are noted as covered.

Without a topic a flush may be made in steps, with records folded in between (`flush_some`): most
of its rows go to this disk ahead, where they do not count yet; steps 1, 3 and 4 come with the rest.

A context whose deltas outweigh its live entries is then rewritten as a new generation, in pieces
(`rewrite`): its chunks go ahead, to the topic and to this disk, beside what is folded and flushed
meanwhile, for until the mark they do not count. The mark comes in one batch with the removal of the
old rows, by steps 2 to 4 once more. What is held for it is a dump, some 30 bytes for each live
entry of one context.

`open` brings a table to where its rows are, and takes the same four steps: 1 durable, 2 the topic
is taken and read, 3 the disk is read into the fold, 4 what was decided is carried out and noted
(`streams.table.recovery` has the cases).

So the disk is never ahead of the topic, unless the topic was lost, and neither is ever ahead of the
log. A crash at any step leaves a table that covers some offset; whoever opens it next folds on from
there. A rebuilt table has a name of its own, by which everyone who follows the old one knows to
start over.

The embedded service has no table topic. Then nothing here ever waits: see `run_without_loop`.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from logs.interface import LogEntry, RecordLog
from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import Offset
from schemas.limits import KIB, MAINTAINED_ENTRIES, MIB
from schemas.positions import LogBounds
from streams.bounds import STORE_GENERATION_DELTAS
from streams.table.fold import NO_OFFSET, Fold, TableChanges
from streams.table.history_interface import NO_HISTORY, RowHistory
from streams.table.recovery import RecoveryAction, RecoveryPlan, plan_recovery
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowWrite
from streams.table.rows.reader import RowReader
from streams.table.rows.rewriting import Rewriting
from streams.table.rows.writer import Flush, RowWriter
from streams.table.skip_log import SkippedRecord, log_left_out
from streams.table.store import LocalCopy, StoredRows, TableStore
from streams.table.threads import in_thread
from streams.table.topic_copy import TopicCopy
from streams.table.topic_interface import TableTopic

STORE_GENERATION_MIN_BYTES: Final = 1 * MIB  # deltas of a context, before a store rewrites it
TOPIC_GENERATION_MIN_BYTES: Final = 64 * KIB  # the same in a topic, which many small contexts share
TOPIC_GENERATION_DELTAS: Final = 1.25  # in a topic; above 1: what only grows is left alone
FLUSH_STEP_BYTES: Final = 256 * KIB  # of rows, written between two records: some 2 ms


class _Switch(NamedTuple):
    """What makes a generation the current one: the last chunks, and the rows with the mark."""

    rewriting: Rewriting
    ahead: list[RowWrite]
    written: list[RowWrite]


class Table:
    """See the module. One owner; calls may not overlap. Other threads may read `fold`.

    Attributes:
        fold: the state in memory; its offset is the last record folded.
        flushed: the last offset that the rows cover.
        durable: the same, of rows that survive a power cut.
        written_rows, written_bytes: what was written, keys included.
    """

    def __init__(
        self,
        path: Path,
        make_fold: Callable[[], Fold],
        topic: TableTopic | None = None,
        *,
        log: RecordLog | None = None,
        make_name: Callable[[], bytes] = lambda: os.urandom(8),
        generation_min_bytes: int | None = None,
        history: RowHistory = NO_HISTORY,
    ) -> None:
        """Opens the rows on this disk; damaged files are set aside, and the rows made again.

        Args:
            path: the directory of its rows.
            make_fold: an empty fold with a kernel of its own.
            log: what is folded, where that is a log of our own.
            make_name: a name that no table had before; for a table with a topic.
            generation_min_bytes: see `RowWriter`.
            history: keeps past rows; it raises nothing.

        Raises:
            DataDirectoryInUseError: another process has it open.
            RowVersionError: a newer Reprise wrote it; nothing was changed.
            StorageError: it cannot be opened.
        """
        self._topic = topic
        self._log = log
        self._make_fold = make_fold
        self._make_name = make_name
        self._history = history
        if generation_min_bytes is None:
            alone = topic is None
            generation_min_bytes = (
                STORE_GENERATION_MIN_BYTES if alone else TOPIC_GENERATION_MIN_BYTES
            )
        self._new_writer = partial(
            RowWriter,
            generation_min_bytes=generation_min_bytes,
            generation_deltas=STORE_GENERATION_DELTAS if topic is None else TOPIC_GENERATION_DELTAS,
        )
        self._store = TableStore(path)
        try:
            with suppress(RowCorruptError):  # `open` handles it
                self._store.covered()
        except RowVersionError as error:
            self._store.close()
            error.where = str(path)
            raise
        self.fold = make_fold()
        self._begin(self.fold)
        self.written_rows = 0
        self.written_bytes = 0
        self.generations = 0

    def _begin(self, fold: Fold) -> None:
        self.fold = fold
        fold.when_left_out = log_left_out
        self.flushed = self.durable = NO_OFFSET
        self._start = 0
        self._writer = self._new_writer()
        self._unflushed: TableChanges | None = None
        self._flushing: Flush | None = None
        self._switching: _Switch | None = None
        self._failed = False

    # Opening

    async def open(self, log: LogBounds, *, now: float) -> RecoveryPlan:
        """Brings the table to where its rows are, and decides where folding starts.

        May be retried after an error that can pass.

        Args:
            log: what the log has.
            now: Unix seconds.

        Raises:
            RowVersionError: a newer Reprise wrote the table.
            DiskError, TableLostError: call `reopen` and retry, or close it.
        """
        self._begin(self._make_fold())
        # Step 1.
        if self._log is not None:
            self._log.sync()
        # Step 2.
        published, why_copied = True, ""
        if self._topic is not None:
            await self._topic.take()
            published, why_copied = await TopicCopy(self._store, self._topic).update(now)
        # Step 3.
        plan, corrupt = await self._loaded(log, published=published)
        if corrupt and self._topic is not None:
            await TopicCopy(self._store, self._topic).renew(now)
            why_copied = corrupt
            plan, corrupt = await self._loaded(log, published=True)
            corrupt = corrupt and f"the table topic has: {corrupt}"
        # Step 4.
        self._start, self.flushed = plan.start, self.fold.offset
        match plan.action:
            case RecoveryAction.REBUILD:
                corrupt += self._clear(plan)
            case RecoveryAction.PUBLISH:
                await self._publish(now)
            case RecoveryAction.ADOPT:
                assert self._log is not None, "only a log of our own is adopted"
                self._log.advance_to(plan.start)
        if plan.action is RecoveryAction.REBUILD:
            self._history.begin(self._store, log)
        else:
            self._history.resume(self._store, log)
        reasons = (plan.reason, self._store.damage, why_copied, corrupt)
        return plan._replace(reason="; ".join(filter(None, reasons)))

    async def _loaded(self, log: LogBounds, *, published: bool) -> tuple[RecoveryPlan, str]:
        """`_load`; beside the loop where there is one, which sends heartbeats meanwhile."""
        if self._topic is None:
            return self._load(log, published)
        return await in_thread(self._load, log, published)

    def _load(self, log: LogBounds, published: bool) -> tuple[RecoveryPlan, str]:
        """Decides, and loads this disk's rows where they count.

        Returns:
            The plan, and why the rows cannot be used where they are corrupt.
        """
        own_log = self._log is not None

        def plan(covered: Offset | None, *, same_seed: bool = True) -> RecoveryPlan:
            return plan_recovery(
                covered=covered,
                same_seed=same_seed,
                log=log,
                own_log=own_log,
                published=published,
            )

        try:
            seed = self._store.seed()
            decided = plan(self._store.covered(), same_seed=seed in (None, self.fold.kernel.seed))
            if decided.action is not RecoveryAction.REBUILD:
                self._load_rows(seed_written=seed is not None)
        except RowCorruptError as error:
            corrupt = str(error)
        except RowVersionError as error:
            error.where = str(self._store.path)
            raise
        else:
            return decided, ""
        # Not while the error is handled: it holds on to what was being read.
        self._begin(self._make_fold())
        return plan(None)._replace(reason="the table is corrupt"), corrupt

    def _load_rows(self, *, seed_written: bool) -> None:
        reader = RowReader(self.fold.kernel, strict=True)
        stored = StoredRows(self._store)
        reader.load(stored)
        self.fold.restore(
            reader.covered(0),
            reader.publishers,
            reader.registrations,
            reader.unproven(0),
            reader.bridges(0),
            reader.ledgers,
            reader.segments(),
        )
        self._writer = self._new_writer(
            table=self._store.table(),
            strays=stored.strays,
            contexts=reader.contexts(0).states,
            seed_written=seed_written,
        )

    def _clear(self, plan: RecoveryPlan) -> str:
        """Begins an empty table, of another name where it has a topic: its first flush removes
        every row of the old one there. Returns what became of the old rows.
        """
        self._begin(self._make_fold())
        if self._topic is not None:
            old = [row.key for row in self._store.all_rows() if row.key != rows.COVERED_KEY]
            self._writer.strays = old
            self._writer.table = self._make_name()
        aside = self._store.set_aside()
        self._start = plan.start
        # So that a table without records says, too, that it has what the log still has.
        self.fold.restore(Offset(plan.start - 1), {}, {})
        if plan.unproven_before:
            self.fold.distrust(plan.unproven_before)
        return "" if aside is None else f"the old rows were moved to {aside}"

    async def _publish(self, now: float) -> None:
        """Sends this disk's rows under a name of its own: an older copy may have the one it had."""
        self._writer.table = self._make_name()
        unsent = {rows.COVERED_KEY, *self._writer.strays}
        written = [row for row in self._store.all_rows() if row.key not in unsent]
        covered = rows.encode_row(RowKind.DELTA, self.fold.offset, self._writer.table)
        await self._write([*written, RowWrite(rows.COVERED_KEY, covered)], now)

    # Folding

    @property
    def next_offset(self) -> int:
        """The offset of the record to fold next."""
        return max(self.fold.offset + 1, self._start)

    @property
    def pending_changes(self) -> int:
        """How many changes the next flush would write."""
        return self.fold.kernel.pending_changes()

    @property
    def pending_contexts(self) -> int:
        """How many contexts they are of; each takes a row at least."""
        return self.fold.kernel.pending_contexts()

    def apply(self, entries: Iterable[LogEntry]) -> list[SkippedRecord]:
        """Folds records in order; those at or below the fold's offset are ignored.

        Returns:
            Those that were skipped; all others are folded.
        """
        skipped = [self.fold.apply(entry.offset, entry.value) for entry in entries]
        return [record for record in skipped if record is not None]

    @property
    def is_flushing(self) -> bool:
        """Whether a flush was begun by `flush_some`, and is to go on."""
        return self._flushing is not None

    async def flush(self, *, now: float) -> int:
        """Writes what was folded since the last flush; returns how many rows that took.

        Raises:
            DiskError: the rows cover what they covered before, or all but a new generation was
                written. Called again, it reopens the disk's rows and writes the same changes.
            TableLostError: close the table and open it again, or `take_again` and retry.
        """
        before = self.written_rows
        while not self._is_level or self._switching is not None:
            await self.flush_some(now=now)
        return self.written_rows - before

    async def flush_some(self, *, now: float) -> None:
        """Begins a flush of what was folded, or goes on with the one that was begun: some
        FLUSH_STEP_BYTES of its rows, some 2 ms. A table with a topic writes all of it.

        Raises:
            DiskError, TableLostError: as `flush`; the next call begins it anew.
        """
        if self._is_level and self._switching is None:
            return
        try:
            if self._failed:
                self._store.reopen()
            if self._switching is not None:
                await self._finish_switch(self._switching, now)
            if self._flushing is None:
                if self._unflushed is None:
                    self._unflushed = self.fold.take_changes()
                self._flushing = self._writer.flush(self.fold, self._unflushed)
            await self._go_on(self._flushing, now)
        except BaseException:
            self._flushing = None
            raise

    async def _go_on(self, flush: Flush, now: float) -> None:
        ahead: list[RowWrite] = []
        if self._topic is None:
            ahead, is_rest = flush.take_ahead(FLUSH_STEP_BYTES)
            if not is_rest:
                await self._write_ahead(ahead)
                return
        # Step 1.
        if self._log is not None:
            self._log.sync()
        # Steps 2 and 3.
        await self._write([*ahead, *flush.rest()], now)
        # Step 4.
        self._writer.note(flush)
        self._writer.find_heavy(self.fold, flush)
        self.flushed = flush.changes.offset
        self._unflushed = self._flushing = None
        if self._writer.waits_for_flush and not self._is_level:
            await self.flush(now=now)  # what was folded meanwhile: it would never be level
        else:
            await self.rewrite(MAINTAINED_ENTRIES, now=now)

    # Rewriting

    @property
    def _is_level(self) -> bool:
        """Whether the rows cover all that was folded, as a dump and a mark claim."""
        return self._unflushed is None and self.fold.offset == self.flushed

    @property
    def can_rewrite(self) -> bool:
        """Whether `rewrite` has something to do now."""
        rewriting = self._writer.rewriting
        if self._failed or self._switching is not None:
            return False
        if rewriting is None:
            return self._is_level and self._writer.has_heavy
        return rewriting.has_chunk or self._is_level

    async def rewrite(self, entries: int, *, now: float) -> int:
        """Goes on with the new generations of contexts that are heavy, one after the other.

        Args:
            entries: about so many are dumped or written; some 4 ms for 16,384.
            now: Unix seconds.

        Returns:
            How many rows it wrote.

        Raises:
            DiskError, TableLostError: as `flush`; the generation is given up, or where it was to
                become the current one, the next flush makes it that.
        """
        before, left = self.written_rows, entries
        try:
            while left > 0 and self.can_rewrite:
                rewriting = self._writer.rewriting or self._writer.begin_rewriting(self.fold)
                assert rewriting is not None, "as `can_rewrite` says"
                if rewriting.may_end and self._is_level:
                    await self._switch(rewriting, now)
                    continue
                left -= 1 + rewriting.step(left)
                if ahead := rewriting.take_ahead():
                    await self._write_ahead(ahead)
        except BaseException:  # also where the table is lost, and may be taken again
            if self._switching is None:
                self._writer.give_up_rewriting()
            raise
        return self.written_rows - before

    async def _switch(self, rewriting: Rewriting, now: float) -> None:
        ahead = rewriting.rest()
        written = self._writer.switch(rewriting, self.flushed)
        self._switching = _Switch(rewriting, ahead, written)
        await self._finish_switch(self._switching, now)

    async def _finish_switch(self, switching: _Switch, now: float) -> None:
        """Makes a generation the current one. Where that fails, nothing else may be written before
        it: the topic or this disk may have the mark, and no row of the one before would count.
        """
        await self._write(switching.written, now, ahead=switching.ahead)
        self._writer.note_rewritten(switching.rewriting)
        self._switching = None
        self.generations += 1

    async def _write_ahead(self, written: list[RowWrite]) -> None:
        """Writes rows that do not count yet."""
        if self._topic is not None:
            await self._topic.write_ahead(written)
        self._failed = True
        self._store.write(map(self._count, written))
        self._failed = False
        self._history.add(written)

    def sync(self) -> None:
        """Makes what was flushed survive a power cut; only then may a log of our own drop it.

        Raises:
            DiskError: it may not.
        """
        if self.durable != self.flushed:
            self._store.sync()
            self.durable = self.flushed

    async def _write(
        self,
        written: list[RowWrite],
        now: float,
        *,
        ahead: Sequence[RowWrite] = (),
    ) -> int:
        """Writes rows that end in the `covered` row which commits them, and the rows `ahead`, which
        do not count without them; returns how many.
        """
        assert written[-1].key == rows.COVERED_KEY, "a flush ends in the row that commits it"
        local, before = None, self.written_rows
        # Step 2.
        if self._topic is not None:
            offsets = await self._topic.write(written, ahead)
            local = LocalCopy(offsets[-1], now)
        # Step 3.
        self._failed = True
        if ahead:
            self._store.write(map(self._count, ahead))
        self._store.commit(map(self._count, written), local)
        self._failed = False
        self._history.add([*ahead, *written])
        return self.written_rows - before

    def _count(self, row: RowWrite) -> RowWrite:
        self.written_rows += 1
        self.written_bytes += len(row.key) + len(row.value or b"")
        return row

    async def take_again(self) -> bool:
        """Whether no other worker had the table since this object did; if so it may go on."""
        return self._topic is None or await self._topic.take()

    def reopen(self) -> None:
        """Reopens this disk's rows after an error; call `open` next. Raises StorageError where they
        cannot be opened now; retry later.
        """
        self._store.reopen()

    def close(self) -> None:
        """Closes this disk's rows; what was flushed stays."""
        self._history.flush()
        self._store.close()
