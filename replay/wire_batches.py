"""A capture as messages of vLLM's wire: those of frames as they came, records as batches again.

A record's batches get their own numbers back: a gap in the log is a gap in the numbers, and in a
new incarnation they begin again, as the engine's did (one of which no batch came is shown at the
end by number 0, empty). With `renumber` they rise from 0 without a hole, for who takes any other
number for an error; where an incarnation begins, its first batch then begins with
`AllBlocksCleared`.

Batches that shared a record share its time, too. What a record cannot give back is lost: fields of
events that name no block, and that an event could not be used. What vLLM's wire cannot say is left
out: blocks that were stored by hashes in place of their tokens, as Dynamo's.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from bridge.wire.batch import read_sequence
from bridge.wire.vllm import WINDOWED
from replay.capture.errors import CaptureDamagedError
from replay.capture.format import CapturedPublisher, CaptureKind, MalformedError, decode_frames
from replay.capture.reader import Capture
from schemas.codec import decode_log_record, decode_record_events
from schemas.errors import RecordError, WireError
from schemas.events import KVCR, BlockEvent, RemovedBlocks, StoredBlocks, split_key
from schemas.identities import Medium, PublisherKey
from schemas.records import EventsRecord, ResetRecord
from schemas.registration import service_key

_REMOTE: Final = "REMOTE"
_REUSED: Final = "REUSED"

_encoder: Final = msgspec.msgpack.Encoder()
_keys_decoder: Final = msgspec.msgpack.Decoder(list[Any])


class WireMessage(NamedTuple):
    """One message to publish.

    Attributes:
        publisher: number of the publisher, as `Outgoing.names` has them.
        time: when it came, Unix seconds.
        sequence: its number; None where it has none.
        frames: topic, number, payload.
    """

    publisher: int
    time: float
    sequence: int | None
    frames: list[bytes]


class Outgoing:
    """The messages of a capture; O(capture) to make, since the publishers of records are found.

    Args:
        renumber: number the batches of records from 0 on, without a hole.

    Attributes:
        names: of the publishers, `instance|tenant|rank`, in the order of their first record.
    """

    def __init__(self, capture: Capture, *, renumber: bool = False) -> None:
        self._capture = capture
        self._renumber = renumber
        self._publishers: dict[PublisherKey, int] = {}
        if capture.header.kind is CaptureKind.FRAMES:
            publishers = capture.header.publishers
            self.names = [_name_of(publishers[lane]) for lane in capture.lanes]
            return
        for entry in capture.merged():
            record = _events_of(entry.value)
            if record is not None:
                self._publishers.setdefault(record.publisher, len(self._publishers))
        self.names = [
            service_key(name.stream.tenant_id, name.stream.instance_id, name.dp_rank)
            for name in self._publishers
        ]

    def __iter__(self) -> Iterator[WireMessage]:
        """The messages, in the order in which they came.

        Raises:
            CaptureDamagedError: the capture cannot be read further.
        """
        if self._capture.header.kind is CaptureKind.FRAMES:
            yield from self._frames()
            return
        lanes = [PublisherBatches(name, renumber=self._renumber) for name in self._publishers]
        time = 0.0
        for entry in self._capture.merged():
            try:
                record = decode_log_record(entry.value)
            except RecordError:
                continue  # no fold has it either
            if not isinstance(record, EventsRecord | ResetRecord):
                continue
            number = self._publishers.get(record.publisher)
            if number is None:
                continue  # nothing but resets
            for sequence, payload in lanes[number].batches(record):
                frames = [b"", sequence.to_bytes(8, "big"), payload]
                yield WireMessage(number, entry.time, sequence, frames)
                time = entry.time
        for number, lane in enumerate(lanes):
            for sequence, payload in lane.end(time):
                yield WireMessage(
                    number, time, sequence, [b"", sequence.to_bytes(8, "big"), payload]
                )

    def _frames(self) -> Iterator[WireMessage]:
        for entry in self._capture.merged():
            try:
                frames = decode_frames(entry.value)
            except MalformedError as error:
                detail = f"{error}, number {entry.position} of publisher {entry.lane}"
                raise CaptureDamagedError(str(self._capture.path), 0, detail) from error
            try:
                sequence = read_sequence(frames[:-1])
            except WireError:
                yield WireMessage(entry.lane, entry.time, None, frames)
            else:
                yield WireMessage(entry.lane, entry.time, sequence, frames)


def _name_of(publisher: CapturedPublisher) -> str:
    registration = publisher.registration
    return publisher.endpoint if registration is None else registration.service_key


def _events_of(value: bytes) -> EventsRecord | None:
    try:
        record = decode_log_record(value)
    except RecordError:
        return None
    return record if isinstance(record, EventsRecord) else None


class PublisherBatches:
    """The batches of one publisher's records, and their numbers.

    Args:
        renumber: see `Outgoing`.
        begins: whether its first batch begins with `AllBlocksCleared`, too.
    """

    def __init__(self, publisher: PublisherKey, *, renumber: bool, begins: bool = False) -> None:
        self._rank = publisher.dp_rank
        self._renumber = renumber
        self._incarnation = 0
        self._last = -1  # in the log
        self._next = 0  # of the numbers that are given
        self._begins = begins  # an incarnation, and nothing of it was sent
        self._parts: list[BlockEvent] = []
        self._parts_end = 0

    def batches(self, record: EventsRecord | ResetRecord) -> Iterator[tuple[int, bytes]]:
        """Number and payload of each batch that is whole with this record."""
        if record.incarnation > self._incarnation:
            self._begins |= self._incarnation > 0
            self._incarnation, self._parts_end = record.incarnation, 0
            self._last = -1
        if isinstance(record, ResetRecord) or record.last_sequence <= self._last:
            return
        try:
            events = decode_record_events(record)
        except RecordError:
            return
        if record.part is not msgspec.UNSET:
            events = self._whole(record, events)
            if not events:
                return
        by_sequence: dict[int, list[BlockEvent]] = {}
        for event in events:
            by_sequence.setdefault(event.sequence, []).append(event)
        for sequence in range(max(record.first_sequence, self._last + 1), record.last_sequence + 1):
            yield self._batch(sequence, by_sequence.get(sequence, []), record.engine_time)
        self._last = record.last_sequence

    def lacks(self, record: EventsRecord | ResetRecord) -> bool:
        """Whether batches are missing between those before and this record's."""
        is_next = record.incarnation == self._incarnation and self._last >= 0
        return is_next and record.first_sequence > self._last + 1

    def end(self, time: float) -> Iterator[tuple[int, bytes]]:
        """What shows an incarnation of which no batch came: else its predecessor's blocks stay."""
        if self._begins and self._next:
            yield self._next if self._renumber else 0, self.clear(time)

    def clear(self, time: float) -> bytes:
        """The payload of a batch that says that all is gone, at that time, Unix seconds."""
        self._begins = False
        return _encoder.encode([time, [{"type": "AllBlocksCleared"}], self._rank])

    def _whole(self, record: EventsRecord, events: list[BlockEvent]) -> list[BlockEvent]:
        """All events of a batch with its last part; none before that, or where one is missing."""
        part = record.part
        assert part is not msgspec.UNSET
        if part.first == 0:
            self._parts, self._parts_end = [], 0
        if part.first != self._parts_end:
            return []
        self._parts += events
        self._parts_end = part.end
        if part.end < part.total:
            return []
        whole, self._parts, self._parts_end = self._parts, [], 0
        return whole

    def _batch(self, sequence: int, events: list[BlockEvent], time: float) -> tuple[int, bytes]:
        shaped: list[object] = [_shaped(event) for event in events if _has_a_form(event)]
        if self._begins and (self._renumber or sequence > self._sent_before):
            shaped.insert(0, {"type": "AllBlocksCleared"})
        self._begins = False
        number = self._next if self._renumber else sequence
        self._next = number + 1
        return number, _encoder.encode([time, shaped, self._rank])

    @property
    def _sent_before(self) -> int:
        """The last number that was given: one above it would not show that numbers began again."""
        return self._next - 1


