"""A stream worker: what became of the records that it was given, and how often it restarted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from schemas.metric_family import Family, by_label, counter, counters, gauge

if TYPE_CHECKING:
    from routing.worker.table import RoutingTable

RESTARTS: Final[tuple[Family[int], ...]] = (
    counter(
        "reprise_worker_restarts",
        "Times the worker's app failed and was restarted.",
        float,
    ),
)

CRASHES: Final[tuple[Family[int], ...]] = (
    counter(
        "reprise_worker_crashes",
        "Times Faust itself crashed in the worker.",
        float,
    ),
)

RECORDS: Final[tuple[Family[Mapping[str, int]], ...]] = (
    counters(
        "reprise_worker_records",
        "Records delivered to the worker, by outcome.",
        ("outcome",),
        by_label,
    ),
)

ROUTING_RESTARTS: Final[tuple[Family[int], ...]] = (
    counter(
        "reprise_worker_routing_restarts",
        "Times the app that folds the routing log failed and was restarted.",
        float,
    ),
)

CHECKPOINTS: Final[tuple[Family["RoutingTable"], ...]] = (
    counters(
        "reprise_worker_routing_records",
        "Records of the routing log that were delivered to the worker, by outcome, and checkpoints"
        " that were written.",
        ("outcome",),
        lambda table: by_label(table.counters),
    ),
    gauge(
        "reprise_worker_routing_folded_offset",
        "Offset of the last record of the routing log that the worker has folded; -1 where another"
        " worker folds the log.",
        lambda table: table.folded,
    ),
    gauge(
        "reprise_worker_routing_checkpoint_offset",
        "Offset of the last record of the routing log in a checkpoint; -1 where another worker"
        " folds the log.",
        lambda table: table.kept,
    ),
)
