"""The log record, format version 1: what is appended to the log and read by the topic's consumers.

One record is one msgpack map, tagged by `kind`. All kinds share the envelope:

    kind         str    "events" | "reset" | "gap" | "registered" | "unregistered"; "heartbeat";
                        "memory"
    version      int    1; a reader skips, counts and logs records of a newer version
    stream       array  [tenant_id, model_name, block_size, additional_salt, instance_id]
    dp_rank      int    with `stream`, the publisher
    bridge_time  float  Unix seconds when the bridge wrote the record; informs, orders nothing

`events`, `reset` and `gap` also carry the publisher's cursor, which makes replay exact:

    incarnation     int   run of the publisher's process, from 1
    first_sequence  int   first batch that the record covers
    last_sequence   int   last one; the record is skipped where the table has folded up to it

An `events` record may have a part of one batch, where that is large: then it has `part`, and its
version is 3, since the batch has been folded only with its last part.

A `heartbeat` is of a bridge and not of a publisher, so it has neither `stream` nor `dp_rank`; its
version is 2, so that a reader of version 1 skips it. Neither has a `memory` record, which is of a
segment in the memory of a host: `schemas.memory_segments`.

What became of batches that did not simply come is in `gap` records and in `incomplete`, `unusable`
and `repaired` of `events`, each where the batches themselves are: so it is folded when they are.

A reader must ignore map keys that it does not know: fields are only ever added.
"""

from typing import Final, NamedTuple, TypeVar

import msgspec

from schemas.engine_facts import EngineFacts
from schemas.identities import Name, PublisherKey, Rank, StreamKey, Text
from schemas.memory_segments import MEMORY_VERSION, MemoryRecord
from schemas.positions import (
    AttentionWindow,
    Cursor,
    Duration,
    EventCount,
    IncarnationNumber,
    MediaNames,
    ProcessMark,
    Proof,
    Seconds,
    SequenceNumber,
)
from schemas.registration import Registration
from schemas.troubles import NO_TROUBLES, Troubles

RECORD_VERSION: Final = 1
HEARTBEAT_VERSION: Final = 2
PART_VERSION: Final = 3
NEWEST_VERSION: Final = MEMORY_VERSION
"""The newest that this Reprise reads."""


