"""A stream worker: what became of the records that it was given, and how often it restarted."""

from collections.abc import Mapping
from typing import Final

from reprise.metrics.family import Family, by_label, counter, counters

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
