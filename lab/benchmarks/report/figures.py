"""One measured quantity: what a measurement hands to the report."""

from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time
from typing import Final

import msgspec

DISTURBED_SPREAD: Final = 1.25
"""Slowest over fastest run from which a figure is marked as disturbed."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity, with the value of each run. What it should reach, `report.aims` says.

    Attributes:
        name: of the row; equal over kernels, and the aims know it by this.
        unit: as printed.
        runs: one value a run, from 1 run.
        note: what a reader must know to use the figure, or "".
        limited: in how many of the runs the load generator was the limit, or did not keep its
            rate: what is measured could do more, or was asked for less than is said.
    """

    name: str
    unit: str
    runs: list[float]
    note: str = ""
    limited: int = 0

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(self.runs)

    @property
    def is_disturbed(self) -> bool:
        """Whether the runs differ so much that the median says little."""
        return min(self.runs) > 0 and max(self.runs) / min(self.runs) > DISTURBED_SPREAD


def times(name: str, ours: Sequence[float], theirs: Sequence[float], limited: int = 0) -> Figure:
    """How many times theirs ours is, run by run."""
    pairs = zip(ours, theirs, strict=True)
    return Figure(name=name, unit="x", runs=[one / other for one, other in pairs], limited=limited)


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` of the values; these need not be sorted."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def thread_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this thread for one call."""
    started = thread_time()
    work()
    return thread_time() - started
