"""Batches and events of which little is known: what is in them stays encoded."""

from functools import cache
from typing import Annotated, Final

import msgspec

from bridge.bounds import EVENT_FIELDS_MAX
from bridge.wire.drop_reasons import DropReason
from schemas.errors import BatchError

_FIXARRAY: Final = 0x9
_ARRAY_LENGTH_BYTES: Final = {0xDC: 2, 0xDD: 4}  # array 16, array 32
DECODING_ERRORS: Final = (ValueError, RecursionError)  # msgspec's errors are ValueErrors


class OpaqueArrayBatch(msgspec.Struct, array_like=True):
    """A batch as an array."""

    ts: msgspec.Raw
    events: msgspec.Raw
    data_parallel_rank: msgspec.Raw = msgspec.Raw(b"\xc0")


class OpaqueMapBatch(msgspec.Struct):
    """A batch as a map."""

    ts: msgspec.Raw
    events: msgspec.Raw
    data_parallel_rank: msgspec.Raw = msgspec.Raw(b"\xc0")


_EMPTY: Final = frozenset({b"\xc0", b"\xc2", b"\xa0", b"\x80", b"\x90", b"\xc4\x00"})
"""null, false, "", {}, [] and no bytes."""

_array_batch: Final = msgspec.msgpack.Decoder(OpaqueArrayBatch)
_map_batch: Final = msgspec.msgpack.Decoder(OpaqueMapBatch)
_string: Final = msgspec.msgpack.Decoder(str)
array_elements: Final = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=EVENT_FIELDS_MAX)]
)
"""Of an event as an array."""


@cache
def _map_tag(tag_field: str) -> msgspec.msgpack.Decoder[msgspec.Struct]:
    return msgspec.msgpack.Decoder(msgspec.defstruct("_Tag", [(tag_field, str)]))


def either(*details: str) -> str:
    """What each form had against it; once where that is the same."""
    return "; or ".join(dict.fromkeys(details))


def read_opaque(payload: bytes) -> OpaqueArrayBatch | OpaqueMapBatch:
    """The batch in either form.

    Raises:
        BatchError: it has none.
    """
    try:
        return _array_batch.decode(payload)
    except DECODING_ERRORS as error:
        try:
            return _map_batch.decode(payload)
        except DECODING_ERRORS as map_error:
            detail = f"Expected a batch of events: {either(str(error), str(map_error))}"
            raise BatchError(DropReason.UNDECODABLE, detail) from error


def array_length(encoded: msgspec.Raw) -> int:
    """How many elements an encoded array has, from its header.

    Raises:
        BatchError: it is no array.
    """
    content = memoryview(encoded)
    first = content[0]
    if first >> 4 == _FIXARRAY:
        return first & 0x0F
    size_bytes = _ARRAY_LENGTH_BYTES.get(first)
    if size_bytes is None:
        raise BatchError(DropReason.UNDECODABLE, "Expected an array of events")
    return int.from_bytes(content[1 : 1 + size_bytes], "big")


def is_empty(encoded: msgspec.Raw) -> bool:
    """Whether a value says nothing: null, false, empty, or an array of these."""
    if bytes(encoded) in _EMPTY:
        return True
    try:
        return all(bytes(one) in _EMPTY for one in array_elements.decode(encoded))
    except DECODING_ERRORS:
        return False


def tag_of(encoded: msgspec.Raw, tag_field: str = "type") -> str | None:
    """The event's tag, however odd the rest of it is; None where it has none."""
    try:
        return str(getattr(_map_tag(tag_field).decode(encoded), tag_field))
    except DECODING_ERRORS:
        pass
    try:
        elements = array_elements.decode(encoded)
        return _string.decode(elements[0]) if elements else None
    except DECODING_ERRORS:
        return None
