"""What is counted of Conductor's RPC, as Prometheus families."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector


class RpcCounts(Collector):
    """Counted on the server's loop, read by all that scrape.

    Attributes:
        calls: that were answered, by method and by Conductor's or the protocol's code.
        refused: requests that were not read to their end, and connections, by reason.
        connections: that are open.
    """

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.refused: Counter[str] = Counter()
        self.connections = 0

    def describe(self) -> list[Metric]:
        """The families without samples."""
        return list(RpcCounts().collect())

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        calls = CounterMetricFamily(
            "reprise_conductor_rpc_calls",
            "Calls of Mooncake Conductor's RPC that were answered, by method and code.",
            labels=("method", "code"),
        )
        for labels, count in sorted(self.calls.copy().items()):
            calls.add_metric(labels, count)
        yield calls
        refused = CounterMetricFamily(
            "reprise_conductor_rpc_refused",
            "Connections of Mooncake Conductor's RPC that were ended by Reprise, by reason.",
            labels=("reason",),
        )
        for reason, count in sorted(self.refused.copy().items()):
            refused.add_metric((reason,), count)
        yield refused
        yield GaugeMetricFamily(
            "reprise_conductor_rpc_connections",
            "Connections of Mooncake Conductor's RPC that are open.",
            value=self.connections,
        )
