"""A metric family as one entry: name, help, labels and value beside each other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

SourceT = TypeVar("SourceT")
Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the labels, and the value, of each sample."""


class MetricKind(Enum):
    """How Prometheus treats the values."""

    GAUGE = "gauge"
    COUNTER = "counter"


_EMPTY: Final[Mapping[MetricKind, type[GaugeMetricFamily] | type[CounterMetricFamily]]] = {
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.COUNTER: CounterMetricFamily,
}


class Family(NamedTuple, Generic[SourceT]):
    """One metric.

    Attributes:
        name: as exposed, but for the `_total` of a counter.
        help: a sentence that stands alone in Prometheus.
        labels: names of the labels.
        samples: reads them off the source at a scrape.
    """

    kind: MetricKind
    name: str
    help: str
    labels: tuple[str, ...]
    samples: Callable[[SourceT], Samples]

    def collect(self, source: SourceT | None) -> Metric:
        """With the samples of the source, or with none where there is no source now."""
        metric = _EMPTY[self.kind](self.name, self.help, labels=self.labels)
        if source is not None:
            for labels, value in self.samples(source):
                metric.add_metric(labels, value)
        return metric


class Histogram(NamedTuple, Generic[SourceT]):
    """A metric of which the source has counts by bucket, and no sum of the values.

    Attributes:
        name, help: see `Family`.
        bounds: of the buckets, rising; one more holds what is above.
        counts: reads as many off the source at a scrape, each bucket's own.
    """

    name: str
    help: str
    bounds: tuple[float, ...]
    counts: Callable[[SourceT], Sequence[int]]

    def collect(self, source: SourceT | None) -> Metric:
        """See `Family.collect`."""
        metric = HistogramMetricFamily(self.name, self.help)
        if source is not None:
            names = [*map(str, self.bounds), "+Inf"]
            counts = accumulate(self.counts(source))
            metric.add_metric((), list(zip(names, counts, strict=True)), sum_value=None)
        return metric


def gauge(name: str, text: str, value: Callable[[SourceT], float]) -> Family[SourceT]:
    """One value that rises and falls."""
    return Family(MetricKind.GAUGE, name, text, (), lambda source: [((), float(value(source)))])


def counter(name: str, text: str, value: Callable[[SourceT], float]) -> Family[SourceT]:
    """One count that only rises; `name` without `_total`."""
    return Family(MetricKind.COUNTER, name, text, (), lambda source: [((), float(value(source)))])


def gauges(
    name: str, text: str, labels: tuple[str, ...], samples: Callable[[SourceT], Samples]
) -> Family[SourceT]:
    """Values by labels."""
    return Family(MetricKind.GAUGE, name, text, labels, samples)


def counters(
    name: str, text: str, labels: tuple[str, ...], samples: Callable[[SourceT], Samples]
) -> Family[SourceT]:
    """Counts by labels; `name` without `_total`."""
    return Family(MetricKind.COUNTER, name, text, labels, samples)


def by_label(counts: Mapping[str, float]) -> Samples:
    """One sample for each value of a single label, sorted."""
    return [((value,), count) for value, count in sorted(dict(counts).items())]


class RoleCollector(Collector):
    """All families of one role, each group with where its source comes from."""

    def __init__(self) -> None:
        self._groups: list[Callable[[], Iterator[Metric]]] = []

    def add(
        self,
        families: Iterable[Family[SourceT] | Histogram[SourceT]],
        source: Callable[[], SourceT | None],
    ) -> None:
        """Collects the families of what `source` returns at each scrape; None for nothing yet."""

        def collect() -> Iterator[Metric]:
            found = source()
            for family in families:
                yield family.collect(found)

        self._groups.append(collect)

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect once at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        for group in self._groups:
            yield from group()
