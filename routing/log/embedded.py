"""The routing log of the embedded service.

DATA/routing/log/         a log of its own (`streams.log.embedded`), of `schemas.routing_records`
DATA/routing/checkpoint   what a fold of it has, as of an offset (`routing.fold.checkpoint`)
"""

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from routing.decisions.failing_watch import note_failing
from routing.decisions.folded import FoldedRouting
from routing.decisions.live import LiveLoad
from routing.decisions.queue import RoutingQueue, items_of
from routing.fold.checkpoint import read_checkpoint, write_checkpoint
from routing.fold.fold import RoutingFold
from schemas.codec import decode_routing
from schemas.conditions import Conditions, Part
from schemas.errors import DamagedError, NewerVersionError, RecordError, StorageError
from schemas.identities import Offset
from schemas.limits import FAILING_LOOK_S, ROUTING_BYTES, ROUTING_CHECKPOINT_S
from schemas.routing_records import RoutingRecord, encode_routing, traces_of
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes
from storage.salvage import move_aside
from streams.log.embedded import EmbeddedLog
from streams.log.interface import LogEntry
from streams.log.window_log import WindowLog, WindowLogOptions, open_or_begin_anew

DIRECTORY: Final = "routing"
"""Where it is, in the directory of the data."""

NAME: Final = "the routing log"
logger = logging.getLogger(__name__)


class RoutingLog(WindowLog):
    """A thread that writes what a queue has, and folds it.

    Attributes:
        queue: of decisions, reports and samples.
        live: what decisions read: the fold of the log, and what is not in the log yet.
        written: items that are in the log, of this run.
        unwritten: items that were taken from the queue and could not be written.
        skipped: records that could not be read when the log was folded at the start.
    """

    def __init__(
        self,
        path: Path,
        *,
        age_max_s: float,
        conditions: Conditions,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Opens it where there is one, and folds what it has; a damaged one is set aside. Where
        nothing was ever decided there is none, and it takes no files, until something is.

        Args:
            path: of its directory.
            age_max_s: how long records are kept.
            conditions: set while it cannot be written.
            tracer: of the service.

        Raises:
            DataDirectoryInUseError: another process has it open.
            NewerVersionError: a newer Reprise wrote it.
            StorageError: it cannot be opened.
        """

        def open_log() -> EmbeddedLog:
            path.mkdir(parents=True, exist_ok=True)
            lost = "what its checkpoint has, is kept"
            return open_or_begin_anew(path / "log", NAME, EmbeddedLog, lost=lost)

        options = WindowLogOptions(NAME, "routing", Part.ROUTING, ROUTING_BYTES, age_max_s)
        log = open_log() if path.exists() else None
        super().__init__(open_log, options, conditions, log=log)
        self._tracer = tracer
        self.queue = RoutingQueue()
        self.written = self.unwritten = self.skipped = 0
        self._checkpoint = path / "checkpoint"
        self._checkpoint_at = self._look_at = 0.0
        self._kept = -1
        self._taken: list[RoutingRecord] = []
        self.live = LiveLoad(RoutingFold() if log is None else self._fold_all(log))

    def _fold_all(self, log: EmbeddedLog) -> RoutingFold:
        """From the checkpoint, and what the log has behind it."""
        fold = RoutingFold()
        try:
            fold = read_checkpoint(self._checkpoint) or fold
        except NewerVersionError:  # the next one would take its place
            log.close()
            raise
        except (RecordError, StorageError) as error:
            logger.warning("%s. The routing log is folded from its beginning", error)
        if fold.offset >= log.end_offset:
            logger.warning(
                "The routing log ends before what was folded of it: what is lost of it stays folded"
            )
            fold.offset = log.end_offset - 1
        self._kept = fold.offset
        problem = self._fold_behind(fold, log)
        if problem:
            log.close()
            aside = move_aside(log.path, NAME)
            logger.warning("%s. It was moved to %s: what is before that, is kept", problem, aside)
            self._log = self._open_log()
            fold.offset = self._kept = -1
        return fold

    def _fold_behind(self, fold: RoutingFold, log: EmbeddedLog) -> str:
        """What the log has behind the fold; says what ended that too early, or ""."""
        try:
            for entry in log.read(Offset(fold.offset + 1)):
                self._fold_one(fold, entry)
        except DamagedError as error:
            return str(error)
        return ""

    def _fold_one(self, fold: RoutingFold, entry: LogEntry) -> None:
        try:
            fold.apply(entry.offset, decode_routing(entry.value))
        except RecordError as error:
            self.skipped += 1
            logger.warning(
                "Cannot read record %d of the routing log: %s. It is left out", entry.offset, error
            )

    @property
    def folded(self) -> FoldedRouting:
        """The fold of the log, as far as it was written."""
        return self.live.folded

    @property
    def lag(self) -> int:
        """Records of the log that are not folded yet: what is written, is folded."""
        return 0

    @property
    def floor(self) -> Offset:
        """See `WindowLog`: what is not in a checkpoint yet."""
        return Offset(self._kept + 1)

    def take(self) -> Sequence[bytes]:
        """See `WindowLog`."""
        self._taken, encoded = [], []
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + FAILING_LOOK_S
            note_failing(self.live, self._conditions, time.time())
        for record in self.queue.take(time.time()):
            try:
                encoded.append(encode_routing(record))
            except Exception:  # a value that no record can have: the others are written
                self.unwritten += items_of(record)
                logger.exception(
                    "A record of %s cannot be written; it is dropped", self._options.name
                )
            else:
                self._taken.append(record)
        return encoded

    def appended(self, first: Offset) -> None:
        """See `WindowLog`: what is in the log, is folded."""
        began_ns = time.time_ns()
        now = began_ns / 1e9
        self.written += sum(map(items_of, self._taken))
        for offset, record in enumerate(self._taken, first):
            self.live.follow(offset, record, now)
        if self._tracer.is_on:
            last = first + len(self._taken) - 1
            attributes = batch_attributes("routing", len(self._taken), 0, last)
            self._tracer.batch(SpanName.FOLD, began_ns, traces_of(self._taken), attributes)

    def lost(self) -> None:
        """See `WindowLog`."""
        self.unwritten += sum(map(items_of, self._taken))

    def maintain(self) -> None:
        """See `WindowLog`: keeps a checkpoint now and then, and at the end."""
        now = time.monotonic()
        if self.folded.offset == self._kept:
            return
        if now < self._checkpoint_at and not self._stopping.is_set():
            return
        self._checkpoint_at = now + ROUTING_CHECKPOINT_S
        if self._log is not None:
            self._log.sync()  # a checkpoint never knows more than the log
        self._kept = self.folded.read_all(self._keep)

    def _keep(self, fold: RoutingFold) -> int:
        """Writes a checkpoint; which offset it has."""
        write_checkpoint(self._checkpoint, fold.pieces())
        return fold.offset
