"""The topics of the routing log, and how it is spoken of.

    PREFIX.routing         what was decided, and what came of it (`schemas.routing_records`), by run
    PREFIX.routing-state   a checkpoint of its fold (`routing.fold.chunks`), by chunk

Each has one partition, since what all replicas decide needs one order. Both are made by whoever
reads or writes them, so that a deployment of an older Reprise goes on.
"""

from typing import Final, NamedTuple, Self

from brokers.broker_settings import KafkaSettings
from logs.checkpoint import FoldedLog
from schemas.limits import EVENTS_RETENTION_MS, GIB
from schemas.topics import COMPACTED, LARGEST, Cleanup, TopicShape, TopicSpec

ROUTING_RETENTION_MS: Final = EVENTS_RETENTION_MS  # what is under way is in a checkpoint by then
ROUTING_PARTITION_BYTES: Final = 16 * GIB  # of the routing log; the oldest goes first

ROUTING_TOPIC: Final = TopicShape(
    "routing",
    1,
    Cleanup.DELETE,
    {
        "retention.ms": str(ROUTING_RETENTION_MS),
        "retention.bytes": str(ROUTING_PARTITION_BYTES),
    }
    | LARGEST,
)
ROUTING_STATE_TOPIC: Final = TopicShape("routing-state", 1, Cleanup.COMPACT, COMPACTED | LARGEST)

ROUTING_PARTITION: Final = 0
"""The only one of either topic."""

ROUTING_LOG: Final = FoldedLog(
    "the routing log",
    staying="what was under way stays so",
    unknown="what came of decisions there",
)


class RoutingTopics(NamedTuple):
    """Both topics of a deployment."""

    log: TopicSpec
    state: TopicSpec

    @classmethod
    def of(cls, settings: KafkaSettings) -> Self:
        """As they must be."""
        return cls(settings.topic(ROUTING_TOPIC), settings.topic(ROUTING_STATE_TOPIC))
