"""One measured quantity: what a measurement hands to the report."""

from collections.abc import Callable, Sequence
from statistics import median
from time import thread_time
from typing import Final

import msgspec

DISTURBED_SPREAD: Final = 1.25
"""Slowest over fastest run from which a figure is marked as disturbed."""


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """What the figure should reach on the Rust kernel, in its own unit."""

    at_least: float | None = None
    at_most: float | None = None

    def is_met(self, value: float) -> bool:
        """Whether the value reaches it."""
        low = self.at_least is None or value >= self.at_least
        return low and (self.at_most is None or value <= self.at_most)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity, with the value of each run.

    Attributes:
        name: of the row; equal over kernels.
        unit: as printed.
        runs: one value a run, from 1 run.
        note: what a reader must know to use the figure, or "".
        aim: None where there is none.
    """

    name: str
    unit: str
    runs: list[float]
    note: str = ""
    aim: Aim | None = None

    @property
    def value(self) -> float:
        """The median of the runs."""
        return median(self.runs)

    @property
    def is_disturbed(self) -> bool:
        """Whether the runs differ so much that the median says little."""
        return min(self.runs) > 0 and max(self.runs) / min(self.runs) > DISTURBED_SPREAD


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that is not below `percent` of the values; these need not be sorted."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def thread_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this thread for one call."""
    started = thread_time()
    work()
    return thread_time() - started
