"""The histogram that is kept in plain numbers equals Prometheus's own."""

from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from query_api.http.metrics import Histogram, HttpMetrics
from query_api.http.requests.bodies import Bodies


def test_buckets_equal_prometheus_clients() -> None:
    bounds = (1.0, 2.0, 4.0)
    ours = Histogram(bounds)
    theirs = PrometheusHistogram("x", "x", registry=None, buckets=bounds)
    for value in (0.0, 1.0, 1.5, 2.0, 4.0, 4.1, 100.0):
        ours.observe(value)
        theirs.observe(value)
    samples = [
        (sample.labels["le"], sample.value)
        for sample in next(iter(theirs.collect())).samples
        if sample.name == "x_bucket"
    ]
    assert ours.buckets() == samples
    assert ours.sum == 112.6


def test_a_query_counts_its_tokens_and_hits() -> None:
    registry = CollectorRegistry()
    metrics = HttpMetrics(registry, Bodies())
    metrics.queries("/query").count((3e-5, 100, 64))
    metrics.queries("/query").count((2.0, 10, 0))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"route": "/query", **labels})

    assert value("reprise_query_tokens_sum") == 110
    assert value("reprise_query_tokens_count") == 2
    assert value("reprise_query_hit_tokens_total") == 64
    assert value("reprise_query_seconds_bucket", le="2.5e-05") == 0
    assert value("reprise_query_seconds_bucket", le="5e-05") == 1
    assert value("reprise_query_seconds_bucket", le="1.0") == 1
    assert value("reprise_query_seconds_bucket", le="+Inf") == 2
