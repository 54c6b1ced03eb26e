"""A count halves with each half-life, exactly so by the step."""

import math
from fractions import Fraction

import pytest

from routing.observed.decay import (
    HOT_HALF_LIFE_S,
    HOT_RATE_S,
    REBASE_HALF_LIVES,
    per_second,
    rebased,
    step_of,
    weight,
)


@pytest.mark.parametrize("halves", [-40, 0, 1, 33])
def test_a_half_life_doubles_the_weight_exactly(halves: int) -> None:
    base = step_of(1_700_000_000.0)
    assert weight(base, base + 256 * halves) == 2.0**halves


def test_each_step_is_the_power_of_two_of_its_share_of_a_half_life() -> None:
    for step in range(256):
        assert math.isclose(weight(0, step), 2.0 ** (step / 256), rel_tol=1e-15)


def test_a_step_is_less_than_two_seconds() -> None:
    first = step_of(1000.0)
    assert step_of(1000.0 + HOT_HALF_LIFE_S) == first + 256
    assert step_of(1002.0) > first


def test_a_new_base_is_a_power_of_two_away_so_no_bit_is_lost() -> None:
    base, later = 17, 17 + 256 * REBASE_HALF_LIVES + 100
    moved = rebased(base, later)
    scale = weight(moved, base)
    assert moved > base
    assert math.frexp(scale)[0] == 0.5
    assert Fraction(3.7) * Fraction(scale) == Fraction(3.7 * scale)


def test_the_base_stays_while_the_moment_is_near() -> None:
    assert rebased(17, 17 + 256 * REBASE_HALF_LIVES - 1) == 17


def test_the_rate_of_what_comes_evenly_is_found_from_its_decayed_count() -> None:
    decayed = sum(2.0 ** (-second / HOT_HALF_LIFE_S) for second in range(20 * 300))
    assert math.isclose(per_second(decayed), 1.0, rel_tol=0.01)


def test_the_rate_of_what_is_new_is_of_the_time_since_it_began() -> None:
    for age in (60, 100, 300, 900):
        decayed = sum(2.0 ** (-second / HOT_HALF_LIFE_S) for second in range(age))
        assert math.isclose(per_second(decayed, age), 1.0, rel_tol=0.01)
    assert per_second(6.0, 0.0) == per_second(6.0, HOT_RATE_S), "a few at once make no rate"
