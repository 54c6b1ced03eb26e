"""How late batches come, whatever the engine's clock says."""

import pytest

from bridge.sequencing.lateness import Lateness
from schemas.limits import LATENESS_COMPARED


@pytest.mark.parametrize("apart_s", [-3600.0, 0.0, 3600.0])
def test_batches_are_as_late_as_the_soonest_one_was_not(apart_s: float) -> None:
    lateness = Lateness()
    for made, took in ((100.0, 0.2), (101.0, 0.1), (102.0, 0.1)):
        lateness.note(made + apart_s, made + took)
    assert lateness.late_s == pytest.approx(0.0)
    for second in range(10):
        lateness.note(103.0 + second + apart_s, 103.1 + second + second)
        assert lateness.late_s == pytest.approx(second)
    lateness.note(120.0 + apart_s, 120.1)
    assert lateness.late_s == pytest.approx(0.0)


def test_an_engine_without_a_clock_is_never_late() -> None:
    lateness = Lateness()
    for now in range(100):
        lateness.note(1.0, 100.0 + now)
    assert lateness.late_s == 0.0


def test_a_clock_that_was_set_back_is_forgotten_after_a_while() -> None:
    lateness = Lateness()
    now = 1000.0
    for turn in range(4 * LATENESS_COMPARED):
        now += 1
        lateness.note(now - (50.0 if turn > 10 else 0.0), now)
    assert lateness.late_s == pytest.approx(0.0)


def test_a_clock_that_is_set_forward_makes_nothing_sooner() -> None:
    lateness = Lateness()
    lateness.note(100.0, 100.1)
    lateness.note(101.0, 109.1)
    assert lateness.late_s == pytest.approx(8.0)
    for second in range(5):
        lateness.note(162.0 + second, 110.1 + second)
        assert lateness.late_s == pytest.approx(8.0), "the backlog is as long as before"
    lateness.note(175.0, 115.1)
    assert lateness.late_s == pytest.approx(0.0), "it is gone"


def test_what_was_late_from_the_beginning_is_found_to_have_been() -> None:
    lateness = Lateness()
    lateness.note(100.0, 108.0)
    assert lateness.late_s == 0.0
    for second in range(9):
        lateness.note(101.0 + second, 108.5 + second / 10)
    assert lateness.late_s == pytest.approx(0.0)
    lateness.note(112.0, 116.0)
    assert lateness.late_s == pytest.approx(3.7)
