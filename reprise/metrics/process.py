"""Metrics of every role: readiness, conditions, internal errors, and the process itself."""

from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from schemas.conditions import Conditions
from schemas.metric_family import Family, counter, gauge, gauges
from storage.rocksdb import memory_by_database


class Role(NamedTuple):
    """What every role has.

    Attributes:
        conditions: what is wrong with it now.
        internal_errors: how many unexpected errors it had.
    """

    conditions: Conditions
    internal_errors: Callable[[], int]


PROCESS: Final[tuple[Family[Role], ...]] = (
    gauge(
        "reprise_ready",
        "1 while the role can do its work: no condition of level `unavailable`.",
        lambda role: role.conditions.ready,
    ),
    gauges(
        "reprise_condition",
        "1 for each condition that the role is in now.",
        ("part", "reason", "level"),
        lambda role: [
            ((condition.part, condition.reason, condition.level), 1.0)
            for condition in role.conditions.all()
        ],
    ),
    gauges(
        "reprise_database_memory_bytes",
        "Memory of databases, by kind: writes that are in no data file yet, and what was read.",
        ("database",),
        lambda role: [
            ((name,), float(size)) for name, size in sorted(memory_by_database().items())
        ],
    ),
    counter(
        "reprise_internal_errors",
        "Unexpected internal errors (see the log).",
        lambda role: role.internal_errors(),
    ),
)


def process_registry() -> CollectorRegistry:
    """A registry with the figures of the process."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry
