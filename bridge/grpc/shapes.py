"""Bounds what a message of protobuf may grow to before it is decoded: a submessage of two bytes
takes some hundred once it is one. Pure.
"""

from collections.abc import Mapping
from typing import Final

from bridge.wire.drop_reasons import DropReason
from schemas.errors import BatchError
from schemas.limits import KIB

SHAPED_BYTES: Final = 256 * KIB  # a smaller message cannot grow to more than some 12 MB
SUBMESSAGES_MAX: Final = 262_144  # of a larger one: reason="too_many_values"

Shape = Mapping[int, "Shape"]
"""Of a message's repeated fields, by number, what is within: they are counted."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_shape(message: bytes, shape: Shape) -> None:
    """Accepts a message that can be decoded. Cost O(its submessages), some 0.5 us each.

    Raises:
        BatchError: it has too many of them, or is no message.
    """
    if len(message) <= SHAPED_BYTES:
        return
    try:
        left = _count(message, 0, len(message), shape, SUBMESSAGES_MAX)
    except (IndexError, ValueError) as error:
        detail = "Expected a message of protobuf, got one that ends within a field"
        raise BatchError(DropReason.UNDECODABLE, detail) from error
    if left < 0:
        detail = f"Expected at most {SUBMESSAGES_MAX} events and blocks in a message, got more"
        raise BatchError(DropReason.TOO_MANY_VALUES, detail)


def _count(message: bytes, at: int, end: int, shape: Shape, left: int) -> int:
    """How many more there may be; below 0 where there are too many."""
    while at < end and left >= 0:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            _, at = _varint(message, at)
        elif wire == _FIXED64:
            at += 8
        elif wire == _FIXED32:
            at += 4
        elif wire == _BYTES:
            size, at = _varint(message, at)
            if at + size > end:
                raise ValueError
            if number in shape:
                left = _count(message, at, at + size, shape[number], left - 1)
            at += size
        else:
            raise ValueError
    return left


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError
