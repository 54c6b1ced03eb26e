"""Puts a table's rows into a history as the table writes them.

    rows of contexts     at once, in batches: under keys of their own they count for nothing until a
                         flush that covers them is marked
    all other rows       once in HISTORY_FLUSH_S at the most, the last of each key, with the mark of
                         the flush that they are as of

So a history has fewer flushes than its table: what lies between is folded from the log
(`streams.history.past_fold`). A crash costs its end, at most HISTORY_SYNC_S and a write buffer
(`storage.rocksdb`); `resume` copies that from the table's own rows, which still have it.

A history that cannot be written costs the past, and nothing else: its table goes on, and it begins
a run of its own once it can be written again.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from schemas.clock import REAL_CLOCK
from schemas.errors import StorageError
from schemas.limits import KIB
from schemas.positions import LogBounds
from storage.rocksdb import new_batch
from streams.bounds import HISTORY_RETRY_S
from streams.history.store import FlushRun, HistoryStore, context_key, flush_key, plain_key
from streams.table.rows import format as rows
from streams.table.rows.format import RowWrite
from streams.table.store import TableStore

HISTORY_BATCH_BYTES: Final = 512 * KIB  # of rows, written at once
HISTORY_FLUSH_S: Final = 1.0  # how often a flush is marked: what lies behind is folded from the log
HISTORY_SYNC_S: Final = 600.0  # how often it is synced, where little is written: what a kill costs

_logger = logging.getLogger(__name__)


class HistoryRecorder:
    """Of one partition's table. One thread; see the module.

    Attributes:
        problem: why the past is not recorded now, or "".
    """

    def __init__(
        self,
        store: HistoryStore,
        *,
        seed: int,
        partition: int = 0,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        """Args:
        seed: of the prefix hash.
        partition: of the log.
        clock: monotonic seconds.
        """
        self.problem = ""
        self._store = store
        self._seed = seed
        self._partition = partition
        self._clock = clock
        self._run: FlushRun | None = None
        self._table: TableStore | None = None
        self._since = self._complete_from = 0
        self._forget_waiting()
        self._due_at = clock() + HISTORY_FLUSH_S
        self._sync_at = clock() + HISTORY_SYNC_S
        self._retry_at = 0.0

    def _forget_waiting(self) -> None:
        self._batch = new_batch()
        self._plain: dict[bytes, bytes] = {}
        self._covered: bytes | None = None

    # What the table tells

    def begin(self, table: TableStore, log: LogBounds) -> None:
        """The table begins anew, empty, to be folded from what the log has; `table` has its rows
        from now on.
        """
        self._table = table
        self._attempt(lambda: self._forget_another_log(log))
        self._known_again(log)
        self._attempt(lambda: self._begin(since=self._since, begun_at=log.end))

    def resume(self, table: TableStore, log: LogBounds) -> None:
        """The table goes on with these rows, and folds the rest of the log: what is missing of them
        is copied, or all of them into another run, where they do not follow on what is here. Cost
        O(rows) where some are missing.
        """
        self._table = table
        self._known_again(log)
        self._attempt(self._resume)

    def _known_again(self, log: LogBounds) -> None:
        """Of a log that has lost its beginning a fold need not be what was known as it came: the
        rows may be those of a table that was being built anew.
        """
        self._since = 0 if log.start == 0 else log.end
        self._complete_from = log.start

    def add(self, written: Sequence[RowWrite]) -> None:
        """The table has written these; those of a flush end in its `covered` row."""
        if self._run is None:
            self._try_again()
        else:
            self._attempt(lambda: self._add(written))

    def flush(self) -> None:
        """Writes what waits."""
        if self._run is not None:
            self._attempt(self._write_flush)

    # Writing

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StorageError as error:
            self._run = None
            self._forget_waiting()
            self._retry_at = self._clock() + HISTORY_RETRY_S
            if not self.problem:
                _logger.warning(
                    "The past is no longer recorded: %s. Queries with `as_of` are answered up to"
                    " here; it is tried again every %.0f s",
                    error,
                    HISTORY_RETRY_S,
                )
            self.problem = str(error)
        else:
            if self.problem and self._run is not None:
                _logger.info("The past is recorded again")
                self.problem = ""

    def _try_again(self) -> None:
        if self._table is not None and self._clock() >= self._retry_at:
            self._attempt(self._resume)

    def _forget_another_log(self, log: LogBounds) -> None:
        """What is known of offsets that this log has not given out is of one that it replaced."""
        known = self._store.runs(self._partition)
        if known and max(bounds.last for bounds in known) >= log.end:
            _logger.warning(
                "The log of partition %d is another one now: the past of the one before is dropped",
                self._partition,
            )
            self._store.drop_all(self._partition)

    def _begin(self, *, since: int, begun_at: int) -> None:
        self._forget_waiting()
        self._run = None
        self._run = self._store.begin_run(
            self._partition, self._seed, since=since, begun_at=begun_at
        )
        # Its first flush is marked at once: without one, the run before it would be asked.
        self._due_at = self._clock()

    def _resume(self) -> None:
        table = self._table
        assert table is not None
        self._forget_waiting()
        self._run = None
        covered = table.covered()
        if covered is None:
            self._begin(since=0, begun_at=0)
            return
        known = self._store.runs(self._partition)
        last = known[-1] if known else None
        # A run behind it that has no flush is of a table that was being built anew: of this one.
        is_of_last = last is not None and last.run == self._store.newest_run(self._partition)
        if last is None or not is_of_last or last.seed != self._seed or last.last > covered:
            begun_at = max(covered + 1, self._since)
            # Of a whole log the rows are the fold, whoever made them.
            self._begin(since=begun_at if self._since else 0, begun_at=begun_at)
            self._copy(table, newer_than=None)
        else:
            self._run = last.run
            # A generation may have become the current one without a flush.
            if last.last < covered or self._rewritten(table, last.run, last.last):
                self._copy(table, newer_than=last.last)

    def _rewritten(self, table: TableStore, run: FlushRun, covers: int) -> set[bytes]:
        """What the keys of those contexts begin with whose rows are of another generation than
        those that the run has as of a flush.
        """
        known = dict(self._store.plain_rows(run, covers, (rows.MARK,)))
        return {
            rows.context_prefix(rows.parse_mark_key(key))
            for key, value in table.read(rows.MARK)
            if known.get(key) != value
        }

    def _copy(self, table: TableStore, *, newer_than: int | None) -> None:
        """The table's rows; or of those that the run has up to a flush, what came after it."""
        run = self._run
        assert run is not None
        dumped: set[bytes] = set()
        gone: set[bytes] = set()
        if newer_than is not None:
            dumped = self._rewritten(table, run, newer_than)
            kinds = (rows.PUBLISHER, rows.REGISTRATION, rows.FACT)
            gone = {key for key, _ in self._store.plain_rows(run, newer_than, kinds)}
        for row in table.all_rows():
            gone.discard(row.key)
            if row.value is None:
                continue
            is_old = newer_than is not None and rows.covers_of(row.value) <= newer_than
            if is_old and not self._is_of(row.key, dumped):
                continue
            if row.key == rows.COVERED_KEY:
                self._plain |= dict.fromkeys(gone, b"")
            self._add([row])
        self._write_flush()

    @staticmethod
    def _is_of(key: bytes, contexts: set[bytes]) -> bool:
        """Whether it is the key of a row or of the mark of one of these, or of `covered`."""
        if key[:1] == rows.CONTEXT:
            return rows.prefix_of(key) in contexts
        if key[:1] == rows.MARK:
            return rows.context_prefix(rows.parse_mark_key(key)) in contexts
        return key == rows.COVERED_KEY

    def _add(self, written: Sequence[RowWrite]) -> None:
        run = self._run
        assert run is not None
        for key, value in written:
            if key == rows.COVERED_KEY:
                self._covered = value
            elif key[:1] != rows.CONTEXT:
                self._plain[key] = value or b""
            elif value is not None:
                self._batch.put(context_key(run, key), value)
        if self._batch.size_in_bytes() > HISTORY_BATCH_BYTES:
            self._write_contexts()
        is_flush = bool(written) and written[-1].key == rows.COVERED_KEY
        if is_flush and self._clock() >= self._due_at:
            self._write_flush()

    def _write_contexts(self) -> None:
        batch, self._batch = self._batch, new_batch()
        self._store.write(batch)

    def _write_flush(self) -> None:
        """All or nothing: the mark comes with the rows that count by it."""
        run, covered = self._run, self._covered
        covers = None if covered is None else rows.covers_of(covered)
        if covers is not None and covers + 1 < self._complete_from:
            # Of a table that is being built anew, and is not yet where the log has everything from:
            # nothing can be folded from it, so that positions behind it would be those of the run
            # before. The next flush counts, however soon.
            return
        self._due_at = self._clock() + HISTORY_FLUSH_S
        if run is None or covered is None or covers is None:
            return
        for key, value in self._plain.items():
            self._batch.put(plain_key(run, key, covers), value)
        self._batch.put(flush_key(run, covers), covered)
        self._plain, self._covered = {}, None
        self._write_contexts()
        if self._clock() >= self._sync_at:
            self._sync_at = self._clock() + HISTORY_SYNC_S
            self._store.begin_sync()
