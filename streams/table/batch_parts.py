"""Batches that are spread over records: what a record has of one, beside what is folded of it."""

import msgspec

from schemas.codec import decode_record_events
from schemas.events import encode_events
from schemas.positions import PartialBatch, PublisherState
from schemas.records import EventsRecord, Part, SequencedRecord


def _is_of(record: EventsRecord, part: Part, state: PublisherState, begun: PartialBatch) -> bool:
    """Whether the part is one of the batch that was begun."""
    is_next = record.first_sequence == state.sequence + 1
    return is_next and (part.total, record.engine_time) == (begun.total, begun.engine_time)


def is_folded(record: SequencedRecord, state: PublisherState) -> bool:
    """Whether the record is a part of the batch that was begun, and nothing of it is new."""
    begun = state.begun
    if begun is None or not isinstance(record, EventsRecord) or record.part is msgspec.UNSET:
        return False
    return _is_of(record, record.part, state, begun) and record.part.end <= begun.events


def goes_on(record: EventsRecord, state: PublisherState, begun: PartialBatch | None) -> bool:
    """Whether the record has what follows on what is folded of its batch. A batch that is missing
    as a whole shows otherwise.
    """
    part = record.part
    if begun is None or record.first_sequence > state.sequence + 1:
        return part is msgspec.UNSET or not part.first
    if part is msgspec.UNSET:
        return False
    return _is_of(record, part, state, begun) and part.first <= begun.events


def events_after(record: EventsRecord, state: PublisherState, begun: PartialBatch | None) -> bytes:
    """The record's events, encoded, without what is folded of the batch that was begun."""
    part = record.part
    if begun is None or part is msgspec.UNSET or part.first >= begun.events:
        return bytes(record.events)
    if not _is_of(record, part, state, begun):
        return bytes(record.events)
    return encode_events(decode_record_events(record)[begun.events - part.first :])
