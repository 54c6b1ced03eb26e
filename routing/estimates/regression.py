"""Least squares of three terms that forget: how a time follows from what it is made of.

    seconds = c0 * f0 + c1 * f1 + c2 * f2

One outcome at a time. Each is divided by what was expected at the beginning, so that an error of a
tenth counts alike for short and long ones, and all numbers are near 1. What is kept is the normal
equations, and not their inverse: forgetting then needs no bound of its own, since what is forgotten
is replaced by the same share of the beginning. Plain float arithmetic in a fixed order and square
roots, which IEEE 754 defines: the same outcomes give the same bits on every machine.
"""

from math import inf, sqrt
from typing import Annotated, Final

import msgspec
from msgspec import Meta

FiniteFloat = Annotated[float, Meta(ge=-1e300, le=1e300)]
PositiveFloat = Annotated[float, Meta(gt=0.0, le=1e300)]
Three = tuple[FiniteFloat, FiniteFloat, FiniteFloat]
Six = tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat]

COUNT_NEEDED: Final = 30
"""Outcomes before the fit is believed; below them the beginning holds."""

_FORGETTING: Final = 0.998
_FORGETTING_SHIFTED: Final = 0.9  # where residuals have been on one side: what took them is over
_SHIFTED_SIGMAS: Final = 1.2  # of the moving mean of residuals, which has a sigma of 0.23
_SETTLED_SIGMAS: Final = 0.5  # below which a shift is over
_DRIFT_STEP: Final = 0.1
_CLIP_SIGMAS: Final = 3.0
_VARIANCE_STEP: Final = 0.02
_VARIANCE_LEAST: Final = 1e-6
_VARIANCE_FIRST: Final = 1.0
_RIDGE: Final = 0.01  # outcomes that the beginning weighs
_RANGE: Final = 10.0  # times the beginning, and its tenth: between them a coefficient stays
_RANGE_OF_NEW: Final = 100.0  # times the scale of a term of which the beginning has none
_LEAST: Final = 1e-30  # seconds
_MOST: Final = 1e9
_PLACES: Final = ((0, 1, 2), (1, 3, 4), (2, 4, 5))  # of a symmetric matrix in `Six`


