"""The histogram that is kept in plain numbers equals Prometheus's own."""

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Histogram as PrometheusHistogram

from query_api.histograms import Histogram
from query_api.http import metrics as module
from query_api.http.metrics import Exposition, HttpMetrics
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


def test_a_second_app_on_one_registry_is_refused() -> None:
    registry = CollectorRegistry()
    HttpMetrics(registry, Bodies())
    with pytest.raises(ValueError, match="reprise_http_requests"):
        HttpMetrics(registry, Bodies())


def test_every_entry_is_one_family_with_its_name_help_and_labels() -> None:
    registry = CollectorRegistry()
    bodies = Bodies()
    bodies.refused["slow"] += 1
    metrics = HttpMetrics(registry, bodies)
    metrics.count_request("/query", 200)
    metrics.queries("/query").count((3e-5, 100, 64))
    for entry, family in zip(module.FAMILIES, registry.collect(), strict=True):
        assert (family.name, family.documentation) == (entry.name, entry.help)
        assert family.samples
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(entry.labels)


def test_whoever_asks_while_metrics_are_written_gets_the_same_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("x", "x", registry=registry)
    go_on = threading.Event()
    written: list[str] = []
    write = module._exposition

    def slow(collected: module._CollectedFamilies, accept: str) -> tuple[bytes, str]:
        assert go_on.wait(30)
        written.append(accept)
        return write(collected, accept)

    monkeypatch.setattr(module, "_exposition", slow)

    async def case() -> None:
        exposition = Exposition(registry)
        asking = [asyncio.create_task(exposition.answer("")) for _ in range(100)]
        await asyncio.sleep(0)
        gauge.set(7)
        go_on.set()
        answers = await asyncio.gather(*asking)
        assert {b"x 0.0" in content for content, _ in answers} == {True}
        assert written == [""]
        content, _ = await exposition.answer("")
        assert b"x 7.0" in content

    asyncio.run(case())
