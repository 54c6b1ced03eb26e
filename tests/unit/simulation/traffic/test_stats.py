from simulation.traffic.shadows import Compared, Outcome
from simulation.traffic.stats import Promise, Stats


def test_line_says_what_happened() -> None:
    stats = Stats()
    stats.record_request(
        1000,
        Outcome(713, 0.25),
        Compared(Outcome(710, 0.35), Outcome(700, 0.4), Outcome(248, 1.2)),
        Promise(800, 0.2),
    )
    stats.record_request(
        1000,
        Outcome(713, 0.35),
        Compared(Outcome(710, 0.25), Outcome(700, 0.4), Outcome(248, 2.0)),
        None,
    )
    stats.record_latency(0.00031)
    stats.blocks_indexed = 48_231
    assert stats.line() == (
        "requests 2 | blocks indexed 48,231 | hit rate 71.3 % by /route, 71.0 % by /query and "
        "load, 70.0 % by /query alone, 24.8 % at random | mean TTFT 300 ms, 300 ms, 400 ms, "
        "1,600 ms: by /route 0 % more than by /query and load, 25 % less than by /query alone | "
        "promised TTFT 200 ms, actual 250 ms | promised cached 80.0 %, actual 71.3 % | "
        "/route p50 0.31 ms p99 0.31 ms"
    )


def test_the_line_says_so_where_routing_is_worse() -> None:
    stats = Stats()
    compared = Compared(Outcome(0, 0.25), Outcome(0, 0.2), Outcome(0, 0.2))
    stats.record_request(10, Outcome(0, 0.3), compared, None)
    assert (
        "by /route 20 % more than by /query and load, 50 % more than by /query alone"
        in stats.line()
    )


def test_line_before_the_first_request_and_with_failures() -> None:
    stats = Stats()
    stats.engine_errors, stats.route_errors, stats.feedback_errors = 2, 3, 4
    assert "requests 0 | blocks indexed ? | hit rate 0.0 %" in stats.line()
    assert "by /route no less than" in stats.line()
    assert stats.line().endswith("| failed calls 9")


def test_percentiles_are_of_all_latencies() -> None:
    stats = Stats()
    for milliseconds in range(100, 0, -1):
        stats.record_latency(milliseconds / 1000)
    assert stats.latency_s(0.5) == 0.051
    assert stats.latency_s(0.99) == 0.1
    assert stats.latency_s(1.0) == 0.1
