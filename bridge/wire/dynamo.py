"""Dynamo's events, as a worker publishes them on Dynamo's event plane over ZeroMQ, and as JSON.

    event plane   topic, publisher's id (8 bytes, big-endian), sequence (the same), frame
    frame         1 byte version, 1; 4 bytes length, big-endian; an envelope in msgpack
    envelope      {topic, publisher_id, sequence, published_at: ms, payload: bin, ...}
    payload       in msgpack an array of router events, or one of them
    router event  {worker_id, storage_tier, residency_domain, event, state_source?}
    event         {event_id, dp_rank, data: {stored: {parent_hash, start_position, blocks:
                    [{block_hash, tokens_hash, mm_extra_info}]}} | {removed: {block_hashes}}
                    | "cleared"}

    JSON          topic, sequence, and a payload that is an event, a router event, or an array of
                  such

There are no tokens: `tokens_hash` is the XXH3-64 of a block's tokens with seed 1337, which is what
our prefix hash chains (`StoredBlocks.token_hashes`). A LoRA, a cache salt and images enter it, too,
so that such blocks match no plain prompt; which adapter it is the event does not say.

A worker passes all stores of a block on, but of its removals only the last one: so a block that is
stored again is not counted twice (`StoredBlocks.reported`). That is right of an engine that removes
each copy; one that announces again what it holds, and removes it once, leaves a block of which the
worker says nothing more. Nor is one counted twice on `disk` and on `external`, which are one tier
here: where a worker has used both, a removal from one says nothing of the other.

A clear has the tier `device`, whatever the engine cleared: vLLM its GPU, others all that they hold.
Which engine it is the events do not say, nor whether its other tiers say what is gone from them. So
both are as of vLLM (`bridge.publisher.media`).

Of a store without tokens, as vLLM names what it offloads, a worker passes on one without blocks.

Several workers behind one address, as of a broker, cannot be told apart: each worker's own address
is registered. The ranks of one may come in one stream: each is registered, and reads what is its
own. There is no replay.

A publisher numbers what it sends anew, from 1 on; an event that is not a router's has the number of
the engine, which begins with 0.

Source: ai-dynamo-runtime 1.6.1, `KvEventPublisher` with `event_plane="zmq"`; in ai-dynamo/dynamo
`lib/runtime/src/transports/event_plane/`, `lib/kv-router/src/protocols.rs`,
`lib/llm/src/kv_router/publisher/dedup.rs`.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from bridge.wire.batch import DecodedBatch, DecodedRun, read_frames
from bridge.wire.drop_reasons import DropReason
from bridge.wire.event_ids import EventId
from bridge.wire.fields import media_bit, stored_bits, taken_back_bits
from bridge.wire.known_part import KnownPart, known_part
from bridge.wire.opaque import DECODING_ERRORS, either
from bridge.wire.single_events import (
    ReadEvent,
    check_blocks,
    decode_singly,
    json_events,
    with_unknown,
)
from schemas.arrays import ArrayPacker, MessageRun, hash_to_u64
from schemas.errors import BatchError, EventError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from schemas.positions import UNSIZED
from schemas.registration import DYNAMO, Registration

KIND: Final = DYNAMO

PLANE_FRAMES: Final = 4
_VERSION: Final = 1
_HEADER: Final = 5
_FIRST_ID: Final = 1
"""Of a publisher's events."""

_WORKER: Final = "worker"
_MEDIA: Final = {
    "device": Medium.GPU,
    "host_pinned": Medium.CPU,
    "disk": Medium.DISK,
    "external": Medium.DISK,
}

_NAMES: Final = {"host_pinned": "CPU"}
"""What other engines call such a tier; of the others it is the same."""


class _Envelope(msgspec.Struct):
    payload: bytes
    published_at: int = 0


class _Block(msgspec.Struct, forbid_unknown_fields=True):
    block_hash: int
    tokens_hash: int
    mm_extra_info: object = None


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    blocks: list[_Block]
    parent_hash: int | None = None
    start_position: int | None = None


