"""The embedded service: bridge, log, fold, table and API in one process, on one data directory.

    DATA/log/, table/, history/, loss.json   `reprise.embedded.data`
    and the logs that rooms declare, as DATA/routing/: `reprise.logs`

Threads: `reprise-subscriber` receives from the engines, `write` decodes, packs and appends, `fold`
folds and flushes, `log-sync` makes appends durable, and the main thread answers HTTP from the
kernel that `fold` writes. `routing` writes and folds what was decided; with `audit.rate`, `audit`
writes what the answers were; with `--lmcache`, `commands` asks its workers what they are to do, and
with `acting.on`, `act` has them do what is advised.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bridge.engine_http.keys import ENGINE_KEYS
from bridge.sockets.reader import open_reader
from doctor.watch import OutcomeWatch
from logs.declaration import EmbeddedParts
from query_api.change_signal import ChangeSignal
from reprise import rooms
from reprise.embedded.data import EmptyFolds, open_data
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.intake import EmbeddedIntake
from reprise.embedded.loss_watch import LossWatch
from reprise.embedded.registry import EmbeddedRegistry
from reprise.embedded.view import EmbeddedView
from reprise.embedded.write_thread import WriteThread
from reprise.logs import LogRuns, declared_logs
from reprise.settings import Settings
from routing.decisions.router import Router
from routing.log.declaration import ROUTING
from routing.log.embedded import RoutingLog
from schemas.clock import REAL_CLOCK
from schemas.conditions import Conditions
from schemas.errors import DamagedError, NewerVersionError
from schemas.tracing import NO_TRACER, Tracer
from streams.audit.log import ANSWERS, AnswerLog
from streams.kernel import array_packer, socket_reader
from streams.table.scope_states import Contradictions

if TYPE_CHECKING:
    from reprise.rooms import EmbeddedLmcache

logger = logging.getLogger(__name__)


class EmbeddedService:
    """The parts of `reprise up`, in the order in which each is made of those before it.

    Args:
        settings: what to run with.
        on_damage: called, from another thread, where its log turns out to be damaged during
            recovery, or its table to be of a newer Reprise; `damage` says how.
        tracer: makes the spans of what it appends, folds and has workers do.

    Attributes:
        audit_queue: takes answers that are kept; None: none are.
        view, registry: what HTTP and gRPC read and change.
        logs: what runs those that rooms declare.
        routing, router: the routing log, and who decides.
        outcomes: the doctor's look at outcomes.
        lmcache: what LMCache's room has beside the write path; None: its workers are not served.
        faults: unexpected errors of what is in no other count.

    Raises:
        ConfigurationError: LMCache's ports cannot be bound.
        DataDirectoryInUseError: another process uses the data directory.
        NewerVersionError: a newer Reprise wrote it; nothing was changed.
        StorageError: it cannot be opened.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        on_damage: Callable[[], None] = lambda: None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.faults = 0
        changes = ChangeSignal()
        self.conditions = conditions = Conditions(REAL_CLOCK.unix, logger)
        conditions.on_change = changes.changed
        ENGINE_KEYS.conditions = conditions
        parts = EmbeddedParts(
            settings.data, conditions, REAL_CLOCK, settings.log_retention_s, tracer, settings
        )
        self.logs = LogRuns({one: one.embedded(parts) for one in declared_logs()})
        answers: AnswerLog | None = self.logs[ANSWERS]
        self.routing: RoutingLog = self.logs[ROUTING]
        self.audit_queue = None if answers is None else answers.source.queue
        folds = EmptyFolds(settings.seed, settings.kernel, self.audit_queue, changes)
        with ExitStack() as opened:
            self.data = open_data(settings, folds)
            opened.callback(self.data.close)
            losses = LossWatch(settings.data, conditions)
            self.folding = FoldThread(
                self.data.table,
                flush_s=settings.table_flush_s,
                conditions=conditions,
                tracer=tracer,
            )
            self.intake = EmbeddedIntake(
                settings,
                self.data.log,
                self.folding,
                conditions,
                packer=array_packer(),
                reader=open_reader(socket_reader),
                tracer=tracer,
            )
            opened.callback(self.intake.close)
            self.view = EmbeddedView(self.folding, self.intake, losses, changes)
            for log in self.logs.running():
                opened.callback(log.stop)
                log.open()
            routing = self.routing
            routing.live.tell_contradictions(self._contradict)
            self.router = Router(self.view, routing.queue, routing.live, settings.routing)
            self.registry = EmbeddedRegistry(self.intake, self.router)
            self.write = WriteThread(
                settings,
                self.data,
                self.folding,
                self.intake,
                losses,
                on_damage=on_damage,
                on_load=self.router.observe,
            )
            self.outcomes = OutcomeWatch(
                self.view, self.router, conditions, on_fault=self._count_fault
            )
            self.lmcache = self._open_lmcache(settings, parts)
            opened.pop_all()

    def _open_lmcache(self, settings: Settings, parts: EmbeddedParts) -> "EmbeddedLmcache | None":
        room = rooms.lmcache()
        if room is None or self.intake.lmcache is None:
            return None
        lmcache = room.embedded(self.intake.lmcache, parts)
        if settings.acting.is_on:
            lmcache.act(self.view, self.router, settings.acting)
        return lmcache

    def _contradict(self, found: Contradictions) -> None:
        self.view.contradict(found)
        if self.data.history is not None:
            self.data.history.contradict(found)

    def start(self) -> None:
        """Starts recovery and then the write path; returns at once."""
        for log in self.logs.running():
            log.start()
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
        for log in self.logs.running():
            log.stop()

    def _count_fault(self) -> None:
        self.faults += 1

    @property
    def damage(self) -> DamagedError | NewerVersionError | None:
        """Why the service cannot go on, or None."""
        return self.write.damage
