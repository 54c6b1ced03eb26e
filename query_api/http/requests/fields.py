"""Checks of single fields, with Conductor's texts: what a value must be, and how the refusal reads.

The reasons are Conductor's: `missing`, `invalid_type`, `invalid_value`, `out_of_range`,
`unsupported`, `not_array` (JSON only). Two bounds are ours, because Conductor has none: names are
at most `NAME_BYTES_MAX` bytes of UTF-8 (`out_of_range`), arrays at most `QUERY_TOKENS_MAX`
elements (413 `too_many_elements`).
"""

import re
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn, TypeVar

import msgspec

from query_api.bounds import VALUE_SHOWN_CHARS_MAX
from query_api.http.errors import RequestError, shown
from query_api.http.wire import Field, Wire, malformed
from schemas.arrays import Token, to_little_endian, tokens_to_bytes
from schemas.limits import NAME_BYTES_MAX, QUERY_TOKENS_MAX

ELEMENTS_PASSED_MAX: Final = 1024  # of an array, to find the wrong one that the refusal shows

INT64_MAX: Final = 2**63 - 1
_U64_MASK: Final = 2**64 - 1

Raw = bytes | msgspec.Raw
ValueT = TypeVar("ValueT")


class _Decoders:
    """One decoder of each type for one wire form, made once."""

    def __init__(self, wire: Wire) -> None:
        module = msgspec.json if wire is Wire.JSON else msgspec.msgpack
        self.text: Callable[[Raw], str] = module.Decoder(str).decode
        self.optional_text: Callable[[Raw], str | None] = module.Decoder(str | None).decode
        self.integer: Callable[[Raw], int] = module.Decoder(int).decode
        self.optional_integer: Callable[[Raw], int | None] = module.Decoder(int | None).decode
        self.tokens: Callable[[Raw], list[int]] = module.Decoder(list[Token]).decode
        self.hashes: Callable[[Raw], list[int]] = module.Decoder(list[int]).decode
        self.binary: Callable[[Raw], bytes] = msgspec.msgpack.Decoder(bytes).decode


_DECODERS: Final = {wire: _Decoders(wire) for wire in Wire}


