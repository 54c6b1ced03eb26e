"""A state as the bytes of its encoding, piece by piece: encoding all of it in one call would keep
every other thread from running for as long as that takes.

The pieces, joined, are what one call of the encoder gives: msgpack arrays are a header and their
items one after the other, so long ones are encoded some items at a time.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from schemas.limits import KIB

ROUTING_PIECE_BYTES: Final = 64 * KIB  # of a checkpoint, encoded at once: 0.2 ms of the interpreter

_ITEMS: Final = 256  # a sequence of more is long
_FIRST_ITEMS: Final = 8  # of it in its first piece, before it is known how large they are
_DEPTH: Final = 5  # of sequences in one another, in which a long one is looked for
_FLAT_ITEMS: Final = 16_384  # longer sequences have no long ones in their items
_encoder = msgspec.msgpack.Encoder()


def pieces_of(state: Any) -> Iterator[bytes]:
    """The encoding of a state of structs, which are arrays, tuples and lists. Cost O(state), and of
    one piece some ROUTING_PIECE_BYTES, where items of long sequences are about alike.
    """
    items = _items_of(state)
    if items is None or not _is_long(items):
        yield _encoder.encode(state)
        return
    yield array_header(len(items))
    if len(items) > _FLAT_ITEMS:
        yield from _flat(iter(items))
        return
    # Of the items of a long sequence, which are many, only what they have themselves is looked at.
    depth = _DEPTH if len(items) <= _ITEMS else 1
    some: list[Any] = []  # that are not long themselves
    for item in items:
        of_item = _items_of(item)
        if of_item is not None and _is_long(of_item, depth):
            yield from _flat(iter(some))
            some = []
            yield from pieces_of(item)
        else:
            some.append(item)
    yield from _flat(iter(some))


def _flat(items: Iterator[Any]) -> Iterator[bytes]:
    """Of items that are not cut themselves."""
    count = _FIRST_ITEMS
    while some := list(islice(items, count)):
        piece = _encoder.encode(some)
        yield piece[len(array_header(len(some))) :]
        count = (
            max(count // 2, 1) if len(piece) > ROUTING_PIECE_BYTES else min(2 * count, _FLAT_ITEMS)
        )


def array_header(count: int) -> bytes:
    """What an array of so many items begins with."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def bytes_pieces(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The encoding of bytes that come in pieces: nothing, often, until all of them are there."""
    found = []
    for piece in pieces:
        found.append(piece)
        yield b""
    count = sum(map(len, found))
    if count < 1 << 8:
        yield struct.pack(">BB", 0xC4, count)
    else:
        yield (
            struct.pack(">BH", 0xC5, count) if count < 1 << 16 else struct.pack(">BI", 0xC6, count)
        )
    yield from found


def _items_of(value: Any) -> tuple[Any, ...] | list[Any] | None:
    """Of what is encoded as an array; None of anything else."""
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        if config.array_like and config.tag is None and not config.omit_defaults:
            return msgspec.structs.astuple(value)
    return None


def _is_long(items: tuple[Any, ...] | list[Any], depth: int = _DEPTH) -> bool:
    """Whether it, or a sequence in it, has more than _ITEMS items."""
    if len(items) > _ITEMS:
        return True
    if depth == 1:
        return any([isinstance(one, tuple | list) and len(one) > _ITEMS for one in items])
    nested = (_items_of(item) for item in items)
    return any(one is not None and _is_long(one, depth - 1) for one in nested)
