"""Releases what large clears have left in a kernel, a turn's worth at a time."""

from collections.abc import Callable
from typing import Final

from schemas.clock import REAL_CLOCK

RELEASED_AT_ONCE: Final = 2048  # blocks that are released before the time is looked at
MAINTAINED_S: Final = 0.002  # after which no more is released in a turn


def release_some(
    release: Callable[[int], int],
    entries: int,
    *,
    clock: Callable[[], float] = REAL_CLOCK.monotonic,
) -> None:
    """Releases at most so many entries, and no more than take MAINTAINED_S: those of many scopes
    take several times as long as those of one.

    Args:
        release: see `Kernel.release_left`.
        entries: in all.
        clock: monotonic seconds.
    """
    until = clock() + MAINTAINED_S
    while entries > 0 and release(min(entries, RELEASED_AT_ONCE)) and clock() < until:
        entries -= RELEASED_AT_ONCE
