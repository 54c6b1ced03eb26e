"""Bytes that are almost valid: something encoded, with one thing wrong, or with several."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgspec

NUMBERS: Final = (
    *(-(2**63), -(2**31), -2, -1, 0, 1, 15, 17, 63, 64, 65_535, 65_536, 65_537),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
TEXTS: Final = (
    *("", "\x00", "a" * 1024, "a" * 1025, "\u2028\n\x1b[31m", "\U0010ffff" * 256, "é" * 600),
    *("GPU", "cpu:7", "nil", "-1", "../../etc", "{}", "%s%n", "default", "BlockStored"),
)
FLOATS: Final = (float("nan"), float("inf"), -float("inf"), 1e308, -0.0, 5e-324)
VALUES: Final[tuple[object, ...]] = (
    *(*NUMBERS, *TEXTS, *FLOATS),
    *(None, True, False, b"", b"\xff", b"\x00" * 32, bytes(33)),
    *([], [[]], [None], [-1], [2**64 - 1] * 3, {}, {"type": "BlockStored"}, {"a": {"b": {}}}),
)
ENCODED: Final = tuple(
    msgspec.Raw(one)
    for one in (
        *(b"\xa2\xff\xfe", b"\xd9\x03\xed\xa0\x80", b"\xc1", b"\xc7\x01\x05a", b"\xd6\xff\xff"),
        *(b"\x91" * 3000 + b"\xc0", b"\x91" * 20_000, b"\x81\xa1k" * 3000 + b"\xc0"),
        # So many elements, bytes or characters as they claim never come.
        *(one + b"\xff" * 4 for one in (b"\xdd", b"\xdf", b"\xc6", b"\xc9", b"\xdb")),
        *(b"\xdc\xff\xff", b"\xde\xff\xff\xa1a", b"\xdd\x00\x01\x00\x01" + b"\xc0" * 65_537),
    )
)  # fmt: skip
HUGE_ONE_IN: Final = 10_000
HUGE_BYTES: Final = (300_000, 1_000_000, 5_000_000)


class Base:
    """Something valid, and every place in it.

    Args:
        value: as decoded.
        encode: how it is encoded.

    Attributes:
        value, encode: as given.
        encoded: the value.
    """

    def __init__(self, value: Any, encode: Callable[[Any], bytes] = msgspec.msgpack.encode) -> None:
        self.value = value
        self.encode = encode
        self.encoded = encode(value)
        self.paths = list(_paths(value))


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        found += [place for key in value for place in _paths(value[key], (*path, key))]
    elif isinstance(value, list):
        # The first and the last stand for all of a long one.
        numbers = range(len(value)) if len(value) <= 16 else (0, len(value) - 1)
        found += [place for number in numbers for place in _paths(value[number], (*path, number))]
    return found


class Mutator:
    """All follows from what `random` gives."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def value(self) -> object:
        """Whatever nobody expects, as a value to encode."""
        if self.random.randrange(HUGE_ONE_IN) == 0:
            return "x" * self.random.choice(HUGE_BYTES)
        return self.random.choice(VALUES)

    def changed(self, base: Base, *, values: Sequence[object] = VALUES) -> Any:
        """The value with another one, a missing one or one more at one place of it."""
        path = self.random.choice(base.paths)
        return self._changed(base.value, path, values)

    def _changed(self, value: Any, path: tuple[Any, ...], values: Sequence[object]) -> Any:
        if path:
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[path[0]] = self._changed(value[path[0]], path[1:], values)
            return copy
        choice = self.random.randrange(4)
        if choice == 0 and value and isinstance(value, dict):
            gone = self.random.choice(list(value))
            return {key: one for key, one in value.items() if key != gone}
        if choice == 0 and value and isinstance(value, list):
            return value[: self.random.randrange(len(value))]
        if choice == 1 and isinstance(value, dict):
            return value | {self.random.choice(("x", "type", "", "\x00")): self.value()}
        if choice == 1 and isinstance(value, list):
            return [*value, *value, self.random.choice(values)]
        return self.random.choice(values)

    def tree(self, base: Base) -> bytes:
        """Encoded, with one place changed."""
        values = ENCODED if self.random.randrange(4) == 0 else VALUES
        if self.random.randrange(HUGE_ONE_IN) == 0:
            values = ("x" * self.random.choice(HUGE_BYTES),)
        return base.encode(self.changed(base, values=values))

    def raw(self, valid: bytes) -> bytes:
        """With bytes changed, cut, repeated, inserted, or none of them kept."""
        at = self.random.randrange(len(valid) + 1)
        match self.random.randrange(8):
            case 0:
                return valid[:at]
            case 1:
                return valid + self.random.randbytes(self.random.randrange(1, 9))
            case 2:
                return valid[:at] + self.random.randbytes(1) + valid[at + 1 :]
            case 3:
                return valid[:at] + self.random.randbytes(self.random.randrange(1, 9)) + valid[at:]
            case 4:
                end = self.random.randrange(at, len(valid) + 1)
                return valid[:end] + valid[at:]
            case 5:
                bit = 1 << self.random.randrange(8)
                return valid[:at] + bytes(one ^ bit for one in valid[at : at + 1]) + valid[at + 1 :]
            case 6:
                return self.random.randbytes(self.random.randrange(200))
        return bytes(self.random.choice(ENCODED))

    def encoded(self, base: Base) -> bytes:
        """Unchanged now and then; else with one thing wrong, in its values or in its bytes."""
        choice = self.random.randrange(10)
        if choice == 0:
            return base.encoded
        return self.tree(base) if choice < 6 else self.raw(base.encoded)
