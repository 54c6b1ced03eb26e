"""Steps 3 and 5 of the write path (`reprise.ingest`): a thread that folds and flushes.

It is apart from the thread that reads and appends because the Rust kernel and RocksDB work without
the interpreter's lock: folding one turn's records goes on while the next turn's are read.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.limits import FOLD_QUEUE_BYTES_MAX, SHUTDOWN_S, TABLE_FLUSH_CHANGES_MAX
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold, TableChanges
from streams.table.store import TableStore

logger = logging.getLogger(__name__)


class _Appended(NamedTuple):
    """Records that are in the log: the first one's offset, and all of them."""

    first: Offset
    encoded: Sequence[bytes]
    size_bytes: int


class FoldLoop:
    """Owns the fold and the store while it runs; other threads may read the fold.

    Args:
        fold: recovered; folds go on behind its offset.
        flush_s: how often the table's changes are written.
        note_disk_error: told of a flush that failed; it is tried again with the next one.
    """

    def __init__(
        self,
        fold: Fold,
        store: TableStore,
        log: EmbeddedLog,
        *,
        flush_s: float,
        note_disk_error: Callable[[StorageError], None],
    ) -> None:
        self.fold = fold
        self.flushed_offset = fold.offset
        self.faults = 0
        self._store = store
        self._log = log
        self._flush_s = flush_s
        self._note_disk_error = note_disk_error
        self._queue: deque[_Appended] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._unflushed: TableChanges | None = None
        self._flush_at = 0.0
        self._thread = threading.Thread(target=self._run, name="fold", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Folds what is queued, flushes, and ends the thread; within a bound."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_S)

    def submit(self, first: Offset, encoded: Sequence[bytes]) -> None:
        """Queues records that were appended from `first` on; waits while the queue is full."""
        appended = _Appended(first, encoded, sum(map(len, encoded)))
        with self._changed:
            self._changed.wait_for(lambda: self._queued_bytes <= FOLD_QUEUE_BYTES_MAX)
            self._queue.append(appended)
            self._queued_bytes += appended.size_bytes
            self._changed.notify_all()

    def wait_until(self, offset: Offset) -> None:
        """Returns once the record at `offset` has been folded."""
        with self._changed:
            self._changed.wait_for(lambda: self.fold.offset >= offset)

    def _run(self) -> None:
        while True:
            appended = self._take()
            if appended is not None:
                self._fold(appended)
            if self._is_flush_due():
                self._flush()
            if appended is None and self._stopping:
                self._flush()
                return

    def _take(self) -> _Appended | None:
        wait_s = max(self._flush_at - time.monotonic(), 0.0)
        if self.fold.offset == self.flushed_offset:
            wait_s = self._flush_s
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping, wait_s)
            if not self._queue:
                return None
            appended = self._queue.popleft()
            self._queued_bytes -= appended.size_bytes
            return appended

    def _fold(self, appended: _Appended) -> None:
        for place, value in enumerate(appended.encoded):
            offset = Offset(appended.first + place)
            try:
                skipped = self.fold.apply(offset, value)
            except Exception:
                # The fold itself skips what cannot be used: this is a fault of ours.
                logger.exception("The record at offset %d could not be folded", offset)
                self.faults += 1
                continue
            if skipped is not None:
                logger.warning("Skipped the record at offset %d (%s): %s", *skipped)
        with self._changed:
            self._changed.notify_all()

    def _is_flush_due(self) -> bool:
        now = time.monotonic()
        if now < self._flush_at and self.fold.kernel.pending_changes() < TABLE_FLUSH_CHANGES_MAX:
            return False
        self._flush_at = now + self._flush_s
        return True

    def _flush(self) -> None:
        if self._unflushed is None and self.fold.offset == self.flushed_offset:
            return
        try:
            self._log.sync()
            if self._unflushed is not None:
                self._store.reopen()
            else:
                self._unflushed = self.fold.take_changes()
            self._store.flush(self.fold, self._unflushed)
        except StorageError as error:
            self._note_disk_error(error)
            return
        self.flushed_offset = self._unflushed.offset
        self._unflushed = None
