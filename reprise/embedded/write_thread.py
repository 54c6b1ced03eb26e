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
from collections.abc import Awaitable, Callable
from functools import partial

from bridge.engine_http.load_watch import (
    LoadWatch,
    OnSamples,
    ScrapedPublisher,
    ignore_samples,
    scraped,
)
from bridge.memory.watch import MemoryWatch
from bridge.supervision import cancel, ends_before, keep_all
from bridge.unreached import watch_unreached
from reprise.embedded.data import EmbeddedData
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.intake import EmbeddedIntake
from reprise.embedded.loss_watch import LossWatch
from reprise.embedded.recovery import EmbeddedRecovery
from reprise.embedded.retention import EmbeddedRetention
from reprise.settings import Settings
from schemas.conditions import Level, Part
from schemas.errors import DamagedError, NewerVersionError, StorageError
from schemas.identities import PublisherKey
from schemas.limits import HEARTBEAT_S, LOG_RETENTION_CHECK_S, SHUTDOWN_S

logger = logging.getLogger(__name__)


class WriteThread:
    """Owns the log and the table while it runs; see the module for the order.

    Args:
        data: open; it is closed at the end.
        intake: whose loop is run; it is closed at the end.
        losses: what the log has lost.
        on_damage: called where the log turns out to be damaged during recovery, or the table to be
            of a newer Reprise; then `damage` has the error, and nothing goes on.
        on_load: takes what engines say of their load, on the loop of this thread.

    Attributes:
        damage: see `on_damage`.
        recovery: of the table.
        memory: watches segments of memory; None: it does not.
        load: asks engines for their load; None: it does not.
    """

    def __init__(
        self,
        settings: Settings,
        data: EmbeddedData,
        folding: FoldThread,
        intake: EmbeddedIntake,
        losses: LossWatch,
        *,
        on_damage: Callable[[], None] = lambda: None,
        on_load: OnSamples = ignore_samples,
    ) -> None:
        conditions = self._conditions = intake.conditions
        self.damage: DamagedError | NewerVersionError | None = None
        self._data = data
        self._folding = folding
        self._intake = intake
        self._losses = losses
        self._on_damage = on_damage
        self._log_sync_s = settings.log_sync_s
        self.recovery = EmbeddedRecovery(data, folding, losses, conditions)
        self._retention = EmbeddedRetention(settings, data, folding, conditions)
        self.memory: MemoryWatch | None = None
        if settings.memory is not None:
            self.memory = MemoryWatch(
                settings.memory, bridge=intake.heartbeats.bridge, conditions=conditions
            )
        self.load: LoadWatch | None = None
        if settings.load.scrape_s:
            self.load = LoadWatch(settings.load.scrape_s, self._scraped, on_load)
            intake.pump.on_load = self.load.note_pushed
        self._faults = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="write", daemon=True)
        self._syncer = threading.Thread(target=self._sync_often, name="log-sync", daemon=True)

    @property
    def faults(self) -> int:
        """Unexpected errors, of all parts."""
        load = 0 if self.load is None else self.load.faults
        return self._faults + self._intake.faults + self._folding.faults + load

    def _scraped(self) -> dict[PublisherKey, ScrapedPublisher]:
        registered = list(self._folding.fold.registrations.values())
        return scraped(self._intake.pump.followed, (one.registration for one in registered))

    def _count_fault(self) -> None:
        self._faults += 1

    def start(self) -> None:
        """Starts recovery, then the write path."""
        self._intake.start()
        self._thread.start()

    def stop(self) -> None:
        """Writes what was received, flushes, closes log and store; waits for it within a bound."""
        self._stopping.set()
        if self._thread.ident is None:
            self._end()
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended already
            self._intake.begin_end()
        self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error(
                "The write path did not stop within %.0f s; the log has all that it read",
                SHUTDOWN_S,
            )

    # The thread

    def _run(self) -> None:
        try:
            self.recovery.run(self._stopping)
            if not self._stopping.is_set():
                self._folding.start()
                self._syncer.start()
                self._intake.loop.run_until_complete(self._write_until_stopped())
        except (DamagedError, NewerVersionError) as error:
            self.damage = error
            reason = "damaged" if isinstance(error, DamagedError) else "newer_version"
            self._conditions.set(Part.LOG, reason, str(error), Level.UNAVAILABLE, logged=False)
            self._on_damage()
        except Exception as error:
            message = f"the write path failed: {error!r}"
            self._conditions.set(Part.INTERNAL, "thread_ended", message, logged=False)
            if not self._stopping.is_set():
                logger.exception(
                    "The write path failed; queries continue with what is folded, marked stale"
                )
        finally:
            self._stopping.set()
            self._end()

    def _end(self) -> None:
        self._intake.close()
        try:
            with contextlib.ExitStack() as closing:  # one that fails keeps no other open
                closing.callback(self._data.close)
                closing.callback(self._folding.stop)
        except StorageError as error:
            logger.error(
                "Cannot close the data directory; what was appended to the log is in it: %s", error
            )

    async def _write_until_stopped(self) -> None:
        if not await ends_before(self._intake.follow_registered(), self._intake.ended):
            return
        self._conditions.clear(Part.RECOVERY)
        intake = self._intake
        kept: dict[str, Callable[[], Awaitable[None]]] = {
            "log writer": intake.sink.appends.run,
            "commands": intake.commands.run,
            "retention": self._retain_often,
            "heartbeats": self._beat,
            "watch over memory segments": self._watch_memory,
            "unreached engines": partial(watch_unreached, intake.pump, self._conditions),
        }
        if self.load is not None:
            kept["load"] = self.load.run
        if intake.lmcache is not None:
            kept["LMCache"] = intake.lmcache.run
        parts = keep_all(kept, on_fault=self._count_fault)
        parts.append(asyncio.create_task(intake.pump.run()))
        try:
            await intake.ended.wait()
        finally:
            await cancel(*parts)
        await intake.end()

    async def _beat(self) -> None:
        while True:
            as_of = self._intake.heartbeats.write_news(self._intake.sink)
            if as_of is not None:
                with contextlib.suppress(StorageError):  # the fold has ended, and so will this
                    self._folding.mark(as_of)
            await asyncio.sleep(HEARTBEAT_S)

    async def _watch_memory(self) -> None:
        if self.memory is None:
            await asyncio.Event().wait()
            return
        self.memory.remember(self._folding.fold.memory.segments)
        await self.memory.run_into(self._intake.sink)

    async def _retain_often(self) -> None:
        while True:
            self._retention.retain()
            self._losses.check()
            self.recovery.watch.check()
            await asyncio.sleep(LOG_RETENTION_CHECK_S)

    def _sync_often(self) -> None:
        while not self._stopping.wait(self._log_sync_s):
            self._retention.sync()
