"""How late batches come, whatever the engine's clock says."""

import math

import pytest

from bridge.publisher.lateness import LATENESS_COMPARED, Lateness

NOW = 1.8e9
"""Unix seconds at 0 of our monotonic clock."""


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


def behind(*apart_s: float) -> float:
    """What is said of a clock whose batches, one a second, come so much later than they say."""
    lateness = Lateness()
    for second, apart in enumerate(apart_s):
        lateness.note(NOW + second - apart, float(second))
    return lateness.behind_s(NOW)


def test_a_clock_is_off_by_what_all_of_its_batches_say() -> None:
    assert behind() == 0.0
    assert behind(3600.3, 3600.1, 3605.0) == pytest.approx(3600.1)
    assert behind(-1000.0, -999.8, -1000.3) == pytest.approx(-999.8)
    assert behind(0.2, 0.1, -1000.0, -999.8) == pytest.approx(-999.8), "it was set forward"


@pytest.mark.parametrize("wrong", [-1000.0, -1e300, -1.8e12, 1000.0, 2e9])
def test_one_batch_of_a_wrong_time_says_nothing_of_the_clock(wrong: float) -> None:
    assert abs(behind(0.1, wrong, 0.2, 0.1)) < 1
    assert abs(behind(wrong, 0.2, 0.1)) < 1


def test_a_clock_that_is_no_unix_time_is_not_judged() -> None:
    lateness = Lateness()
    for second in range(9):
        lateness.note(1000 * (NOW + second), second + 0.1 * second)
        assert (lateness.behind_s(NOW), lateness.late_s) == (0.0, 0.0)


def test_a_clock_that_was_set_back_is_found_after_a_while() -> None:
    said = [behind(*[-0.1] * 9, *[90.0] * turns) for turns in (9, 3 * LATENESS_COMPARED)]
    assert said == [0.0, pytest.approx(90.0)]


def test_a_link_that_was_slow_from_the_first_batch_on_is_late_by_the_clock_that_is_told() -> None:
    engine_ahead = 1.7e9  # of our monotonic clock
    lateness = Lateness()
    lateness.note(engine_ahead + 10.0, 18.0)
    assert lateness.late_s == 0.0, "its clock may be 8 s behind"
    lateness.note_clock(-engine_ahead + 1.0)
    lateness.note(engine_ahead + 11.0, 19.0)
    assert lateness.late_s == pytest.approx(7.0)
    lateness.note(engine_ahead + 20.0, 20.2)
    assert lateness.late_s == pytest.approx(0.0)
    lateness.note_clock(math.inf)
    lateness.note(engine_ahead + 21.0, 21.2)
    assert lateness.late_s == pytest.approx(0.0)


def test_an_engine_without_unix_time_is_not_late_by_its_hosts_clock() -> None:
    lateness = Lateness(-1.7e9)
    lateness.note(5.0, 100.0)
    assert lateness.late_s == 0.0
