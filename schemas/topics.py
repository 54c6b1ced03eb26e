"""Apache Kafka as the log: the shape of the topics that every deployment has, and of keys.

    topic                 key                   value                                    cleanup
    PREFIX.registry       publisher (msgpack)   `Registration`, or null: forgotten       compact
    PREFIX.cursors        publisher (msgpack)   `CursorNote` of the bridge               compact
    PREFIX.events         stream key (msgpack)  a record (`schemas.records`)             delete
    PREFIX.table          row key               row (`streams.table.rows.format`), null  compact

Any other topic is declared by the room whose log it is of (`logs.declaration`), and made by whoever
reads or writes it. `events` and `table` have the same number of partitions, and partition p of
`table` is the table of partition p of `events`. `registry` and `cursors` have the same number, too:
the bridge that is given a partition of one owns that partition of the other. Keys are msgpack
arrays of the identity's fields, where they are not text.

Values of `registry` and `cursors` are maps that only ever gain keys. They are of version 1, which
none of them says; one that an older reader would get wrong says `version`, and is skipped and
counted by that reader.
"""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec

from schemas.identities import PublisherKey, StreamKey, Text
from schemas.limits import (
    EVENTS_RETENTION_MS,
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

LARGEST: Final = {"max.message.bytes": str(KAFKA_MESSAGE_MAX_BYTES)}
"""Configs of a topic that takes all that a producer of ours sends."""

# A tombstone may go only after every reader that was reading when it came has seen it.
# Only closed segments are compacted: so they are closed early, by size and by time, and cleaned
# when a seventh of a partition is new.
COMPACTED: Final = {
    "min.cleanable.dirty.ratio": "0.15",
    "delete.retention.ms": str(TOMBSTONE_RETENTION_MS),
    "segment.ms": str(COMPACTED_SEGMENT_MS),
    "segment.bytes": str(COMPACTED_SEGMENT_BYTES),
}
"""Configs of a topic of which the last entry of each key stays."""


class Cleanup(StrEnum):
    """Kafka's `cleanup.policy`."""

    COMPACT = "compact"
    DELETE = "delete"


class TopicShape(NamedTuple):
    """A topic of a log, of any deployment; `KafkaSettings.topic` makes one of a deployment of it.

    Attributes:
        suffix: its name is PREFIX.suffix.
        cleanup, configs: see `TopicSpec`.
        setting: which of Kafka's settings says how many partitions, in place of that; "": none.
    """

    suffix: str
    partitions: int
    cleanup: Cleanup
    configs: dict[str, str]
    setting: str = ""


class TopicSpec(NamedTuple):
    """A topic as it must be: checked where it exists, made so where it does not.

    Attributes:
        setting: see `TopicShape`.
    """

    name: str
    partitions: int
    cleanup: Cleanup
    configs: dict[str, str]
    setting: str = ""


REGISTRY_TOPIC: Final = TopicShape(
    "registry", REGISTRY_PARTITIONS, Cleanup.COMPACT, COMPACTED, "registry_partitions"
)
CURSORS_TOPIC: Final = REGISTRY_TOPIC._replace(suffix="cursors")
EVENTS_TOPIC: Final = TopicShape(
    "events",
    EVENTS_PARTITIONS,
    Cleanup.DELETE,
    {"retention.ms": str(EVENTS_RETENTION_MS)} | LARGEST,
    "events_partitions",
)
TABLE_TOPIC: Final = EVENTS_TOPIC._replace(
    suffix="table", cleanup=Cleanup.COMPACT, configs=COMPACTED | LARGEST
)


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


def encode_instance(instance_id: str) -> bytes:
    """The key of the commands to an instance's workers in `commands`, and of what became of them in
    `results`.
    """
    return instance_id.encode()
