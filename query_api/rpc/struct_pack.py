"""struct_pack, the encoding of `coro_rpc`, as far as Conductor's types need it.

    head       u32: the type's code, even; one more where a byte `meta` follows
    meta       bits 0 and 1: a length of 2, 4 or 8 bytes follows, and is of no use here
               bit 2: the type's literal follows, and a zero; debug builds send it
               bits 3 and 4: how wide the counts of texts and containers are, 1, 2, 4 or 8 bytes
    value      integers little-endian; a text or container behind its count; a bool before what an
               `optional` has, and before the value (1) or the error (0) of an `expected`

The literal spells a type in one byte for each part of it, without names. The code is the first four
bytes of the literal's MD5, big-endian, without the lowest bit. Bytes behind a value are ignored.

Source: yalantinglibs 0.5.7, include/ylt/struct_pack.
"""

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from schemas.errors import RepriseError

T = TypeVar("T")
K = TypeVar("K")

_HAS_META: Final = 1
_LENGTH_BITS: Final = 0b11
_HAS_LITERAL: Final = 0b100
_WIDTH_BITS: Final = 0b11000
_WIDTH_SHIFT: Final = 3
_WIDTHS: Final = (1, 2, 4, 8)

Parts = list[bytes | int]
"""An encoded value in pieces: an int is a count, whose width is that of the largest one."""


class StructPackError(RepriseError):
    """Bytes are not the value that they should be. Operator action: use a client of this release.

    Attributes:
        text: what was expected, what came, and at which byte.
    """


class Source:
    """The bytes of one value, read from the front.

    Attributes:
        width: of counts, bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.width = 1
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """So many bytes.

        Raises:
            StructPackError: there are fewer.
        """
        end = self._at + size
        if end > len(self._data):
            left = len(self._data) - self._at
            raise StructPackError(f"Expected {size} bytes at byte {self._at}, got {left}")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def flag(self) -> bool:
        """One byte that is 0 or 1. Raises as `take`."""
        byte = self.take(1)[0]
        if byte > 1:
            raise StructPackError(f"Expected 0 or 1 at byte {self._at - 1}, got {byte}")
        return byte == 1

    def count(self) -> int:
        """Of the entries that follow, each a byte at least. Raises as `take`."""
        count = int.from_bytes(self.take(self.width), "little")
        left = len(self._data) - self._at
        if count > left:
            raise StructPackError(f"Expected {count} entries at byte {self._at}, got {left} bytes")
        return count


class Kind(ABC, Generic[T]):
    """One C++ type, whose values are `T` here.

    Attributes:
        literal: what spells the type.
    """

    literal: bytes

    @abstractmethod
    def read(self, source: Source) -> T:
        """The next value. Raises StructPackError where there is none."""

    @abstractmethod
    def write(self, value: T, parts: Parts) -> None:
        """Appends a value."""


class Integer(Kind[int]):
    """A number of a fixed width; `code` is its format's in `struct`."""

    def __init__(self, letter: int, code: str) -> None:
        self.literal = bytes([letter])
        self.code = code
        self._form = struct.Struct(f"<{code}")

    def read(self, source: Source) -> int:
        """See `Kind`."""
        number: int = self._form.unpack(source.take(self._form.size))[0]
        return number

    def write(self, value: int, parts: Parts) -> None:
        """See `Kind`."""
        parts.append(self._form.pack(value))


class _Bool(Kind[bool]):
    literal = b"\x0b"

    def read(self, source: Source) -> bool:
        return source.flag()

    def write(self, value: bool, parts: Parts) -> None:
        parts.append(b"\x01" if value else b"\x00")


class _Text(Kind[str]):
    """A `std::string`, which must be UTF-8 here: no name is anything else."""

    literal = b"\x80\x0c"

    def read(self, source: Source) -> str:
        taken = source.take(source.count())
        try:
            return taken.decode()
        except UnicodeDecodeError as error:
            came = f"a byte 0x{taken[error.start]:02x} in a text"
            raise StructPackError(f"Expected UTF-8, got {came}") from error

    def write(self, value: str, parts: Parts) -> None:
        encoded = value.encode()
        parts += (len(encoded), encoded)


