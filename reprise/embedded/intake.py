"""From the sockets into the log and the fold: the pump, its sink and what registers publishers.

All of it is of one loop, which the write thread runs.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from bridge.delivery.log_sink import LogSink
from bridge.heartbeats import Heartbeats
from bridge.membership.loop_commands import Commands
from bridge.membership.registrar import Registrar
from bridge.pump import Pump
from bridge.sockets.reader import MessageReader
from logs.embedded import EmbeddedLog
from reprise import rooms
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.folded_table import FoldedTable
from reprise.settings import Settings
from schemas.arrays import ArrayPacker
from schemas.conditions import Conditions, Part
from schemas.errors import StorageError
from schemas.identities import Offset, PublisherKey
from schemas.registration import Registration
from schemas.tracing import NO_TRACER, Tracer

if TYPE_CHECKING:
    from reprise.rooms import LmcacheParts

logger = logging.getLogger(__name__)


class EmbeddedIntake:
    """See the module. Other threads may call `connected`, `activity_of`, `register`, `unregister`.

    Args:
        log: open.
        reader: of sockets; pyzmq's where none is given.

    Attributes:
        sink: appends to the log, and submits to the fold.
        lmcache: LMCache's workers, beside the pump; None: they are not served.
        heartbeats: of the pump's publishers, and LMCache's.
        commands: of other threads, to the loop.
        ended: set once the loop is to end.
        failure: why the fold takes no more; None while it does.

    Raises:
        ConfigurationError: LMCache's ports cannot be bound.
        StorageError: a file of LMCache's workers cannot be written.
    """

    def __init__(
        self,
        settings: Settings,
        log: EmbeddedLog,
        folding: FoldThread,
        conditions: Conditions,
        packer: ArrayPacker,
        reader: MessageReader | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.failure: StorageError | None = None
        self.ended = asyncio.Event()
        self.conditions = conditions
        self._log = log
        self._folding = folding
        self.loop = uvloop.new_event_loop()  # a turn is one pass of it: asyncio's costs more
        self.sink = LogSink(
            log,
            on_appended=self._fold,
            on_failure=self._note_failure,
            on_recovered=partial(conditions.clear, Part.LOG),
            is_idle=lambda: folding.is_idle,
            turn_bytes=lambda: folding.turn_bytes,
            tracer=tracer,
        )
        self.pump = Pump(self.sink, packer=packer, reader=reader, loop=self.loop)
        self.lmcache = self._open_lmcache(settings)
        follower = self.pump.follower
        self.heartbeats = Heartbeats(
            follower if self.lmcache is None else self.lmcache.beside(follower)
        )
        self.registrar = Registrar(
            follower=follower,
            sink=self.sink,
            table=FoldedTable(folding),
            sync=self._sync,
            on_unregistered=self._forget_workers,
        )
        self.commands: Commands[list[Registration]] = Commands(self.loop, refusal=self._refusal)
        self._leaves: Callable[[Registration], bool] = lambda registration: False

    def _open_lmcache(self, settings: Settings) -> "LmcacheParts | None":
        room = rooms.lmcache()
        if room is None or not settings.lmcache.is_on:
            return None
        return room.parts(
            settings.lmcache,
            data=settings.data,
            sink=self.sink,
            loop=self.loop,
            floor=self._incarnation,
        )

    def _incarnation(self, publisher: PublisherKey) -> int:
        state = self._folding.fold.publishers.get(publisher)
        return 0 if state is None else state.incarnation

    @property
    def faults(self) -> int:
        """Unexpected errors, of all parts."""
        return self.pump.faults + (0 if self.lmcache is None else self.lmcache.faults)

    # Called by other threads

    def connected(self, publisher: PublisherKey) -> bool:
        """Whether the link to a publisher is up."""
        if self.lmcache is not None and self.lmcache.knows(publisher):
            return self.lmcache.is_linked(publisher)
        return self.pump.engines.receiver.connected(publisher)

    def activity_of(self, publisher: PublisherKey) -> tuple[str, float] | None:
        """What a publisher does, and since when; None where it is not followed."""
        followed = self.pump.followed.get(publisher)
        return None if followed is None else (followed.activity.kind.value, followed.activity.since)

    def register(
        self, registration: Registration, *, replace: bool = False, restate: bool = False
    ) -> "Future[list[Registration]]":
        """See `Registrar.register`."""
        return self.commands.submit(
            partial(self.registrar.register, registration, replace=replace, restate=restate)
        )

    def unregister(
        self, matches: Callable[[Registration], bool], service_key: str
    ) -> "Future[list[Registration]]":
        """See `Registrar.unregister`."""
        return self.commands.submit(partial(self.registrar.unregister, matches, service_key))

    def forget_at_start(
        self, matches: Callable[[Registration], bool]
    ) -> "Future[list[Registration]]":
        """Unregisters all that match as the loop begins, and follows none of them; before `start`.
        The future has NotRegisteredError where none does.
        """
        self._leaves = matches
        return self.unregister(matches, "")

    # Start and end

    async def follow_registered(self) -> None:
        """See `Registrar.follow_registered`."""
        await self.registrar.follow_registered(self._leaves)

    def start(self) -> None:
        """Connects to nothing yet; LMCache's workers are answered at once."""
        self.pump.start()
        if self.lmcache is not None:
            self.lmcache.start()

    def begin_end(self) -> None:
        """Has the loop end; any thread may call it, and gets RuntimeError where it is closed."""
        self.loop.call_soon_threadsafe(self.ended.set)

    async def end(self) -> None:
        """The loop's other parts have ended: writes what has been received."""
        if self.lmcache is not None:
            await self.lmcache.end()
        if self.failure is not None:
            raise self.failure
        if not self.sink.is_ready:
            self.sink.appends.retry()
        if not self.sink.is_ready:
            logger.error(
                "Stopping with a log that cannot be written: records not appended are lost"
            )
        else:
            await self.pump.drain()

    def close(self) -> None:
        """Closes the sockets and the loop, which does not run."""
        self.commands.close()
        if self.lmcache is not None:
            self.lmcache.stop()
        try:
            self.loop.run_until_complete(self.pump.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
        except Exception:
            logger.exception("Unexpected error while closing the sockets; stopping without it")

    # What the parts ask for

    def _fold(self, first: Offset, encoded: Sequence[bytes]) -> None:
        """Step 3 of `reprise.embedded.write_thread`. Waits while the fold's queue is full."""
        try:
            self._folding.submit(first, encoded, self.sink.appends.traceparent)
        except StorageError as error:
            # They are in the log: the next start folds them.
            self.failure = error
            self.ended.set()

    def _note_failure(self, error: StorageError) -> None:
        """An attempt failed and will be retried; queries are answered from memory."""
        self.conditions.set(Part.LOG, "disk", str(error))
        self.commands.refuse_waiting()

    def _refusal(self) -> str:
        if self.sink.is_ready:
            return ""
        return self.conditions.problem or "the log cannot be written"

    async def _sync(self) -> None:
        await asyncio.to_thread(self._log.sync)

    def _forget_workers(self, publishers: Sequence[PublisherKey]) -> None:
        workers = [one for one in publishers if self._is_worker(one)]
        if self.lmcache is not None and workers:
            self.lmcache.forget(workers)

    def _is_worker(self, publisher: PublisherKey) -> bool:
        registered = self._folding.fold.registrations.get(publisher)
        return registered is not None and registered.registration.is_self_registered
