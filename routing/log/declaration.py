"""The routing log, as its room declares it; `routing.log.topics` has its topics."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from logs.declaration import EmbeddedParts, FoldCheckpoint, LogDeclaration, ReplicaParts
from routing.bounds import ROUTING_CHECKPOINT_S
from routing.fold.fold import RoutingFold
from routing.log.embedded import RoutingLog
from routing.log.topics import ROUTING_LOG, ROUTING_STATE_TOPIC, ROUTING_TOPIC
from routing.metrics import ROUTING as ROUTING_METRICS
from schemas.conditions import Part
from schemas.limits import GIB

if TYPE_CHECKING:
    from routing.log.replica import ReplicaRouting

ROUTING_BYTES: Final = 2 * GIB  # of the embedded routing log; the oldest goes first


class _RoutingLog(LogDeclaration):
    def embedded(self, parts: EmbeddedParts) -> RoutingLog:
        return RoutingLog(self, parts)

    def replica(self, parts: ReplicaParts) -> "ReplicaRouting":
        from routing.log.replica import ReplicaRouting

        return ReplicaRouting(parts)


ROUTING: Final = _RoutingLog(
    name=ROUTING_LOG.name,
    topics=(ROUTING_TOPIC, ROUTING_STATE_TOPIC),
    path=Path("routing", "log"),
    lost="what its checkpoint has, is kept",
    bytes_max=ROUTING_BYTES,
    part=Part.ROUTING,
    checkpoint=FoldCheckpoint(
        Path("routing", "checkpoint"), RoutingFold.load, ROUTING_CHECKPOINT_S
    ),
    since="what was decided since",
    metrics=ROUTING_METRICS,
)
