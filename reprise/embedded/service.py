"""The embedded service: bridge, log, fold, table and API in one process, on one data directory.

    DATA/log/, table/, history/, loss.json   `reprise.embedded.data`
    DATA/answers/  with `audit.rate`, answers to be proven: `streams.audit.embedded`
    DATA/routing/  what was decided and what came of it: `routing.log.embedded`
    DATA/commands/  with `--lmcache`, commands to its workers, by LMCache's room

Threads: `reprise-subscriber` receives from the engines, `write` decodes, packs and appends, `fold`
folds and flushes, `log-sync` makes appends durable, and the main thread answers HTTP from the
kernel that `fold` writes. `routing` writes and folds what was decided; with `audit.rate`, `audit`
writes what the answers were; with `--lmcache`, `commands` asks its workers what they are to do, and
with `acting.on`, `act` has them do what is advised.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from bridge.engine_http.keys import ENGINE_KEYS
from bridge.sockets.reader import open_reader
from doctor.watch import OutcomeWatch
from query_api.change_signal import ChangeSignal
from reprise import rooms
from reprise.embedded.data import EmptyFolds, open_data
from reprise.embedded.fold_thread import FoldThread
from reprise.embedded.intake import EmbeddedIntake
from reprise.embedded.loss_watch import LossWatch
from reprise.embedded.registry import EmbeddedRegistry
from reprise.embedded.view import EmbeddedView
from reprise.embedded.write_thread import WriteThread
from reprise.settings import Settings
from routing.decisions.router import Router
from routing.log.embedded import DIRECTORY as ROUTING_DIRECTORY
from routing.log.embedded import RoutingLog
from schemas.conditions import Conditions
from schemas.errors import DamagedError, NewerVersionError
from schemas.tracing import NO_TRACER, Tracer
from streams.audit.embedded import AnswerLog
from streams.audit.log import DIRECTORY as ANSWERS_DIRECTORY
from streams.audit.queue import open_audit_queue
from streams.kernel import array_packer, socket_reader

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
        conditions: of the role.
        data: what is on the disk.
        folding: folds into the table.
        intake: from the sockets into the log.
        view, registry: what HTTP and gRPC read and change.
        routing, router: the routing log, and who decides.
        write: runs the intake.
        outcomes: the doctor's look at outcomes.
        audit: writes the answers that are kept; None: none are.
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
        queue = open_audit_queue(settings.audit_rate) if settings.audit_rate > 0 else None
        self.audit_queue = queue
        self.conditions = conditions = Conditions(time.time, logger)
        conditions.on_change = changes.changed
        ENGINE_KEYS.conditions = conditions
        folds = EmptyFolds(settings.seed, settings.kernel, queue, changes)
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
            kept_s = settings.log_retention_s
            self.routing = RoutingLog(
                settings.data / ROUTING_DIRECTORY,
                age_max_s=kept_s,
                conditions=conditions,
                tracer=tracer,
            )
            opened.callback(self.routing.stop)
            self.audit: AnswerLog | None = None
            if queue is not None:
                path, seed = settings.data / ANSWERS_DIRECTORY, settings.seed
                self.audit = AnswerLog(
                    path, queue, seed=seed, age_max_s=kept_s, conditions=conditions
                )
                opened.callback(self.audit.stop)
            routing = self.routing
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
            self.lmcache = self._open_lmcache(settings, tracer)
            opened.pop_all()

    def _open_lmcache(self, settings: Settings, tracer: Tracer) -> "EmbeddedLmcache | None":
        room = rooms.lmcache()
        if room is None or self.intake.lmcache is None:
            return None
        lmcache = room.embedded(self.intake.lmcache, settings.data, tracer)
        if settings.act_s:
            lmcache.act(self.view, self.router, settings.act_s)
        return lmcache

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
