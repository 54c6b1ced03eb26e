"""What `/metrics` tells of the write path, read from its plain counters at each scrape.

Names follow Prometheus: `reprise_<part>_<what>_<unit>`, counters end in `_total`. The query side
keeps its own metrics (`query_api`).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.identities import PublisherKey
from streams.table.fold import Fold

if TYPE_CHECKING:
    from reprise.embedded.write_thread import WriteThread

_PUBLISHER_LABELS = ("tenant", "instance", "model", "dp_rank")

_BRIDGE_COUNTERS = {
    "messages": "Messages received.",
    "batches": "Batches put into records.",
    "events": "Events put into records.",
    "duplicates": "Batches delivered again.",
    "gaps": "Places where batches are missing.",
    "lost_batches": "Batches missing in them.",
    "restarts": "New incarnations found.",
}


def _labels(publisher: PublisherKey) -> tuple[str, str, str, str]:
    stream = publisher.stream
    return (stream.tenant_id, stream.instance_id, stream.model_name, str(publisher.dp_rank))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def outcome_families(
    folds: Iterable[tuple[Sequence[str], Fold]], *, labels: Sequence[str] = ()
) -> Iterator[Metric]:
    """What became of records and of the blocks in them; docs/architecture.md has the outcomes.

    Args:
        folds: each with its values of the labels.
        labels: what tells the folds apart.
    """
    records = CounterMetricFamily(
        "reprise_fold_records", "Records by outcome.", labels=[*labels, "outcome"]
    )
    blocks = CounterMetricFamily(
        "reprise_kernel_blocks", "Blocks by outcome of their event.", labels=[*labels, "outcome"]
    )
    for values, fold in folds:
        for outcome, count in sorted(dict(fold.counters).items()):
            records.add_metric([*values, outcome], count)
        for outcome, count in fold.kernel.counters().items():
            blocks.add_metric([*values, outcome], count)
    yield from (records, blocks)


class ServiceCollector(Collector):
    """Collects from the write path. Cost O(publishers + contexts) a scrape."""

    def __init__(self, loop: "WriteThread") -> None:
        self._loop = loop

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect once at registration, before recovery."""
        return []

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        yield from self._service()
        yield from self._bridge()
        yield from self._log()
        yield from self._fold()
        yield from self._kernel()

    def _service(self) -> Iterator[Metric]:
        loop = self._loop
        yield _gauge("reprise_ready", "1 once recovered.", float(loop.ready))
        yield _gauge("reprise_recovery_seconds", "Duration of the last recovery.", loop.recovery_s)
        yield _counter(
            "reprise_disk_errors", "Failed reads, writes and syncs.", loop.troubles.disk_errors
        )
        info = GaugeMetricFamily("reprise_kernel_info", "The kernel in use.", labels=["kernel"])
        info.add_metric([loop.fold.kernel.name], 1.0)
        yield info

    def _bridge(self) -> Iterator[Metric]:
        loop, pump = self._loop, self._loop.pump
        inbox, sequencer = pump.inbox, pump.sequencer
        yield _gauge("reprise_inbox_messages", "Messages that wait to be read.", len(inbox))
        yield _gauge("reprise_inbox_bytes", "Bytes of them.", inbox.size_bytes)
        yield _gauge("reprise_held_bytes", "Bytes that wait for a replay.", sequencer.held_bytes)
        yield _gauge(
            "reprise_log_waiting_bytes",
            "Bytes of records that wait for the disk.",
            loop.sink.waiting_bytes,
        )
        replayer = pump.replayer
        yield _counter(
            "reprise_bridge_replay_requests", "Replay requests to engines.", replayer.requests
        )
        yield _counter(
            "reprise_bridge_replayed_batches",
            "Batches recovered by replay.",
            replayer.replayed_batches,
        )
        yield _counter(
            "reprise_refused_commands",
            "Registrations refused because the log could not be written.",
            loop.commands.refused,
        )
        yield _counter("reprise_faults", "Unexpected internal errors (see the log).", loop.faults)
        families = {
            name: CounterMetricFamily(f"reprise_bridge_{name}", text, labels=_PUBLISHER_LABELS)
            for name, text in _BRIDGE_COUNTERS.items()
        }
        dropped = CounterMetricFamily(
            "reprise_bridge_dropped",
            "Messages, batches and events left out, by reason.",
            labels=(*_PUBLISHER_LABELS, "reason"),
        )
        connected = GaugeMetricFamily(
            "reprise_publisher_connected", "1 while the link is up.", labels=_PUBLISHER_LABELS
        )
        for publisher, counters in list(sequencer.counters().items()):
            labels = _labels(publisher)
            for name, family in families.items():
                family.add_metric(labels, getattr(counters, name))
            for reason, count in sorted(dict(counters.dropped).items()):
                dropped.add_metric((*labels, reason), count)
            connected.add_metric(labels, float(pump.subscriber.connected(publisher)))
        if sequencer.unregistered_messages:
            nobody = ("", "", "", "", "unregistered")
            dropped.add_metric(nobody, sequencer.unregistered_messages)
        for publisher, count in inbox.dropped().items():
            dropped.add_metric((*_labels(publisher), "inbox_full"), count)
        for (publisher, reason), count in dict(loop.sink.dropped).items():
            dropped.add_metric((*_labels(publisher), reason), count)
        yield from (*families.values(), dropped, connected)

    def _log(self) -> Iterator[Metric]:
        log, store = self._loop.log, self._loop.store
        yield _gauge("reprise_log_end_offset", "Offset of the next record.", log.end_offset)
        yield _gauge("reprise_log_complete_from_offset", "Older ones retired.", log.complete_from)
        yield _gauge("reprise_log_size_bytes", "Bytes of records kept.", log.size_bytes)
        yield _gauge("reprise_table_folded_offset", "Last folded offset.", self._loop.fold.offset)
        yield _gauge(
            "reprise_table_flushed_offset", "Last flushed one.", self._loop.folding.flushed_offset
        )
        yield _counter("reprise_table_flushed_rows", "Rows written.", store.flushed_rows)
        yield _counter("reprise_table_flushed_bytes", "Bytes of changes.", store.flushed_bytes)
        yield _counter("reprise_table_generations", "Contexts rewritten.", store.generations)

    def _fold(self) -> Iterator[Metric]:
        fold = self._loop.fold
        yield from outcome_families([((), fold)])
        degraded = GaugeMetricFamily(
            "reprise_publisher_degraded", "1 after lost batches.", labels=_PUBLISHER_LABELS
        )
        sequence = GaugeMetricFamily(
            "reprise_publisher_sequence", "Last folded sequence.", labels=_PUBLISHER_LABELS
        )
        incarnation = GaugeMetricFamily(
            "reprise_publisher_incarnation", "Lives of the engine seen.", labels=_PUBLISHER_LABELS
        )
        for publisher, state in list(fold.publishers.items()):
            labels = _labels(publisher)
            degraded.add_metric(labels, float(state.degraded_since is not None))
            sequence.add_metric(labels, state.sequence)
            incarnation.add_metric(labels, state.incarnation)
        yield from (degraded, sequence, incarnation)

    def _kernel(self) -> Iterator[Metric]:
        for name, value in self._loop.fold.kernel.stats().items():
            yield _gauge(f"reprise_index_{name}", f"The index: {name.replace('_', ' ')}.", value)
