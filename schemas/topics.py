"""Apache Kafka as the log: the shape of every topic and of its keys.

    topic                 key                   value                                    cleanup
    PREFIX.registry       publisher (msgpack)   `Registration`, or null: forgotten       compact
    PREFIX.cursors        publisher (msgpack)   `CursorNote` of the bridge               compact
    PREFIX.events         stream key (msgpack)  a record (`schemas.records`)             delete
    PREFIX.table          row key               row (`streams.table.rows.format`), null  compact
    PREFIX.routing        run (as text)         what was decided, and what came of it    delete
                                                (`schemas.routing_records`)
    PREFIX.routing-state  chunk (as text)       a checkpoint of its fold                 compact
                                                (`routing.fold.chunks`)
    PREFIX.answers        run (as text)         answers (`schemas.answer_records`)       delete
    PREFIX.commands       instance (as text)    command (`schemas.command_records`)      delete
    PREFIX.results        instance (as text)    result, closed (likewise)                delete

`answers` is there only where a replica has `--audit`; `commands` and `results` only where a bridge
serves LMCache's workers. All that is said of one command is in one partition of `results`: its
order is what ends a command once. `events` and `table` have the same number of partitions, and
partition p of `table` is the table of partition p of `events`. `registry` and `cursors` have the
same number, too: the bridge that is given a partition of one owns that partition of the other.
`routing` has one, since what all replicas decide needs one order. Keys are msgpack arrays of the
identity's fields, where they are not text.

Values of `registry` and `cursors` are maps that only ever gain keys. They are of version 1, which
none of them says; one that an older reader would get wrong says `version`, and is skipped and
counted by that reader.
"""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from schemas.identities import PublisherKey, StreamKey, Text
from schemas.limits import (
    ANSWERS_PARTITION_BYTES,
    COMMANDS_RETENTION_MS,
    GIB,
    KAFKA_MESSAGE_MAX_BYTES,
    MIB,
    OFFSET_MAX,
    TOMBSTONE_RETENTION_MS,
)
from schemas.positions import (
    AttentionWindow,
    IncarnationNumber,
    MediaNames,
    ProcessMark,
    Proof,
    Seconds,
    SequenceNumber,
)
from schemas.registration import Registration

EVENTS_RETENTION_MS: Final = 7 * 24 * 3600 * 1000  # how far back `as_of` reads the events topic
ANSWERS_RETENTION_MS: Final = EVENTS_RETENTION_MS  # an older answer can be proven no more
ROUTING_RETENTION_MS: Final = EVENTS_RETENTION_MS  # what is under way is in a checkpoint by then
ROUTING_PARTITION_BYTES: Final = 16 * GIB  # of the routing log; the oldest goes first
COMPACTED_SEGMENT_MS: Final = 10 * 60 * 1000  # only closed segments are compacted
COMPACTED_SEGMENT_BYTES: Final = 8 * MIB  # what is being written is never compacted

assert KAFKA_MESSAGE_MAX_BYTES <= COMPACTED_SEGMENT_BYTES, "brokers refuse what no segment holds"
assert COMPACTED_SEGMENT_MS < TOMBSTONE_RETENTION_MS, "a segment is closed before it is cleaned"

TRACEPARENT_HEADER: Final = "traceparent"
"""Of the first message of a batch of `events`: the span that wrote it (`schemas.tracing`)."""

ENTRY_VERSION: Final = 1
"""Of values in `registry` and `cursors`: the newest that is read."""

EVENTS_PARTITIONS: Final = 8
REGISTRY_PARTITIONS: Final = 16
ANSWERS_PARTITIONS: Final = 4
COMMANDS_PARTITIONS: Final = 4

# A tombstone may go only after every reader that was reading when it came has seen it.
# Only closed segments are compacted: so they are closed early, by size and by time, and cleaned
# when a seventh of a partition is new.
_COMPACTED: Final = {
    "min.cleanable.dirty.ratio": "0.15",
    "delete.retention.ms": str(TOMBSTONE_RETENTION_MS),
    "segment.ms": str(COMPACTED_SEGMENT_MS),
    "segment.bytes": str(COMPACTED_SEGMENT_BYTES),
}


class Cleanup(StrEnum):
    """Kafka's `cleanup.policy`."""

    COMPACT = "compact"
    DELETE = "delete"


class TopicSpec(NamedTuple):
    """A topic as it must be: checked where it exists, made so where it does not."""

    name: str
    partitions: int
    cleanup: Cleanup
    configs: dict[str, str]


class RoutingTopics(NamedTuple):
    """The routing log, and checkpoints of its fold: made by whoever reads or writes them, so that
    a deployment of an older Reprise goes on.
    """

    log: TopicSpec
    state: TopicSpec


class Topics(NamedTuple):
    """The four topics that every deployment has."""

    registry: TopicSpec
    cursors: TopicSpec
    events: TopicSpec
    table: TopicSpec


PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Handover(msgspec.Struct, frozen=True, omit_defaults=True):
    """A publisher that passes from one bridge to another while both follow it.

    The keeper writes nothing more of it before a successor says that it has linked; the successor
    writes nothing before the keeper is done, or HANDOVER_WAIT_S have passed.

    Attributes:
        keeper: the bridge that had it, and keeps its link and what comes of it.
        successor: another one that has linked to it; "" for none yet.
        is_done: the keeper has given it up: all that it had received is in the log.
        is_proven: what the log has is known to be this publisher's and of its incarnation; once it
            is done, up to the end, and the keeper's link was up all the time.
        is_idle: nothing has come of it since the successor had said so: there is no batch that both
            have received.
    """

    keeper: Text
    successor: Text = ""
    is_done: bool = False
    is_proven: bool = False
    is_idle: bool = False


class CursorNote(msgspec.Struct, frozen=True, kw_only=True):
    """A stored cursor: where the publisher stood then; the events topic has what came after.

    Attributes:
        incarnation, sequence: the publisher's cursor.
        partition, offset: the record in the events topic that holds that batch; read on from here.
        engine_time: of the batch at the cursor, 0 where it is not known.
        registered: fingerprint of the registration in the log; 0: none.
        registered_at: the offset of the record that says so; 0 where it is not known.
        proof: see `PublisherState`.
        begun: the engine time of the batch behind the cursor, where the log has a part of it.
        process: of its engine, where its HTTP address says which.
        heard: see `PublisherState`.
        handover: where it is given to another bridge, or may be.
        window, media: see `PublisherState`.
    """

    incarnation: IncarnationNumber
    sequence: SequenceNumber
    partition: PartitionNumber
    offset: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
    engine_time: Seconds = 0.0
    registered: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    proof: Proof | None = None
    begun: Seconds | None = None
    process: ProcessMark | None = None
    heard: Proof | None = None
    registered_at: Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)] = 0
    handover: Handover | None = None
    window: AttentionWindow | None = None
    media: MediaNames = 0


_encoder = msgspec.msgpack.Encoder()


def encode_publisher(publisher: PublisherKey) -> bytes:
    """The key of a publisher in `registry` and `cursors`, and of a lane in a spool."""
    return _encoder.encode(publisher)


def encode_registration(registration: Registration) -> bytes:
    """The value of an entry of `registry`."""
    return _encoder.encode(registration)


def encode_note(note: CursorNote) -> bytes:
    """The value of an entry of `cursors`."""
    return _encoder.encode(note)


def encode_stream(stream: StreamKey) -> bytes:
    """The key of a stream in `events`."""
    return _encoder.encode(stream)


def encode_run(run: int) -> bytes:
    """The key of one run of a replica, in `answers` and in `routing`."""
    return b"%d" % run


def answers_topic(prefix: str) -> TopicSpec:
    """The topic of answers of a deployment. Readers take it with any number of partitions."""
    return TopicSpec(
        f"{prefix}.answers",
        ANSWERS_PARTITIONS,
        Cleanup.DELETE,
        {
            "retention.ms": str(ANSWERS_RETENTION_MS),
            "retention.bytes": str(ANSWERS_PARTITION_BYTES),
            "max.message.bytes": str(KAFKA_MESSAGE_MAX_BYTES),
        },
    )


def routing_topics(prefix: str) -> RoutingTopics:
    """The topics of routing of a deployment."""
    largest = {"max.message.bytes": str(KAFKA_MESSAGE_MAX_BYTES)}
    retained = {
        "retention.ms": str(ROUTING_RETENTION_MS),
        "retention.bytes": str(ROUTING_PARTITION_BYTES),
    }
    return RoutingTopics(
        TopicSpec(f"{prefix}.routing", 1, Cleanup.DELETE, retained | largest),
        TopicSpec(f"{prefix}.routing-state", 1, Cleanup.COMPACT, _COMPACTED | largest),
    )


def encode_instance(instance_id: str) -> bytes:
    """The key of the commands to an instance's workers in `commands`, and of what became of them in
    `results`.
    """
    return instance_id.encode()


def commands_topics(prefix: str) -> tuple[TopicSpec, TopicSpec]:
    """The topics of commands and of their results. Readers take them with any number of
    partitions.
    """
    configs = {
        "retention.ms": str(COMMANDS_RETENTION_MS),
        "max.message.bytes": str(KAFKA_MESSAGE_MAX_BYTES),
    }
    return (
        TopicSpec(f"{prefix}.commands", COMMANDS_PARTITIONS, Cleanup.DELETE, configs),
        TopicSpec(f"{prefix}.results", COMMANDS_PARTITIONS, Cleanup.DELETE, configs),
    )


def topics_of(prefix: str, *, events_partitions: int, registry_partitions: int) -> Topics:
    """The topics of a deployment, as they must be."""

    def name(suffix: str) -> str:
        return f"{prefix}.{suffix}"

    return Topics(
        TopicSpec(name("registry"), registry_partitions, Cleanup.COMPACT, _COMPACTED),
        TopicSpec(name("cursors"), registry_partitions, Cleanup.COMPACT, _COMPACTED),
        TopicSpec(
            name("events"),
            events_partitions,
            Cleanup.DELETE,
            {
                "retention.ms": str(EVENTS_RETENTION_MS),
                "max.message.bytes": str(KAFKA_MESSAGE_MAX_BYTES),
            },
        ),
        TopicSpec(
            name("table"),
            events_partitions,
            Cleanup.COMPACT,
            _COMPACTED | {"max.message.bytes": str(KAFKA_MESSAGE_MAX_BYTES)},
        ),
    )
