import pytest

from lab.traffic.shadows import Comparison, ShadowOutcome
from lab.traffic.stats import TO_BE_SHOWN, WINDOW_S, Promise, Stats, Way


def filled(count: int = TO_BE_SHOWN, *, every_s: float = 1.0, later_s: float = 0.0) -> Stats:
    """So many requests; by chance each first token comes so much later than the one before."""
    stats = Stats()
    for number in range(count):
        stats.record_request(
            number * every_s,
            1000,
            ShadowOutcome(713, 0.25 if number % 2 else 0.35),
            Comparison(
                ShadowOutcome(710, 0.35),
                ShadowOutcome(700, 0.4),
                ShadowOutcome(248, 1.2 + number * later_s),
            ),
            Promise(800, 0.2) if number % 2 else None,
        )
    stats.record_latency(0.0, 0.00031)
    stats.blocks_indexed = 48_231
    return stats


def test_the_table_says_what_happened() -> None:
    assert filled().table(30.0) == [
        "",
        "The last 30 s: 20 requests, 48,231 blocks indexed; caches and queues still fill, so times"
        " rise",
        "routed                   cached    mean TTFT     p99 TTFT",
        "by /route                71.3 %       300 ms       350 ms",
        "by /query and load       71.0 %       350 ms       350 ms",
        "by /query alone          70.0 %       400 ms       400 ms",
        "at random                24.8 %     1,200 ms     1,200 ms",
        "/route promised 200 ms and 80.0 % cached; it became 250 ms and 71.3 %."
        " It answers in 0.3 ms (p50), 0.3 ms (p99)",
    ]


def test_a_queue_that_grows_has_no_mean() -> None:
    *_, chance, _ = filled(later_s=0.5).table(30.0)
    assert chance == "at random                24.8 %   overloaded   overloaded"
    assert "overloaded" not in filled(later_s=0.05).table(30.0)[-2]


def test_a_queue_that_has_grown_before_is_told_as_well() -> None:
    way = Way()
    for number in range(TO_BE_SHOWN):
        way.add(number, 10, ShadowOutcome(0, 12.0))
    assert way.is_overloaded


def test_before_there_is_enough_nothing_is_said_of_it() -> None:
    stats = filled(TO_BE_SHOWN - 1)
    stats.blocks_indexed = None
    lines = stats.table(5.0)
    assert lines[1].startswith("The last 5 s: 19 requests, ? blocks indexed; caches and queues")
    assert stats.table(60.0)[1] == "The last 60 s: 19 requests, ? blocks indexed"
    assert lines[3].split() == ["by", "/route", "-", "-", "-"]
    assert len(Stats().table(0.0)) == 7


def test_requests_of_the_last_window_count_and_none_of_before_it_began() -> None:
    stats = filled(200)
    assert stats.by_route.requests == WINDOW_S + 1
    stats = Stats()
    stats.begin(100.0)
    ways = Comparison(ShadowOutcome(0, 0.2), ShadowOutcome(0, 0.2), ShadowOutcome(0, 0.2))
    for at in (99.0, 100.0):
        stats.record_request(at, 10, ShadowOutcome(0, 0.3), ways, Promise(0, 0.1))
    assert (stats.by_route.requests, stats.by_chance.requests, stats.kept.requests) == (1, 1, 1)


def test_what_failed_is_named_once() -> None:
    stats = Stats()
    for count, what in enumerate(("a", "b", "c", "engine-1"), 1):
        stats.failures[what] += count
    assert stats.table(9.0)[-1] == "Without an answer: 4 x engine-1, 3 x c, 2 x b, 1 others"
    assert not stats.table(9.0)[-1].startswith("Without")


def test_percentiles_are_of_the_last_window() -> None:
    stats = Stats()
    for milliseconds in range(100, 0, -1):
        stats.record_latency(0.0, milliseconds / 1000)
    assert [stats.latency_s(quantile) for quantile in (0.5, 0.99, 1.0)] == [0.051, 0.1, 0.1]
    stats.record_latency(WINDOW_S + 1, 0.5)
    assert stats.latency_s(0.5) == pytest.approx(0.5)