class _Removed(msgspec.Struct, forbid_unknown_fields=True):
    block_hashes: list[int]


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    """One of them."""

    stored: _Stored | None = None
    removed: _Removed | None = None
    cleared: object = msgspec.UNSET


class _Event(msgspec.Struct, forbid_unknown_fields=True):
    data: _Data | Literal["cleared"]
    event_id: EventId | None = None
    dp_rank: int = 0


class _RouterEvent(msgspec.Struct, forbid_unknown_fields=True):
    event: _Event
    worker_id: int | None = None
    storage_tier: str = "device"
    residency_domain: str | None = None
    state_source: object = None


class _Form:
    """How events are encoded."""

    def __init__(
        self, decoder: type[msgspec.json.Decoder[object]] | type[msgspec.msgpack.Decoder[object]]
    ) -> None:
        self._of_router = decoder(_RouterEvent)
        self._of_worker = decoder(_Event)
        self._of_any = decoder(object)

    def read(self, encoded: msgspec.Raw) -> KnownPart:
        """The event of a router, and what is not known of it."""
        try:
            return KnownPart(self._of_router.decode(encoded), "", True)
        except DECODING_ERRORS as error:
            try:
                event = self._of_worker.decode(encoded)
                assert isinstance(event, _Event)
                return KnownPart(_RouterEvent(event), "", True)
            except DECODING_ERRORS as other:
                detail = either(str(error), str(other))
        try:
            value = self._of_any.decode(encoded)
            if isinstance(value, dict) and "event" not in value:
                value = {"event": value}
            return known_part(value, _RouterEvent)
        except DECODING_ERRORS as error:
            raise EventError(DropReason.MALFORMED_EVENT, detail) from error


_JSON: Final = _Form(msgspec.json.Decoder)
_MSGPACK: Final = _Form(msgspec.msgpack.Decoder)
_envelope: Final = msgspec.msgpack.Decoder(_Envelope)
_array: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])


