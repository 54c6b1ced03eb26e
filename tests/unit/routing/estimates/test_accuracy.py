"""The 90th percentile is where nine of ten are; errors are those of the last outcomes."""

import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from routing.estimates.accuracy import ESTIMATED_OUTCOMES_REMEMBERED, Accuracy


def test_by_hand() -> None:
    accuracy = Accuracy(ratio=1.5, count=1000)
    assert accuracy.note(1.0, 1.5)  # within, and a third of it off
    assert accuracy.ratio == 1.5 * 0.998
    assert accuracy.note(1.0, 2.0)  # beyond, and half of it off
    assert accuracy.ratio == pytest.approx(1.5 * 0.998 * 1.018)
    assert accuracy.mean_error == pytest.approx((1 / 3 + 1 / 2) / 2, abs=1e-4)
    assert accuracy.coverage == 0.5


def test_nothing_is_known_before_the_first() -> None:
    accuracy = Accuracy()
    assert (accuracy.mean_error, accuracy.coverage, accuracy.count) == (0.0, 0.0, 0)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize("seed", range(5))
def test_nine_of_ten_are_within(noise: float, seed: int) -> None:
    chance = random.Random(seed)
    accuracy = Accuracy()
    for _ in range(200):
        accuracy.note(2.0, 2.0 * math.exp(chance.gauss(0.0, noise)))
    assert 0.83 <= accuracy.coverage <= 0.95  # while it learns
    for _ in range(ESTIMATED_OUTCOMES_REMEMBERED):
        accuracy.note(2.0, 2.0 * math.exp(chance.gauss(0.0, noise)))
    assert 0.87 <= accuracy.coverage <= 0.93
    assert accuracy.ratio == pytest.approx(math.exp(1.2816 * noise), rel=0.15)


def test_only_the_last_ones_are_remembered() -> None:
    accuracy = Accuracy()
    for _ in range(10):
        accuracy.note(1.0, 10.0)
    for _ in range(ESTIMATED_OUTCOMES_REMEMBERED):
        accuracy.note(1.0, 1.0)
    assert (accuracy.mean_error, accuracy.count) == (0.0, ESTIMATED_OUTCOMES_REMEMBERED + 10)


@example([(5.0, 1.0)] * 5)  # as wrong as is kept; the mean is no more than that
@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=60))
def test_what_is_no_time_changes_nothing(noted: list[tuple[float, float]]) -> None:
    accuracy = Accuracy()
    used = sum(accuracy.note(expected, actual) for expected, actual in noted)
    assert accuracy.count == used
    assert 0.05 <= accuracy.ratio <= 20.0
    assert 0.0 <= accuracy.mean_error <= 3.2767
