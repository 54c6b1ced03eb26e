"""Why batches are missing, in a word: besides what `DropReason` says of those that were dropped."""

from typing import Final

RESTARTED: Final = "restarted"
"""Of an incarnation that began unheard."""

JOINED_LATE: Final = "joined_late"
"""Before the first one that came."""

MISSED: Final = "missed"
"""Not before a later one over the same link."""

RECONNECTED: Final = "reconnected"
"""While the link was down, or before the first one that came over it."""

NOT_FOLLOWED: Final = "not_followed"
"""While no bridge followed the publisher."""

SNAPSHOT: Final = "snapshot"
"""Before a snapshot, which has what is left of them."""

_OF_LINKS: Final = frozenset(("", MISSED, RECONNECTED, NOT_FOLLOWED))


class Causes:
    """Why batches of one publisher are missing, or may be; "" for none, or unknown. One owner.

    Attributes:
        away: why some may be missing before the next one.
        wait: why the publisher waits, and its engine is asked.
        repaired: why those had been missing that are accepted now: a replay brings them.
    """

    __slots__ = ("away", "repaired", "wait")

    def __init__(self) -> None:
        self.away = self.wait = self.repaired = ""

    @property
    def of_gap(self) -> str:
        """Why those are missing that the next batch shows."""
        return self.wait or self.away or MISSED

    def hold(self, cause: str) -> None:
        """The publisher waits for its engine's answer, if for nothing else for this cause."""
        self.wait = self.wait or self.away or cause

    def begin_repaired(self, sequence: int) -> None:
        """What is accepted from here on had been missing.

        Args:
            sequence: of the last batch of its incarnation in the log; -1 before the first.
        """
        is_first = sequence == -1 and self.wait in _OF_LINKS
        self.wait = self.repaired = JOINED_LATE if is_first else self.wait or MISSED

    def end_repaired(self) -> None:
        """What is accepted from here on came live."""
        self.repaired = ""
