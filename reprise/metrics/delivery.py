"""Kafka as the roles see it: whether it answers, and a bridge's way from records to the log."""

from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from bridge.service import Bridge

REACHABLE: Final[tuple[Family[bool], ...]] = (
    gauge("reprise_kafka_reachable", "1 while Kafka answers this role.", float),
)

DELIVERY: Final["tuple[Family[Bridge], ...]"] = (
    counter(
        "reprise_bridge_written_records",
        "Records of the bridge that Kafka acknowledged.",
        lambda bridge: bridge.writer.delivery.written_records,
    ),
    counter(
        "reprise_bridge_written_bytes",
        "Bytes of the bridge's records that Kafka acknowledged.",
        lambda bridge: bridge.writer.delivery.written_bytes,
    ),
    counter(
        "reprise_bridge_produce_errors",
        "Failed attempts of the bridge to write to Kafka.",
        lambda bridge: bridge.writer.delivery.produce_errors,
    ),
    gauge(
        "reprise_queue_bytes",
        "Bytes of records that wait in memory for Kafka.",
        lambda bridge: bridge.writer.delivery.queue_bytes,
    ),
    gauge(
        "reprise_bridge_unfolded_bytes",
        "Bytes of the bridge's records that no worker has folded yet.",
        lambda bridge: sum(lag.size_bytes for lag in bridge.writer.lags),
    ),
    gauge(
        "reprise_bridge_held_back_publishers",
        "Publishers whose messages wait in the bridge, because they sent more than workers fold.",
        lambda bridge: sum(len(lag.held_back) for lag in bridge.writer.lags),
    ),
    counter(
        "reprise_bridge_spooled_records",
        "Records that were put into the spool on disk.",
        lambda bridge: bridge.spool.spooled_records,
    ),
    gauge(
        "reprise_spool_records",
        "Records that wait in the spool on disk.",
        lambda bridge: bridge.spool.records,
    ),
    gauge(
        "reprise_spool_bytes",
        "Bytes of the records that wait in the spool.",
        lambda bridge: bridge.spool.size_bytes,
    ),
    gauge(
        "reprise_spool_damaged",
        "1 where the spool was found damaged at the start, and records that waited in it may be"
        " gone.",
        lambda bridge: float(bool(bridge.spool.damage)),
    ),
    gauge(
        "reprise_spool_max_bytes",
        "Size limit of the spool in bytes.",
        lambda bridge: bridge.spool.bytes_max,
    ),
)

MEMBERSHIP: Final["tuple[Family[Bridge], ...]"] = (
    gauge(
        "reprise_bridge_partitions",
        "Partitions of the registry that the bridge owns.",
        lambda bridge: len(bridge.registry.partitions),
    ),
    gauge(
        "reprise_bridge_publishers",
        "Publishers that the bridge follows.",
        lambda bridge: len(bridge.pump.followed),
    ),
    counter(
        "reprise_bridge_takeovers",
        "Publishers that the bridge took over from another one or from its own last run.",
        lambda bridge: bridge.ownership.takeovers,
    ),
    counters(
        "reprise_bridge_handovers",
        "Publishers that the bridge kept for others, by whether another one has linked.",
        ("outcome",),
        lambda bridge: by_label(bridge.ownership.handovers.ended),
    ),
    counter(
        "reprise_bridge_rebalances",
        "Rebalances of the bridges' group that the bridge took part in.",
        lambda bridge: bridge.registry.rebalances,
    ),
    counter(
        "reprise_bridge_unusable_entries",
        "Entries of the registry, the cursors and the spool that the bridge cannot use.",
        lambda bridge: (
            bridge.registry.skipped.total()
            + bridge.cursors.skipped.total()
            + bridge.spool.unusable_entries
        ),
    ),
)
