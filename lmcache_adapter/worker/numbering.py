"""The numbers that one LMCache process gives its operations: by location, from 0. Pure."""

from collections.abc import Iterator, Sequence

from lmcache_adapter.wire.locations import SYNCED
from lmcache_adapter.wire.messages import Operation


class Numbering:
    """What has been seen of them.

    Args:
        is_new: the process is seen from its beginning.
    """

    def __init__(self, *, is_new: bool = False) -> None:
        self._is_new = is_new
        self._expected: dict[str, int] = {}
        self._unproven: set[str] = set()
        self._unnumbered: set[str] = set()  # all that they hold is known, but no number of theirs

    def __iter__(self) -> Iterator[str]:
        return iter(self._expected)

    @property
    def unproven(self) -> frozenset[str]:
        """The locations of which something may have been lost while the link was down: their next
        number will tell.
        """
        return frozenset(self._unproven)

    def resume(self, location: str, number: int) -> None:
        """This is the next number of the location, as of an earlier run."""
        self._expected[location] = number
        self._unproven.add(location)

    def expected(self, location: str) -> int | None:
        """Its next number, where that is known."""
        return self._expected.get(location)

    def cut(self) -> None:
        """The link is down."""
        self._unproven.update(self._expected, self._unnumbered)

    def prove(self, location: str) -> None:
        """All that the location holds has been told otherwise."""
        self._unproven.discard(location)
        if location not in self._expected:
            self._unnumbered.add(location)

    def follows(self, location: str, operations: Sequence[Operation]) -> bool:
        """Takes some, at least one; whether none are missing before or between them.

        Whoever numbers on where nobody has listened may have stored before. Of the location of full
        syncs that is no loss: one is asked for anyway.
        """
        expected = self._expected.get(location)
        first = operations[0].seq_num
        is_lost = location in self._unnumbered and location in self._unproven  # how many is unknown
        self._unnumbered.discard(location)
        self._unproven.discard(location)
        if expected is None:
            expected = 0 if self._is_new or location != SYNCED else first
        self._expected[location] = operations[-1].seq_num + 1
        return not is_lost and all(
            one.seq_num == number for number, one in enumerate(operations, expected)
        )
