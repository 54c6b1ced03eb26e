"""Decoders of everything that comes back from a log, a topic or a disk.

What is decoded here was written by any version of Reprise, by something else, or by a failing disk.
So a decoder raises one of a closed set and nothing else, whatever the bytes are:

    a record of the log, and its events                        RecordError
    a record of the log of answers, or of that of commands     RecordError
    an entry of `registry` or `cursors`, a lane of a spool     EntryError
    a row of a table: its key's name, its body                 RowCorruptError
    the version of a state or a small file                     NewerVersionError

and what it returns holds no value that something behind it cannot take: the types of `schemas` say
the ranges of names, numbers and times (`Annotated`), and msgspec checks them as it decodes.

Pure. Errors leave out where the bytes stand: the reader knows, logs and counts them, and goes on.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from struct import error as struct_error
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec

from schemas.answer_records import ANSWERS_VERSION, AnswersRecord, GivenAnswer
from schemas.command_records import COMMANDS_VERSION, AnyCommandRecord, CommandRecord
from schemas.errors import (
    EntryError,
    EventsFormatError,
    NewerVersionError,
    RecordFormatError,
    RecordVersionError,
    RowCorruptError,
)
from schemas.events import BlockEvent, decode_events
from schemas.identities import ModelContext, PublisherKey
from schemas.limits import ERROR_DETAIL_CHARS_MAX
from schemas.memory_segments import SegmentKey
from schemas.records import (
    NEWEST_VERSION,
    BridgeRecord,
    EventsRecord,
    GapRecord,
    LogRecord,
    Record,
    RegisteredRecord,
)
from schemas.registration import Registration
from schemas.routing_records import ROUTING_VERSION, RoutingRecord
from schemas.topics import ENTRY_VERSION, CursorNote

UNUSABLE: Final = (ValueError, TypeError, OverflowError, RecursionError, struct_error)
"""What msgspec and `struct` raise on bytes that are not what they should be. Of ValueError's family
are all of msgspec's errors and UnicodeDecodeError, which is none of msgspec's."""

MALFORMED_KEY: Final = "malformed_key"
MALFORMED_VALUE: Final = "malformed_value"
KEY_MISMATCH: Final = "key_mismatch"
NEWER_VERSION: Final = "newer_version"
TOO_MANY: Final = "too_many"
"""Reasons of an EntryError; the last one is a reader's own, which has no room for one more."""

T = TypeVar("T")
SourceT = TypeVar("SourceT", bytes, bytes | msgspec.Raw)


class _Version(msgspec.Struct):
    version: int


class _EntryVersion(msgspec.Struct):
    version: int = 1


class _StateVersion(msgspec.Struct, array_like=True):
    version: int


_record: msgspec.msgpack.Decoder[LogRecord] = msgspec.msgpack.Decoder(LogRecord)
_version = msgspec.msgpack.Decoder(_Version)
_entry_version = msgspec.msgpack.Decoder(_EntryVersion)
_file_version = msgspec.json.Decoder(_EntryVersion)
_state_version = msgspec.msgpack.Decoder(_StateVersion)
_answers_record = msgspec.msgpack.Decoder(AnswersRecord)
_answers: msgspec.msgpack.Decoder[list[GivenAnswer]] = msgspec.msgpack.Decoder(list[GivenAnswer])
_routing: msgspec.msgpack.Decoder[RoutingRecord] = msgspec.msgpack.Decoder(RoutingRecord)
_command_record: msgspec.msgpack.Decoder[AnyCommandRecord] = msgspec.msgpack.Decoder(
    AnyCommandRecord
)
_publisher = msgspec.msgpack.Decoder(PublisherKey)
_context = msgspec.msgpack.Decoder(ModelContext)
_segment = msgspec.msgpack.Decoder(SegmentKey)
_registration = msgspec.msgpack.Decoder(Registration)
_note = msgspec.msgpack.Decoder(CursorNote)


def _decode(
    decode: Callable[[SourceT], T], encoded: SourceT, error: Callable[[str], Exception]
) -> T:
    """What `decode` makes of the bytes; raises what `error` makes of the reason why not."""
    try:
        return decode(encoded)
    except UNUSABLE as cause:
        raise error(detail_of(cause)) from cause


def detail_of(error: BaseException) -> str:
    """The error's text, which may repeat what it was given: shortened, on one line."""
    text = str(error)[:ERROR_DETAIL_CHARS_MAX]
    return "".join(char if char.isprintable() else "?" for char in text)


# Records


