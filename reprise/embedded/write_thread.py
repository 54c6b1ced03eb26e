"""The write path of the embedded service: the pump over the log in this process, on one thread.

The order is the guarantee:

    Step 1. the pump turns what the sockets received into records (`bridge.pump`).
    Step 2. the sink appends them to the log, one write a turn. From here on they survive `kill -9`.
    Step 3. they are folded into the table in memory. From here on queries see them.
    Step 4. commands (register, unregister) append and fold records too (`bridge.membership`).
    Step 5. now and then: sync the log, then write the table's changes with the offset they cover.

A record is folded only after it was appended, and a table row covers it only after it was synced.
Steps 1, 2 and 4 run on the loop of this thread, 3 and 5 on `fold_thread`, behind a bounded queue.
When the disk is full, the sink retries until it succeeds: nothing is folded that is not in the log,
queries are answered from memory, commands are refused, and what the sockets receive meanwhile waits
in the bounded inbox.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from bridge.delivery.log_sink import LogSink
from bridge.engine_http.load_watch import (
    LoadWatch,
    OnSamples,
    Scraped,
    ignore_samples,
    scraped,
)
from bridge.heartbeats import Heartbeats
from bridge.membership.commands import Commands
from bridge.membership.registrar import Registrar
from bridge.memory.watch import MemoryWatch
from bridge.pump import Pump
from bridge.sockets.reader import MessageReader
from bridge.supervision import cancel, keep_all
from bridge.unreached import watch_unreached
from reprise import rooms
from reprise.embedded.data_watch import DataWatch
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.folded_table import FoldedTable
from reprise.embedded.history import EmbeddedHistory
from reprise.embedded.loss_watch import LossWatch
from reprise.settings import Settings
from schemas.arrays import ArrayPacker
from schemas.conditions import Conditions, Level, Part
from schemas.errors import DamagedError, DiskError, NewerVersionError, StorageError
from schemas.identities import Offset, PublisherKey
from schemas.limits import (
    HEARTBEAT_S,
    LOG_RETENTION_CHECK_S,
    LOG_RETRY_S,
    SHUTDOWN_S,
    STALE_S,
)
from schemas.registration import SELF_REGISTERED, Registration
from schemas.tracing import NO_TRACER, Tracer
from streams.log.embedded import EmbeddedLog
from streams.table.driver import recover
from streams.table.fold import Fold
from streams.table.recovery import Action
from streams.table.scope_states import FreshUntil, Source
from streams.table.table import Table

if TYPE_CHECKING:
    from reprise.rooms import LmcacheParts

logger = logging.getLogger(__name__)


class WriteThread:
    """Owns the log and the table; see the module for the order.

    Other threads may read `fold` and `conditions`, and call `register`, `unregister`, `stop`.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        log: EmbeddedLog,
        table: Table,
        packer: ArrayPacker,
        history: EmbeddedHistory | None = None,
        reader: MessageReader | None = None,
        on_damage: Callable[[], None] = lambda: None,
        on_load: OnSamples = ignore_samples,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Args:
        settings: of the service.
        log, table: open.
        packer: of hashes and tokens.
        history: of the table; it is closed with it.
        reader: of sockets; pyzmq's where none is given.
        on_damage: called where the log turns out to be damaged during recovery, or the table to be
            of a newer Reprise; then `damage` has the error, and nothing goes on.
        on_load: takes what engines say of their load, on the loop of this thread.
        tracer: of the service.
        """
        self.log = log
        self.table = table
        self.damage: DamagedError | NewerVersionError | None = None
        self._history = history
        self._on_damage = on_damage
        self.conditions = Conditions(time.time, logger)
        self.conditions.set(
            Part.RECOVERY, "recovering", "recovering", Level.UNAVAILABLE, logged=False
        )
        self.recovery_s = 0.0
        self._settings = settings
        self.losses = LossWatch(settings.data, self.conditions)
        self._watch = DataWatch((), self.conditions)
        flush_s = settings.table_flush_s
        self._make_folding = partial(
            FoldThread, table, flush_s=flush_s, conditions=self.conditions, tracer=tracer
        )
        self.folding = self._make_folding()
        self._loop = uvloop.new_event_loop()  # a turn is one pass of it: asyncio's costs more
        self.sink = LogSink(
            log,
            on_appended=self._fold,
            on_failure=self._note_failure,
            on_recovered=lambda: self.conditions.clear(Part.LOG),
            is_idle=lambda: self.folding.is_idle,
            turn_bytes=lambda: self.folding.turn_bytes,
            tracer=tracer,
        )
        self.pump = Pump(
            self.sink,
            packer=packer,
            reader=reader,
            loop=self._loop,
        )
        self.lmcache = self._open_lmcache()
        self.heartbeats = Heartbeats(
            self.pump if self.lmcache is None else self.lmcache.beside(self.pump)
        )
        self._source = Source(0, self.heartbeats.bridge)
        self.memory: MemoryWatch | None = None
        if settings.memory is not None:
            self.memory = MemoryWatch(
                settings.memory, bridge=self.heartbeats.bridge, conditions=self.conditions
            )
        self.load: LoadWatch | None = None
        if settings.scrape_load_s:
            self.load = LoadWatch(settings.scrape_load_s, self._scraped, on_load)
        self.registrar = Registrar(
            pump=self.pump,
            sink=self.sink,
            table=FoldedTable(self),
            sync=self._sync,
            on_unregistered=self._forget_workers,
        )
        self.commands: Commands[list[Registration]] = Commands(self._loop, refusal=self._refusal)
        self._faults = 0
        self._failure: StorageError | None = None
        self._stopping = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._syncer = threading.Thread(target=self._sync_often, name="log-sync", daemon=True)

    def _open_lmcache(self) -> "LmcacheParts | None":
        room, settings = rooms.lmcache(), self._settings.lmcache
        if room is None or settings is None:
            return None

        def floor(publisher: PublisherKey) -> int:
            state = self.fold.publishers.get(publisher)
            return 0 if state is None else state.incarnation

        return room.parts(
            settings, data=self._settings.data, sink=self.sink, loop=self._loop, floor=floor
        )

    def _forget_workers(self, publishers: Sequence[PublisherKey]) -> None:
        workers = [one for one in publishers if self._is_worker(one)]
        if self.lmcache is not None and workers:
            self.lmcache.forget(workers)

    def _is_worker(self, publisher: PublisherKey) -> bool:
        registered = self.fold.registrations.get(publisher)
        return registered is not None and registered.registration.kind in SELF_REGISTERED

    @property
    def problem(self) -> str:
        """Why newer events may be missing from answers, or ""."""
        return self.conditions.problem

    @property
    def fold(self) -> Fold:
        """The table's state; empty until recovery is done."""
        return self.folding.fold

    @property
    def faults(self) -> int:
        """Unexpected errors, of all parts."""
        beside = [part.faults for part in (self.lmcache, self.load) if part is not None]
        return self._faults + self.pump.faults + self.folding.faults + sum(beside)

    def _scraped(self) -> dict[PublisherKey, Scraped]:
        registered = list(self.fold.registrations.values())
        return scraped(self.pump.followed, (one.registration for one in registered))

    def _count_fault(self) -> None:
        self._faults += 1

    # Called by other threads

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link to a publisher is up."""
        if self.lmcache is not None and self.lmcache.knows(publisher):
            return self.lmcache.is_linked(publisher)
        return self.pump.subscriber.connected(publisher)

    def start(self) -> None:
        """Starts recovery, then the write path; LMCache's workers are answered at once."""
        self.pump.start()
        if self.lmcache is not None:
            self.lmcache.start()
        self._thread.start()

    def stop(self) -> None:
        """Writes what was received, flushes, closes log and store; waits for it within a bound."""
        self._stopping.set()
        if self._thread.ident is None:
            self._end()
            return
        with contextlib.suppress(
            RuntimeError
        ):  # the loop has been closed: the thread has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error(
                "The write path did not stop within %.0f s; the log has all that it read",
                SHUTDOWN_S,
            )

    def register(
        self, registration: Registration, *, replace: bool = False
    ) -> "Future[list[Registration]]":
        """See `Registrar.register`."""
        return self.commands.submit(lambda: self.registrar.register(registration, replace=replace))

    def unregister(
        self, matches: Callable[[Registration], bool], service_key: str
    ) -> "Future[list[Registration]]":
        """See `Registrar.unregister`."""
        return self.commands.submit(lambda: self.registrar.unregister(matches, service_key))

    # The thread

    def _run(self) -> None:
        try:
            self._recover_until_stopped()
            if not self._stopping.is_set():
                self.folding.start()
                self._syncer.start()
                self._loop.run_until_complete(self._write_until_stopped())
        except (DamagedError, NewerVersionError) as error:
            self.damage = error
            reason = "damaged" if isinstance(error, DamagedError) else "newer_version"
            self.conditions.set(Part.LOG, reason, str(error), Level.UNAVAILABLE, logged=False)
            self._on_damage()
        except Exception as error:
            message = f"the write path failed: {error!r}"
            self.conditions.set(Part.INTERNAL, "thread_ended", message, logged=False)
            if not self._stopping.is_set():
                logger.exception(
                    "The write path failed; queries continue with what is folded, marked stale"
                )
        finally:
            self._stopping.set()
            self._end()

    def _end(self) -> None:
        self.commands.close()
        if self.lmcache is not None:
            self.lmcache.stop()
        try:
            self._loop.run_until_complete(self.pump.close())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        except Exception:
            logger.exception("Unexpected error while closing the sockets; stopping without it")
        try:
            with contextlib.ExitStack() as closing:  # one that fails keeps no other open
                closing.callback(self.log.close)
                if self._history is not None:
                    closing.callback(self._history.close)
                closing.callback(self.table.close)
                closing.callback(self.folding.stop)
        except StorageError as error:
            logger.error(
                "Cannot close the data directory; what was appended to the log is in it: %s", error
            )

    async def _write_until_stopped(self) -> None:
        if not await self._followed_registered():
            return
        self.conditions.clear(Part.RECOVERY)
        kept: dict[str, Callable[[], Awaitable[None]]] = {
            "log writer": self.sink.run,
            "commands": self.commands.run,
            "retention": self._retain_often,
            "heartbeats": self._beat,
            "watch over memory segments": self._watch_memory,
            "unreached engines": partial(watch_unreached, self.pump, self.conditions),
        }
        if self.load is not None:
            kept["load"] = self.load.run
        if self.lmcache is not None:
            kept["LMCache"] = self.lmcache.run
        parts = keep_all(kept, on_fault=self._count_fault)
        parts.append(asyncio.create_task(self.pump.run()))
        try:
            await self._stop.wait()
        finally:
            await cancel(*parts)
        if self.lmcache is not None:
            await self.lmcache.end()
        if self._failure is not None:
            raise self._failure
        if self.sink.is_blocked:
            self.sink.retry()
        if self.sink.is_blocked:
            logger.error(
                "Stopping with a log that cannot be written: records not appended are lost"
            )
        else:
            await self.pump.drain()

    async def _followed_registered(self) -> bool:
        """False where it is to stop before: with thousands it takes a while."""
        following = asyncio.create_task(self.registrar.follow_registered())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return False
            await following
            return True
        finally:
            stopping.cancel()
            await cancel(following)

    # Recovery

    def _recover_until_stopped(self) -> None:
        while not self._stopping.is_set():
            try:
                self._recover()
                return
            except DiskError as error:
                if isinstance(error, DamagedError) and Path(error.path) == self.log.path:
                    raise  # to try again mends nothing
                self._note_disk(Part.LOG, error)
            if not self._stopping.wait(LOG_RETRY_S):
                self._reopen()

    def _reopen(self) -> None:
        for database in (self.log, self.table):
            try:
                database.reopen()
            except StorageError as error:
                self._note_disk(Part.LOG, error)

    def _recover(self) -> None:
        started = time.monotonic()
        if self.log.torn:
            self.losses.found(f"the log has lost its end ({self.log.torn})")
        recovered = recover(self.table, self.log)
        self.folding = self._make_folding()
        self.recovery_s = time.monotonic() - started
        logger.info(
            "Recovered in %.2f s: %s (%s), %d records folded, %d publishers registered",
            self.recovery_s,
            recovered.plan.action,
            recovered.plan.reason,
            recovered.records,
            len(self.fold.registrations),
        )
        if recovered.plan.action is Action.ADOPT:
            self.losses.found(
                "the log has lost its end or is gone, and `reprise verify` can no longer prove what"
                " was before"
            )
        self.losses.begin(self.fold)
        data = self._settings.data
        self._watch = DataWatch((data / "log", data / "table"), self.conditions)
        self.conditions.clear(Part.LOG)

    # What the parts ask for

    def _fold(self, first: Offset, encoded: Sequence[bytes]) -> None:
        """Step 3. Waits while the fold's queue is full."""
        try:
            self.folding.submit(first, encoded, self.sink.traceparent)
        except StorageError as error:
            # They are in the log: the next start folds them.
            self._failure = error
            self._stop.set()

    def _note_disk(self, part: Part, error: StorageError) -> None:
        """An attempt failed and will be retried; queries are answered from memory."""
        self.conditions.set(part, "disk", str(error))

    def _note_failure(self, error: StorageError) -> None:
        self._note_disk(Part.LOG, error)
        self.commands.refuse_waiting()

    def _refusal(self) -> str:
        return (self.problem or "the log cannot be written") if self.sink.is_blocked else ""

    async def _sync(self) -> None:
        await asyncio.to_thread(self.log.sync)

    # What answers may say of themselves

    async def _beat(self) -> None:
        while True:
            as_of = self.heartbeats.write_news(self.sink)
            if as_of is not None:
                with contextlib.suppress(StorageError):  # the fold has ended, and so will this
                    self.folding.mark(as_of)
            await asyncio.sleep(HEARTBEAT_S)

    @property
    def fresh_until(self) -> FreshUntil:
        """See `ScopeStates`; monotonic seconds."""
        return {self._source: self.folding.as_of + STALE_S}

    # Segments of memory

    async def _watch_memory(self) -> None:
        if self.memory is None:
            await asyncio.Event().wait()
            return
        self.memory.remember(self.fold.memory.segments)
        await self.memory.run_into(self.sink)

    # Retention and sync

    async def _retain_often(self) -> None:
        while True:
            self._retain()
            self.losses.check()
            self._watch.check()
            await asyncio.sleep(LOG_RETENTION_CHECK_S)

    def _retain(self) -> None:
        settings = self._settings
        exempt = [registered.offset for registered in self.fold.registrations.values()]
        try:
            self.log.retain(
                bytes_max=settings.log_retention_bytes,
                age_max_s=settings.log_retention_s,
                now=time.time(),
                floor=Offset(self.folding.durable_offset + 1),
                exempt=exempt,
            )
        except DiskError as error:
            self._note_disk(Part.RETENTION, error)
        else:
            self.conditions.clear(Part.RETENTION)
        if self._history is not None:
            self._retain_past(self._history)

    def _retain_past(self, history: EmbeddedHistory) -> None:
        try:
            history.retain()
        except StorageError as error:
            self._note_disk(Part.HISTORY, error)
        else:
            problem = history.recorder.problem
            if problem:
                self.conditions.set(Part.HISTORY, "disk", problem, logged=False)
            else:
                self.conditions.clear(Part.HISTORY)

    def _sync_often(self) -> None:
        while not self._stopping.wait(self._settings.log_sync_s):
            try:
                self.log.sync()
            except StorageError as error:
                self._note_disk(Part.LOG_SYNC, error)
            else:
                self.conditions.clear(Part.LOG_SYNC)
