"""What the live page's charts show of the last hour: figures of each ten seconds, bounded.

They are kept whether a page is open or not, so that a page that is opened begins with them. Each
point costs some 100 us; all of them take some 100 KB.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from page.summary import ChartSample, RouteCounts

HISTORY_POINTS_MAX: Final = 360  # kept, some 300 bytes each: an hour; the oldest go
HISTORY_HIT_RATES_S: Final = 60.5  # hit rates of a point are of the last minute, and a little


class HistoryPoint(msgspec.Struct, kw_only=True, frozen=True):
    """Figures at a time; null: nothing was asked, or nothing is known."""

    at: Annotated[float, Meta(description="Unix seconds.")]
    answers: Annotated[float | None, Meta(description="A second, since the point before.")]
    p50: Annotated[float | None, Meta(description="Of the time of an answer, ms, likewise.")]
    p99: float | None
    index: Annotated[float | None, Meta(description="Share of asked tokens that an instance held.")]
    promised: Annotated[float | None, Meta(description="Hit rate of decisions, as promised.")]
    actual: Annotated[float | None, Meta(description="As it was reported; of the last minute.")]
    lag: Annotated[float | None, Meta(description="Seconds behind the log, of a replica.")]


class History:
    """The points of the last hour. Used on one thread."""

    def __init__(self) -> None:
        self._points: deque[HistoryPoint] = deque(maxlen=HISTORY_POINTS_MAX)
        self._counted: deque[ChartSample] = deque()  # of the last minute

    def points(self) -> list[HistoryPoint]:
        """The oldest first."""
        return list(self._points)

    def counted(self) -> list[ChartSample]:
        """What was counted in the last minute, the oldest first: rates go on from it."""
        return list(self._counted)

    def note(self, now: ChartSample) -> None:
        """One more point, from what is counted now. Counts that fall, or a clock that is set back,
        begin anew.
        """
        counted = self._counted
        if counted and (now.at <= counted[-1].at or _answers(now) < _answers(counted[-1])):
            counted.clear()
        if self._points and now.at <= self._points[-1].at:
            self._points.clear()
        while len(counted) > 1 and counted[0].at < now.at - HISTORY_HIT_RATES_S:
            counted.popleft()
        if counted:
            self._points.append(_point(now, counted[-1], counted[0]))
        counted.append(now)


def _point(now: ChartSample, last: ChartSample, oldest: ChartSample) -> HistoryPoint:
    times = None if now.queries is None else _times(now.queries, last.queries or {})
    answers = None
    if now.queries is not None:
        answers = (_answers(now) - _answers(last)) / (now.at - last.at)
    prompts = _risen(now, oldest, "prompt_tokens")
    return HistoryPoint(
        at=now.at,
        answers=answers,
        p50=None if times is None else quantile_ms(times, 0.5),
        p99=None if times is None else quantile_ms(times, 0.99),
        index=_share(
            _asked(now, "hit_tokens") - _asked(oldest, "hit_tokens"),
            _asked(now, "tokens") - _asked(oldest, "tokens"),
        ),
        promised=_share(_risen(now, oldest, "promised_tokens"), prompts),
        actual=_share(_risen(now, oldest, "actual_tokens"), prompts),
        lag=now.lag_s,
    )


def _answers(counted: ChartSample) -> int:
    return sum(one.count for one in (counted.queries or {}).values())


def _asked(counted: ChartSample, name: str) -> float:
    found: float = sum(getattr(one, name) for one in (counted.queries or {}).values())
    return found


def _risen(now: ChartSample, before: ChartSample, name: str) -> float:
    if now.routing is None or before.routing is None:
        return 0.0
    risen: float = getattr(now.routing, name) - getattr(before.routing, name)
    return risen


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _times(
    now: Mapping[str, RouteCounts], before: Mapping[str, RouteCounts]
) -> list[tuple[float | None, int]]:
    """Of all routes together: `[bound, answers that took no longer]`, of those in between."""
    sums: dict[float | None, int] = {}
    for sign, routes in ((1, now), (-1, before)):
        for one in routes.values():
            for bound, count in one.seconds:
                sums[bound] = sums.get(bound, 0) + sign * count
    return sorted(sums.items(), key=lambda item: float("inf") if item[0] is None else item[0])


def quantile_ms(buckets: Iterable[tuple[float | None, int]], share: float) -> float | None:
    """Of rising buckets, between whose bounds all values are taken to be spread evenly; None: there
    are no values.
    """
    found = list(buckets)
    wanted = share * (found[-1][1] if found else 0)
    if wanted <= 0:
        return None
    low, below = 0.0, 0
    for bound, up_to in found:
        if up_to >= wanted:
            if bound is None:
                return 1000.0 * low
            return 1000.0 * (low + (bound - low) * (wanted - below) / (up_to - below))
        low, below = bound or 0.0, up_to
    return None