class _Reader:
    """Decodes one publisher's messages; one owner."""

    def __init__(self, registration: Registration, packer: ArrayPacker) -> None:
        self._registration = registration
        self._packer = packer

    def decode(self, frames: Sequence[bytes]) -> DecodedBatch:
        """See `MessageDecoder`."""
        if len(frames) == PLANE_FRAMES:
            topic, _, sequence, frame = frames
            number, payload = read_frames([topic, sequence, frame])
            return decode_singly(
                payload,
                number,
                self._packer,
                read_batch=_read_plane,
                read_event=self._read_msgpack,
            )
        number, payload = read_frames(frames)
        return decode_singly(
            payload, number, self._packer, read_batch=_read_json, read_event=self._read_json
        )

    def decode_run(
        self, messages: list[list[bytes]] | MessageRun, sequence: int, bytes_max: int
    ) -> DecodedRun | None:
        """See `MessageDecoder`: each is decoded alone."""
        return None

    def _read_json(self, encoded: msgspec.Raw, sequence: int) -> ReadEvent:
        return self._read(_JSON.read(encoded), sequence)

    def _read_msgpack(self, encoded: msgspec.Raw, sequence: int) -> ReadEvent:
        return self._read(_MSGPACK.read(encoded), sequence)

    def _read(self, part: KnownPart, sequence: int) -> ReadEvent:
        routed: _RouterEvent = part.value
        rank, event_id = routed.event.dp_rank, routed.event.event_id
        start = 0 if routed.worker_id is None else _FIRST_ID
        if rank != self._registration.dp_rank:
            return ReadEvent((), event_id, routed.worker_id, other_rank=rank, start=start)
        event = self._canonical(routed, sequence)
        name = _NAMES.get(routed.storage_tier, routed.storage_tier)
        read = ReadEvent([event], event_id, routed.worker_id, start=start)
        if isinstance(event, StoredBlocks) and not event.hashes:
            # Blocks without their tokens, which its publisher has kept back.
            read = read._replace(media=UNSIZED if media_bit(name) else 0)
        elif isinstance(event, StoredBlocks):
            read = read._replace(media=media_bit(name) | stored_bits(name, has_tokens=True))
        elif isinstance(event, RemovedBlocks):
            read = read._replace(media=taken_back_bits(name), settled=media_bit(name))
        return with_unknown(read, part)

    def _canonical(self, routed: _RouterEvent, sequence: int) -> BlockEvent:
        event = routed.event
        if routed.residency_domain not in (None, _WORKER):
            detail = f"Expected blocks of a worker, got those of: {routed.residency_domain[:80]}"
            raise EventError(DropReason.UNKNOWN_MEDIUM, detail)
        medium = _MEDIA.get(routed.storage_tier)
        if medium is None:
            detail = f"Expected a storage tier, got: {routed.storage_tier[:80]}"
            raise EventError(DropReason.UNKNOWN_MEDIUM, detail)
        data = event.data
        if not isinstance(data, _Data) or data.cleared is not msgspec.UNSET:
            return ClearedBlocks(sequence=sequence)
        if (data.stored is None) == (data.removed is None):
            detail = "Expected `stored`, `removed` or `cleared`, and one of them"
            raise EventError(DropReason.MALFORMED_EVENT, detail)
        if data.removed is not None:
            hashes = _packed(data.removed.block_hashes, DropReason.BAD_HASHES)
            return RemovedBlocks(sequence=sequence, hashes=hashes, medium=medium)
        assert data.stored is not None
        return self._stored(data.stored, sequence, medium)

    def _stored(self, data: _Stored, sequence: int, medium: Medium) -> StoredBlocks:
        hashes = _packed([block.block_hash for block in data.blocks], DropReason.BAD_HASHES)
        tokens = _packed([block.tokens_hash for block in data.blocks], DropReason.BAD_TOKENS)
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes,
            parent=None if data.parent_hash is None else _u64(data.parent_hash),
            block_size=self._registration.block_size,
            medium=medium,
            lora_name=self._registration.lora_name,
            reported=True,
            token_hashes=tokens,
        )


def _read_json(payload: bytes, sequence: int) -> tuple[float, list[msgspec.Raw]]:
    return 0.0, json_events(payload)


def _read_plane(frame: bytes, sequence: int) -> tuple[float, list[msgspec.Raw]]:
    """See `single_events.BatchReader`."""
    length = len(frame) - _HEADER
    header = bytes([_VERSION]) + max(length, 0).to_bytes(4, "big")
    if frame[:_HEADER] != header:
        detail = f"Expected version 1 and {max(length, 0)} bytes, got: {frame[:_HEADER].hex()}"
        raise BatchError(DropReason.UNDECODABLE, detail)
    try:
        envelope = _envelope.decode(frame[_HEADER:])
        payload = envelope.payload
        is_array = b"\x90" <= payload[:1] < b"\xa0" or payload[:1] in (b"\xdc", b"\xdd")
        events = _array.decode(payload) if is_array else [msgspec.Raw(payload)]
    except DECODING_ERRORS as error:
        detail = f"Expected an envelope with router events: {error}"
        raise BatchError(DropReason.UNDECODABLE, detail) from error
    return envelope.published_at / 1000, events


def _u64(value: int) -> int:
    try:
        return hash_to_u64(value)
    except ValueError as error:
        raise EventError(DropReason.BAD_PARENT, str(error)) from error


def _packed(values: list[int], reason: DropReason) -> bytes:
    """Hashes as (n,) u64 LE."""
    check_blocks(len(values))
    try:
        return b"".join(hash_to_u64(value).to_bytes(8, "little") for value in values)
    except ValueError as error:
        raise EventError(reason, str(error)) from error


def open_source(registration: Registration, packer: ArrayPacker) -> _Reader:
    """The decoder of a Dynamo worker's messages."""
    return _Reader(registration, packer)
