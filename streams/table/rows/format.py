r"""Table rows as bytes: what the store keeps and what the table log carries. Format version 1.

    key                                                value
    b"C" + context + generation (u32 BE) + n (u64 BE)  row: changes (`streams.kernel.changes`)
    b"G" + context                                     mark: the complete generation (u32 LE)
    b"P" + publisher                                   `PublisherState` as msgpack
    b"R" + publisher                                   `LiveRegistration` as msgpack
    b"M" + name                                        facts of the table: `covered`, `seed`,
                                                       `unproven` (`fold.UnprovenState` as msgpack),
                                                       `bridge:` + its name, `memory:` + segment
    b"M" + b"ledger:" + publisher                      `ledger.Ledger` as msgpack

`context`, `publisher` and `segment` are the named tuple as a msgpack array behind its length
(u16 BE): no key is a prefix of another, and the rows of one context in one generation stand
together in order.

A value is a header and a body. The header says what it is and what it covers, and guards it:

    byte 0    format version
    byte 1    0 delta or fact, 1 chunk of a dump
    2-3       of a `covered` row in a topic: the offset at which its owner expected to write it, as
              1 + offset mod 65,535 (u16 LE); 0: not said, as in older rows
    4-7       CRC-32 of bytes 8.. (u32 LE)
    8-15      source offset that the row covers (i64 LE)
    16-       body

Bytes 0 and 4-7 mean the same in every version: junk is told from what a newer Reprise wrote.

A context's table is the rows of its marked generation, applied in order of n: first chunks (none in
generation 0), of a full dump and of what changed while it was made, then deltas. The chunks count
together, as of what the last of them covers. Rows of other generations are the remains of an
unfinished or of a finished rewriting, and are ignored. No mark means generation 0.
"""

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import msgspec

from schemas.codec import (
    decode_row_context,
    decode_row_number,
    decode_row_publisher,
    decode_row_segment,
)
from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import ModelContext, PublisherKey
from schemas.limits import OFFSET_MAX
from schemas.memory_segments import SegmentKey

# What comes back from a log, a topic or a disk and is above a bound is refused as it is decoded
# (RecordError, EntryError).
GENERATION_MAX: Final = 2**31 - 1  # of a context's rows; u32 in their keys

T = TypeVar("T")

ROW_FORMAT: Final = 1
CONTEXT, MARK, PUBLISHER, REGISTRATION, FACT = b"C", b"G", b"P", b"R", b"M"
COVERED_KEY: Final = FACT + b"covered"
SEED_KEY: Final = FACT + b"seed"
UNPROVEN_KEY: Final = FACT + b"unproven"
OWNER_KEY: Final = FACT + b"owner"
_SEGMENT: Final = FACT + b"memory:"
_BRIDGE: Final = FACT + b"bridge:"
"""A tombstone of it in a topic marks where a worker took the partition; no row has this key."""
_LEDGER: Final = FACT + b"ledger:"

_HEADER: Final = struct.Struct("<BBHIq")
_COVERS_AT: Final = 8
_EXPECTED_AT: Final = slice(2, 4)
_EXPECTED_MODULUS: Final = 65_535
_LENGTH: Final = struct.Struct(">H")
_PLACE: Final = struct.Struct(">IQ")
_FRAMING_BYTES: Final = 128  # what a row takes beside its body: key, header, the log's own framing
_encoder = msgspec.msgpack.Encoder()


class RowKind(IntEnum):
    """What a row's body is."""

    DELTA = 0
    CHUNK = 1


class Row(NamedTuple):
    """A value without its guard."""

    kind: int
    covers: int
    body: bytes


class RowWrite(NamedTuple):
    """A row to put, or to remove where the value is None."""

    key: bytes
    value: bytes | None


class RowPlace(NamedTuple):
    """Where a context's row stands."""

    context: ModelContext
    generation: int
    n: int


def _named(prefix: bytes, name: tuple[object, ...]) -> bytes:
    encoded = _encoder.encode(name)
    return prefix + _LENGTH.pack(len(encoded)) + encoded


def context_prefix(context: ModelContext) -> bytes:
    """What all rows of a context begin with."""
    return _named(CONTEXT, context)


def row_key(place: RowPlace) -> bytes:
    """The key of a context's row."""
    return context_prefix(place.context) + _PLACE.pack(place.generation, place.n)


def generation_key(context: ModelContext, generation: int) -> bytes:
    """Where the rows of a generation begin; those of the one before end here."""
    return row_key(RowPlace(context, generation, 0))


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with the prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix[-1] < 255 else prefix + b"\xff" * 16


def prefix_of(key: bytes) -> bytes:
    """What all rows of the context begin with to which this row's key belongs."""
    return key[: -_PLACE.size]


def place_of(context: ModelContext, key: bytes) -> RowPlace:
    """Where the row of a known context stands, from its key; raises RowCorruptError."""
    generation, n = _PLACE.unpack(key[-_PLACE.size :])
    if generation > GENERATION_MAX or n > OFFSET_MAX:
        raise RowCorruptError(key=key, detail="its place is beyond any that is written")
    return RowPlace(context, generation, n)


def parse_context_prefix(prefix: bytes) -> ModelContext:
    """The inverse of `context_prefix`; raises RowCorruptError."""
    return _parse(prefix, decode_row_context)


def weight(body: bytes) -> int:
    """What a row takes in a log, in bytes."""
    return len(body) + _FRAMING_BYTES


def mark_key(context: ModelContext) -> bytes:
    """The key of a context's generation mark."""
    return _named(MARK, context)