class Regression(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A fit of three terms. Constant memory; `note` takes some 4 us.

    Attributes:
        scales: a coefficient of each term that is about right; not 0.
        starts: the coefficients at the beginning, in these: 1, or 0 for none.
        values: the coefficients now, in these.
        information: the sum of products of features, weighted; the upper triangle by rows.
        moments: the sum of products of features and seconds.
        count: outcomes that were used.
        variance: of the residuals, in shares of what was expected at the beginning.
        drift: the moving mean of the residuals, in their sigmas.
        is_shifted: whether residuals are on one side: what was learnt does not hold any more.
    """

    scales: tuple[PositiveFloat, PositiveFloat, PositiveFloat]
    starts: Three
    values: Three
    information: Six
    moments: Three
    count: Annotated[int, Meta(ge=0)] = 0
    variance: PositiveFloat = _VARIANCE_FIRST
    drift: FiniteFloat = 0.0
    is_shifted: bool = False

    @property
    def is_believed(self) -> bool:
        """Whether enough outcomes were used."""
        return self.count >= COUNT_NEEDED

    def coefficients(self) -> Three:
        """The coefficients: c0, c1, c2; those of the beginning where the fit is not believed."""
        one = self.values if self.is_believed else self.starts
        scales = self.scales
        return one[0] * scales[0], one[1] * scales[1], one[2] * scales[2]

    def expected_s(self, features: Three) -> float:
        """Seconds that these features take, by the coefficients that hold now."""
        (c0, c1, c2), (f0, f1, f2) = self.coefficients(), features
        return c0 * f0 + c1 * f1 + c2 * f2

    def note(self, features: Three, seconds: float) -> bool:
        """Takes an outcome; whether it could be used.

        Args:
            features: of the three terms, not negative.
            seconds: what it took; what is far from what was expected counts as 3 sigmas away.
        """
        (s0, s1, s2), (f0, f1, f2), (v0, v1, v2) = self.scales, features, self.values
        first, second, third = s0 * f0, s1 * f1, s2 * f2
        whole = first + second + third
        if not (0.0 < whole < inf and 0.0 <= seconds < inf):
            return False
        if first < 0.0 or second < 0.0 or third < 0.0:
            return False
        x0, x1, x2 = x = first / whole, second / whole, third / whole
        fitted, sigma = x0 * v0 + x1 * v1 + x2 * v2, sqrt(self.variance)
        most = _CLIP_SIGMAS * sigma
        residual = max(-most, min(seconds / whole - fitted, most))
        self._fold(x, fitted + residual, self._forgetting(residual, sigma))
        self.count += 1
        return True

    def _forgetting(self, residual: float, sigma: float) -> float:
        """How much of what was learnt is kept. Moves variance and drift."""
        drift, variance = self.drift, self.variance
        self.drift = drift = drift + _DRIFT_STEP * (residual / sigma - drift)
        step = max(_VARIANCE_STEP, 1.0 / (self.count + 10))
        variance += step * (residual * residual - variance)
        self.variance = max(variance, _VARIANCE_LEAST)
        most = _SETTLED_SIGMAS if self.is_shifted else _SHIFTED_SIGMAS
        self.is_shifted = is_shifted = abs(drift) > most
        return _FORGETTING_SHIFTED if is_shifted else _FORGETTING

    def _fold(self, x: Three, y: float, kept: float) -> None:
        ridge = (1.0 - kept) * _RIDGE
        (x0, x1, x2), (i0, i1, i2, i3, i4, i5) = x, self.information
        (s0, s1, s2), (m0, m1, m2) = self.starts, self.moments
        self.information = (
            kept * i0 + x0 * x0 + ridge,
            kept * i1 + x0 * x1,
            kept * i2 + x0 * x2,
            kept * i3 + x1 * x1 + ridge,
            kept * i4 + x1 * x2,
            kept * i5 + x2 * x2 + ridge,
        )
        self.moments = (
            kept * m0 + x0 * y + ridge * s0,
            kept * m1 + x1 * y + ridge * s1,
            kept * m2 + x2 * y + ridge * s2,
        )
        self.values = self._solved()

    def _solved(self) -> Three:
        """The best coefficients within their bounds: those beyond one stand there, and the others
        are solved again.
        """
        fixed: dict[int, float] = {}
        values = solve_free(self.information, self.moments)
        while True:
            beyond = {}
            for at, (start, value) in enumerate(zip(self.starts, values, strict=True)):
                low, high = start / _RANGE, _RANGE if start else _RANGE_OF_NEW
                if at not in fixed and not low <= value <= high:
                    beyond[at] = low if value < low else high
            if not beyond:
                return values
            fixed |= beyond
            values = solve(self.information, self.moments, fixed)


def begin(coefficients: Three, defaults: Three) -> Regression:
    """A fit that begins with these coefficients.

    Args:
        coefficients: what is below `_LEAST` is none, and what is above `_MOST` is that.
        defaults: positive; what is about right for a coefficient of which the beginning has none.
    """
    pairs = list(zip(coefficients, defaults, strict=True))
    scales = [min(one, _MOST) if one > _LEAST else default for one, default in pairs]
    starts = [1.0 if one > _LEAST else 0.0 for one, _ in pairs]
    first = (starts[0], starts[1], starts[2])
    return Regression(
        scales=(scales[0], scales[1], scales[2]),
        starts=first,
        values=first,
        information=(_RIDGE, 0.0, 0.0, _RIDGE, 0.0, _RIDGE),
        moments=(_RIDGE * first[0], _RIDGE * first[1], _RIDGE * first[2]),
    )


def solve_free(matrix: Six, right: Three) -> Three:
    """As `solve` with nothing given, to the last bit: nearly all outcomes end here."""
    (m00, m01, m02, m11, m12, m22), (r0, r1, r2) = matrix, right
    factor = m01 / m00
    m11, m12, r1 = m11 - factor * m01, m12 - factor * m02, r1 - factor * r0
    m21 = matrix[4]
    factor = m02 / m00
    m21, m22, r2 = m21 - factor * m01, m22 - factor * m02, r2 - factor * r0
    factor = m21 / m11
    m22, r2 = m22 - factor * m12, r2 - factor * r1
    third = r2 / m22
    second = (r1 - m12 * third) / m11
    first = (r0 - m01 * second - m02 * third) / m00
    return first, second, third


def solve(matrix: Six, right: Three, fixed: dict[int, float]) -> Three:
    """The solution of a positive definite system, with some of its unknowns given."""
    if not fixed:
        return solve_free(matrix, right)
    values, rest = [0.0, 0.0, 0.0], [*right]
    free = [at for at in range(3) if at not in fixed]
    # No `sum`: from Python 3.12 on it corrects what floats lose, so its bits are others.
    for other in sorted(fixed):
        values[other] = given = fixed[other]
        for at in free:
            rest[at] -= matrix[_PLACES[at][other]] * given
    if len(free) == 2:
        one, two = free
        both = matrix[_PLACES[one][two]]
        factor = both / matrix[_PLACES[one][one]]
        last = matrix[_PLACES[two][two]] - factor * both
        values[two] = (rest[two] - factor * rest[one]) / last
        rest[one] -= both * values[two]
    for one in free[:1]:
        values[one] = rest[one] / matrix[_PLACES[one][one]]
    return values[0], values[1], values[2]
