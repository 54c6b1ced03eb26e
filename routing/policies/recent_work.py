"""What was sent to a target of late: whom another second of its time would delay."""

from typing import Final

LAST_REQUESTS: Final = 32
"""Over which rates are taken: engines differ a thousandfold in how many come in ten seconds."""

FIRST_SPAN: Final = 10.0
"""Seconds within which the first requests are taken to have come, until there are LAST_REQUESTS."""

BUSIEST: Final = 0.9
"""The share of its time that a target is taken to compute, at most: beyond, all would wait."""


class RecentWork:
    """Of one target. O(1) each."""

    __slots__ = ("_at", "_requests", "_seconds", "_span_s")

    def __init__(self) -> None:
        self._at = 0.0
        self._requests = self._seconds = 0.0
        self._span_s = FIRST_SPAN  # in which these came

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """All that it knows: when the last came, and requests, seconds and the span of them."""
        return self._at, self._requests, self._seconds, self._span_s

    def note(self, now: float, seconds: float) -> None:
        """A request was sent there that takes it so long. A time before the last one is the last
        one.
        """
        left = 1.0 - 1.0 / LAST_REQUESTS
        self._span_s = self._span_s * left + self._since(now)
        self._requests = self._requests * left + 1.0
        self._seconds = self._seconds * left + seconds
        self._at = max(now, self._at)

    def others(self, now: float) -> float:
        """Requests a second that come there, for each second in which it is free.

        A queue that is longer by a second delays those that come until it is empty again: of a
        queue of `w` seconds and a request of `s` more, `s * (w + s / 2)` times this.
        """
        span = self._span_s + self._since(now)
        return self._requests / (span * (1.0 - min(self._seconds / span, BUSIEST)))

    def _since(self, now: float) -> float:
        return max(now - self._at, 0.0) if self._requests else 0.0
