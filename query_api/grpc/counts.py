"""What is counted of gRPC calls, as Prometheus families."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from query_api.histograms import QUERY_SECONDS, Histogram


class GrpcCounts(Collector):
    """Counted on the server's loop, read by whoever scrapes.

    Attributes:
        calls: that have ended, by method and status. A method is one of a fixed set.
        refused: what was not answered, by reason.
        updates: of holders, none of which is stored, by why not.
        hashes_ignored: those of prompts beyond `GRPC_HASHES_MAX`.
        streams: that are open.
        seconds: of each query that was answered, from its last byte to its encoded answer.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.updates: Counter[str] = Counter()
        self.hashes_ignored = 0
        self.streams = 0
        self.seconds: dict[str, Histogram] = {}

    def observe(self, method: str, seconds: float) -> None:
        """Counts a query that was answered."""
        histogram = self.seconds.get(method)
        if histogram is None:
            histogram = self.seconds[method] = Histogram(QUERY_SECONDS)
        histogram.observe(seconds)

    def describe(self) -> list[Metric]:
        """The families without samples."""
        return list(GrpcCounts().collect())

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        calls = CounterMetricFamily(
            "reprise_grpc_calls",
            "gRPC calls of routers that have ended, by method and status.",
            labels=("method", "status"),
        )
        for labels, count in sorted(self.calls.copy().items()):
            calls.add_metric(labels, count)
        yield calls
        yield _by_reason(
            "reprise_grpc_refused",
            "gRPC requests of routers that were not answered, by reason.",
            self.refused,
        )
        yield _by_reason(
            "reprise_grpc_updates",
            "Placements that gateways have published and the index has not stored, by reason.",
            self.updates,
        )
        yield CounterMetricFamily(
            "reprise_grpc_hashes_ignored",
            "Hashes of gRPC queries that were not looked up, since a prompt has a bound.",
            value=self.hashes_ignored,
        )
        yield GaugeMetricFamily(
            "reprise_grpc_streams", "gRPC streams of gateways that are open.", value=self.streams
        )
        seconds = HistogramMetricFamily(
            "reprise_grpc_query_seconds",
            "Seconds from a gRPC query's last byte to its encoded answer.",
            labels=("method",),
        )
        for method, histogram in sorted(self.seconds.copy().items()):
            seconds.add_metric((method,), histogram.buckets(), histogram.sum)
        yield seconds


def _by_reason(name: str, text: str, counts: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=("reason",))
    for reason, count in sorted(counts.copy().items()):
        family.add_metric((reason,), count)
    return family
