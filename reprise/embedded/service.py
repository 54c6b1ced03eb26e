"""The embedded service: bridge, log, fold, table and API in one process, on one data directory.

    DATA/log/     the records, `streams.log.embedded`
    DATA/table/   the table's rows, `streams.table.table`
    DATA/history/  rows of the table, past ones too: `streams.history.store`
    DATA/answers/  with `--audit`, answers to be proven: `reprise.embedded.audit`
    DATA/routing/  what was decided and what came of it: `routing.log.embedded`
    DATA/commands/  with `--lmcache`, commands to its workers: `lmcache_adapter.commands.embedded`
    DATA/loss.json  while it is not known yet what the log has lost, `streams.log.losses`

Threads: `reprise-subscriber` receives from the engines, `write` decodes, packs and appends, `fold`
folds and flushes, `log-sync` makes appends durable, and the main thread answers HTTP from the
kernel that `fold` writes. `routing` writes and folds what was decided; with `--audit`, `audit`
writes what the answers were; with `--lmcache`, `commands` asks its workers what they are to do, and
with `--act`, `act` has them do what is advised.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final, Protocol

from bridge.sockets.reader import open_reader
from bridge.wire import KINDS
from doctor.watch import OutcomeWatch
from query_api.ports import Health, Positions
from query_api.table_view import TableView
from reprise import rooms
from reprise.embedded.audit import AnswerLog
from reprise.embedded.history import EmbeddedHistory
from reprise.embedded.write_thread import WriteThread
from reprise.metrics.process import process_registry
from reprise.settings import Settings
from routing.decisions.router import Router
from routing.log.embedded import DIRECTORY as ROUTING_DIRECTORY
from routing.log.embedded import RoutingLog
from schemas.conditions import Part
from schemas.errors import ConfigurationError, DamagedError, NewerVersionError, StorageError
from schemas.identities import PublisherKey
from schemas.limits import EMBEDDED_COMMAND_S
from schemas.positions import Position
from schemas.registration import Registration, service_key
from schemas.tracing import NO_TRACER, Tracer
from streams.audit.log import DIRECTORY
from streams.audit.queue import open_audit_queue
from streams.kernel import array_packer, open_kernel, socket_reader
from streams.kernel.interface import AuditQueue, Kernel
from streams.log.embedded import EmbeddedLog
from streams.log.losses import LossNote
from streams.table.fold import Fold
from streams.table.history_interface import NO_HISTORY
from streams.table.table import Table

if TYPE_CHECKING:
    from reprise.rooms import EmbeddedLmcache

logger = logging.getLogger(__name__)

ROLE: Final = "embedded"

_STALE_PARTS: Final = (Part.RECOVERY, Part.LOG, Part.INTERNAL)
"""With these the table is behind its log; with the others, what is folded is all there is."""


class _Stoppable(Protocol):
    def stop(self) -> None: ...


class EmbeddedService(TableView):
    """Implements `query_api.ports.View` and `PublisherRegistry` over one `WriteThread`."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_damage: Callable[[], None] = lambda: None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Opens the data directory.

        Args:
            settings: what to run with.
            on_damage: called, from another thread, where its log turns out to be damaged during
                recovery, or its table to be of a newer Reprise; `damage` says how.
            tracer: makes the spans of what it appends, folds and has workers do.

        Raises:
            ConfigurationError: LMCache's ports cannot be bound.
            DataDirectoryInUseError: another process uses it.
            NewerVersionError: a newer Reprise wrote it; nothing was changed.
            StorageError: it cannot be opened.
        """
        self._settings = settings
        self._tracer = tracer
        self.audit_queue: AuditQueue | None = None
        if settings.audit_rate > 0:
            self.audit_queue = open_audit_queue(settings.audit_rate)
        LossNote(settings.data).read()  # while nothing is open yet: a newer one is refused
        log = EmbeddedLog(settings.data / "log")
        self.history: EmbeddedHistory | None = None
        try:
            if settings.history_bytes:
                self.history = EmbeddedHistory(
                    settings.data / "history",
                    lambda: self.write.log,
                    self._make_kernel,
                    bytes_max=settings.history_bytes,
                )
            table = Table(
                settings.data / "table",
                self._make_fold,
                log=log,
                history=NO_HISTORY if self.history is None else self.history.recorder,
            )
        except StorageError:
            if self.history is not None:
                self.history.close()
            log.close()
            raise
        try:
            self.write = WriteThread(
                settings=settings,
                log=log,
                table=table,
                history=self.history,
                packer=array_packer(),
                reader=open_reader(socket_reader),
                on_damage=on_damage,
                on_load=lambda samples: self.router.observe(samples),
                tracer=tracer,
            )
        except (ConfigurationError, StorageError):  # of a port for LMCache, or the disk
            table.close()
            if self.history is not None:
                self.history.close()
            log.close()
            raise
        super().__init__(
            kernel=lambda: self.write.fold.kernel,
            publishers=lambda: self.write.fold.publishers,
            registrations=self._registered,
            positions=self._position,
            states=lambda: self.write.fold.states,
            fresh_until=lambda: self.write.fresh_until,
            stale_at=self._stale_at_now,
            is_damaged=lambda scope: self.write.losses.covers(scope),
            connected=self.write.connected,
            acting=self._acting,
            ledgers=lambda: self.write.fold.ledgers.current,
            segments=lambda: self.write.fold.memory.segments,
        )
        self.metrics = process_registry()
        self.write.conditions.on_change = self.changed
        self.audit: AnswerLog | None = None
        self.lmcache: EmbeddedLmcache | None = None
        opened: list[_Stoppable] = [self.write]
        try:
            self.routing = RoutingLog(
                settings.data / ROUTING_DIRECTORY,
                age_max_s=settings.log_retention_s,
                conditions=self.write.conditions,
                tracer=tracer,
            )
            opened.append(self.routing)
            self._open_beside(opened)
        except StorageError:
            for one in opened:
                one.stop()
            raise
        routing = self.routing
        self.router = Router(self, routing.queue, routing.live, routing.folded, settings.routing)
        self.faults = 0
        self.outcomes = OutcomeWatch(
            self, self.router, self.write.conditions, on_fault=self._count_fault
        )
        if settings.act_s and self.lmcache is not None:
            self.lmcache.act(self, self.router, settings.act_s)

    def _open_beside(self, opened: "list[_Stoppable]") -> None:
        """What only some services have: the log of answers, and that of commands."""
        settings = self._settings
        if self.audit_queue is not None:
            self.audit = AnswerLog(
                settings.data / DIRECTORY,
                self.audit_queue,
                seed=settings.seed,
                age_max_s=settings.log_retention_s,
                conditions=self.write.conditions,
            )
            opened.append(self.audit)
        room = rooms.lmcache()
        if room is not None and self.write.lmcache is not None:
            self.lmcache = room.embedded(self.write.lmcache, settings.data, self._tracer)

    def _make_kernel(self) -> Kernel:
        return open_kernel(self._settings.seed, name=self._settings.kernel)

    def _make_fold(self) -> Fold:
        kernel = self._make_kernel()
        if self.audit_queue is not None:
            kernel.audit_into(self.audit_queue)
        fold = Fold(kernel, when_folded=partial(kernel.note_position, 0))
        fold.states.on_change = self.changed
        return fold

    def start(self) -> None:
        """Starts recovery and then the write path; returns at once."""
        if self.audit is not None:
            self.audit.start()
        self.routing.start()
        self.write.start()
        self.outcomes.start()
        if self.lmcache is not None:
            self.lmcache.start()

    def stop(self) -> None:
        """Stops receiving, then writes what has been received, and closes the data directory."""
        self.outcomes.stop()
        if self.lmcache is not None:
            self.lmcache.stop()
        self.write.stop()
        self.routing.stop()
        if self.audit is not None:
            self.audit.stop()

    def _count_fault(self) -> None:
        self.faults += 1

    @property
    def damage(self) -> DamagedError | NewerVersionError | None:
        """Why the service cannot go on, or None."""
        return self.write.damage

    kinds = KINDS

    # View

    @property
    def ready(self) -> bool:
        """See `View`."""
        return self.write.conditions.ready

    def health(self) -> Health:
        """See `View`."""
        conditions = self.write.conditions.all()
        return Health(ROLE, conditions, self.kernel.name, self.positions())

    def _stale_at_now(self) -> float:
        conditions = self.write.conditions
        is_behind = bool(conditions.all()) and any(map(conditions.has, _STALE_PARTS))
        return -math.inf if is_behind else math.inf

    def _position(self) -> Positions:
        return (Position(0, self.write.fold.offset),)

    def _registered(self) -> list[Registration]:
        return [
            registered.registration for registered in list(self.write.fold.registrations.values())
        ]

    def _acting(self, publisher: PublisherKey) -> tuple[str, float] | None:
        followed = self.write.pump.followed.get(publisher)
        return None if followed is None else (followed.acting.activity.value, followed.acting.since)

    # PublisherRegistry

    async def register(self, registration: Registration, *, replace: bool = False) -> None:
        """See `PublisherRegistry`."""
        await self._within(self.write.register(registration, replace=replace))

    async def unregister(
        self,
        *,
        tenant_id: str,
        instance_id: str,
        dp_rank: int,
        model_name: str | None,
        block_size: int | None,
    ) -> list[Registration]:
        """See `PublisherRegistry`."""
        matches = methodcaller(
            "matches",
            tenant_id=tenant_id,
            instance_id=instance_id,
            dp_rank=dp_rank,
            model_name=model_name,
            block_size=block_size,
        )
        target = service_key(tenant_id, instance_id, dp_rank)
        gone = await self._within(self.write.unregister(matches, target))
        self.router.forget(gone)
        return gone

    async def _within(self, future: "Future[list[Registration]]") -> list[Registration]:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), EMBEDDED_COMMAND_S)
        except TimeoutError as error:
            text = f"The log was not written within {EMBEDDED_COMMAND_S:.0f} s"
            problem = self.write.problem
            raise StorageError(f"{text}: {problem}" if problem else text) from error

    def register_configured(self, registrations: Sequence[Registration]) -> None:
        """Registers what a configuration file names, once recovery is done; bad ones are logged."""
        for registration in registrations:
            future = self.write.register(registration)
            future.add_done_callback(partial(_log_refusal, registration))


def _log_refusal(registration: Registration, done: "Future[list[Registration]]") -> None:
    error = done.exception()
    if error is not None:
        logger.warning(
            "Cannot register the configured publisher %s: %s. Correct the file, or POST /register",
            *(registration.service_key, error),
        )
