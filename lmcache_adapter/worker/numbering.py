"""The numbers that one LMCache process gives its operations: by location, from 0. Pure.

`bridge.publisher.tracker` says what a number shows. Here it is known of which locations numbers
are known, and of which something may be missing that no number has shown yet.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from bridge.publisher.tracker import ProcessTracker, SequenceOutcome
from lmcache_adapter.wire.locations import SYNCED
from lmcache_adapter.wire.messages import Operation


class LocationNumbers:
    """Of one location.

    Attributes:
        tracker: of its numbers; None: none is known, though what it holds may have been told.
        is_unproven: something may have been lost while the link was down; the next number tells.
    """

    __slots__ = ("is_unproven", "tracker")

    def __init__(self) -> None:
        self.tracker: ProcessTracker | None = None
        self.is_unproven = False


class Numbering:
    """Of one process.

    Args:
        is_new: the process is seen from its beginning.
    """

    def __init__(self, *, is_new: bool = False) -> None:
        self._is_new = is_new
        self._locations: defaultdict[str, LocationNumbers] = defaultdict(LocationNumbers)

    def __iter__(self) -> Iterator[str]:
        return (one for one, numbers in self._locations.items() if numbers.tracker is not None)

    @property
    def unproven(self) -> frozenset[str]:
        """The locations of which something may have been lost while the link was down: their next
        number will tell.
        """
        return frozenset(one for one, numbers in self._locations.items() if numbers.is_unproven)

    def resume(self, location: str, number: int) -> None:
        """This is the next number of the location, as of an earlier run."""
        numbers = self._locations[location]
        numbers.tracker, numbers.is_unproven = ProcessTracker(number - 1), True

    def expected(self, location: str) -> int | None:
        """Its next number, where that is known."""
        numbers = self._locations.get(location)
        if numbers is None or numbers.tracker is None:
            return None
        return numbers.tracker.sequence + 1

    def cut(self) -> None:
        """The link is down."""
        for numbers in self._locations.values():
            numbers.is_unproven = True

    def prove(self, location: str) -> None:
        """All that the location holds has been told otherwise."""
        self._locations[location].is_unproven = False

    def follows(self, location: str, operations: Sequence[Operation]) -> bool:
        """Takes some, at least one; whether none are missing before or between them.

        Whoever numbers on where nobody has listened may have stored before. Of the location of full
        syncs that is no loss: one is asked for anyway.
        """
        numbers = self._locations[location]
        is_lost = False
        if numbers.tracker is None:
            is_lost = numbers.is_unproven  # how many is unknown
            is_first = self._is_new or location != SYNCED
            numbers.tracker = ProcessTracker(-1 if is_first else operations[0].seq_num - 1)
        numbers.is_unproven = False
        verdict = numbers.tracker.observe_all(one.seq_num for one in operations)
        return verdict.outcome is SequenceOutcome.NEXT and not is_lost
