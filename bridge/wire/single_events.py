"""Batches whose events are read one at a time: those of publishers that send JSON, or envelopes.

What is bad costs as little as in `bridge.wire.batch`, and within the same bounds: a bad event its
own content, a batch with more than BATCH_ERRORS_MAX of them, or of more than
SINGLE_EVENTS_BYTES_MAX, all of it.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from bridge.bounds import BATCH_ERRORS_MAX, BATCH_TOLERATED_MAX
from bridge.wire.batch import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.event_ids import EventIds, Numbers
from bridge.wire.known_part import KnownPart
from bridge.wire.opaque import DECODING_ERRORS
from schemas.arrays import ArrayPacker
from schemas.errors import (
    BatchError,
    EventError,
    LeftOutError,
    PassedOverError,
    ToleratedError,
)
from schemas.events import BlockEvent, ClearedBlocks, StoredBlocks
from schemas.limits import (
    BATCH_EVENTS_MAX,
    EVENT_BLOCKS_MAX,
    MIB,
)

SINGLE_EVENTS_BYTES_MAX: Final = 4 * MIB  # of JSON and envelopes, read in Python: 30 ms of its lock


class ReadEvent(NamedTuple):
    """What one event of an engine means.

    Attributes:
        events: in the record's terms.
        event_id: its number in the engine's stream; None where it has none.
        worker: whose stream that is; None where it does not say.
        dropped: what of it could not be used, where that costs no more than the event.
        other_rank: whose event it is, where it is not the publisher's: nothing of it is used.
        start: with which number such a stream begins.
        media, settled: see `DecodedBatch`.
    """

    events: Sequence[BlockEvent]
    event_id: int | None = None
    worker: int | None = None
    dropped: Sequence[EventError] = ()
    other_rank: int | None = None
    start: int = 0
    media: int = 0
    settled: int = 0


EventReader = Callable[[msgspec.Raw, int], ReadEvent]
"""What one encoded event of a batch of that number means; raises EventError."""

BatchReader = Callable[[bytes, int], tuple[float, Sequence[msgspec.Raw]]]
"""A payload's time, Unix seconds or 0 for none, and its encoded events; raises BatchError."""

_json_array: "Final[msgspec.json.Decoder[list[msgspec.Raw]]]" = msgspec.json.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=BATCH_EVENTS_MAX)]
)
_OPENS_ARRAY: Final = b"["
_OPENS_OBJECT: Final = b"{"


def is_json(payload: bytes) -> bool:
    """Whether the payload is JSON where it is anything: no batch in msgpack begins so."""
    return payload[:1] in (_OPENS_ARRAY, _OPENS_OBJECT)


def json_events(payload: bytes) -> list[msgspec.Raw]:
    """The events of a payload that is one of them, or an array of them; each still encoded.

    Raises:
        BatchError: it is neither.
    """
    if payload[:1] == _OPENS_OBJECT:
        return [msgspec.Raw(payload)]
    try:
        return _json_array.decode(payload)
    except DECODING_ERRORS as error:
        detail = f"Expected an event, or an array of events, in JSON: {error}"
        raise BatchError(DropReason.UNDECODABLE, detail) from error


def decode_singly(
    payload: bytes,
    sequence: int,
    packer: ArrayPacker,
    *,
    read_batch: BatchReader,
    read_event: EventReader,
) -> DecodedBatch:
    """The batch of this number. Cost O(bytes), of the interpreter's lock."""
    try:
        _check_size(payload)
        engine_time, encoded = read_batch(payload, sequence)
        return _decode(payload, sequence, packer, engine_time, encoded, read_event)
    except BatchError as error:
        alone = BatchError(error.reason, error.detail)
        return DecodedBatch.unusable(sequence, xxh3_64_intdigest(payload), alone)


def _check_size(payload: bytes) -> None:
    if len(payload) > SINGLE_EVENTS_BYTES_MAX:
        detail = f"Expected at most {SINGLE_EVENTS_BYTES_MAX} bytes, got {len(payload)}"
        raise BatchError(DropReason.MESSAGE_TOO_LARGE, detail)