class _Int32s(Kind[bytes]):
    """A `std::vector<int32_t>`, as (n,) i32 LE."""

    literal = b"\x84\x01"

    def read(self, source: Source) -> bytes:
        return source.take(4 * source.count())

    def write(self, value: bytes, parts: Parts) -> None:
        parts += (len(value) // 4, value)


INT32: Final = Integer(0x01, "i")
INT64: Final = Integer(0x03, "q")
UINT64: Final = Integer(0x04, "Q")
BOOL: Final = _Bool()
TEXT: Final = _Text()
INT32S: Final = _Int32s()


class Optional(Kind[T | None]):
    """A `std::optional`; None is without a value."""

    def __init__(self, kind: Kind[T]) -> None:
        self.literal = b"\x85" + kind.literal
        self._kind = kind

    def read(self, source: Source) -> T | None:
        """See `Kind`."""
        return self._kind.read(source) if source.flag() else None

    def write(self, value: T | None, parts: Parts) -> None:
        """See `Kind`."""
        BOOL.write(value is not None, parts)
        if value is not None:
            self._kind.write(value, parts)


class Array(Kind[Sequence[T]]):
    """A `std::vector`, or a `std::set` in its order."""

    def __init__(self, kind: Kind[T], *, is_set: bool = False) -> None:
        self.literal = (b"\x83" if is_set else b"\x84") + kind.literal
        self._kind = kind

    def read(self, source: Source) -> Sequence[T]:
        """See `Kind`."""
        return [self._kind.read(source) for _ in range(source.count())]

    def write(self, value: Sequence[T], parts: Parts) -> None:
        """See `Kind`."""
        parts.append(len(value))
        for one in value:
            self._kind.write(one, parts)


class Map(Kind[Mapping[K, T]]):
    """A `std::map`, in the order of the mapping."""

    def __init__(self, key: Kind[K], kind: Kind[T]) -> None:
        self.literal = b"\x82" + key.literal + kind.literal
        self._key = key
        self._kind = kind

    def read(self, source: Source) -> Mapping[K, T]:
        """See `Kind`."""
        return {self._key.read(source): self._kind.read(source) for _ in range(source.count())}

    def write(self, value: Mapping[K, T], parts: Parts) -> None:
        """See `Kind`."""
        parts.append(len(value))
        for key, one in value.items():
            self._key.write(key, parts)
            self._kind.write(one, parts)


class Struct(Kind[T]):
    """A struct, or the arguments of a function: a tuple in the order of its members."""

    def __init__(self, make: Callable[..., T], *members: Kind[Any]) -> None:
        """Args:
        make: makes a value of the members' values.
        """
        body = b"".join(member.literal for member in members)
        self.literal = b"\xfd" + body + b"\xff"
        self._make = make
        self._members = members

    def read(self, source: Source) -> T:
        """See `Kind`."""
        return self._make(*[member.read(source) for member in self._members])

    def write(self, value: T, parts: Parts) -> None:
        """See `Kind`."""
        assert isinstance(value, tuple)
        for member, one in zip(self._members, value, strict=True):
            member.write(one, parts)


class Integers(Kind[T]):
    """A struct of nothing but integers of one width, which stands as it is in memory: its literal
    has the alignment, too, as it is packed and as it is not.
    """

    def __init__(self, make: Callable[..., T], *members: Integer) -> None:
        """Args:
        make: makes a value of the members' values.
        """
        self._form = struct.Struct("<" + "".join(member.code for member in members))
        alignment = bytes([129 + self._form.size // len(members)])
        body = b"".join(member.literal for member in members)
        self.literal = b"\xfd" + body + 2 * alignment + b"\xff"
        self._make = make

    def read(self, source: Source) -> T:
        """See `Kind`."""
        return self._make(*self._form.unpack(source.take(self._form.size)))

    def write(self, value: T, parts: Parts) -> None:
        """See `Kind`."""
        assert isinstance(value, tuple)
        parts.append(self._form.pack(*value))


class Expected(Kind[T | IntEnum]):
    """A `tl::expected`: a value, or an error, which is an enumeration of i32."""

    def __init__(self, kind: Kind[T], error: Callable[[int], IntEnum]) -> None:
        self.literal = b"\x87" + kind.literal + INT32.literal
        self._kind = kind
        self._error = error

    def read(self, source: Source) -> T | IntEnum:
        """See `Kind`."""
        if source.flag():
            return self._kind.read(source)
        number = INT32.read(source)
        try:
            return self._error(number)
        except ValueError as error:
            raise StructPackError(f"Expected a code of an error, got {number}") from error

    def write(self, value: T | IntEnum, parts: Parts) -> None:
        """See `Kind`."""
        is_error = isinstance(value, IntEnum)
        BOOL.write(not is_error, parts)
        if isinstance(value, IntEnum):
            INT32.write(value, parts)
        else:
            self._kind.write(value, parts)


def code_of(kind: Kind[Any]) -> int:
    """The code of a type, u32 and even."""
    digest = hashlib.md5(kind.literal, usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big") & ~_HAS_META


class Packing(Generic[T]):
    """Reads and writes whole messages of one type."""

    def __init__(self, kind: Kind[T]) -> None:
        self._kind = kind
        self._code = code_of(kind)

    def unpack(self, data: bytes) -> T:
        """The value.

        Raises:
            StructPackError: it is none of this type.
        """
        source = Source(data)
        head = int.from_bytes(source.take(4), "little")
        if head & ~_HAS_META != self._code:
            raise StructPackError(f"Expected a type 0x{self._code:08x}, got 0x{head:08x}")
        if head & _HAS_META:
            meta = source.take(1)[0]
            if meta & _LENGTH_BITS:
                source.take(_WIDTHS[meta & _LENGTH_BITS])
            if meta & _HAS_LITERAL:
                literal = self._kind.literal + b"\x00"
                if source.take(len(literal)) != literal:
                    raise StructPackError("Expected the type's own literal, got another one")
            source.width = _WIDTHS[(meta & _WIDTH_BITS) >> _WIDTH_SHIFT]
        return self._kind.read(source)

    def pack(self, value: T) -> bytes:
        """The message, as a release build makes it."""
        parts: Parts = []
        self._kind.write(value, parts)
        largest = max((part for part in parts if isinstance(part, int)), default=0)
        step = next(at for at, width in enumerate(_WIDTHS) if largest < 1 << (8 * width))
        head = self._code if step == 0 else self._code | _HAS_META
        begin = head.to_bytes(4, "little") + (bytes([step << _WIDTH_SHIFT]) if step else b"")
        width = _WIDTHS[step]
        return begin + b"".join(
            part.to_bytes(width, "little") if isinstance(part, int) else part for part in parts
        )