def publisher_key(prefix: bytes, publisher: PublisherKey) -> bytes:
    """The key of a publisher's state or registration."""
    return _named(prefix, publisher)


def parse_row_key(key: bytes) -> RowPlace:
    """The inverse of `row_key`.

    Raises:
        RowCorruptError: not such a key.
    """
    return place_of(parse_context_prefix(prefix_of(key)), key)


def parse_mark_key(key: bytes) -> ModelContext:
    """The inverse of `mark_key`; raises RowCorruptError."""
    return _parse(key, decode_row_context)


def parse_mark(key: bytes, body: bytes) -> int:
    """The generation in the body of a mark; raises RowCorruptError."""
    return decode_row_number(key=key, body=body, size_bytes=4, maximum=GENERATION_MAX)


def parse_seed(key: bytes, body: bytes) -> int:
    """The seed in its row's body; raises RowCorruptError."""
    return decode_row_number(key=key, body=body, size_bytes=8, maximum=2**64 - 1)


def bridge_key(bridge: str) -> bytes:
    """The key of a bridge's last heartbeat."""
    return _BRIDGE + bridge.encode()


def parse_bridge_key(key: bytes) -> str | None:
    """The bridge of such a key; None for another key.

    Raises:
        RowCorruptError: it is not UTF-8.
    """
    if not key.startswith(_BRIDGE):
        return None
    try:
        return key[len(_BRIDGE) :].decode()
    except UnicodeDecodeError as error:
        raise RowCorruptError(key=key, detail="its key is not UTF-8") from error


def ledger_key(publisher: PublisherKey) -> bytes:
    """The key of a publisher's gap ledger. It is a fact of the table, so that an older Reprise,
    which has no use for it, passes over it.
    """
    return _LEDGER + _named(b"", publisher)


def is_ledger_key(key: bytes) -> bool:
    """Whether the row has a ledger."""
    return key.startswith(_LEDGER)


def parse_ledger_key(key: bytes) -> PublisherKey:
    """The inverse of `ledger_key`; raises RowCorruptError."""
    try:
        return _parse(key[len(_LEDGER) - 1 :], decode_row_publisher)
    except RowCorruptError as error:
        raise RowCorruptError(key=key, detail="its key names no publisher") from error


def segment_key(segment: SegmentKey) -> bytes:
    """The key of what is known of a segment in the memory of a host."""
    return _named(_SEGMENT, segment)


def parse_segment_key(key: bytes) -> SegmentKey | None:
    """The segment of such a key; None for another key.

    Raises:
        RowCorruptError: it names none.
    """
    if not key.startswith(_SEGMENT):
        return None
    name = key[len(_SEGMENT) - 1 :]  # as if its prefix were of one byte
    return _parse(name, lambda _, encoded: decode_row_segment(key, encoded))


def parse_publisher_key(key: bytes) -> PublisherKey:
    """The inverse of `publisher_key`; raises RowCorruptError."""
    return _parse(key, decode_row_publisher)


def _parse(key: bytes, decode: Callable[[bytes, bytes], T]) -> T:
    if len(key) < 3 or _LENGTH.unpack_from(key, 1)[0] != len(key) - 3:
        raise RowCorruptError(key=key, detail="its key has another length than it says")
    return decode(key, key[3:])


def encode_row(kind: RowKind, covers: int, body: bytes) -> bytes:
    """A value; see the module for its bytes."""
    covered = covers.to_bytes(8, "little", signed=True)
    crc = zlib.crc32(body, zlib.crc32(covered))
    return _HEADER.pack(ROW_FORMAT, kind, 0, crc, covers) + body


def covers_of(value: bytes) -> int:
    """What a value says that it covers; it is not checked."""
    return int.from_bytes(value[_COVERS_AT : _HEADER.size], "little", signed=True)


def with_expected_offset(value: bytes, offset: int) -> bytes:
    """The `covered` row with the offset at which it is expected to stand in its topic."""
    expected = (1 + offset % _EXPECTED_MODULUS).to_bytes(2, "little")
    return value[: _EXPECTED_AT.start] + expected + value[_EXPECTED_AT.stop :]


def as_found(key: bytes, value: bytes | None, offset: int) -> bytes | None:
    """The value of a row that stands at an offset of its topic; b"", which no reader takes for a
    row, for a `covered` row that was meant to stand elsewhere: the topic was recreated while its
    flush was under way, which stands there alone now.
    """
    if key != COVERED_KEY or not value or value[0] != ROW_FORMAT:
        return value
    expected = int.from_bytes(value[_EXPECTED_AT], "little")
    return value if expected in (0, 1 + offset % _EXPECTED_MODULUS) else b""


def decode_row(key: bytes, value: bytes) -> Row:
    """The inverse of `encode_row`.

    Raises:
        RowVersionError: written by a newer Reprise.
        RowCorruptError: too short, or not what was written.
    """
    if len(value) < _HEADER.size:
        raise RowCorruptError(key=key, detail=f"got {len(value)} bytes, fewer than a header")
    version, kind, _, crc, covers = _HEADER.unpack_from(value)
    intact = zlib.crc32(memoryview(value)[_COVERS_AT:]) == crc
    if version > ROW_FORMAT and intact:  # else anything at all would stop who must not downgrade
        raise RowVersionError(version=version, supported=ROW_FORMAT)
    if version > ROW_FORMAT or not intact or kind not in (0, 1):
        raise RowCorruptError(key=key, detail="its checksum does not match")
    if not -1 <= covers <= OFFSET_MAX:
        raise RowCorruptError(key=key, detail=f"it covers offset `{covers}`")
    return Row(kind, covers, value[_HEADER.size :])
