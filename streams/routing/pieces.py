"""A state as the bytes of its encoding, piece by piece: encoding all of it in one call would keep
every other thread from running for as long as that takes.

The pieces, joined, are what one call of the encoder gives: msgpack arrays are a header and their
items one after the other, so long ones are encoded some items at a time.
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_ITEMS: Final = 256  # of a long sequence in a piece; a booking takes some 1 us
_encoder = msgspec.msgpack.Encoder()


def pieces_of(state: Any) -> Iterator[bytes]:
    """The encoding of a state of structs, which are arrays, and tuples. Cost O(state), and of one
    piece that of _ITEMS items.
    """
    fields = _items_of(state)
    if fields is None or not _is_long(state):
        yield _encoder.encode(state)
        return
    yield array_header(len(fields))
    if len(fields) <= _ITEMS:
        for field in fields:
            yield from pieces_of(field)
        return
    for start in range(0, len(fields), _ITEMS):
        some = fields[start : start + _ITEMS]
        yield _encoder.encode(some)[len(array_header(len(some))) :]


def array_header(count: int) -> bytes:
    """What an array of so many items begins with."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def bytes_header(count: int) -> bytes:
    """What so many bytes begin with."""
    if count < 1 << 8:
        return struct.pack(">BB", 0xC4, count)
    return struct.pack(">BH", 0xC5, count) if count < 1 << 16 else struct.pack(">BI", 0xC6, count)


def _items_of(value: Any) -> tuple[Any, ...] | list[Any] | None:
    """Of what is encoded as an array; None of anything else."""
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        if config.array_like and config.tag is None and not config.omit_defaults:
            return msgspec.structs.astuple(value)
    return None


def _is_long(value: Any, depth: int = 5) -> bool:
    """Whether it, or something in it, has more than _ITEMS items."""
    items = _items_of(value)
    if items is None:
        return False
    if len(items) > _ITEMS:
        return True
    return depth > 0 and any(_is_long(item, depth - 1) for item in items)
