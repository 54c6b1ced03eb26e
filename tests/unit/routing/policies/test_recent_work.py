"""What was sent to a target of late, as a rate."""

import pytest

from routing.policies.recent_work import BUSIEST, FIRST_SPAN, LAST_REQUESTS, RecentWork


def steady(per_s: float, seconds: float, requests: int = 30 * LAST_REQUESTS) -> RecentWork:
    work = RecentWork()
    for number in range(requests):
        work.note(1000.0 + number / per_s, seconds)
    return work


@pytest.mark.parametrize(
    ("per_s", "busy"), [(0.1, 0.8), (10.0, 0.25), (1000.0, 0.0), (1000.0, 0.8)]
)
def test_a_steady_rate_is_known_whatever_its_scale(per_s: float, busy: float) -> None:
    work = steady(per_s, busy / per_s)
    last = 1000.0 + (30 * LAST_REQUESTS - 1) / per_s
    assert work.others(last) == pytest.approx(per_s / (1 - busy), rel=0.01)


def test_nothing_is_known_before_the_first_request() -> None:
    assert RecentWork().others(1e9) == 0.0


def test_the_first_requests_are_no_flood() -> None:
    work = RecentWork()
    for _ in range(3):
        work.note(1000.0, 0.1)
    assert 2 / FIRST_SPAN < work.others(1000.0) < 4 / FIRST_SPAN


def test_it_falls_while_nothing_comes() -> None:
    work = steady(10.0, 0.05)
    rates = [work.others(1040.0 + waited) for waited in (0.0, 1.0, 10.0, 1000.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.1


def test_what_is_overloaded_has_a_bound_and_a_clock_that_goes_back_does_nothing() -> None:
    work = steady(10.0, 5.0)
    last = 1000.0 + (30 * LAST_REQUESTS - 1) / 10.0
    assert work.others(last) == pytest.approx(10.0 / (1 - BUSIEST), rel=0.01)
    work.note(900.0, 5.0)
    assert work.others(900.0) == pytest.approx(work.others(last)) == pytest.approx(103.2, rel=0.01)