def _has_a_form(event: BlockEvent) -> bool:
    is_by_hash = isinstance(event, StoredBlocks) and (
        event.by_hash or event.aliases or event.token_hashes
    )
    return not is_by_hash


def _shaped(event: BlockEvent) -> dict[str, object]:
    """The event as vLLM sends it since 0.26: a map, without what holds its default."""
    if isinstance(event, StoredBlocks):
        return _stored(event)
    if isinstance(event, RemovedBlocks):
        shaped: dict[str, object] = {
            "type": "BlockRemoved",
            "block_hashes": _numbers("Q", event.hashes),
            "medium": event.medium.value,
        }
        if event.whole or event.left:
            shaped["remaining_copy_counts"] = [event.left] * (len(event.hashes) // 8)
        return shaped | _place(event)
    cleared: dict[str, object] = {"type": "AllBlocksCleared"}
    if event.owned:
        cleared["ownership"] = KVCR
    return cleared if event.medium is None else cleared | {"medium": event.medium.value}


def _stored(event: StoredBlocks) -> dict[str, object]:
    shaped: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": _numbers("Q", event.hashes),
        "parent_block_hash": event.parent,
        "token_ids": _numbers("I", event.tokens),
        "block_size": event.block_size,
        "lora_id": None,
        "medium": event.medium.value,
        "lora_name": event.lora_name or None,
    }
    keys, behind = [], []
    for one in event.extra_keys:
        key, token = split_key(one)
        keys.append(key)
        behind.append(token)
    if any(keys):
        shaped["extra_keys"] = [_keys(key, event.lora_name) for key in keys]
    elif event.tokens and (event.shared or event.medium is not Medium.GPU):
        # Without them such a map says nothing of what else its blocks are of (`bridge.wire.vllm`).
        shaped["extra_keys"] = [None] * (len(event.hashes) // 8)
    if behind and all(behind):
        shaped["token_ids"] = _pairs(_numbers("I", event.tokens), _numbers("I", b"".join(behind)))
    if event.spec_kind:
        shaped["kv_cache_spec_kind"] = event.spec_kind
    if event.spec_kind in WINDOWED and event.last_blocks:
        shaped["kv_cache_spec_sliding_window"] = event.last_blocks * event.block_size + 1
    if event.reported:
        shaped["origin"] = _REUSED
    return shaped | _place(event)


def _pairs(tokens: list[int], behind: list[int]) -> list[tuple[int, int]]:
    """Each token with the next one, and the last one of each block with the one behind that."""
    size = len(tokens) // len(behind)
    seconds = tokens[1:] + behind[-1:]
    seconds[size - 1 :: size] = behind
    return list(zip(tokens, seconds, strict=True))


def _place(event: StoredBlocks | RemovedBlocks) -> dict[str, object]:
    place: dict[str, object] = {}
    if event.group:
        place["group_idx"] = event.group
    if event.shared:
        place["locality"] = _REMOTE
    if event.owned:
        place["ownership"] = KVCR
    return place


def _keys(key: bytes, lora_name: str) -> object:
    """A block's keys, after the LoRA's name, which an engine hashes first."""
    if not key:
        return None
    if not lora_name:
        return msgspec.Raw(key)
    return [lora_name, *_keys_decoder.decode(key)]


def _numbers(code: str, encoded: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(encoded) // struct.calcsize(code)}{code}", encoded))
