"""The logs of all rooms, one line each; and those that a role runs."""

from functools import partial
from typing import Any

from bridge.membership.declaration import REGISTRY
from logs.declaration import LogDeclaration
from reprise import rooms
from routing.log.declaration import ROUTING
from schemas.conditions import DISK_PARTS
from schemas.metric_family import RoleCollector
from storage.rocksdb import Preset
from streams.audit.log import ANSWERS
from streams.log.declaration import EVENTS


def declared_logs() -> tuple[LogDeclaration, ...]:
    """Every log of this installation, in the order in which they are opened and started."""
    lmcache = rooms.lmcache()
    return (
        EVENTS,
        REGISTRY,
        ROUTING,
        ANSWERS,
        *(() if lmcache is None else lmcache.logs),
    )


def disk_parts() -> set[str]:
    """The conditions of the embedded form that failed reads, writes and syncs set."""
    return {*DISK_PARTS, *(one.part for one in declared_logs() if one.path and one.part)}


def log_presets() -> dict[str, Preset]:
    """The databases of the logs, by path in the directory of the data."""
    return {one.path.as_posix(): one.preset for one in declared_logs() if one.path}


class LogRuns(dict[LogDeclaration, Any]):
    """What runs the logs of a role, by declaration; None: nothing of these does."""

    def running(self) -> list[Any]:
        """All that do, in the order in which they are opened and started."""
        return [run for run in self.values() if run is not None]

    def collect(self, collector: RoleCollector) -> None:
        """Adds the metrics of all logs; of one that is not run, names alone."""
        for declared in self:
            collector.add(declared.metrics, partial(self.get, declared))
