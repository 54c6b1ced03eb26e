"""How far a replica is behind: in records by offsets, in seconds by when an offset was the end.

A log does not say when a record that has not been read was written. So the end of each partition
is sampled every `LAG_CHECK_S`, and once everything below a sample is applied, the table is known to
be as new as the log was when it was taken. The resolution is the time between two samples.

Pure: times are passed in, monotonic seconds.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.limits import STALE_RECORDS, STALE_S

LAG_SAMPLES_MAX: Final = 1024  # ends of a partition that are not reached yet; the oldest is dropped

NameT = TypeVar("NameT", bound=Hashable)
NEVER: Final = float("inf")


class _Sample(NamedTuple):
    time: float
    end: int


class _Partition:
    """One partition: the samples that are not reached yet, and since when it is behind.

    Attributes:
        as_of: everything that was in the log then is applied; a guess until a sample is reached.
        end, next: end of the log when last sampled; first offset that is not applied.
    """

    __slots__ = ("_samples", "as_of", "end", "is_reached", "next")

    def __init__(self, as_of: float) -> None:
        self.is_reached = False
        self.as_of = as_of
        self.end = 0
        self.next = 0
        self._samples: deque[_Sample] = deque(maxlen=LAG_SAMPLES_MAX)

    def note(self, now: float, end: int) -> None:
        self.end = end
        if not self._samples or self._samples[-1].end < end or self.next >= end:
            self._samples.append(_Sample(now, end))
        self.advance(self.next)

    def advance(self, next_offset: int) -> None:
        self.next = next_offset
        while self._samples and self._samples[0].end <= next_offset:
            self.as_of = self._samples.popleft().time
            self.is_reached = True

    def guess(self, as_of: float) -> None:
        if not self.is_reached:
            self.as_of = as_of

    @property
    def proven_as_of(self) -> float:
        return self.as_of if self.is_reached else -NEVER


class LagTracker(Generic[NameT]):
    """Partitions of any topics, each under a name of the caller's; not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[NameT, _Partition] = {}

    def add(self, name: NameT, *, as_of: float) -> None:
        """Follows one more partition, applied to where the log was at `as_of`."""
        self._partitions[name] = _Partition(as_of)

    def guess(self, name: NameT, as_of: float) -> None:
        """The partition is applied to about then: what is shown until a first sample is reached."""
        self._partitions[name].guess(as_of)

    def advance(self, name: NameT, next_offset: int) -> None:
        """Everything below the offset is applied."""
        self._partitions[name].advance(next_offset)

    def note_ends(self, now: float, ends: Mapping[NameT, int]) -> None:
        """The log was asked at `now`, and these offsets are the next that it will give."""
        for name, end in ends.items():
            self._partitions[name].note(now, end)

    def as_of(self, name: NameT) -> float:
        """Everything that the partition had then is applied; monotonic seconds."""
        return self._partitions[name].proven_as_of

    def records(self, name: NameT) -> int:
        """How many records the log had beyond those applied when it was last asked."""
        partition = self._partitions[name]
        return max(partition.end - partition.next, 0)

    def seconds(self, now: float, *, reachable: bool) -> float:
        """The table holds all that the logs held this long ago; 0.0 where it holds all of it."""
        partitions = self._partitions.values()
        behind = [
            partition.as_of
            for partition in partitions
            if partition.next < partition.end or not reachable
        ]
        return max(now - min(behind), 0.0) if behind else 0.0

    def stale_at(self, *, reachable: bool) -> float:
        """When answers become stale if nothing happens until then; in the past if they are."""
        if not reachable or not self._partitions:
            return -NEVER
        if sum(map(self.records, self._partitions)) > STALE_RECORDS:
            return -NEVER
        return min(partition.proven_as_of for partition in self._partitions.values()) + STALE_S
