"""A capture folded into a table: by the fold of the service, one for each partition."""

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from replay.as_records import CaptureRecords
from replay.bounds import CAPTURE_TOLD_RECORDS
from replay.capture.format import CaptureEntry
from schemas.clock import REAL_CLOCK
from schemas.identities import Offset, PublisherKey
from schemas.limits import TABLE_FLUSH_CHANGES_MAX
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import Position, PublisherState
from schemas.progress import Progress, StopCheck, Tell, never, silent
from schemas.registration import Registration
from streams.kernel.interface import Kernel
from streams.table.fold import DUPLICATE, Fold
from streams.table.ledger import Ledger
from streams.table.scope_states import ScopeStates
from streams.table.skip_log import SkippedRecord
from streams.table.verification import context_digests, digest_lines

REPLAY_WAIT_S: Final = 0.25  # between two looks whether a paced replay is to end
REPLAYED_FAULTS_NAMED_MAX: Final = 5  # records that were skipped and are printed; all are counted


class SkippedEntry(NamedTuple):
    """A record that was not folded, and its partition."""

    partition: int
    record: SkippedRecord


class ReplayedTable:
    """The table that a capture's records give. One writer; other threads may read.

    The partitions' folds share a kernel: a stream is in one partition, so they never meet, and
    objects of a pool are joined within theirs.

    Attributes:
        states: of the answers, by scope.
        skipped: how many of them were not folded, by reason.
        named: the first of these, but for duplicates.
    """

    def __init__(self, kernel: Kernel, records: CaptureRecords) -> None:
        self.kernel = kernel
        self.states = ScopeStates()
        self.records = 0
        self.skipped: Counter[str] = Counter()
        self.named: list[SkippedEntry] = []
        self._folds: dict[int, Fold] = {}
        for partition in records.partitions:
            noted = partial(kernel.note_position, partition)
            fold = Fold(kernel, when_folded=noted, partition=partition)
            fold.states = self.states
            if before := records.unproven_before(partition):
                fold.distrust(Offset(before))
            self._folds[partition] = fold

    def apply(self, entry: CaptureEntry) -> None:
        """Folds the next record of its partition."""
        fold = self._folds[entry.lane]
        self.records += 1
        skipped = fold.apply(Offset(entry.position), entry.value)
        if skipped is not None:
            self.skipped[skipped.reason] += 1
            if skipped.reason != DUPLICATE and len(self.named) < REPLAYED_FAULTS_NAMED_MAX:
                self.named.append(SkippedEntry(entry.lane, skipped))
        if self.kernel.pending_changes() >= TABLE_FLUSH_CHANGES_MAX:
            for one in self._folds.values():
                one.take_changes()  # nobody writes them

    @property
    def counters(self) -> Counter[str]:
        """What the folds count, all together."""
        counters: Counter[str] = Counter()
        for fold in self._folds.values():
            counters.update(fold.counters)
        return counters

    @property
    def positions(self) -> tuple[Position, ...]:
        """What is folded of each partition that has anything."""
        return tuple(
            Position(partition, fold.offset)
            for partition, fold in self._folds.items()
            if fold.offset >= 0
        )

    @property
    def publishers(self) -> Mapping[PublisherKey, PublisherState]:
        """What is folded of each publisher; live, so read it only."""
        return ChainMap(*(fold.publishers for fold in self._folds.values()))

    @property
    def ledgers(self) -> dict[PublisherKey, Ledger]:
        """What became of each publisher's batches."""
        return {
            publisher: ledger
            for fold in self._folds.values()
            for publisher, ledger in list(fold.ledgers.current.items())
        }

    @property
    def registrations(self) -> list[Registration]:
        """Who was registered at the end."""
        return [
            registered.registration
            for fold in self._folds.values()
            for registered in list(fold.registrations.values())
        ]

    @property
    def segments(self) -> dict[SegmentKey, SegmentState]:
        """What is folded of segments of memory."""
        found: dict[SegmentKey, SegmentState] = {}
        for fold in self._folds.values():
            found |= dict(fold.memory.segments)
        return found

    @property
    def digests(self) -> dict[str, str]:
        """By context, its digest and how many entries it has, in words; empty ones left out."""
        return context_digests(self.kernel)

    def lines(self) -> Iterable[str]:
        """Position and digests, as `reprise verify` prints them."""
        position = ",".join(map(str, self.positions)) or "none"
        yield f"position {position}  records {self.records}  seed {self.kernel.seed}"
        yield from digest_lines(self.kernel)


class ReplayPace:
    """Lets what is replayed come as it happened, or so many times as fast.

    Args:
        speed: 1.0 as it happened; None as fast as it goes.
        stopped: whether to wait no longer.
        clock: monotonic seconds.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        speed: float | None,
        *,
        stopped: StopCheck = never,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        sleep: Callable[[float], object] = REAL_CLOCK.sleep,
    ) -> None:
        self._speed = speed
        self._stopped = stopped
        self._clock = clock
        self._sleep = sleep
        self._begun: tuple[float, float] | None = None

    def wait(self, happened_at: float) -> None:
        """Returns when it is time for what happened then; times that fall back wait for nothing."""
        if self._speed is None:
            return
        if self._begun is None:
            self._begun = self._clock(), happened_at
        began_at, first = self._begun
        due = began_at + (happened_at - first) / self._speed
        while (left := due - self._clock()) > 0 and not self._stopped():
            self._sleep(min(left, REPLAY_WAIT_S))


def fold_capture(
    records: CaptureRecords,
    table: ReplayedTable,
    *,
    total: int | None,
    pace: ReplayPace | None = None,
    tell: Tell = silent,
    stopped: StopCheck = never,
) -> bool:
    """Folds all records; whether it came to the end.

    Args:
        total: how many entries the capture has, where they are its records.
        pace: when each is folded; None for as fast as it goes.
        stopped: whether to end before.

    Raises:
        CaptureDamagedError, DiskError: the capture cannot be read further.
    """
    for number, entry in enumerate(records):
        if pace is not None:
            pace.wait(entry.time)
        if not number % CAPTURE_TOLD_RECORDS or pace is not None:
            tell(Progress(number, total, number))
            if stopped():
                return False
        table.apply(entry)
    return True
