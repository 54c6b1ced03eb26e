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

_OF_LINKS: Final = frozenset(("", MISSED, RECONNECTED, NOT_FOLLOWED))


def cause_of_repair(cause: str, sequence: int) -> str:
    """Why batches had been missing that a replay brings.

    Args:
        cause: why the publisher is asked; "" for unknown.
        sequence: of the last batch of its incarnation in the log; -1 before the first.
    """
    if sequence == -1 and cause in _OF_LINKS:
        return JOINED_LATE
    return cause or MISSED
