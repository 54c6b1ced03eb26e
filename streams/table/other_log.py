"""Whether a log can be the one that a table was folded from. Pure.

Offsets do not tell: a topic that was deleted and made again may be longer by now than what the
table covers. But the last record of each publisher, and of each bridge, that the table covers is
what the table knows of them last. Where it is not, the log is another one.
"""

from collections.abc import Iterable

import msgspec

from logs.interface import LogEntry
from schemas.codec import decode_log_record, decode_record_events
from schemas.errors import RecordError
from schemas.identities import PublisherKey
from schemas.memory_segments import MemoryRecord
from schemas.positions import PublisherState
from schemas.records import (
    EventsRecord,
    HeartbeatRecord,
    Record,
    RegisteredRecord,
    SequencedRecord,
    UnregisteredRecord,
)
from streams.bounds import BRIDGES_REMEMBERED_MAX
from streams.table.fold import Fold


def contradiction(fold: Fold, entries: Iterable[LogEntry]) -> str:
    """Why these records are not those that the table was folded from, or "".

    Args:
        entries: the last ones that it covers, in their order; none are needed.
    """
    last: dict[object, tuple[int, Record | HeartbeatRecord]] = {}
    for entry in entries:
        try:
            record = decode_log_record(entry.value)
        except RecordError:
            continue
        if isinstance(record, MemoryRecord):
            continue  # another bridge may say the same, or a segment be forgotten
        if isinstance(record, UnregisteredRecord):
            last.pop(record.publisher, None)  # what it ends is forgotten
        last[_key_of(record)] = entry.offset, record
    for offset, record in last.values():
        if why := _contradicts(fold, record):
            return f"the record at offset {offset} is not what was folded there: {why}"
    return ""


def _key_of(record: Record | HeartbeatRecord) -> object:
    match record:
        case HeartbeatRecord():
            return record.bridge
        case RegisteredRecord() | UnregisteredRecord():
            return record.publisher, "registration"
        case _:
            return record.publisher


def _contradicts(fold: Fold, record: Record | HeartbeatRecord) -> str:
    match record:
        case HeartbeatRecord():
            known = fold.bridges.get(record.bridge)
            if known is None:
                forgotten = len(fold.bridges) >= BRIDGES_REMEMBERED_MAX
                return "" if forgotten else f"of bridge `{record.bridge}` nothing is known"
            if known.time != record.bridge_time:
                return (
                    f"a heartbeat of bridge `{record.bridge}` of {record.bridge_time:.3f}, where"
                    f" its last one was of {known.time:.3f}"
                )
        case RegisteredRecord():
            registered = fold.registrations.get(record.publisher)
            if registered is None or registered.registration != record.registration:
                return f"a registration that is not known, of publisher: {record.publisher}"
        case UnregisteredRecord():
            if record.publisher in fold.registrations:
                return f"the end of a registration that is there, of publisher: {record.publisher}"
        case _:
            return _contradicts_cursor(fold, record.publisher, record)
    return ""


def _contradicts_cursor(fold: Fold, publisher: PublisherKey, record: SequencedRecord) -> str:
    state = fold.publishers.get(publisher)
    if state is None:
        return ""  # unregistered since
    told = (
        f"batch {record.incarnation}:{record.last_sequence} where"
        f" {state.incarnation}:{state.sequence} was the last one of publisher: {publisher}"
    )
    if record.last > state.cursor:
        return told if _can_be_folded(record) else ""
    if isinstance(record, EventsRecord) and _is_newer(record, state):
        return f"{told}, and a newer engine time"
    return ""


def _can_be_folded(record: SequencedRecord) -> bool:
    """What cannot was skipped, and moved nothing."""
    if not isinstance(record, EventsRecord):
        return True
    if record.is_unfinished or record.part is not msgspec.UNSET:
        return False
    try:
        decode_record_events(record)
    except RecordError:
        return False
    return True


def _is_newer(record: EventsRecord, state: PublisherState) -> bool:
    """Of a batch that came before, or is the last one."""
    is_same = record.incarnation == state.incarnation and state.begun is None
    return is_same and 0.0 < state.engine_time < record.engine_time
