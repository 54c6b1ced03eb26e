"""The routing log of the embedded service.

DATA/routing/log/         a log of its own (`logs.embedded`), of `schemas.routing_records`
DATA/routing/checkpoint   what a fold of it has, as of an offset (`logs.checkpoint`)
"""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from logs.checkpoint import Checkpoints
from logs.embedded import EmbeddedLog
from logs.embedded_writer import EmbeddedWriter
from logs.interface import LogEntry
from logs.kept_log import KeptLog, KeptLogOptions
from routing.bounds import FAILING_LOOK_S, ROUTING_CHECKPOINT_S
from routing.decisions.failing_watch import note_failing
from routing.decisions.folded_routing import FoldedRouting
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.fold.fold import RoutingFold
from routing.log.source import RoutingSource
from schemas.clock import REAL_CLOCK, Clock
from schemas.codec import decode_routing
from schemas.conditions import Conditions, Part
from schemas.identities import Offset
from schemas.limits import GIB
from schemas.routing_records import RoutingRecord, traces_of
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes

ROUTING_BYTES: Final = 2 * GIB  # of the embedded routing log; the oldest goes first

DIRECTORY: Final = "routing"
ROUTING_LOG_PATH: Final = Path(DIRECTORY, "log")  # in the directory of the data
"""Where it is, in the directory of the data."""

NAME: Final = "the routing log"


class RoutingLog(RoutingSource):
    """Writes what its queue has, on a thread, and folds it.

    Attributes:
        queue: of decisions, reports and samples.
        live: what decisions read: the fold of the log, and what is not in the log yet.
        now: Unix seconds, by its clock.
        writer: the thread.
    """

    def __init__(
        self,
        path: Path,
        *,
        age_max_s: float,
        conditions: Conditions,
        tracer: Tracer = NO_TRACER,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        """Opens it where there is one, and folds what it has; a damaged one is set aside. Where
        nothing was ever decided there is none, and it takes no files, until something is.

        Args:
            path: of its directory.
            age_max_s: how long records are kept.
            conditions: set while it cannot be written.
            tracer: of the service.
            clock: of the process.

        Raises:
            DataDirectoryInUseError: another process has it open.
            NewerVersionError: a newer Reprise wrote it.
            StorageError: it cannot be opened.
        """
        super().__init__(RoutingQueue(), clock.unix)
        options = KeptLogOptions(
            path / "log",
            NAME,
            "what its checkpoint has, is kept",
            bytes_max=ROUTING_BYTES,
            age_max_s=age_max_s,
            part=Part.ROUTING,
        )
        log = KeptLog(options, partial(EmbeddedLog, data=path.parent), conditions, clock=clock)
        self._conditions = conditions
        self._tracer = tracer
        self.now = clock.unix
        self._machine = clock
        self._look_at = 0.0
        self._checkpoints: Checkpoints[RoutingFold] = Checkpoints(
            path / "checkpoint", log, period_s=ROUTING_CHECKPOINT_S
        )
        fold = RoutingFold()
        if path.exists():
            fold = self._checkpoints.recover(RoutingFold, RoutingFold.load, _apply)
        self.live = LiveLoad(fold)
        self._checkpoints.watch(self.live.folded)
        self.writer = EmbeddedWriter(self, log, thread="routing", keeper=self._checkpoints)

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

    def write(self) -> None:
        """See `EmbeddedWriter`."""
        self.writer.write()

    def take(self) -> Iterable[tuple[int, RoutingRecord]]:
        """See `RecordSource`."""
        if self._machine.monotonic() >= self._look_at:
            self._look_at = self._machine.monotonic() + FAILING_LOOK_S
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
