"""Pauses between attempts at one thing: each twice the one before, from `first_s` to `max_s`.

Without a random part: a deployment has some tens of clients, whose attempts cost a broker next to
nothing.
"""

import asyncio


class Backoff:
    """The pauses of one loop. Not thread-safe.

    Args:
        first_s: after the first failure, in seconds; above 0.
        max_s: the longest, in seconds; equal to `first_s` for pauses that do not grow.
    """

    def __init__(self, first_s: float, max_s: float) -> None:
        assert 0 < first_s <= max_s, "pauses grow from the first to the longest"
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def take(self) -> float:
        """How long to wait now, in seconds; for callers that wait by other means."""
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s

    async def wait(self) -> None:
        """Waits for as long as `take` says."""
        await asyncio.sleep(self.take())

    def reset(self) -> None:
        """An attempt succeeded: the next pause is the first again."""
        self._next_s = self._first_s