def decode_log_record(encoded: bytes) -> LogRecord:
    """The inverse of `schemas.records.encode_record`; O(envelope), events stay encoded.

    Raises:
        RecordVersionError: written by a newer Reprise.
        RecordFormatError: not a record.
    """
    try:
        record = _record.decode(encoded)
    except UNUSABLE as error:
        version = _version_of(encoded)
        if version is not None and version > NEWEST_VERSION:
            raise RecordVersionError(version=version, supported=NEWEST_VERSION) from error
        raise RecordFormatError(detail=detail_of(error)) from error
    if record.version > NEWEST_VERSION:
        raise RecordVersionError(version=record.version, supported=NEWEST_VERSION)
    _check_record(record)
    return record


def decode_answers(encoded: bytes) -> tuple[AnswersRecord, list[GivenAnswer]]:
    """A record of the log of answers, and its answers. Cost O(bytes).

    Raises:
        RecordVersionError: written by a newer Reprise.
        RecordFormatError: not such a record.
    """
    record = decode_versioned(_answers_record.decode, encoded, ANSWERS_VERSION)
    answers = _decode(
        _answers.decode, record.answers, lambda detail: RecordFormatError(detail=detail)
    )
    return record, answers


def decode_routing(encoded: bytes) -> RoutingRecord:
    """The inverse of `schemas.routing_records.encode_routing`. Cost O(bytes).

    Raises:
        RecordVersionError: written by a newer Reprise.
        RecordFormatError: not such a record.
    """
    return decode_versioned(_routing.decode, encoded, ROUTING_VERSION)


def decode_command(encoded: bytes) -> AnyCommandRecord:
    """A record of the log of commands. Cost O(bytes).

    Raises:
        RecordVersionError: written by a newer Reprise.
        RecordFormatError: not such a record.
    """
    record = decode_versioned(_command_record.decode, encoded, COMMANDS_VERSION)
    if isinstance(record, CommandRecord):
        ranks = {one.worker_id for one in record.workers}
        if len(ranks) < len(record.workers) or len(record.tokens or b"") % 4:
            raise RecordFormatError(detail="a worker twice, or a part of a token")
    return record


class _Versioned(Protocol):
    @property
    def version(self) -> int: ...


VersionedT = TypeVar("VersionedT", bound=_Versioned)


def decode_versioned(
    decode: Callable[[bytes], VersionedT], encoded: bytes, supported: int
) -> VersionedT:
    """A record of a log that a room declares, by its decoder and the newest version that is read.

    Raises:
        RecordVersionError: written by a newer Reprise.
        RecordFormatError: not such a record.
    """
    try:
        record = decode(encoded)
    except UNUSABLE as error:
        version = _version_of(encoded)
        if version is None or version <= supported:
            raise RecordFormatError(detail=detail_of(error)) from error
        raise RecordVersionError(version=version, supported=supported) from error
    if record.version > supported:
        raise RecordVersionError(version=record.version, supported=supported)
    return record


def decode_record(encoded: bytes) -> Record:
    """As `decode_log_record`, where every record is of a publisher.

    Raises:
        RecordError: see there; a RecordFormatError also for one of no publisher.
    """
    record = decode_log_record(encoded)
    if isinstance(record, BridgeRecord):
        kind = record.__struct_config__.tag
        raise RecordFormatError(detail=f"of kind `{kind}`, which is of no publisher")
    return record


def _version_of(encoded: bytes) -> int | None:
    try:
        return _version.decode(encoded).version
    except UNUSABLE:
        return None


def _check_record(record: LogRecord) -> None:
    """What one field says of another."""
    if isinstance(record, EventsRecord | GapRecord):
        first, last = record.first_sequence, record.last_sequence
        if not 0 <= first <= last:
            raise RecordFormatError(detail=f"sequences `{first}` to `{last}`")
        if isinstance(record, EventsRecord) and record.part is not msgspec.UNSET:
            part = record.part
            if first != last or not part.first < part.end <= part.total:
                detail = f"events `{part.first}` to `{part.end}` of `{part.total}` of a batch"
                raise RecordFormatError(detail=f"{detail}, sequences `{first}` to `{last}`")
    elif isinstance(record, RegisteredRecord) and record.registration.publisher != record.publisher:
        raise RecordFormatError(detail="the registration of a publisher other than its own")


def decode_record_events(record: EventsRecord) -> list[BlockEvent]:
    """The events of a record as objects; O(events).

    Raises:
        EventsFormatError: they are not block events.
    """
    return _decode(decode_events, record.events, EventsFormatError)


# Entries


class RegistryEntry(NamedTuple):
    """An entry of `registry`; None: the publisher is forgotten."""

    publisher: PublisherKey
    registration: Registration | None


class CursorEntry(NamedTuple):
    """An entry of `cursors`."""

    publisher: PublisherKey
    note: CursorNote


