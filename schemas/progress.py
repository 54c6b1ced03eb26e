"""What a capture, or a replay, tells of itself while it runs, and how it is stopped."""

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """How far it is.

    Attributes:
        done: of what there is, in records or messages.
        total: how many there are; None where nobody knows.
        entries: taken so far.
        size_bytes: of the file so far; 0 where there is none.
    """

    done: int
    total: int | None
    entries: int
    size_bytes: int = 0


Tell = Callable[[Progress], None]
"""Called now and then."""

StopCheck = Callable[[], bool]
"""Whether it is to end now, in order."""


def never() -> bool:
    """Of what nobody stops."""
    return False


def silent(progress: Progress) -> None:
    """Tells nobody."""
