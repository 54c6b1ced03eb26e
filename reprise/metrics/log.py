"""The embedded log. In the distributed form the log is a topic, and Kafka has its figures."""

from typing import Final

from reprise.metrics.family import Family, counter, gauge
from schemas.conditions import DISK_PARTS, Conditions
from streams.log.embedded import EmbeddedLog

LOG: Final[tuple[Family[EmbeddedLog], ...]] = (
    gauge(
        "reprise_log_end_offset",
        "Offset of the next record of the log.",
        lambda log: log.end_offset,
    ),
    gauge(
        "reprise_log_complete_from_offset",
        "First offset from which the log has every record.",
        lambda log: log.complete_from,
    ),
    gauge(
        "reprise_log_size_bytes",
        "Bytes of the records that the log keeps.",
        lambda log: log.size_bytes,
    ),
)

DISK: Final[tuple[Family[Conditions], ...]] = (
    counter(
        "reprise_disk_errors",
        "Failed reads, writes and syncs of the data directory.",
        lambda conditions: sum(conditions.failures[part] for part in DISK_PARTS),
    ),
)
