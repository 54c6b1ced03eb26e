"""How far a replica is behind: in records by offsets, in seconds by when an offset was the end.

A log does not say when a record that has not been read was written. So the end of each partition
is noted every now and then with the time, and once everything below it is applied, the table is
known to be as new as the log was at that time. The resolution is the time between two notes.

Pure: times are passed in, monotonic seconds.
"""

from collections import deque
from collections.abc import Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.limits import LAG_NOTES_MAX, STALE_RECORDS, STALE_S

PlaceT = TypeVar("PlaceT", bound=Hashable)
NEVER: Final = float("inf")


class _Note(NamedTuple):
    time: float
    end: int


class _Partition:
    """One partition: the notes that are not reached yet, and since when it is behind.

    Attributes:
        as_of: everything that was in the log then is applied.
        end, next: end of the log when last noted; first offset that is not applied.
    """

    __slots__ = ("_notes", "_reached", "as_of", "end", "next")

    def __init__(self, as_of: float) -> None:
        self._reached = False
        self.as_of = as_of
        self.end = 0
        self.next = 0
        self._notes: deque[_Note] = deque(maxlen=LAG_NOTES_MAX)

    def note(self, now: float, end: int) -> None:
        self.end = end
        if not self._notes or self._notes[-1].end < end or self.next >= end:
            self._notes.append(_Note(now, end))
        self.advance(self.next)

    def advance(self, next_offset: int) -> None:
        self.next = next_offset
        while self._notes and self._notes[0].end <= next_offset:
            self.as_of = self._notes.popleft().time
            self._reached = True

    def guess(self, as_of: float) -> None:
        if not self._reached:
            self.as_of = as_of


class LagTracker(Generic[PlaceT]):
    """Partitions of any topics, each under a name of the caller's; not thread-safe."""

    def __init__(self) -> None:
        self._partitions: dict[PlaceT, _Partition] = {}

    def add(self, place: PlaceT, *, as_of: float) -> None:
        """Follows one more partition, applied to where the log was at `as_of`."""
        self._partitions[place] = _Partition(as_of)

    def guess(self, place: PlaceT, as_of: float) -> None:
        """The partition is applied to about then; counts until it has reached a first note."""
        self._partitions[place].guess(as_of)

    def advance(self, place: PlaceT, next_offset: int) -> None:
        """Everything below the offset is applied."""
        self._partitions[place].advance(next_offset)

    def note_ends(self, now: float, ends: Mapping[PlaceT, int]) -> None:
        """The log was asked at `now`, and these offsets are the next that it will give."""
        for place, end in ends.items():
            self._partitions[place].note(now, end)

    def records(self, place: PlaceT) -> int:
        """How many records the log had beyond those applied when it was last asked."""
        partition = self._partitions[place]
        return max(partition.end - partition.next, 0)

    def seconds(self, now: float, *, reachable: bool) -> float:
        """The table holds all that the logs held this long ago; 0.0 where it holds all of it."""
        partitions = self._partitions.values()
        behind = [one.as_of for one in partitions if one.next < one.end or not reachable]
        return max(now - min(behind), 0.0) if behind else 0.0

    def stale_at(self, *, reachable: bool) -> float:
        """When answers become stale if nothing happens until then; in the past if they are."""
        if not reachable or not self._partitions:
            return -NEVER
        if sum(map(self.records, self._partitions)) > STALE_RECORDS:
            return -NEVER
        return min(one.as_of for one in self._partitions.values()) + STALE_S