def decode(decoder: Callable[[Raw], ValueT], field: Field, wire: Wire, rule: str) -> ValueT:
    """The value, or `invalid_type` with what it "must be".

    Raises:
        RequestError: of another type, or not decodable at all.
    """
    try:
        return decoder(field.raw)
    except msgspec.ValidationError as error:
        message = f"{field.name} must be {rule}"
        is_too_large = "Integer value out of range" in str(error)
        reason = "out_of_range" if is_too_large else "invalid_type"
        raise RequestError(reason, message, field=field.name, more=got(field)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(wire, error, bytes(field.raw), field=field.name) from error


def got(field: Field) -> str:
    """What a refusal in JSON says of the value that came."""
    return f", got: {shown(bytes(memoryview(field.raw)[: 4 * VALUE_SHOWN_CHARS_MAX]))}"


def read_text(field: Field, wire: Wire) -> str:
    """A string, maybe empty."""
    text = decode(_DECODERS[wire].text, field, wire, "a string")
    return bounded_text(field.name, text)


def read_name(field: Field, wire: Wire) -> str:
    """A string that is not empty."""
    text = read_text(field, wire)
    if not text:
        message = f"{field.name} must not be empty"
        raise RequestError("invalid_value", message, field=field.name, more=', got: ""')
    return text


def read_optional_text(field: Field, wire: Wire) -> str:
    """A string or null; null is ""."""
    text = decode(_DECODERS[wire].optional_text, field, wire, "a string or null")
    return bounded_text(field.name, text or "")


def read_integer(field: Field, wire: Wire) -> int:
    """An integer of at most 64 bits; neither a bool nor a float."""
    return decode(_DECODERS[wire].integer, field, wire, "an integer")


def read_optional_integer(field: Field, wire: Wire) -> int | None:
    """An integer or null."""
    return decode(_DECODERS[wire].optional_integer, field, wire, "an integer or null")


def bounded_text(name: str, text: str, most: int = NAME_BYTES_MAX) -> str:
    """The text, of so many bytes of UTF-8 at most.

    Raises:
        RequestError: `out_of_range`.
    """
    if len(text) * 4 > most and len(text.encode()) > most:
        message = f"{name} must be at most {most} bytes"
        more = f" of UTF-8, got {len(text.encode(errors='replace'))}: {shown(text)}"
        raise RequestError("out_of_range", message, field=name, more=more)
    return text


def read_tokens(field: Field, wire: Wire) -> bytes:
    """Tokens as (n,) u32 LE: an array of integers -2**31..2**32-1, in msgpack also a `bin`.

    A `bin` is int32 LE or uint32 LE, which is the same: a negative token is its two's complement.
    Cost O(n); a `bin` makes no object of each token.
    """
    if wire is Wire.MSGPACK and _is_binary(field.raw):
        return _read_binary(field, width=4)
    return tokens_to_bytes(_read_array(_DECODERS[wire].tokens, field, wire))


def read_hashes(field: Field, wire: Wire) -> bytes:
    """Prefix hashes as (n,) u64 LE: 64-bit integers, of any sign; in msgpack also a `bin`."""
    if wire is Wire.MSGPACK and _is_binary(field.raw):
        return _read_binary(field, width=8)
    hashes = _read_array(_DECODERS[wire].hashes, field, wire)
    with suppress(OverflowError):
        return to_little_endian(array("Q", hashes))
    for index, value in enumerate(hashes):
        if not -(2**63) <= value < 2**64:
            _refuse_element(field, index, width=64)
    return to_little_endian(array("Q", [value & _U64_MASK for value in hashes]))


def _read_array(decoder: Callable[[Raw], list[int]], field: Field, wire: Wire) -> list[int]:
    _expect_array(field, wire)
    _check_length(field, wire)
    try:
        values = decoder(field.raw)
    except msgspec.ValidationError as error:
        _refuse_array(field, wire, error)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(wire, error, bytes(field.raw), field=field.name) from error
    _check_count(field.name, len(values))
    return values


def _is_binary(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) in (b"\xc4", b"\xc5", b"\xc6")


def _read_binary(field: Field, *, width: int) -> bytes:
    return checked_binary(field.name, _DECODERS[Wire.MSGPACK].binary(field.raw), width=width)


def checked_binary(name: str, packed: bytes, *, width: int) -> bytes:
    """Tokens or hashes as they are, of so many bytes each.

    Raises:
        RequestError: `invalid_value` where they do not end with the last one; too many.
    """
    if len(packed) % width:
        message = f"{name} bin size must be a multiple of {width}"
        raise RequestError("invalid_value", message, field=name, more=f", got {len(packed)} bytes")
    _check_count(name, len(packed) // width)
    return packed


def _check_count(name: str, count: int) -> None:
    if count > QUERY_TOKENS_MAX:
        message = f"{name} must have at most {QUERY_TOKENS_MAX} elements"
        more = f", got {count}"
        raise RequestError("too_many_elements", message, field=name, status=413, more=more)


def _check_length(field: Field, wire: Wire) -> None:
    """Refuses an array that is too long before anything is built of it. Cost O(bytes), some 0.3 ns
    each.
    """
    raw = memoryview(field.raw)
    if len(raw) <= QUERY_TOKENS_MAX:  # of a byte each, at least
        return
    if wire is Wire.JSON:
        _check_count(field.name, raw.tobytes().count(b",") + 1)  # of an array that is not nested
    elif raw[0] == 0xDD:
        _check_count(field.name, int.from_bytes(raw[1:5], "big"))


def _expect_array(field: Field, wire: Wire) -> None:
    head = bytes(memoryview(field.raw)[:1])
    if wire is Wire.JSON:
        if head != b"[":
            message = f"{field.name} must be an array"
            more = f" of integers{got(field)}"
            raise RequestError("not_array", message, field=field.name, more=more)
    elif not (0x90 <= head[0] <= 0x9F or head in (b"\xdc", b"\xdd")):
        text = f"{field.name} must be a bin or an array"
        raise RequestError("invalid_type", text, field=field.name)


_ELEMENT: Final = re.compile(r"at `\$\[(\d+)\]")


def _refuse_array(field: Field, wire: Wire, error: msgspec.ValidationError) -> NoReturn:
    """Turns the decoder's refusal of an element, which ends in its place "at `$[3]`", into ours."""
    place = _ELEMENT.search(str(error))
    index = int(place[1]) if place else 0
    name = field.name
    if not str(error).startswith("Expected `int`, got"):
        _refuse_element(field, index, width=32 if name == "token_ids" else 64, cause=error)
    kind = "a JSON integer" if wire is Wire.JSON else "an integer"
    message = f"{name} element must be {kind}"
    more = _got_element(field, index)
    raise RequestError("invalid_type", message, field=name, index=index, more=more) from error


def _refuse_element(
    field: Field, index: int, *, width: int = 32, cause: Exception | None = None
) -> NoReturn:
    """A number that does not fit. A token above int32 does, which Conductor refuses."""
    name = field.name
    message = f"{name} element is outside the {'int32' if width == 32 else '64-bit'} range"
    bounds = "-2**31 to 2**32-1" if width == 32 else "-2**63 to 2**64-1"
    more = f", {bounds}{_got_element(field, index)}"
    raise RequestError("out_of_range", message, field=name, index=index, more=more) from cause


_VALUE: Final = re.compile(rb'\s*("(?:[^"\\]|\\.){0,100}"?|[^,\]\s]{0,100})')


def _got_element(field: Field, index: int) -> str:
    """What stands at an index of an array in JSON of which all before it are numbers."""
    raw = bytes(memoryview(field.raw)[: 32 * ELEMENTS_PASSED_MAX])
    start = 0
    for _ in range(index):
        start = raw.find(b",", start + 1)
        if start < 0:
            return f" at index {index}"
    found = _VALUE.match(raw, start + 1)
    return f", got {shown(found[1]) if found else '?'} at index {index}"
