"""The two wire forms of one API, chosen per request, and how a body is cut into its fields.

A body becomes fields that are still encoded: nothing is allocated for a value before it is known
to be wanted, so a small hostile body (deep nesting, a length of 2**32) cannot cost much memory. Nor
can a large one cost much time: how many fields it has is bounded before the first is read.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

import msgpack
import msgspec

from query_api.http.errors import RequestError, describe
from schemas.errors import RepriseError
from schemas.limits import BODY_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX

BODY_FIELDS_MAX: Final = 1024  # of a map in msgpack; each costs 1 us of the loop: status="400"
BODY_COLONS_MAX: Final = 32_768  # the same in JSON, where colons of names count, too

assert BODY_COLONS_MAX > 22 * NAME_BYTES_MAX + 2 * LABELS_MAX * LABEL_BYTES_MAX, (
    "a registration whose names are nothing but colons is taken, but for those that it reads"
)

Headers = Iterable[tuple[bytes, bytes]]


class Wire(StrEnum):
    """JSON: the published shape of answers. MSGPACK: Conductor's own (generation G3)."""

    JSON = "application/json"
    MSGPACK = "application/msgpack"


class Field(NamedTuple):
    """One entry of a body's map; `raw` is the encoded value."""

    name: str
    raw: bytes | msgspec.Raw


_CONTENT_TYPE: Final = {wire: wire.value.encode() for wire in Wire}
_JSON_TYPE: Final = b"application/json"
_MSGPACK_TYPE: Final = b"application/msgpack"
_json_encode = msgspec.json.Encoder().encode
_msgpack_encode = msgspec.msgpack.Encoder().encode
_msgpack_fields = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_json_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def body_wire(content_type: bytes, default: Wire) -> Wire | None:
    """The wire form that a request's Content-Type names; None for one that the API does not speak.

    Conductor's rule, a substring match, but for any case; the default where there is none.
    """
    if content_type == _JSON_TYPE:
        return Wire.JSON
    lowered = content_type.lower()
    if _MSGPACK_TYPE in lowered:
        return Wire.MSGPACK
    if not lowered:
        return default
    return Wire.JSON if b"json" in lowered else None


def reply_wire(headers: Headers, default: Wire) -> Wire:
    """The wire form where no body decides it: the one that Accept or Content-Type names, msgpack
    before JSON; else the default.
    """
    named = [value.lower() for name, value in headers if name in (b"accept", b"content-type")]
    if any(_MSGPACK_TYPE in value for value in named):
        return Wire.MSGPACK
    return Wire.JSON if any(b"json" in value for value in named) else default


def header(headers: Headers, wanted: bytes) -> bytes:
    """The value of a request header, by its lower-case name; b"" where it was not sent."""
    for name, value in headers:
        if name == wanted:
            return value
    return b""


def content_type_of(wire: Wire) -> bytes:
    """The Content-Type of an answer."""
    return _CONTENT_TYPE[wire]


def encode(value: object, wire: Wire) -> bytes:
    """One answer's document."""
    return _json_encode(value) if wire is Wire.JSON else _msgpack_encode(value)


def encode_error(error: RepriseError, wire: Wire) -> tuple[int, bytes]:
    """Status and body of the answer to a request that failed."""
    status, envelope = describe(error, in_full=wire is Wire.JSON)
    return status, encode(envelope, wire)


_BYTE: Final = re.compile(r"^JSON is malformed: (.*) \(byte (\d+)\)$")
_OTHER_TYPE: Final = re.compile(r"^Expected `object`, got `(\w+)`$")


def malformed(
    wire: Wire, error: Exception | None = None, body: bytes = b"{}", *, field: str | None = None
) -> RequestError:
    """The body cannot be decoded at all.

    Args:
        body: what was decoded.
        field: whose value that is; None: it is all of the body.
    """
    if wire is Wire.MSGPACK:
        return RequestError("invalid_msgpack", "Invalid msgpack object")
    more = _fault(error, body)
    if more and field is not None:
        more += f" of the value of {field}"
    return RequestError("invalid_json", "Invalid JSON object", more=more)


