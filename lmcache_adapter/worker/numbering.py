"""The numbers that one LMCache process gives its operations: by location, from 0. Pure.

`bridge.publisher.tracker` says what a number shows. Here it is known of which locations numbers
are known, and of which something may be missing that no number has shown yet.
"""

from collections.abc import Iterator, Sequence

from bridge.publisher.tracker import ProcessTracker, SequenceOutcome
from lmcache_adapter.wire.locations import SYNCED
from lmcache_adapter.wire.messages import Operation


class Numbering:
    """What has been seen of them.

    Args:
        is_new: the process is seen from its beginning.
    """

    def __init__(self, *, is_new: bool = False) -> None:
        self._is_new = is_new
        self._trackers: dict[str, ProcessTracker | None] = {}  # None: all is known but a number
        self._unproven: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return (location for location, tracker in self._trackers.items() if tracker is not None)

    @property
    def unproven(self) -> frozenset[str]:
        """The locations of which something may have been lost while the link was down: their next
        number will tell.
        """
        return frozenset(self._unproven)

    def resume(self, location: str, number: int) -> None:
        """This is the next number of the location, as of an earlier run."""
        self._trackers[location] = ProcessTracker(number - 1)
        self._unproven.add(location)

    def expected(self, location: str) -> int | None:
        """Its next number, where that is known."""
        tracker = self._trackers.get(location)
        return None if tracker is None else tracker.sequence + 1

    def cut(self) -> None:
        """The link is down."""
        self._unproven.update(self._trackers)

    def prove(self, location: str) -> None:
        """All that the location holds has been told otherwise."""
        self._unproven.discard(location)
        self._trackers.setdefault(location, None)

    def follows(self, location: str, operations: Sequence[Operation]) -> bool:
        """Takes some, at least one; whether none are missing before or between them.

        Whoever numbers on where nobody has listened may have stored before. Of the location of full
        syncs that is no loss: one is asked for anyway.
        """
        tracker, is_lost = self._trackers.get(location), False
        if tracker is None:
            is_lost = location in self._unproven  # how many is unknown
            is_first = self._is_new or location != SYNCED
            tracker = ProcessTracker(-1 if is_first else operations[0].seq_num - 1)
            self._trackers[location] = tracker
        self._unproven.discard(location)
        verdict = tracker.observe_all(one.seq_num for one in operations)
        return verdict.outcome is SequenceOutcome.NEXT and not is_lost
