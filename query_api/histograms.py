"""Histograms that are plain numbers until they are asked for."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

QUERY_SECONDS: Final = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0),
)
"""Bounds of the buckets of queries' times."""


class Histogram:
    """Counts by bucket; a value equal to a bound falls under it, as Prometheus has it.

    Attributes:
        bounds: of the buckets but the last, which has none.
    """

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Counts values that were sorted elsewhere, by the same bounds."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, counts, strict=True)]
        self.sum += total

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as `HistogramMetricFamily` takes them."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self.bounds, "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        return buckets
