"""What `/metrics` tells of a replica, read from its plain counters at each scrape.

Names are those of the embedded service where they mean the same.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from query_api.replica.replica import Replica
from schemas.identities import PublisherKey
from schemas.positions import PublisherState
from streams.kernel.interface import Kernel

_PUBLISHER_LABELS = ("tenant", "instance", "model", "dp_rank")


class ReplicaCollector(Collector):
    """Collects from a replica. Cost O(publishers + partitions) a scrape."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect once at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        replica = self._replica
        yield _gauge("reprise_ready", "1 once the table was read.", float(replica.ready))
        yield _gauge("reprise_recovery_seconds", "How long that took.", replica.recovery_s)
        yield from self._lag()
        yield from self._rows()
        copy = replica.copy
        yield from publisher_families(list(copy.table.publishers.items()))
        yield from kernel_families(copy.table.kernel)

    def _lag(self) -> Iterator[Metric]:
        lag = self._replica.health().lag
        assert lag is not None, "a replica always knows its lag"
        yield _gauge("reprise_kafka_reachable", "1 while Kafka answers.", float(lag.reachable))
        yield _counter(
            "reprise_kafka_failed_checks", "Unanswered ones.", self._replica.failed_checks
        )
        yield _gauge("reprise_table_lag_records", "Rows not applied yet.", lag.table_records)
        yield _gauge("reprise_source_lag_records", "Records not covered yet.", lag.source_records)
        yield _gauge("reprise_table_lag_seconds", "Age of what the table lacks.", lag.seconds)
        folded = GaugeMetricFamily(
            "reprise_table_folded_offset", "Last folded offset.", labels=["partition"]
        )
        for position in self._replica.positions():
            folded.add_metric([str(position.partition)], position.offset)
        yield folded

    def _rows(self) -> Iterator[Metric]:
        replica = self._replica
        copy = replica.copy
        outcomes = dict(copy.table.counters)
        yield _labelled("reprise_table_rows", "Rows by outcome.", "outcome", outcomes)
        yield _counter("reprise_table_rebuilds", "Tables read anew.", replica.rebuilds)
        registered = len(copy.registry.registrations)
        yield _gauge("reprise_registry_publishers", "Registered publishers.", registered)
        skipped = replica.entries_skipped
        yield _counter("reprise_registry_skipped", "Entries that cannot be read.", skipped)


def publisher_families(publishers: Iterable[tuple[PublisherKey, PublisherState]]) -> list[Metric]:
    """What is folded of each publisher."""
    degraded = GaugeMetricFamily(
        "reprise_publisher_degraded", "1 after lost batches.", labels=_PUBLISHER_LABELS
    )
    sequence = GaugeMetricFamily(
        "reprise_publisher_sequence", "Last folded sequence.", labels=_PUBLISHER_LABELS
    )
    incarnation = GaugeMetricFamily(
        "reprise_publisher_incarnation", "Lives of the engine seen.", labels=_PUBLISHER_LABELS
    )
    for (stream, dp_rank), state in publishers:
        labels = (stream.tenant_id, stream.instance_id, stream.model_name, str(dp_rank))
        degraded.add_metric(labels, float(state.degraded_since is not None))
        sequence.add_metric(labels, state.sequence)
        incarnation.add_metric(labels, state.incarnation)
    return [degraded, sequence, incarnation]


def kernel_families(kernel: Kernel) -> Iterator[Metric]:
    """The index and its sizes."""
    info = GaugeMetricFamily("reprise_kernel_info", "The kernel in use.", labels=["kernel"])
    info.add_metric([kernel.name], 1.0)
    yield info
    for name, value in kernel.stats().items():
        yield _gauge(f"reprise_index_{name}", f"The index: {name.replace('_', ' ')}.", value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