def decode_publisher(key: bytes | None) -> PublisherKey:
    """The inverse of `schemas.topics.encode_publisher`.

    Raises:
        EntryError: not such a key.
    """
    return _decode(
        _publisher.decode, key or b"", lambda detail: EntryError(MALFORMED_KEY, detail=detail)
    )


def decode_registry_entry(key: bytes | None, value: bytes | None) -> RegistryEntry | None:
    """An entry of `registry`. None for one that removes what could not be read either.

    Raises:
        EntryError: it says nothing of any publisher, or nothing usable of the one it names.
    """
    try:
        publisher = decode_publisher(key)
    except EntryError:
        if value is None:
            return None
        raise
    if value is None:
        return RegistryEntry(publisher, None)
    registration = _decode_value(_registration.decode, publisher, value)
    if registration.publisher != publisher:
        detail = "the registration of a publisher other than its key's"
        raise EntryError(KEY_MISMATCH, detail=detail, publisher=publisher)
    return RegistryEntry(publisher, registration)


def decode_cursor_entry(key: bytes | None, value: bytes | None) -> CursorEntry:
    """An entry of `cursors`.

    Raises:
        EntryError: it says nothing of any publisher, or nothing usable of the one it names.
    """
    publisher = decode_publisher(key)
    return CursorEntry(publisher, _decode_value(_note.decode, publisher, value or b""))


def _decode_value(decode: Callable[[bytes], T], publisher: PublisherKey, value: bytes) -> T:
    # Before the rest, of which a newer version may have made anything.
    with suppress(*UNUSABLE):
        version = _entry_version.decode(value).version
        if version > ENTRY_VERSION:
            detail = (
                f"version `{version}`, where `{ENTRY_VERSION}` or older was expected: a newer"
                " Reprise wrote it, upgrade this one"
            )
            raise EntryError(NEWER_VERSION, detail=detail, publisher=publisher)
    return _decode(
        decode,
        value,
        lambda detail: EntryError(MALFORMED_VALUE, detail=detail, publisher=publisher),
    )


# States


def check_state_version(encoded: bytes, what: str, supported: int) -> None:
    """Of a state that is a msgpack array which begins with its version: that is read before the
    rest, of which a newer one may have made anything. What cannot be read is passed over, for
    whoever reads the rest finds that.

    Args:
        encoded: the state.
        what: of people, as `a checkpoint of routing`.
        supported: the newest version that is read.

    Raises:
        NewerVersionError: it is of a newer one.
    """
    try:
        version = _state_version.decode(encoded).version
    except UNUSABLE:
        return
    if version > supported:
        raise NewerVersionError(what, version=version, supported=supported)


def check_file_version(content: bytes, what: str, supported: int, path: PurePath) -> None:
    """Of a file that is a JSON map, which says `version` from 2 on; likewise.

    Args:
        what: of people, as `a note of lost records`.
        supported: the newest version that is read.

    Raises:
        NewerVersionError: it is of a newer one.
    """
    try:
        version = _file_version.decode(content).version
    except UNUSABLE:
        return
    if version > supported:
        raise NewerVersionError(what, version=version, supported=supported, where=str(path))


# Rows


def decode_row_context(key: bytes, encoded: bytes) -> ModelContext:
    """The context in a row's key.

    Raises:
        RowCorruptError: there is none.
    """
    return _decode(_context.decode, encoded, _row_error(key, "its key does not decode"))


def decode_row_publisher(key: bytes, encoded: bytes) -> PublisherKey:
    """The publisher in a row's key.

    Raises:
        RowCorruptError: there is none.
    """
    return _decode(_publisher.decode, encoded, _row_error(key, "its key does not decode"))


def decode_row_segment(key: bytes, encoded: bytes) -> SegmentKey:
    """The segment in a row's key.

    Raises:
        RowCorruptError: there is none.
    """
    return _decode(_segment.decode, encoded, _row_error(key, "its key does not decode"))


def decode_row_body(decoder: msgspec.msgpack.Decoder[T], *, key: bytes, body: bytes) -> T:
    """The body of a row that holds one object.

    Raises:
        RowCorruptError: it is none of the decoder's kind.
    """
    return _decode(decoder.decode, body, _row_error(key, "its body does not decode"))


def decode_row_number(*, key: bytes, body: bytes, size_bytes: int, maximum: int) -> int:
    """The body of a row that is one unsigned number, little-endian.

    Raises:
        RowCorruptError: it has another size, or is above the maximum.
    """
    number = int.from_bytes(body, "little") if len(body) == size_bytes else -1
    if not 0 <= number <= maximum:
        raise RowCorruptError(key=key, detail=f"its body is no number of {size_bytes} bytes")
    return number


def _row_error(key: bytes, what: str) -> Callable[[str], RowCorruptError]:
    return lambda detail: RowCorruptError(key=key, detail=f"{what}: {detail}")
