"""Segments in shared memory, by which kvcached says what an engine's KV cache takes of its memory.

A segment is a file of 24 bytes that the engine's processes write, of one engine group. Bridges read
them (`bridge.memory`) and write a record where one has changed:

    {"kind": "memory", "version": 5, "host", "segment", "bridge", "change", "inode",
     "total", "used", "preallocated", "pressure", "writer", "observed_at", "changed_at",
     "bridge_time"}

A record is of a segment of a host, and of no publisher: it has neither `stream` nor `dp_rank`. Its
key in a topic is the msgpack array [host, segment], so those of one segment are in order. Which
instance a segment belongs to is said by registrations, when somebody asks.
"""

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from schemas.identities import Name, Text
from schemas.limits import MEMORY_BYTES_MAX, MEMORY_STALE_S
from schemas.positions import Duration, Seconds

# Memory segments of all hosts. What is above goes, first those that are gone, then those not heard
# of for the longest: reprise_fold_records{outcome="segments_forgotten"}.
MEMORY_GONE_S: Final = 3600.0  # that a segment which is gone is remembered, by the records' time
MEMORY_FORGOTTEN_S: Final = 24 * 3600.0  # that a segment is remembered which nobody reads

assert MEMORY_GONE_S <= MEMORY_FORGOTTEN_S, "what is known to be gone goes first"

MEMORY_VERSION: Final = 5
"""A reader of an older version skips the record."""

Inode = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Of the file; another one is another run of its writer."""

ByteCount = Annotated[int, Meta(ge=0, le=MEMORY_BYTES_MAX)]

LimitBytes = Annotated[int, Meta(ge=1, le=MEMORY_BYTES_MAX)]


class SegmentKey(NamedTuple):
    """Which segment: names are unique within one host."""

    host: Name
    segment: Name


class SegmentChange(StrEnum):
    """Why a record was written, as its bridge saw it."""

    APPEARED = "appeared"  # the bridge sees it for the first time: the bridge itself may be new
    CHANGED = (
        "changed"  # used or preallocated, by as much as counts; or what is known of its writer
    )
    LIMIT_CHANGED = "limit_changed"  # the total is another one
    RESTARTED = "restarted"  # it is another file of the same name
    DISAPPEARED = "disappeared"  # the file is gone; the numbers are the last ones
    REPEATED = "repeated"  # nothing of these: it is still there, and still read


class SegmentWriter(StrEnum):
    """What is known of the processes that write a segment."""

    UNKNOWN = ""
    ALIVE = "alive"
    GONE = "gone"  # they were seen, and have ended without removing their segment

    @classmethod
    def of(cls, text: str) -> "SegmentWriter":
        """What a record says; UNKNOWN for a word that is not known here."""
        return next((one for one in cls if one == text), cls.UNKNOWN)


class SegmentStanding(StrEnum):
    """What the numbers of a segment are worth now."""

    LIVE = "live"  # they were read not long ago
    ORPHANED = "orphaned"  # the same, but whoever wrote them has ended: the memory is free
    STALE = "stale"  # nobody has read them for MEMORY_STALE_S
    GONE = "gone"  # the segment was removed


class MemoryRecord(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind", tag="memory"):
    """What a bridge has read of one segment.

    Attributes:
        host: where the segment is, as the bridge was told to call it.
        bridge: which run of a bridge has read it, as in heartbeats.
        change: a `SegmentChange`.
        total: the limit of the KV cache, bytes.
        used: in use, bytes of whole pages.
        preallocated: reserved beside that, bytes of whole pages.
        pressure: (used + preallocated) / total; above 1 where the limit was set below what is used.
        writer: a `SegmentWriter`.
        observed_at: when it was read, Unix seconds of the bridge's clock.
        changed_at: when the bridge first read these numbers, the same.
        bridge_time: when the record was made, the same.
    """

    host: Name
    segment: Name
    bridge: Name
    change: Text
    inode: Inode
    total: LimitBytes
    used: ByteCount
    preallocated: ByteCount
    pressure: Duration
    observed_at: Seconds
    changed_at: Seconds
    bridge_time: Seconds
    writer: Text = SegmentWriter.UNKNOWN.value
    version: int = MEMORY_VERSION

    @property
    def key(self) -> SegmentKey:
        """The segment that it is of."""
        return SegmentKey(self.host, self.segment)


class SegmentState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a table remembers of one segment: its last record.

    Attributes:
        since: when the file was first seen, Unix seconds.
        gone: whether it has disappeared; `observed_at` is when that was seen.
    """

    bridge: Name
    inode: Inode
    total: LimitBytes
    used: ByteCount
    preallocated: ByteCount
    observed_at: Seconds
    changed_at: Seconds
    since: Seconds
    writer: Text = SegmentWriter.UNKNOWN.value
    gone: bool = False

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Total, used, preallocated."""
        return self.total, self.used, self.preallocated

    @property
    def pressure(self) -> float:
        """See `MemoryRecord`."""
        return pressure_of(self.total, self.used, self.preallocated)

    def is_old(self, now: float) -> bool:
        """Whether it is to be forgotten at `now`, Unix seconds."""
        return now - self.observed_at > (MEMORY_GONE_S if self.gone else MEMORY_FORGOTTEN_S)

    def standing(self, now: float) -> SegmentStanding:
        """What its numbers are worth at `now`, Unix seconds by the reader's clock."""
        if self.gone:
            return SegmentStanding.GONE
        if now - self.observed_at > MEMORY_STALE_S:
            return SegmentStanding.STALE
        if self.writer == SegmentWriter.GONE:
            return SegmentStanding.ORPHANED
        return SegmentStanding.LIVE


_encoder = msgspec.msgpack.Encoder()


def pressure_of(total: int, used: int, preallocated: int) -> float:
    """What share of the limit is taken; `total` is above 0."""
    return (used + preallocated) / total


def encode_segment(key: SegmentKey) -> bytes:
    """The key of a segment's records in `events`."""
    return _encoder.encode(key)
