"""What an instance has been given to compute: one prompt after the other."""

from collections import deque
from typing import NamedTuple


class Load(NamedTuple):
    """Of an instance.

    Attributes:
        wait_s: until it would begin.
        requests: that it has not ended.
        pending: tokens to compute of these.
    """

    wait_s: float = 0.0
    requests: int = 0
    pending: int = 0


class WorkQueue:
    """The prompts of one instance that are not computed.

    Attributes:
        free_at: when all are.
    """

    def __init__(self) -> None:
        self.free_at = 0.0
        self._pending = 0
        self._booked: deque[tuple[float, int]] = deque()

    def book(self, duration_s: float, tokens: int, now: float) -> None:
        """One more, which takes so long, with so many tokens to compute."""
        self.free_at = max(now, self.free_at) + duration_s
        self._pending += tokens
        self._booked.append((self.free_at, tokens))

    def load(self, now: float) -> Load:
        """What is left of it. The time never goes back. Amortized O(1)."""
        booked = self._booked
        while booked and booked[0][0] <= now:
            self._pending -= booked.popleft()[1]
        wait = self.free_at - now
        return Load(wait if wait > 0.0 else 0.0, len(booked), self._pending)

    def copy(self) -> "WorkQueue":
        """The same, which goes its own way."""
        other = WorkQueue()
        other.free_at = self.free_at
        other._pending = self._pending
        other._booked = self._booked.copy()
        return other
