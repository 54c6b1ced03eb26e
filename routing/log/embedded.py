"""The routing log of the embedded service.

DATA/routing/log/         a log of its own (`logs.embedded`), of `schemas.routing_records`
DATA/routing/checkpoint   what a fold of it has, as of an offset (`logs.checkpoint`)
"""

from collections.abc import Iterable, Sequence
from typing import Final

from logs.checkpoint import Checkpoints
from logs.declaration import EmbeddedParts, LogDeclaration
from logs.embedded_writer import EmbeddedWriter
from logs.interface import LogEntry
from logs.kept_log import KeptLog
from routing.bounds import FAILING_LOOK_S
from routing.decisions.failing_watch import note_failing
from routing.decisions.folded_routing import FoldedRouting
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.fold.fold import RoutingFold
from routing.log.source import RoutingSource
from schemas.codec import decode_routing
from schemas.identities import Offset
from schemas.routing_records import RoutingRecord, traces_of
from schemas.tracing import SpanName, batch_attributes

WINDOW_ITEMS: Final = 64
"""Decisions and reports of the kernel in one window, some 5 ms: a request that may not be decided
before they are booked waits no longer than for a few of these.
"""


class RoutingLog(RoutingSource):
    """Writes what its queue has, on a thread, and folds it. Where nothing was ever decided there is
    no log, and it takes no files, until something is.

    Attributes:
        queue: of decisions, reports and samples.
        live: what decisions read: the fold of the log, and what is not in the log yet.
        now: Unix seconds, by its clock.
    """

    def __init__(self, declared: LogDeclaration, parts: EmbeddedParts) -> None:
        super().__init__(RoutingQueue(window_items=WINDOW_ITEMS), parts.clock.unix)
        log = KeptLog(declared, parts)
        self._directory = log.path.parent
        self._conditions = parts.conditions
        self._tracer = parts.tracer
        self.now = parts.clock.unix
        self._machine = parts.clock
        self._look_at = 0.0
        self._checkpoints: Checkpoints[RoutingFold] = Checkpoints(log)
        self.live = LiveLoad()
        self._checkpoints.watch(self.live.folded)
        self.writer = EmbeddedWriter(self, log, thread="routing", keeper=self._checkpoints)

    def open(self) -> None:
        """See `EmbeddedRun`: opens it where there is one, and folds what it has."""
        if self._directory.exists():
            self.live.rebase(self._checkpoints.recover(RoutingFold, _apply))

    @property
    def written(self) -> int:
        """Items that are in the log, of this run."""
        return self.written_items

    @property
    def skipped(self) -> int:
        """Records that could not be read when the log was folded at the start."""
        return self._checkpoints.skipped

    @property
    def folded(self) -> FoldedRouting:
        """The fold of the log, as far as it was written."""
        return self.live.folded

    @property
    def lag(self) -> int:
        """Records of the log that are not folded yet: what is written, is folded."""
        return 0

    def start(self) -> None:
        """Starts the thread."""
        self.writer.start()

    def stop(self) -> None:
        """Writes what is left, and closes the log; within a bound."""
        self.writer.stop()

    def take(self) -> Iterable[tuple[int, RoutingRecord]]:
        """See `RecordSource`."""
        if self._machine.monotonic() >= self._look_at:
            self._look_at = self._machine.monotonic() + FAILING_LOOK_S
            with self.live.still:  # a window later will do for what the kernel was told
                note_failing(self.live, self._conditions, self.now())
        return super().take()

    def appended(self, items: Sequence[RoutingRecord], first: Offset) -> None:
        """See `RecordSource`: what is in the log, is folded."""
        began_ns = self._machine.unix_ns()
        now = began_ns / 1e9
        for offset, record in enumerate(items, first):
            self.live.follow(offset, record, now)
        if self._tracer.is_on:
            last = first + len(items) - 1
            attributes = batch_attributes("routing", len(items), 0, last)
            self._tracer.batch(SpanName.FOLD, began_ns, traces_of(items), attributes)


def _apply(fold: RoutingFold, entry: LogEntry) -> None:
    fold.apply(entry.offset, decode_routing(entry.value))
