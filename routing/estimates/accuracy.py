"""How well times are estimated: the last errors, and by how much nine of ten are exceeded."""

import struct
from math import isfinite
from typing import Annotated, Final

import msgspec
from msgspec import Meta

ESTIMATED_OUTCOMES_REMEMBERED: Final = 500  # of a class, by which errors are told: 1 KiB
ESTIMATED_OUTCOME_S_MAX: Final = 24 * 3600.0  # nothing takes longer; one that says so is not used

_QUANTILE: Final = 0.9
_STEP: Final = 0.02  # of the logarithm of the ratio
_STEP_FIRST: Final = 2.0  # over the outcomes so far, as long as that is more
_RATIO_FIRST: Final = 1.3
_RATIO_LOW: Final = 0.05
_RATIO_HIGH: Final = 20.0

_ENTRY: Final = struct.Struct("<H")
_WITHIN: Final = 0x8000  # the actual time was within the 90th percentile
_ERROR: Final = (
    0x7FFF  # |actual - expected| / actual in 1/100 percent; what is above counts as this
)
_UNIT: Final = 10_000.0


class Accuracy(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Of estimates of one kind. `note` takes some 2 us.

    Attributes:
        ratio: 90 of 100 actual times are within so many times the expected one: a stochastic
            quantile, which each outcome moves up by 9 parts or down by 1.
        count: outcomes.
        entries: the last ones, u16 LE each: the error in 1/100 percent, and whether it was within
            the 90th percentile.
    """

    ratio: Annotated[float, Meta(ge=_RATIO_LOW, le=_RATIO_HIGH)] = _RATIO_FIRST
    count: Annotated[int, Meta(ge=0)] = 0
    entries: Annotated[bytes, Meta(max_length=2 * ESTIMATED_OUTCOMES_REMEMBERED)] = b""

    def note(self, expected_s: float, actual_s: float) -> bool:
        """Takes an outcome; whether it could be used: both times are positive, and possible."""
        most = ESTIMATED_OUTCOME_S_MAX
        if not (0.0 < expected_s <= most and 0.0 < actual_s <= most):
            return False
        is_within = actual_s <= self.ratio * expected_s
        error = min(abs(actual_s - expected_s) / actual_s * _UNIT, float(_ERROR))
        entry = _ENTRY.pack(round(error) | (_WITHIN if is_within else 0))
        self.entries = self.entries[-2 * (ESTIMATED_OUTCOMES_REMEMBERED - 1) :] + entry
        step = max(_STEP, _STEP_FIRST / (self.count + 5))
        moved = 1.0 - step * (1.0 - _QUANTILE) if is_within else 1.0 + step * _QUANTILE
        self.ratio = max(_RATIO_LOW, min(self.ratio * moved, _RATIO_HIGH))
        self.count += 1
        return True

    @property
    def mean_error(self) -> float:
        """The mean of |actual - expected| / actual (MAPE) of the last outcomes; 0 for none."""
        errors = [entry & _ERROR for (entry,) in _ENTRY.iter_unpack(self.entries)]
        return sum(errors) / (_UNIT * len(errors)) if errors else 0.0

    @property
    def coverage(self) -> float:
        """Share of the last outcomes within the 90th percentile as it was told; 0 for none."""
        within = [entry >= _WITHIN for (entry,) in _ENTRY.iter_unpack(self.entries)]
        return sum(within) / len(within) if within else 0.0


def is_time(seconds: float) -> bool:
    """Whether something can have taken so long."""
    return isfinite(seconds) and 0.0 <= seconds <= ESTIMATED_OUTCOME_S_MAX
