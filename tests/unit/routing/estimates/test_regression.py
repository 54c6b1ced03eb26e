"""The fit finds what hides behind times, also where that changes, and stays within its bounds."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.estimates.regression import (
    COUNT_NEEDED,
    Regression,
    Six,
    Three,
    begin,
    solve,
    solve_free,
)

PRIOR = (0.0, 1 / 8000, 6e-10)
DEFAULTS = (0.01, 1 / 8000, 6e-10)

QUICK = (0.02, 1 / 12_000, 3e-10)
SLOW = (0.05, 1 / 5_000, 1.2e-9)


def seconds(coefficients: Three, features: Three) -> float:
    return sum(one * by for one, by in zip(coefficients, features, strict=True))


def prompts(chance: random.Random, count: int) -> list[Three]:
    """Features of prompts of 100 to 128,000 tokens, of which a part is cached."""
    found = []
    for _ in range(count):
        length = int(min(math.exp(chance.gauss(8.5, 1.1)), 128_000))
        cached = int(length * chance.choice((0.0, 0.0, 0.3, 0.5, 0.9)))
        found.append((1.0, float(length - cached), float(length**2 - cached**2)))
    return found


def mean_error(fit: Regression, truth: Three, features: list[Three]) -> float:
    errors = [abs(fit.expected_s(one) / seconds(truth, one) - 1) for one in features]
    return sum(errors) / len(errors)


def taught(
    fit: Regression, truth: Three, chance: random.Random, count: int, noise: float
) -> Regression:
    for one in prompts(chance, count):
        assert fit.note(one, seconds(truth, one) * math.exp(chance.gauss(0, noise)))
    return fit


def test_exact_times_give_the_coefficients() -> None:
    fit = taught(begin(PRIOR, DEFAULTS), QUICK, random.Random(1), 400, noise=0.0)
    assert fit.coefficients() == pytest.approx(QUICK, rel=0.01)


def test_the_beginning_holds_until_there_are_thirty() -> None:
    chance = random.Random(2)
    fit = taught(begin(PRIOR, DEFAULTS), QUICK, chance, COUNT_NEEDED - 1, noise=0.0)
    assert fit.coefficients() == PRIOR
    taught(fit, QUICK, chance, 1, noise=0.0)
    assert fit.is_believed
    assert fit.coefficients() != PRIOR


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
@pytest.mark.parametrize(("before", "after"), [(QUICK, SLOW), (SLOW, QUICK)])
@pytest.mark.parametrize("seed", range(4))
def test_two_hundred_outcomes_teach_and_teach_anew(
    before: Three, after: Three, noise: float, seed: int
) -> None:
    chance = random.Random(seed)
    fit = taught(begin(PRIOR, DEFAULTS), before, chance, 200, noise)
    assert mean_error(fit, before, prompts(chance, 300)) < 0.06
    taught(fit, before, chance, 1_000, noise)
    assert mean_error(fit, before, prompts(chance, 300)) < 0.03
    taught(fit, after, chance, 200, noise)
    assert mean_error(fit, after, prompts(chance, 300)) < 0.08


def test_one_time_that_is_far_off_moves_the_fit_by_no_more_than_three_sigmas() -> None:
    chance = random.Random(3)
    fit = taught(begin(PRIOR, DEFAULTS), QUICK, chance, 300, noise=0.05)
    fit.note(prompts(chance, 1)[0], 80_000.0)
    assert mean_error(fit, QUICK, prompts(chance, 300)) < 0.03


def test_a_coefficient_stays_between_a_tenth_and_ten_times_the_beginning() -> None:
    chance = random.Random(4)
    for truth in ((0.0, 1.0, 0.0), (0.0, 0.0, 1e-6), (0.0, 1e-9, 1e-15)):
        fit = taught(begin(PRIOR, DEFAULTS), truth, chance, 300, noise=0.0)
        _, token, squared = fit.coefficients()
        assert PRIOR[1] / 10 <= token * (1 + 1e-12)
        assert token <= PRIOR[1] * 10 * (1 + 1e-12)
        assert PRIOR[2] / 10 <= squared * (1 + 1e-12)
        assert squared <= PRIOR[2] * 10 * (1 + 1e-12)


def test_a_term_that_the_beginning_has_not_can_come() -> None:
    fit = taught(begin(PRIOR, DEFAULTS), (0.3, *PRIOR[1:]), random.Random(5), 500, noise=0.0)
    assert fit.coefficients()[0] == pytest.approx(0.3, rel=0.05)


def test_prompts_that_are_all_alike_do_not_make_the_fit_forget_its_other_terms() -> None:
    fit = begin(PRIOR, DEFAULTS)
    for _ in range(100_000):
        fit.note((1.0, 1000.0, 1e6), 0.2)
    assert fit.expected_s((1.0, 1000.0, 1e6)) == pytest.approx(0.2, rel=1e-3)
    long = (1.0, 100_000.0, 1e10)
    assert seconds(PRIOR, long) / 10 <= fit.expected_s(long) <= seconds(PRIOR, long) * 10


HOSTILE = st.one_of(
    st.sampled_from((0.0, 1e-300, 1e300, -1.0, math.inf, -math.inf, math.nan)),
    st.floats(0.0, 1e9),
)


@given(
    st.lists(
        st.tuples(st.tuples(HOSTILE, HOSTILE, HOSTILE), HOSTILE), min_size=31, max_size=80
    ).map(lambda noted: noted * 2)
)
def test_whatever_comes_the_fit_is_finite_and_not_negative(
    noted: list[tuple[Three, float]],
) -> None:
    fit = begin(PRIOR, DEFAULTS)
    for features, took in noted:
        fit.note(features, took)
        assert 0.0 <= fit.values[0] <= 100.0, "times the scale of a term that the beginning has not"
        assert all(0.0 <= one < 1.0 for one in fit.coefficients()[1:])
        numbers = (*fit.information, *fit.moments, fit.variance, fit.drift)
        assert all(math.isfinite(one) for one in numbers)


@given(st.tuples(HOSTILE, HOSTILE, HOSTILE), st.lists(HOSTILE, min_size=31, max_size=40))
def test_whatever_it_begins_with_the_fit_is_finite_and_not_negative(
    coefficients: Three, times: list[float]
) -> None:
    fit = begin(coefficients, DEFAULTS)
    for took in times:
        fit.note((1.0, 1000.0, 1e6), took)
    assert all(0.0 <= one <= 1e12 for one in fit.values)
    assert all(0.0 < one <= 1e9 for one in fit.scales)
    assert 0.0 <= fit.expected_s((1.0, 1000.0, 1e6)) < math.inf or not fit.is_believed


def test_the_short_way_to_a_solution_has_the_bits_of_the_long_one() -> None:
    chance = random.Random(7)
    for _ in range(2_000):
        rows = [[chance.gauss(0.3, 1.0) for _ in range(3)] for _ in range(5)]
        matrix: Six = (
            0.01 + math.fsum(row[0] * row[0] for row in rows),
            math.fsum(row[0] * row[1] for row in rows),
            math.fsum(row[0] * row[2] for row in rows),
            0.01 + math.fsum(row[1] * row[1] for row in rows),
            math.fsum(row[1] * row[2] for row in rows),
            0.01 + math.fsum(row[2] * row[2] for row in rows),
        )
        right: Three = (chance.gauss(0, 2), chance.gauss(0, 2), chance.gauss(0, 2))
        assert solve_free(matrix, right) == eliminated(matrix, right, {})
        for chosen in range(8):
            fixed = {at: chance.gauss(0, 2) for at in range(3) if chosen & 1 << at}
            assert solve(matrix, right, fixed) == eliminated(matrix, right, fixed)


def eliminated(matrix: Six, right: Three, fixed: dict[int, float]) -> Three:
    """Gauss's elimination of what is not given, in the order that the bits go by."""
    places = ((0, 1, 2), (1, 3, 4), (2, 4, 5))
    values = [fixed.get(at, 0.0) for at in range(3)]
    free = [at for at in range(3) if at not in fixed]
    rows = [[matrix[places[row][column]] for column in free] for row in free]
    rest = [right[at] for at in free]
    for row, at in enumerate(free):
        for other in sorted(fixed):
            rest[row] -= matrix[places[at][other]] * fixed[other]
    count = len(free)
    for pivot in range(count):
        for row in range(pivot + 1, count):
            factor = rows[row][pivot] / rows[pivot][pivot]
            for column in range(pivot, count):
                rows[row][column] -= factor * rows[pivot][column]
            rest[row] -= factor * rest[pivot]
    for row in reversed(range(count)):
        for column in range(row + 1, count):
            rest[row] -= rows[row][column] * values[free[column]]
        values[free[row]] = rest[row] / rows[row][row]
    return values[0], values[1], values[2]
