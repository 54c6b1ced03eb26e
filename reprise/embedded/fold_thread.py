"""Steps 3 and 5 of `reprise.embedded.write_thread`: a thread that folds and flushes.

It is apart from the thread that reads and appends because the Rust kernel and RocksDB work without
the interpreter's lock: folding one turn's records goes on while the next turn's are read.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from schemas.conditions import Conditions, Part
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.limits import FOLD_QUEUE_BYTES_MAX, SHUTDOWN_S, TABLE_FLUSH_CHANGES_MAX
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold, TableChanges
from streams.table.skip_log import SkippedRecords
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
        conditions: told of a flush that failed, which is tried again, and of the thread's end.
    """

    def __init__(
        self,
        fold: Fold,
        store: TableStore,
        log: EmbeddedLog,
        *,
        flush_s: float,
        conditions: Conditions,
    ) -> None:
        self.fold = fold
        self.flushed_offset = fold.offset
        self.faults = 0
        self._store = store
        self._log = log
        self._flush_s = flush_s
        self._conditions = conditions
        self._queue: deque[_Appended] = deque()
        self._queued_bytes = 0
        self._changed = threading.Condition()
        self._skipped = SkippedRecords()
        self._stopping = False
        self._ended = False
        self._pending = 0  # batches of records queued or being folded
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
        """Queues records that were appended from `first` on; waits while the queue is full.

        Raises:
            StorageError: the thread has ended; the records are in the log.
        """
        appended = _Appended(first, encoded, sum(map(len, encoded)))
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or self._queued_bytes <= FOLD_QUEUE_BYTES_MAX
            )
            self._check_running()
            self._queue.append(appended)
            self._queued_bytes += appended.size_bytes
            self._pending += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns once everything that was submitted is folded.

        Raises:
            StorageError: the thread has ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or not self._pending)
            self._check_running()

    def _check_running(self) -> None:
        if self._ended:
            raise StorageError("Expected the fold to run, but it has ended: restart the service")

    def _run(self) -> None:
        try:
            self._fold_until_stopped()
        except BaseException as error:
            # Even a panic of the kernel is told: answers must not go on as if they were exact.
            logger.exception("The fold has ended; queries go on with what is folded")
            message = f"the fold has ended: {error!r}"
            self._conditions.set(Part.INTERNAL, "thread_ended", message, logged=False)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _fold_until_stopped(self) -> None:
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
                message = f"the record at {offset} could not be folded"
                self._conditions.set(Part.INTERNAL, "record_failed", message, logged=False)
                continue
            if skipped is not None:
                self._skipped.name("", skipped)
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def _is_flush_due(self) -> bool:
        now = time.monotonic()
        many = self.fold.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX
        if now < self._flush_at and (not many or self._unflushed is not None):
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
            self._conditions.set(Part.TABLE, "disk", str(error))
            return
        self._conditions.clear(Part.TABLE)
        self.flushed_offset = self._unflushed.offset
        self._unflushed = None
