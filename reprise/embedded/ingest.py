"""The write path of the embedded service: what happens to a message, in which order.

The order is the guarantee:

    Step 1. take what the sockets have received, and turn it into records (the bridge's intake).
    Step 2. append the records to the log: one write. From here on they survive `kill -9`.
    Step 3. fold them into the table in memory. From here on queries see them.
    Step 4. carry out commands (register, unregister), each of which appends and folds records too.
    Step 5. now and then: sync the log, then write the table's changes with the offset they cover.

A record is folded only after it was appended, and a table row covers it only after it was synced.
Steps 1, 2 and 4 run on the thread of this module, 3 and 5 on that of `fold_thread`, behind a
bounded queue. When the disk is full, step 2 is tried again until it succeeds: nothing is folded
that is not in the log, queries go on from memory, and what the sockets receive meanwhile waits in
the bounded inbox.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final

from bridge.sequencing.sequencer import Intake
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from bridge.sockets.subscriber import Subscriber
from reprise.embedded.fold_thread import FoldLoop
from reprise.settings import Settings
from schemas.conditions import Conditions, Level, Part
from schemas.errors import (
    DiskError,
    NotRegisteredError,
    RegistrationConflictError,
    RegistrationError,
    RepriseError,
    StorageError,
)
from schemas.identities import Offset, PublisherKey
from schemas.limits import (
    SHUTDOWN_S,
)
from schemas.positions import NO_CURSOR, Cursor
from schemas.records import Record, RegisteredRecord, UnregisteredRecord, encode_record
from schemas.registration import Registration, is_new
from streams.log.embedded import EmbeddedLog
from streams.table.fold import Fold
from streams.table.recovery import recover
from streams.table.store import TableStore

logger = logging.getLogger(__name__)

MESSAGES_PER_TURN_MAX: Final = 1024
RETRY_S: Final = 0.5
IDLE_S: Final = 0.25
RETENTION_CHECK_S: Final = 10.0

Command = Callable[[], list[Registration]]


class IngestLoop:
    """Reads, appends, commands; owns the log. See the module for the order.

    Other threads may read `fold`, `ready` and `problem`, and call `submit_*` and `stop`.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        make_fold: Callable[[], Fold],
        log: EmbeddedLog,
        store: TableStore,
        intake: Intake,
        inbox: Inbox,
        subscriber: Subscriber,
    ) -> None:
        self.log = log
        self.store = store
        self.intake = intake
        self.inbox = inbox
        self.conditions = Conditions(time.time, logger)
        self.conditions.set(
            Part.RECOVERY, "recovering", "recovering", Level.UNAVAILABLE, logged=False
        )
        self.folding = self._make_folding(make_fold(), store, log, settings)
        self.ready = False
        self.intake_faults = 0
        self.recovery_s = 0.0
        self._settings = settings
        self._make_fold = make_fold
        self._subscriber = subscriber
        self._commands: queue.SimpleQueue[tuple[Command, Future[list[Registration]]]] = (
            queue.SimpleQueue()
        )
        self._stopping = threading.Event()
        self._retain_at = 0.0
        self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
        self._syncer = threading.Thread(target=self._sync_often, name="log-sync", daemon=True)

    def _make_folding(
        self, fold: Fold, store: TableStore, log: EmbeddedLog, settings: Settings
    ) -> FoldLoop:
        return FoldLoop(
            fold,
            store,
            log,
            flush_s=settings.table_flush_s,
            conditions=self.conditions,
        )

    @property
    def problem(self) -> str:
        """Why newer events may be missing from answers, or ""."""
        return self.conditions.problem

    @property
    def fold(self) -> Fold:
        """The table's state; empty until recovery is done."""
        return self.folding.fold

    # Life

    def start(self) -> None:
        """Starts recovery, then the loop."""
        self._thread.start()

    def stop(self) -> None:
        """Flushes what has been folded, closes log and store; waits for it within a bound."""
        self._stopping.set()
        self.inbox.wake()
        self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error(
                "The write path did not stop within %.0f s; the log has all that it read",
                SHUTDOWN_S,
            )

    def _run(self) -> None:
        try:
            self._recover_until_stopped()
            if self.ready:
                self.folding.start()
                self._syncer.start()
            while not self._stopping.is_set():
                self._turn()
            self._drain()
        except Exception as error:
            message = f"the write path has ended: {error!r}"
            self.conditions.set(Part.INTERNAL, "thread_ended", message, logged=False)
            if not self._stopping.is_set():
                logger.exception("The write path has ended; queries go on with what is folded")
        finally:
            self._stopping.set()
            self._refuse_commands()
            self._close()

    def _recover_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                self._recover()
                return
            except DiskError as error:
                self._note_disk(Part.LOG, error)
            if not self._stopping.wait(RETRY_S):
                self._reopen(self.log)
                self._reopen(self.store)

    def _recover(self) -> None:
        started = time.monotonic()
        recovered = recover(self.store, self.log, self._make_fold)
        self.folding = self._make_folding(recovered.fold, self.store, self.log, self._settings)
        self.recovery_s = time.monotonic() - started
        for skipped in recovered.skipped:
            logger.warning("Skipped the record at offset %d (%s): %s", *skipped)
        logger.info(
            "Recovered in %.2f s: %s (%s), %d records folded, %d publishers registered",
            self.recovery_s,
            recovered.plan.action,
            recovered.plan.reason,
            recovered.records,
            len(self.fold.registrations),
        )
        for registered in list(self.fold.registrations.values()):
            self._follow_again(registered.registration)
        self.conditions.clear(Part.LOG)
        self.conditions.clear(Part.RECOVERY)
        self.ready = True

    def _follow_again(self, registration: Registration) -> None:
        try:
            self._subscriber.follow(registration)
        except RegistrationError as error:
            logger.warning(
                "Cannot follow the registered publisher %s: %s", registration.service_key, error
            )
        except Exception:
            logger.exception("Cannot follow the publisher %s", registration.service_key)
        self.intake.add(registration, self._cursor(registration.publisher))

    def _cursor(self, publisher: PublisherKey) -> Cursor:
        state = self.fold.publishers.get(publisher)
        return NO_CURSOR if state is None else state.cursor

    def _drain(self) -> None:
        """What had been received when the stop came, within a bound."""
        deadline = time.monotonic() + SHUTDOWN_S / 2
        while self.ready and time.monotonic() < deadline:
            messages = self.inbox.take(MESSAGES_PER_TURN_MAX, 0.0)
            if not messages:
                return
            self._ingest(messages)

    # A turn

    def _turn(self) -> None:
        messages = self.inbox.take(MESSAGES_PER_TURN_MAX, IDLE_S)
        if messages:
            self._ingest(messages)
        self._run_commands()
        now = time.monotonic()
        if now >= self._retain_at:
            self._retain_at = now + RETENTION_CHECK_S
            self._retain()

    def _ingest(self, messages: Sequence[RawMessage]) -> None:
        now = time.time()
        try:
            records = self.intake.process(messages, now)
        except Exception:
            # The intake answers for bad input itself: this is a fault of ours. The stream goes on.
            logger.exception("Dropped %d messages that the intake could not process", len(messages))
            self.intake_faults += 1
            return
        if records:
            self._commit(records, now)

    def _commit(self, records: Sequence[Record], now: float) -> None:
        """Step 2, and hands on to step 3; returns only when the records are in the log."""
        encoded = [encode_record(record) for record in records]
        self.folding.submit(self._append(encoded, now), encoded)

    def _await_fold(self) -> None:
        """Returns once everything that was appended is folded: commands look at the table."""
        self.folding.wait()

    def _append(self, encoded: Sequence[bytes], now: float) -> Offset:
        first = self.log.end_offset
        while True:
            try:
                offset = self.log.append(encoded, now=now)
            except StorageError as error:
                self._note_disk(Part.LOG, error)
            else:
                self.conditions.clear(Part.LOG)
                return offset
            self._refuse_commands()
            if self._stopping.wait(RETRY_S):
                raise StorageError("stopping; what could not be appended is lost")
            if self._reopen(self.log) and self.log.end_offset > first:
                self.conditions.clear(Part.LOG)  # the write had reached the disk before its error
                return first

    def _reopen(self, database: EmbeddedLog | TableStore) -> bool:
        try:
            database.reopen()
        except StorageError as error:
            self._note_disk(Part.LOG, error)
            return False
        return True

    def _note_disk(self, part: Part, error: StorageError) -> None:
        """An attempt failed and will be made again; queries go on from memory."""
        self.conditions.set(part, "disk", str(error))

    # Commands

    def submit(self, command: Command) -> "Future[list[Registration]]":
        """Runs the command on the loop's thread, between turns; its errors come with the future."""
        future: Future[list[Registration]] = Future()
        self._commands.put((command, future))
        self.inbox.wake()
        return future

    def submit_register(self, registration: Registration) -> "Future[list[Registration]]":
        """See `query_api.ports.Registry.register`."""
        return self.submit(lambda: self._register(registration))

    def submit_unregister(
        self, matches: Callable[[Registration], bool], service_key: str
    ) -> "Future[list[Registration]]":
        """Forgets all publishers that match; if none does, NotRegisteredError has `service_key`."""
        return self.submit(lambda: self._unregister(matches, service_key))

    def _run_commands(self) -> None:
        while not self._commands.empty():
            command, future = self._commands.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = command()
            except RepriseError as error:
                future.set_exception(error)
            except Exception as error:
                logger.exception("A command failed")
                future.set_exception(StorageError(f"the command failed: {error!r}"))
            else:
                future.set_result(result)

    def _refuse_commands(self) -> None:
        while not self._commands.empty():
            _, future = self._commands.get()
            if future.set_running_or_notify_cancel():
                future.set_exception(StorageError(self.problem or "the service is stopping"))

    def _register(self, registration: Registration) -> list[Registration]:
        self._await_fold()
        known = {key: one.registration for key, one in self.fold.registrations.items()}
        if not is_new(registration, known):
            self._ensure_followed(registration)
            return []
        self._subscriber.follow(registration)
        record = RegisteredRecord(
            stream=registration.stream,
            dp_rank=registration.dp_rank,
            bridge_time=time.time(),
            registration=registration,
        )
        try:
            self._commit([record], record.bridge_time)
        except StorageError:
            self._subscriber.unfollow(registration.publisher)
            raise
        # It is in the log now, so it is followed, whatever becomes of the sync.
        self._await_fold()
        self.intake.add(registration, self._cursor(registration.publisher))
        self.log.sync()
        return [registration]

    def _ensure_followed(self, registration: Registration) -> None:
        """A registration of an earlier life whose endpoint could not be followed then."""
        with contextlib.suppress(RegistrationConflictError):
            self._subscriber.follow(registration)

    def _unregister(
        self, matches: Callable[[Registration], bool], service_key: str
    ) -> list[Registration]:
        self._await_fold()
        gone = [
            known.registration
            for known in self.fold.registrations.values()
            if matches(known.registration)
        ]
        if not gone:
            raise NotRegisteredError(service_key)
        for registration in gone:
            self._subscriber.unfollow(registration.publisher)
            self.intake.remove(registration.publisher)
        now = time.time()
        self._commit(
            [
                UnregisteredRecord(stream=one.stream, dp_rank=one.dp_rank, bridge_time=now)
                for one in gone
            ],
            now,
        )
        self.log.sync()
        self._await_fold()
        return gone

    # Retention, sync, end

    def _retain(self) -> None:
        settings = self._settings
        exempt = [known.offset for known in self.fold.registrations.values()]
        try:
            self.log.retain(
                bytes_max=settings.log_retention_bytes,
                age_max_s=settings.log_retention_s,
                now=time.time(),
                floor=Offset(self.folding.flushed_offset + 1),
                exempt=exempt,
            )
        except DiskError as error:
            self._note_disk(Part.RETENTION, error)
        else:
            self.conditions.clear(Part.RETENTION)

    def _sync_often(self) -> None:
        while not self._stopping.wait(self._settings.log_sync_s):
            try:
                self.log.sync()
            except StorageError as error:
                self._note_disk(Part.LOG_SYNC, error)
            else:
                self.conditions.clear(Part.LOG_SYNC)

    def _close(self) -> None:
        try:
            self.folding.stop()
            self.store.close()
            self.log.close()
        except StorageError as error:
            logger.error(
                "Closing the data directory failed; the log has all that was read: %s", error
            )