def _decode(
    payload: bytes,
    sequence: int,
    packer: ArrayPacker,
    engine_time: float,
    encoded: Sequence[msgspec.Raw],
    read_event: EventReader,
) -> DecodedBatch:
    if len(encoded) > BATCH_EVENTS_MAX:
        detail = f"Expected at most {BATCH_EVENTS_MAX} events, got {len(encoded)}"
        raise BatchError(DropReason.TOO_MANY_EVENTS, detail)
    events: list[BlockEvent] = []
    errors: list[EventError] = []
    ids: EventIds | None = None
    bad = tolerated = media = settled = 0
    others: dict[int, PassedOverError] = {}
    for one in encoded:
        try:
            read = read_event(one, sequence)
            if read.event_id is not None:
                number = Numbers(read.event_id, read.event_id)
                is_own = read.other_rank is None
                these = EventIds(number if is_own else None, number, read.worker, read.start)
                ids, began_again = (these, False) if ids is None else ids.then(these)
                events += [ClearedBlocks(sequence=sequence)] if began_again else []
            if read.other_rank is not None:
                errors.append(others.setdefault(read.other_rank, _of_other(read.other_rank)))
                continue
            events += read.events
            media, settled = media | read.media, settled | read.settled
            errors += read.dropped
            tolerated += len(read.dropped)
            if tolerated > BATCH_TOLERATED_MAX:
                detail = f"Expected unknown fields in at most {BATCH_TOLERATED_MAX} events"
                raise BatchError(DropReason.UNDECODABLE, detail)
        except EventError as error:
            errors.append(EventError(error.reason, error.detail))
            bad += 1
            if bad > BATCH_ERRORS_MAX:
                detail = f"Expected at most {BATCH_ERRORS_MAX} bad events; the last: {error}"
                raise BatchError(DropReason.UNDECODABLE, detail) from error
    batch = DecodedBatch.of_events(sequence, payload, engine_time, events)
    batch.dropped.extend(errors)
    ranks = tuple(sorted(others))
    batch = batch._replace(ids=ids, other_ranks=ranks, media=media, settled=settled)
    return batch.in_parts(packer)


def _of_other(rank: int) -> PassedOverError:
    return PassedOverError(DropReason.OTHER_RANK, f"Expected the publisher's rank, got: {rank}")


def with_unknown(read: ReadEvent, unknown: KnownPart) -> ReadEvent:
    """What is made of an event that has unknown fields, see `bridge.wire.batch`."""
    if not unknown.unknown:
        return read
    detail = f"Expected no field that is not known, got: {unknown.unknown[:200]}"
    stores = [event for event in read.events if isinstance(event, StoredBlocks) and event.hashes]
    clears = bool(read.events) and all(isinstance(one, ClearedBlocks) for one in read.events)
    if clears and not unknown.are_empty:  # it may have meant less
        return read._replace(dropped=[EventError(DropReason.UNKNOWN_FIELD, detail)])
    if not stores or unknown.are_empty:
        return read._replace(dropped=[ToleratedError(DropReason.UNKNOWN_FIELD, detail)])
    events = [_named(event) if isinstance(event, StoredBlocks) else event for event in read.events]
    return read._replace(events=events, dropped=[LeftOutError(DropReason.UNKNOWN_FIELD, detail)])


def _named(event: StoredBlocks) -> StoredBlocks:
    """What is kept of a store that cannot be used: its names and its place."""
    return StoredBlocks(
        sequence=event.sequence,
        hashes=event.hashes,
        medium=event.medium,
        shared=event.shared,
        group=event.group,
        spec_kind=event.spec_kind,
        reported=event.reported,
        left_out=DropReason.UNKNOWN_FIELD,
    )


def check_blocks(count: int) -> None:
    """Raises where an event has more blocks than any may.

    Raises:
        EventError: so it is.
    """
    if count > EVENT_BLOCKS_MAX:
        detail = f"Expected at most {EVENT_BLOCKS_MAX} blocks, got {count}"
        raise EventError(DropReason.TOO_MANY_BLOCKS, detail)
