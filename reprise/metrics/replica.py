"""A replica: how far it is behind, what became of rows, and who is registered."""

from typing import TYPE_CHECKING, Final

from query_api.ports import Lag
from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from query_api.replica.replica import Replica

LAG: Final[tuple[Family[Lag], ...]] = (
    gauge(
        "reprise_table_lag_records",
        "Rows of the table topic that the replica has not applied.",
        lambda lag: lag.table_records,
    ),
    gauge(
        "reprise_source_lag_records",
        "Records of the event log that no applied table row covers.",
        lambda lag: lag.source_records,
    ),
    gauge(
        "reprise_table_lag_seconds",
        "Seconds the table is behind its log.",
        lambda lag: lag.seconds,
    ),
)

REPLICA: Final["tuple[Family[Replica], ...]"] = (
    counter(
        "reprise_kafka_failed_checks",
        "Kafka checks of the replica that got no answer.",
        lambda replica: replica.failed_checks,
    ),
    counters(
        "reprise_table_rows",
        "Rows of the table topic that the replica read, by outcome.",
        ("outcome",),
        lambda replica: by_label(replica.current.table.counters),
    ),
    counter(
        "reprise_table_rebuilds",
        "Times the replica had to reread the table from its beginning.",
        lambda replica: replica.rebuilds,
    ),
    gauge(
        "reprise_registry_publishers",
        "Registered publishers that the replica knows.",
        lambda replica: len(replica.current.registry.registrations),
    ),
    counter(
        "reprise_registry_skipped",
        "Registry entries that the replica cannot use.",
        lambda replica: replica.entries_skipped,
    ),
)