def _fault(error: Exception | None, body: bytes) -> str:
    """What is wrong with a text in JSON, and at which byte, from 0 on."""
    if isinstance(error, UnicodeDecodeError):
        return (
            f": expected UTF-8, got a byte 0x{error.object[error.start]:02x} at byte {error.start}"
        )
    if isinstance(error, RecursionError):
        return ": its values are nested too deep"
    text = str(error or "")
    if place := _BYTE.match(text):
        at = int(place[2])
        came = body[at : at + 1].decode("ascii", errors="replace")
        return f": {place[1]} at byte {at}" + (f", got: {came}" if came.isprintable() else "")
    if other := _OTHER_TYPE.match(text):
        return f": expected an object, as {{...}}, got {_TYPES.get(other[1], other[1])}"
    if not body.strip():
        return ": the body is empty"
    if "truncated" in text:
        return f": it ends at byte {len(body)}, within a value"
    return ": expected UTF-8, got other bytes" if "utf-8" in text.lower() else ""


_TYPES: Final = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "a number",
    "null": "null",
    "str": "a string",
}


def split_fields(body: bytes, wire: Wire) -> list[Field]:
    """The fields of a body's map, in body order.

    A repeated name comes once in JSON, with its last value, and each time in msgpack. Bytes after
    the first msgpack value are ignored, as Conductor does.

    Raises:
        RequestError: not a map with string keys, or more of them than any body needs.
    """
    if wire is Wire.MSGPACK:
        return _split_plain_msgpack(body) or _split_msgpack(body)
    if (colons := body.count(b":")) > BODY_COLONS_MAX:  # no fewer than keys, and counted at once
        raise _too_many_fields(f"{BODY_COLONS_MAX} colons", colons)
    try:
        fields = _json_fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(wire, error, body) from error
    return [Field(name, raw) for name, raw in fields.items()]


def _too_many_fields(most: str, count: int) -> RequestError:
    return RequestError("too_many_fields", f"expected a body with at most {most}, got {count}")


def _split_plain_msgpack(body: bytes) -> list[Field]:
    """The fields of a map of up to 15, each name once, nothing after it; [] for other bodies."""
    head = body[0] if body else 0
    if not 0x80 <= head <= 0x8F:
        return []
    try:
        fields = _msgpack_fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    if len(fields) != head - 0x80:
        return []
    return [Field(name, raw) for name, raw in fields.items()]


def _split_msgpack(body: bytes) -> list[Field]:
    unpacker = msgpack.Unpacker(
        raw=False, strict_map_key=False, max_buffer_size=BODY_BYTES_MAX + 1, read_size=1024
    )
    try:
        unpacker.feed(body)
        if not is_map(body, Wire.MSGPACK):
            unpacker.skip()
            raise RequestError("invalid_msgpack", "request body must be a msgpack map")
        entries = list(_entries(unpacker, body))
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise malformed(Wire.MSGPACK) from error
    fields = []
    for name, raw in entries:
        if name is None:
            raise RequestError("invalid_msgpack", "map keys must be strings")
        fields.append(Field(name, raw))
    return fields


def _entries(unpacker: msgpack.Unpacker, body: bytes) -> Iterator[tuple[str | None, bytes]]:
    """The key, None where it is no string, and the encoded value of each entry of the map."""
    count = unpacker.read_map_header()
    if count > BODY_FIELDS_MAX:
        if 2 * count > len(body):  # of a byte each, at least: it is cut off
            raise malformed(Wire.MSGPACK)
        raise _too_many_fields(f"{BODY_FIELDS_MAX} fields", count)
    for _ in range(count):
        name = None
        if _is_string(body, unpacker.tell()):
            name = unpacker.unpack()
        else:
            unpacker.skip()
        start = unpacker.tell()
        unpacker.skip()
        yield name, body[start : unpacker.tell()]


def is_map(encoded: bytes, wire: Wire) -> bool:
    """Whether the encoded value is a map, by its first byte."""
    head = encoded[0] if encoded else 0
    if wire is Wire.JSON:
        return head == ord("{")
    return 0x80 <= head <= 0x8F or head in (0xDE, 0xDF)


def _is_string(body: bytes, at: int) -> bool:
    return at < len(body) and (0xA0 <= body[at] <= 0xBF or 0xD9 <= body[at] <= 0xDB)
