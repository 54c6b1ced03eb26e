"""Metrics of the HTTP routes, kept in plain numbers and turned into Prometheus families when asked.

`FAMILIES` has each of them as one entry: name, help, labels and where its samples come from.

A `prometheus_client` histogram costs about 1 us for each observation, and a query makes five. Here
a query appends one tuple, which saves a few percent of its time. All of it runs on the event loop's
thread.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from query_api.histograms import QUERY_SECONDS, Histogram
from query_api.http.requests.bodies import Bodies

QUERY_COUNTS_MAX: Final = 1024  # queries that are not in the histograms yet: memory

_TOKENS: Final = tuple(float(2**power) for power in range(6, 23, 2))


class Exposition:
    """What `/metrics` of every role answers. Used on one loop.

    Families are collected on the loop, where what they show is changed, and written in a thread:
    with thousands of publishers that takes more than a second. Whoever asks while an answer is
    being written gets that one.
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
            collected = _CollectedFamilies(list(self._registry.collect()))
            task = asyncio.to_thread(_exposition, collected, accept)
            writing = self._writing[accept] = asyncio.create_task(task)
            writing.add_done_callback(lambda _: self._writing.pop(accept))
        return await asyncio.shield(writing)


class _CollectedFamilies:
    """Families as an encoder takes them: it calls nothing but `collect`."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """All of them."""
        return self._families


def _exposition(collected: _CollectedFamilies, accept: str) -> tuple[bytes, str]:
    registry = cast(CollectorRegistry, collected)
    try:
        encoder, content_type = choose_encoder(accept)
        return encoder(registry), content_type
    except (TypeError, ValueError):
        encoder, content_type = choose_encoder("")
        return encoder(registry), content_type


class QueryMetrics:
    """What one hot route counts. Queries wait in a list, to be sorted into buckets many at once.

    Attributes:
        seconds, tokens: of each query sorted so far.
    """

    __slots__ = ("_waiting", "hit_tokens", "seconds", "tokens")

    def __init__(self) -> None:
        self.seconds = Histogram(QUERY_SECONDS)
        self.tokens = Histogram(_TOKENS)
        self.hit_tokens = 0
        self._waiting: list[tuple[float, int, int]] = []

    def count(self, query: tuple[float, int, int]) -> None:
        """Counts one answered query: its seconds, tokens, and tokens of the longest match."""
        self._waiting.append(query)
        if len(self._waiting) >= QUERY_COUNTS_MAX:
            self.sort()

    def add(
        self,
        seconds: tuple[Sequence[int], float],
        tokens: tuple[Sequence[int], float],
        hit_tokens: int,
    ) -> None:
        """Counts queries that were counted elsewhere: counts by bucket, and sums."""
        self.seconds.add(*seconds)
        self.tokens.add(*tokens)
        self.hit_tokens += hit_tokens

    def sort(self) -> None:
        """Sorts the queries that wait."""
        for seconds, tokens, hit_tokens in self._waiting:
            self.seconds.observe(seconds)
            self.tokens.observe(tokens)
            self.hit_tokens += hit_tokens
        self._waiting.clear()


class HttpMetrics(Collector):
    """All routes of one app; registers itself, so that one registry serves one app.

    Attributes:
        requests: how many were answered, by route and status.
        routes: what each hot route counts.
        when_collected: called before they are shown.
    """

    def __init__(self, registry: CollectorRegistry, bodies: Bodies) -> None:
        self.bodies = bodies
        self.requests: Counter[tuple[str, int]] = Counter()
        self.routes: dict[str, QueryMetrics] = {}
        self.when_collected: Callable[[], None] = lambda: None
        registry.register(self)

    def count_request(self, route: str, status: int) -> None:
        """Counts one answered request. `route` must be one of a fixed set."""
        self.requests[route, status] += 1

    def queries(self, route: str) -> QueryMetrics:
        """The counts of one hot route."""
        return self.routes.setdefault(route, QueryMetrics())

    def share(self, route: str, queries: QueryMetrics) -> None:
        """What answers beside the routes counts for itself, and is shown with them."""
        self.routes[route] = queries

    def describe(self) -> list[Metric]:
        """The families without samples, so that a second app on one registry is refused."""
        return [family.empty() for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """The families with their samples."""
        self.when_collected()
        for query in self.routes.values():
            query.sort()
        for family in FAMILIES:
            yield family.collect(self)


Samples = Iterable[tuple[tuple[str, ...], float | Histogram]]
"""Values of the labels, and the value, of each sample."""


class Family(NamedTuple):
    """One metric.

    Attributes:
        kind: the client's class of it.
        name: as exposed, but for the `_total` of a counter.
        help: a sentence that stands alone in Prometheus.
        labels: names of the labels.
        samples: reads them off the counts at a scrape; histograms where it is one.
    """

    kind: type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[HttpMetrics], Samples]

    def empty(self) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
        """Without samples."""
        return self.kind(self.name, self.help, labels=self.labels)

    def collect(self, metrics: HttpMetrics) -> Metric:
        """With the samples of one app."""
        found = self.empty()
        for labels, value in self.samples(metrics):
            if isinstance(found, HistogramMetricFamily):
                assert isinstance(value, Histogram)
                found.add_metric(labels, value.buckets(), value.sum)
            else:
                assert not isinstance(value, Histogram)
                found.add_metric(labels, value)
        return found


def _by_route(
    value: Callable[[QueryMetrics], float | Histogram],
) -> Callable[[HttpMetrics], Samples]:
    return lambda metrics: [((route,), value(query)) for route, query in metrics.routes.items()]


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        CounterMetricFamily,
        "reprise_http_requests",
        "HTTP requests answered; status 499 where the client left first.",
        ("route", "status"),
        lambda metrics: [
            ((route, str(status)), count)
            for (route, status), count in sorted(metrics.requests.items())
        ],
    ),
    Family(
        HistogramMetricFamily,
        "reprise_query_seconds",
        "Seconds from a query's last byte to its encoded answer.",
        ("route",),
        _by_route(lambda query: query.seconds),
    ),
    Family(
        HistogramMetricFamily,
        "reprise_query_tokens",
        "Tokens of each prompt that was asked about; hits are a share of their sum.",
        ("route",),
        _by_route(lambda query: query.tokens),
    ),
    Family(
        CounterMetricFamily,
        "reprise_query_hit_tokens",
        "Tokens of the longest match among the instances, of all queries.",
        ("route",),
        _by_route(lambda query: query.hit_tokens),
    ),
    Family(
        CounterMetricFamily,
        "reprise_http_bodies_refused",
        "Request bodies that came too slowly, or found no room beside others.",
        ("reason",),
        lambda metrics: [
            ((reason,), count) for reason, count in sorted(metrics.bodies.refused.items())
        ],
    ),
    Family(
        GaugeMetricFamily,
        "reprise_http_body_bytes",
        "Bytes of request bodies whose end has not come.",
        (),
        lambda metrics: [((), metrics.bodies.held_bytes)],
    ),
)
