"""Metrics of the HTTP routes, kept in plain numbers and turned into Prometheus families when asked.

A `prometheus_client` histogram costs about 1 us for each observation, and a query makes five. Here
a query appends one tuple, which saves a few percent of its time. All of it runs on the event loop's
thread.
"""

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import Final, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from query_api.http.requests.bodies import Bodies
from schemas.limits import QUERY_COUNTS_MAX

_SECONDS: Final = (
    *(25e-6, 50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1.0),
)
_TOKENS: Final = tuple(float(2**power) for power in range(6, 23, 2))


class Exposition:
    """What `/metrics` of every role answers. Used on one loop.

    Families are collected on the loop, where what they show is changed, and written in a thread:
    with thousands of publishers that takes more than a second. Whoever asks while an answer is
    being written gets that one.

    Args:
        registry: what is shown.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._writing: dict[str, asyncio.Task[tuple[bytes, str]]] = {}

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """The answer and its content type: in the text format that Accept names, or the oldest
        where what it names is no version.
        """
        writing = self._writing.get(accept)
        if writing is None:
            collected = _Collected(list(self._registry.collect()))
            task = asyncio.to_thread(_exposition, collected, accept)
            writing = self._writing[accept] = asyncio.create_task(task)
            writing.add_done_callback(lambda _: self._writing.pop(accept))
        return await asyncio.shield(writing)


class _Collected:
    """Families as an encoder takes them: it calls nothing but `collect`."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """All of them."""
        return self._families


def _exposition(collected: _Collected, accept: str) -> tuple[bytes, str]:
    registry = cast(CollectorRegistry, collected)
    try:
        encoder, content_type = choose_encoder(accept)
        return encoder(registry), content_type
    except (TypeError, ValueError):
        encoder, content_type = choose_encoder("")
        return encoder(registry), content_type


class Histogram:
    """Counts by bucket; a value equal to a bound falls under it, as Prometheus has it."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as `HistogramMetricFamily` takes them."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        return buckets

    @property
    def sum(self) -> float:
        """Sum of all values."""
        return self._sum


class QueryMetrics:
    """What one hot route counts. Queries wait in a list, to be sorted into buckets many at once."""

    __slots__ = ("_hit_tokens", "_seconds", "_tokens", "_waiting")

    def __init__(self) -> None:
        self._seconds = Histogram(_SECONDS)
        self._tokens = Histogram(_TOKENS)
        self._hit_tokens = 0
        self._waiting: list[tuple[float, int, int]] = []

    def count(self, query: tuple[float, int, int]) -> None:
        """Counts one answered query: its seconds, tokens, and tokens of the longest match."""
        self._waiting.append(query)
        if len(self._waiting) >= QUERY_COUNTS_MAX:
            self._sort()

    def _sort(self) -> None:
        for seconds, tokens, hit_tokens in self._waiting:
            self._seconds.observe(seconds)
            self._tokens.observe(tokens)
            self._hit_tokens += hit_tokens
        self._waiting.clear()

    def totals(self) -> tuple[Histogram, Histogram, int]:
        """Seconds, tokens, and tokens matched, of all queries counted so far."""
        self._sort()
        return self._seconds, self._tokens, self._hit_tokens


class HttpMetrics(Collector):
    """All routes of one app; registers itself, so that one registry serves one app."""

    def __init__(self, registry: CollectorRegistry, bodies: Bodies) -> None:
        self._bodies = bodies
        self._requests: Counter[tuple[str, int]] = Counter()
        self._queries: dict[str, QueryMetrics] = {}
        registry.register(self)

    def count_request(self, route: str, status: int) -> None:
        """Counts one answered request. `route` must be one of a fixed set."""
        self._requests[route, status] += 1

    def queries(self, route: str) -> QueryMetrics:
        """The counts of one hot route."""
        return self._queries.setdefault(route, QueryMetrics())

    def describe(self) -> list[Metric]:
        """The families without samples, so that a second app on one registry is refused."""
        return [*self._families()]

    def collect(self) -> Iterator[Metric]:
        """The families with their samples."""
        requests, seconds, tokens, hits = self._families()
        for (route, status), count in sorted(self._requests.items()):
            requests.add_metric([route, str(status)], count)
        for route, query in self._queries.items():
            query_seconds, query_tokens, hit_tokens = query.totals()
            seconds.add_metric([route], query_seconds.buckets(), query_seconds.sum)
            tokens.add_metric([route], query_tokens.buckets(), query_tokens.sum)
            hits.add_metric([route], hit_tokens)
        yield from (requests, seconds, tokens, hits)
        refused = CounterMetricFamily(
            "reprise_http_bodies_refused",
            "Request bodies that came too slowly, or found no room beside others.",
            labels=["reason"],
        )
        for reason, count in sorted(self._bodies.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        yield GaugeMetricFamily(
            "reprise_http_body_bytes",
            "Bytes of request bodies whose end has not come.",
            self._bodies.held_bytes,
        )

    @staticmethod
    def _families() -> tuple[
        CounterMetricFamily, HistogramMetricFamily, HistogramMetricFamily, CounterMetricFamily
    ]:
        return (
            CounterMetricFamily(
                "reprise_http_requests",
                "HTTP requests answered; status 499 where the client left first.",
                labels=["route", "status"],
            ),
            HistogramMetricFamily(
                "reprise_query_seconds",
                "Seconds from a query's last byte to its encoded answer.",
                labels=["route"],
            ),
            HistogramMetricFamily(
                "reprise_query_tokens",
                "Tokens of each prompt that was asked about; hits are a share of their sum.",
                labels=["route"],
            ),
            CounterMetricFamily(
                "reprise_query_hit_tokens",
                "Tokens of the longest match among the instances, of all queries.",
                labels=["route"],
            ),
        )
