"""The last hour of the charts: what its points are, and that it is bounded."""

from typing import Any

import pytest

from page.events import HISTORY_PERIOD_S
from page.history import HISTORY_POINTS_MAX, History, quantile_ms
from page.summary import ChartSample, RouteCounts, RoutingCounts


def counted(at: float, answers: int, **routing: int) -> ChartSample:
    """Half of the answers took up to 1 ms, all of them up to 3 ms."""
    route = RouteCounts(
        count=answers,
        seconds=[(0.001, answers // 2), (0.003, answers), (None, answers)],
        tokens=100.0 * answers,
        hit_tokens=75 * answers,
    )
    names = [name for name in RoutingCounts.__struct_fields__ if name not in routing]
    fields: dict[str, Any] = dict.fromkeys(names, 0) | routing
    return ChartSample(
        at=at, queries={"/query": route}, routing=RoutingCounts(**fields), lag_s=0.25
    )


def test_a_point_is_what_came_since_the_one_before() -> None:
    history = History()
    history.note(counted(1000.0, 40))
    assert history.points() == [], "nothing can be said of a moment"
    tokens = {"prompt_tokens": 1000, "promised_tokens": 900, "actual_tokens": 800}
    history.note(counted(1010.0, 240, **tokens))
    (point,) = history.points()
    assert (point.at, point.answers) == (1010.0, 20.0)
    assert point.p50 == pytest.approx(1.0)
    assert point.p99 == pytest.approx(1.0 + 2.0 * 0.98)
    assert (point.index, point.promised, point.actual, point.lag) == (0.75, 0.9, 0.8, 0.25)


def test_hit_rates_are_of_the_last_minute() -> None:
    history = History()
    for step in range(20):
        hits = 1000 * min(step, 10)
        tokens = {"prompt_tokens": 1000 * step, "actual_tokens": hits, "promised_tokens": hits}
        history.note(counted(10.0 * step, step, **tokens))
    assert [point.actual for point in history.points()[8:17]] == pytest.approx(
        [1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0.0, 0.0]
    )


def test_where_nothing_was_asked_nothing_is_said() -> None:
    history = History()
    history.note(counted(0.0, 5))
    history.note(counted(10.0, 5))
    (point,) = history.points()
    assert (point.answers, point.p50, point.p99, point.index, point.actual) == (0, *[None] * 4)


def test_an_hour_is_kept_and_no_more() -> None:
    history = History()
    for step in range(3 * HISTORY_POINTS_MAX):
        history.note(counted(HISTORY_PERIOD_S * step, step))
    points = history.points()
    assert len(points) == HISTORY_POINTS_MAX
    assert points[-1].at - points[0].at == HISTORY_PERIOD_S * (HISTORY_POINTS_MAX - 1)
    assert len(history._counted) <= 8


def test_a_clock_that_is_set_back_begins_anew() -> None:
    history = History()
    for at in (1000.0, 1010.0, 1020.0, 500.0, 510.0):
        history.note(counted(at, 10))
    assert [point.at for point in history.points()] == [510.0]


def test_counts_that_fall_are_of_another_service() -> None:
    history = History()
    for at, answers in ((0.0, 10), (10.0, 20), (20.0, 4), (30.0, 14)):
        history.note(counted(at, answers))
    assert [(point.at, point.answers) for point in history.points()] == [(10.0, 1.0), (30.0, 1.0)]


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([], 0.5, None),
        ([(0.1, 0), (None, 0)], 0.5, None),
        ([(0.1, 10), (0.2, 10), (None, 10)], 0.5, 50.0),
        ([(0.1, 0), (0.2, 0), (None, 10)], 0.99, 200.0),
    ],
)
def test_quantiles_of_buckets(
    buckets: list[tuple[float | None, int]], share: float, expected: float | None
) -> None:
    assert quantile_ms(buckets, share) == (None if expected is None else pytest.approx(expected))
