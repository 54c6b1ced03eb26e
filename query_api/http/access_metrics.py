"""What the guard has let through and refused, as Prometheus families."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from query_api.access.guard import Guard


class AccessMetrics(Collector):
    """Of one service. Cost O(keys), at most KEYS_SHOWN_MAX."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        guard = self._guard
        refused = CounterMetricFamily(
            "reprise_access_refused",
            "Requests that their callers may not make, or not so often.",
            labels=["reason"],
        )
        for reason, count in sorted(guard.refused.items()):
            refused.add_metric((reason,), count)
        yield refused
        if guard.ring is None:
            return
        requests = CounterMetricFamily(
            "reprise_key_requests",
            "Requests let through, by the id of their key.",
            labels=["key"],
        )
        for key_id, count in sorted(guard.by_key.items()):
            requests.add_metric((key_id,), count)
        yield requests
        yield GaugeMetricFamily(
            "reprise_keys", "Keys in the file that was read last.", value=len(guard.ring)
        )
        yield GaugeMetricFamily(
            "reprise_keys_unreadable",
            "Whether the file of keys has changed and cannot be read: 1, or 0.",
            value=float(bool(guard.ring.problem)),
        )
