"""The log record, format version 1: what is appended to the log and read by the topic's consumers.

One record is one msgpack map, tagged by `kind`. All kinds share the envelope:

    kind         str    "events" | "reset" | "gap" | "registered" | "unregistered"
    version      int    1; a reader skips, counts and names records of a newer version
    stream       array  [tenant_id, model_name, block_size, additional_salt, instance_id]
    dp_rank      int    with `stream`, the publisher
    bridge_time  float  Unix seconds when the bridge wrote the record; informs, orders nothing

`events`, `reset` and `gap` also carry the publisher's cursor, which makes replay exact:

    incarnation     int   life of the publisher's process, from 1
    first_sequence  int   first batch that the record speaks of
    last_sequence   int   last one; the record is skipped where the table has folded up to it

A reader must ignore map keys that it does not know: fields are only ever added.
"""

from typing import Final, TypeVar

import msgspec

from schemas.errors import RecordFormatError, RecordVersionError
from schemas.events import BlockEvent, decode_events
from schemas.identities import PublisherKey, StreamKey
from schemas.registration import Registration

RECORD_VERSION: Final = 1


class _Envelope(msgspec.Struct, kw_only=True, frozen=True, tag_field="kind"):
    stream: StreamKey
    dp_rank: int
    bridge_time: float
    version: int = RECORD_VERSION

    @property
    def publisher(self) -> PublisherKey:
        """The publisher that the record speaks of."""
        return PublisherKey(self.stream, self.dp_rank)


class _Sequenced(_Envelope, kw_only=True, frozen=True):
    incarnation: int
    first_sequence: int
    last_sequence: int


class EventsRecord(_Sequenced, kw_only=True, frozen=True, tag="events"):
    """What one publisher sent in one window, in order.

    `events` stays encoded, a msgpack array of `schemas.events.BlockEvent`: the kernel takes it as
    it is. `engine_time` is the last batch's own timestamp, in Unix seconds.
    """

    engine_time: float
    events: msgspec.Raw

    def decoded_events(self) -> list[BlockEvent]:
        """The events as objects.

        Raises:
            msgspec.DecodeError: they are not block events.
        """
        return decode_events(self.events)


class ResetRecord(_Sequenced, kw_only=True, frozen=True, tag="reset"):
    """A new incarnation of the publisher: whatever the one before held is gone.

    `first_sequence` and `last_sequence` are -1: nothing of the new incarnation has been folded yet.
    """

    reason: str = ""


class GapRecord(_Sequenced, kw_only=True, frozen=True, tag="gap"):
    """Batches `first_sequence..last_sequence` are lost for good; the publisher is degraded from
    here.
    """

    reason: str = ""


class RegisteredRecord(_Envelope, kw_only=True, frozen=True, tag="registered"):
    """A publisher to follow, from now on and after every restart."""

    registration: Registration


class UnregisteredRecord(_Envelope, kw_only=True, frozen=True, tag="unregistered"):
    """A publisher to forget, with all its blocks."""


SequencedRecord = EventsRecord | ResetRecord | GapRecord
Record = EventsRecord | ResetRecord | GapRecord | RegisteredRecord | UnregisteredRecord

RecordT = TypeVar("RecordT", bound=Record)


class _Version(msgspec.Struct):
    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode_record(record: Record) -> bytes:
    """The record as it stands in the log."""
    return _encoder.encode(record)


def decode_record(encoded: bytes) -> Record:
    """The inverse of `encode_record`; O(envelope), events stay encoded.

    Raises:
        RecordVersionError: written by a newer Reprise.
        RecordFormatError: not a record.
    """
    try:
        record = _decoder.decode(encoded)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        version = _version_of(encoded)
        if version is not None and version > RECORD_VERSION:
            raise RecordVersionError(version=version, supported=RECORD_VERSION) from error
        raise RecordFormatError(detail=str(error)) from error
    if record.version > RECORD_VERSION:
        raise RecordVersionError(version=record.version, supported=RECORD_VERSION)
    return record


def _version_of(encoded: bytes) -> int | None:
    try:
        return _version_decoder.decode(encoded).version
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
