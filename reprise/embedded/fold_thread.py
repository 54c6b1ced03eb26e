"""Steps 3 and 5 of `reprise.embedded.write_thread`: a thread that folds and flushes.

It is apart from the thread that reads and appends because the Rust kernel and RocksDB work without
the interpreter's lock: folding one turn's records goes on while the next turn's are read.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from bridge.pace import TurnPace
from logs.interface import LogEntry
from schemas.conditions import Conditions, Part
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.limits import FOLD_TURN_BYTES_MAX, KIB, SHUTDOWN_S
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes
from streams.table.driver import FlushPace, FoldDriver
from streams.table.table import Table
from streams.table.threads import run_without_loop

TABLE_SYNC_S: Final = 5.0  # of the embedded table; its log may drop only what is synced there
FOLD_TURN_S: Final = 0.002  # what one turn may take to fold; as much again may wait, appended
FOLD_TURN_BYTES_MIN: Final = 4 * KIB  # of a turn, however long the last ones took
FOLD_FLUSH_CONTEXTS_MAX: Final = 512  # with changes: a flush is due then; some 8 ms

NEVER: Final = float("-inf")
logger = logging.getLogger(__name__)


class _Appended(NamedTuple):
    """Records that are in the log: the first one's offset, and all of them; as of when, in
    monotonic seconds, the log then has all that its confirmed publishers had sent; and the context
    of the span that appended them.
    """

    first: Offset
    encoded: Sequence[bytes]
    size_bytes: int
    as_of: float = NEVER
    traceparent: str = ""


class FoldThread:
    """The thread and its queue around a `FoldDriver`. It owns the table while it runs; other
    threads may read the fold.

    Args:
        table: folds go on behind its offset, once it is recovered.
        flush_s: how often the table's changes are written.
        conditions: set by a flush that failed, which is retried, and by the thread's end.

    Attributes:
        fold: the table's state; empty until `recovered`, where the table is not yet.
        as_of: when everything was folded that confirmed publishers had sent by then, monotonic
            seconds.
    """

    def __init__(
        self,
        table: Table,
        *,
        flush_s: float,
        conditions: Conditions,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.fold = table.fold
        self._table = table
        self._flush_s = flush_s
        self._driver = self._new_driver()
        self._conditions = conditions
        self._tracer = tracer
        self._queue: deque[_Appended] = deque()
        self._queued_bytes = 0
        self._pace = TurnPace(FOLD_TURN_S, least=FOLD_TURN_BYTES_MIN, most=FOLD_TURN_BYTES_MAX)
        # One lock, and who waits is woken by what it waits for alone: a turn wakes this thread and
        # the one that appends, and each waking costs both of them the interpreter's lock.
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._folded = threading.Condition(self._lock)
        self.as_of = NEVER
        self._stopping = False
        self._ended = False
        self._pending = 0  # batches of records queued or being folded
        self._thread = threading.Thread(target=self._run, name="fold", daemon=True)

    def _new_driver(self) -> FoldDriver:
        return FoldDriver(
            self._table,
            pace=FlushPace(
                flush_s=self._flush_s, sync_s=TABLE_SYNC_S, contexts_max=FOLD_FLUSH_CONTEXTS_MAX
            ),
            on_flush=self._note_flush,
        )

    def recovered(self) -> None:
        """The table has another state than when this was made; before `start`."""
        self.fold = self._table.fold
        self._driver = self._new_driver()

    @property
    def flushed_offset(self) -> Offset:
        """What the table's rows cover."""
        return self._driver.table.flushed

    @property
    def durable_offset(self) -> Offset:
        """The same, of rows that survive a power cut: the log may drop no more."""
        return self._driver.table.durable

    @property
    def faults(self) -> int:
        """Records on which the fold itself failed."""
        return self._driver.faults

    @property
    def is_idle(self) -> bool:
        """Whether nothing that was submitted waits; the last of it may be being folded."""
        return self._pending <= 1

    @property
    def turn_bytes(self) -> int:
        """How many bytes of records may be submitted at once: what is folded in FOLD_TURN_S, by
        what the last ones took. A removed block has nine bytes, a stored one of 16 tokens some 70.
        """
        return self._pace.amount

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Folds what is queued, flushes, and ends the thread; within a bound."""
        with self._lock:
            self._stopping = True
            self._filled.notify_all()
        if self._thread.ident is not None:
            self._thread.join(SHUTDOWN_S)

    def submit(self, first: Offset, encoded: Sequence[bytes], traceparent: str = "") -> None:
        """Queues records that were appended from `first` on; waits while the queue is full.

        Args:
            first: offset of the first one.
            traceparent: of the span that appended them.

        Raises:
            StorageError: the thread has ended; the records are in the log.
        """
        size_bytes = sum(map(len, encoded))
        self._submit(_Appended(first, encoded, size_bytes, traceparent=traceparent))

    def mark(self, as_of: float) -> None:
        """Everything that was submitted is what there was at `as_of`; see there. May wait as
        `submit` does.

        Raises:
            StorageError: the thread has ended.
        """
        self._submit(_Appended(Offset(0), (), 0, as_of))

    def _submit(self, appended: _Appended) -> None:
        with self._lock:
            self._has_room.wait_for(
                lambda: (
                    self._ended
                    or not self._queue
                    or self._queued_bytes + appended.size_bytes <= self._pace.amount
                )
            )
            self._check_running()
            self._queue.append(appended)
            self._queued_bytes += appended.size_bytes
            self._pending += 1
            self._filled.notify()

    def wait(self) -> None:
        """Returns once everything that was submitted is folded.

        Raises:
            StorageError: the thread has ended.
        """
        with self._lock:
            self._folded.wait_for(lambda: self._ended or not self._pending)
            self._check_running()

    def _check_running(self) -> None:
        if self._ended:
            raise StorageError("The fold has ended after an error: restart the service")

    def _run(self) -> None:
        try:
            self._fold_until_stopped()
        except BaseException as error:
            # A panic of the kernel counts too: answers must not stay `exact`.
            logger.exception(
                "The fold thread failed; queries continue with what is folded, marked stale"
            )
            message = f"the fold thread failed: {error!r}"
            self._conditions.set(Part.INTERNAL, "thread_ended", message, logged=False)
            if not isinstance(error, Exception):
                raise
        finally:
            with self._lock:
                self._ended = True
                self._has_room.notify_all()
                self._folded.notify_all()

    def _fold_until_stopped(self) -> None:
        while True:
            appended = self._take()
            if appended is not None:
                self._fold(appended)
            elif self._driver.needs_maintenance:
                run_without_loop(self._driver.maintain())
            run_without_loop(self._driver.flush_if_due())
            if appended is None and self._stopping:
                run_without_loop(self._driver.flush())
                return

    def _take(self) -> _Appended | None:
        wait_s = self._driver.flush_in() if self._driver.has_unflushed else self._flush_s
        if self._driver.needs_maintenance:
            wait_s = 0.0
        with self._lock:
            self._filled.wait_for(lambda: self._queue or self._stopping, wait_s)
            if not self._queue:
                return None
            appended = self._queue.popleft()
            self._queued_bytes -= appended.size_bytes
            self._has_room.notify_all()
            return appended

    def _fold(self, appended: _Appended) -> None:
        entries = (
            LogEntry(Offset(offset), value)
            for offset, value in enumerate(appended.encoded, appended.first)
        )
        began_s, began_ns = time.monotonic(), time.time_ns()
        run_without_loop(self._driver.fold(entries))
        self._pace.note(appended.size_bytes, time.monotonic() - began_s)
        if self._tracer.is_on and appended.encoded:
            self._trace(appended, began_ns)
        self.as_of = max(self.as_of, appended.as_of)
        with self._lock:
            self._pending -= 1
            if not self._pending:
                self._folded.notify_all()

    def _trace(self, appended: _Appended, began_ns: int) -> None:
        records = len(appended.encoded)
        attributes = batch_attributes("events", records, 0, appended.first + records - 1)
        self._tracer.batch(SpanName.FOLD, began_ns, (appended.traceparent,), attributes)

    def _note_flush(self, error: StorageError | None) -> None:
        if error is None:
            self._conditions.clear(Part.TABLE)
        else:
            self._conditions.set(Part.TABLE, "disk", str(error))
