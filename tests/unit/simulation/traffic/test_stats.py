from simulation.traffic.stats import Stats


def test_line_says_what_happened() -> None:
    stats = Stats()
    stats.requests = 1_203
    stats.record_request(prompt_tokens=1000, cached_tokens=713, shadow_cached_tokens=248)
    stats.record_query(0.00031)
    stats.blocks_indexed = 48_231
    assert stats.line() == (
        "requests 1,204 | blocks indexed 48,231 | hit rate 71.3 % with the index, "
        "24.8 % with random routing | query p50 0.31 ms p99 0.31 ms"
    )


def test_line_before_the_first_request_and_with_failures() -> None:
    stats = Stats()
    stats.engine_errors = 2
    assert "requests 0 | blocks indexed ? | hit rate 0.0 %" in stats.line()
    assert stats.line().endswith("| failed calls 2")


def test_percentiles_are_of_all_latencies() -> None:
    stats = Stats()
    for milliseconds in range(100, 0, -1):
        stats.record_query(milliseconds / 1000)
    assert stats.latency_s(0.5) == 0.051
    assert stats.latency_s(0.99) == 0.1
    assert stats.latency_s(1.0) == 0.1


def test_agreement_counts_what_the_engine_confirmed() -> None:
    stats = Stats()
    for predicted, cached in [(32, 32), (48, 32), (16, 32), (0, 0)]:
        stats.record_query(0.001)
        stats.record_prediction(predicted_tokens=predicted, cached_tokens=cached)
    assert stats.agreement == 0.5
    assert stats.overestimates == 1