class _Envelope(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind"):
    stream: StreamKey
    dp_rank: Rank
    bridge_time: Seconds
    version: int = RECORD_VERSION

    @property
    def publisher(self) -> PublisherKey:
        """The publisher that the record is about."""
        return PublisherKey(self.stream, self.dp_rank)


class _Sequenced(_Envelope, kw_only=True, frozen=True):
    incarnation: IncarnationNumber
    first_sequence: SequenceNumber
    last_sequence: SequenceNumber

    @property
    def last(self) -> Cursor:
        """Of the last batch that it covers, or has a part of."""
        return Cursor(self.incarnation, self.last_sequence)

    @property
    def reached(self) -> Cursor:
        """Of the last batch that is whole with it."""
        return self.last


class Part(NamedTuple):
    """Which events of a batch a record has; the batch is one of many records.

    Attributes:
        first, end: from which to before which, from 0.
        total: how many the batch has.
    """

    first: EventCount
    end: EventCount
    total: EventCount


class UnusableRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive batches of an `events` record that were not usable as they came.

    Attributes:
        first, last: of their numbers.
        reason: why, of the first thing in the first of them that could not be used.
        is_whole: whether nothing of them could be used; they are in the record as empty ones.
    """

    first: SequenceNumber
    last: SequenceNumber
    reason: Text = ""
    is_whole: bool = False


class EventsRecord(_Sequenced, kw_only=True, frozen=True, tag="events"):
    """What one publisher sent in one window, in order.

    `events` stays encoded, a msgpack array of `schemas.events.BlockEvent`: the kernel takes it as
    it is; `schemas.codec.decode_record_events` gives them as objects. `engine_time` is the last
    batch's own timestamp, in Unix seconds. `doubted`, present where it is true: the batches follow
    on the last ones by their numbers, but may be of another incarnation that has come as far, since
    the link was down meanwhile. `incomplete`, present where there is one: the last of these batches
    of which an event could not be used; the publisher is degraded from it on. `unusable`, present
    with it: all of them, with the reasons. `part`, present where there is one: which events of the
    batch these are; the record then is of this batch alone. `repaired`, present where the batches
    had been missing and a replay brought them: why they had been missing. `other_ranks`, present
    where there are some: those of which events came between these batches in the same stream.
    `window`, present where events name attention windows: the largest one as of the last of these
    batches, 0 where they have named none. `media`, present where blocks are, or were, stored by
    names of media that are one tier here: by which, as of the last of these batches.
    """

    engine_time: Seconds
    events: msgspec.Raw
    doubted: bool | msgspec.UnsetType = msgspec.UNSET
    incomplete: SequenceNumber | msgspec.UnsetType = msgspec.UNSET
    part: Part | msgspec.UnsetType = msgspec.UNSET
    repaired: Text | msgspec.UnsetType = msgspec.UNSET
    unusable: tuple[UnusableRun, ...] | msgspec.UnsetType = msgspec.UNSET
    other_ranks: tuple[Rank, ...] | msgspec.UnsetType = msgspec.UNSET
    window: AttentionWindow | msgspec.UnsetType = msgspec.UNSET
    media: MediaNames | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_unfinished(self) -> bool:
        """Whether more of its batch is to come."""
        return self.part is not msgspec.UNSET and self.part.end < self.part.total

    def window_after(self, before: int | None) -> int | None:
        """The largest attention window as of the last whole batch; as before where it says none."""
        return before if self.window is msgspec.UNSET or self.is_unfinished else self.window

    def media_after(self, before: int) -> int:
        """The same of the names of media. Of a batch that is in the log in part, those before and
        its own: its stores are folded already.
        """
        if self.media is msgspec.UNSET:
            return before
        return before | self.media if self.is_unfinished else self.media

    @property
    def heard(self) -> Proof | None:
        """Its last batch, where that came live and is whole."""
        is_live = self.repaired is msgspec.UNSET and not self.is_unfinished
        return Proof(self.last_sequence, self.engine_time) if is_live else None

    @property
    def reached(self) -> Cursor:
        """See `_Sequenced`."""
        last = self.last
        return last._replace(sequence=last.sequence - 1) if self.is_unfinished else last


class ResetRecord(_Sequenced, kw_only=True, frozen=True, tag="reset"):
    """A new incarnation of the publisher: whatever the one before held is gone.

    `first_sequence` and `last_sequence` are -1: nothing of the new incarnation has been folded yet.
    """

    reason: Text = ""


class GapRecord(_Sequenced, kw_only=True, frozen=True, tag="gap"):
    """Batches `first_sequence..last_sequence` are lost for good; the publisher is degraded from
    here.
    """

    reason: Text = ""


class RegisteredRecord(_Envelope, kw_only=True, frozen=True, tag="registered"):
    """A publisher to follow, from now on and after every restart."""

    registration: Registration

    @classmethod
    def of(cls, registration: Registration, now: float) -> "RegisteredRecord":
        """The record of a registration; `now` in Unix seconds."""
        return cls(
            stream=registration.stream,
            dp_rank=registration.dp_rank,
            bridge_time=now,
            registration=registration,
        )


class UnregisteredRecord(_Envelope, kw_only=True, frozen=True, tag="unregistered"):
    """A publisher to forget, with all its blocks.

    `continues`, present where it is true: it is registered anew at once, and its engine is the same
    one. What is not known of other tiers and of pools is not known of it then either.
    """

    continues: bool | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(
        cls, publisher: PublisherKey, now: float, *, continues: bool = False
    ) -> "UnregisteredRecord":
        """The record of a publisher; `now` in Unix seconds."""
        return cls(
            stream=publisher.stream,
            dp_rank=publisher.dp_rank,
            bridge_time=now,
            continues=continues or msgspec.UNSET,
        )


class PublisherReport(msgspec.Struct, frozen=True, array_like=True):
    """What a bridge says of one of its publishers, from its heartbeat on.

    Attributes:
        reason: a `schemas.answer_states.Doubt`; "" where it is confirmed.
        since: when that began, Unix seconds.
        activity: a `schemas.answer_states.Activity`; "" where it is not followed.
        activity_since: when that began, Unix seconds.
        process: of its engine, where its HTTP address says which.
        facts: what that says of its settings, or None.
        clock_s: how far its clock is behind the bridge's, seconds, roughly; 0 where it is not far.
        troubles: what of it the bridge could not use or reach.
    """

    stream: StreamKey
    dp_rank: Rank
    reason: Text = ""
    since: Seconds = 0.0
    activity: Text = ""
    activity_since: Seconds = 0.0
    process: ProcessMark | None = None
    facts: EngineFacts | None = None
    clock_s: Seconds = 0.0
    troubles: Troubles = NO_TROUBLES

    @property
    def publisher(self) -> PublisherKey:
        """The publisher that it is about."""
        return PublisherKey(self.stream, self.dp_rank)


class HeartbeatRecord(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind", tag="heartbeat"):
    """A bridge is there, and the log has all that its confirmed publishers had published not long
    before.

    Attributes:
        bridge: its name, which no other run of a bridge has.
        uptime: of the bridge, seconds; monotonic, where `bridge_time` may be set back.
        bridge_time: as in the other records.
        age: how long before it was written that is, seconds: what they published since may have
            been on its way.
        complete: whether it names all its publishers of this partition, and not only those of which
            it has something new to say.
        reports: of those publishers.
    """

    bridge: Name
    uptime: Seconds
    bridge_time: Seconds
    age: Duration = 0.0
    complete: bool = False
    reports: tuple[PublisherReport, ...] = ()
    version: int = HEARTBEAT_VERSION


SequencedRecord = EventsRecord | ResetRecord | GapRecord
Record = EventsRecord | ResetRecord | GapRecord | RegisteredRecord | UnregisteredRecord
"""Of one publisher."""

BridgeRecord = HeartbeatRecord | MemoryRecord
"""Of a bridge, or of what it sees, and of no publisher."""

LogRecord = Record | BridgeRecord
"""All that a log has."""

RecordT = TypeVar("RecordT", bound=Record)


_encoder = msgspec.msgpack.Encoder()


def encode_record(record: LogRecord) -> bytes:
    """The record as it stands in the log; `schemas.codec.decode_log_record` is the inverse."""
    return _encoder.encode(record)
