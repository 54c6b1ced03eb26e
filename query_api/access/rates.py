"""How often: token buckets, by name, as many as there is room for."""

import math
from collections.abc import Callable
from typing import Final

RATE_BURST_S: Final = 1.0  # what a bucket holds, in seconds of its rate
RATE_BUCKETS_MAX: Final = 65_536  # names whose rate is known


class RateLimit:
    """Requests a second of each of many names. Used on one thread.

    A name may send what it has saved, RATE_BURST_S of its rate and at least one request, at once.
    Of more than RATE_BUCKETS_MAX names those that were not heard of for the longest time are
    forgotten: they may begin anew.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Args:
        monotonic: seconds.
        """
        self.refused = 0
        self._monotonic = monotonic
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, name: str, rate: float, burst: float | None = None) -> float:
        """Counts a request; returns 0.0, or seconds until there is room for it.

        Args:
            rate: requests a second.
            burst: how many at once; None: those of RATE_BURST_S.
        """
        now = self._monotonic()
        room = max(1.0, RATE_BURST_S * rate) if burst is None else burst
        saved, at = self._buckets.pop(name, (room, now))
        saved = min(room, saved + (now - at) * rate)
        if saved >= 1.0:
            saved -= 1.0
            wait = 0.0
        else:
            self.refused += 1
            wait = (1.0 - saved) / rate
        self._buckets[name] = (saved, now)  # the last in order is the one heard of last
        if len(self._buckets) > RATE_BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return wait


def whole_seconds(seconds: float) -> int:
    """For `Retry-After`: rounded up, at least 1."""
    return max(1, math.ceil(seconds))
