"""The embedded log. In the distributed form the log is a topic, and Kafka has its figures."""

from typing import TYPE_CHECKING, Final, Protocol

from reprise.logs import disk_parts
from schemas.conditions import Conditions
from schemas.metric_family import Family, counter, gauge

if TYPE_CHECKING:
    from bridge.delivery.log_sink import LogSink
    from logs.embedded import EmbeddedLog
    from streams.history.follower import HistoryFollower

LOG: Final["tuple[Family[EmbeddedLog], ...]"] = (
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


class RecordedPast(Protocol):
    """What is kept of a table's past, in either form."""

    @property
    def is_recording(self) -> bool:
        """Whether it is kept now."""
        ...

    def size_bytes(self) -> int:
        """About how much of it there is."""
        ...


HISTORY: Final[tuple[Family[RecordedPast], ...]] = (
    gauge(
        "reprise_history_bytes",
        "About how many bytes of the table's past are kept.",
        lambda history: history.size_bytes(),
    ),
    gauge(
        "reprise_history_recording",
        "1 while the table's past is recorded, 0 while that fails.",
        lambda history: history.is_recording,
    ),
)

FOLLOWED: Final[tuple["Family[HistoryFollower]", ...]] = (
    gauge(
        "reprise_history_behind_records",
        "Records of the log whose past is not kept yet.",
        lambda follower: follower.behind(),
    ),
)

WAITING: Final["tuple[Family[LogSink], ...]"] = (
    gauge(
        "reprise_log_waiting_bytes",
        "Bytes of records that wait in memory until the log can be written again.",
        lambda sink: sink.appends.waiting_bytes,
    ),
)

COMMANDS: Final[tuple[Family[int], ...]] = (
    counter(
        "reprise_refused_commands",
        "Calls of /register and /unregister refused because the log could not be written, the"
        " service was stopping, or too many waited.",
        float,
    ),
)

DISK: Final[tuple[Family[Conditions], ...]] = (
    counter(
        "reprise_disk_errors",
        "Failed reads, writes and syncs of the data directory.",
        lambda conditions: sum(conditions.failures[part] for part in disk_parts()),
    ),
)
