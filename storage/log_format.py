"""The form of RocksDB's own logs, the write-ahead log and the MANIFEST, as far as RocksDB keeps to
itself how they end.

Both are blocks of 32 KiB; records of a header [checksum (u32), length (u16), type (u8)] and a
payload; whole ones are of type 1, and those in parts begin with 2 and end with 4. Less than a
header at a block's end is left empty. A header of zeros is none: RocksDB takes it for the end, or
goes on with the next block. A payload of the write-ahead log begins with its sequence (u64 LE).
"""

import struct
from enum import Enum
from pathlib import Path
from typing import Final

_BLOCK: Final = 32 * 1024
_RECORD: Final = struct.Struct("<IHB")
_FIRST: Final = struct.Struct("<IHBQ")
_NONE, _WHOLE, _BEGIN, _LAST = 0, 1, 2, 4


class LogEnding(Enum):
    """How a log ends."""

    WHOLE = "with a whole record"
    PARTIAL = "within a record"
    ZEROS = "in zeros"


def ending_of(file: Path) -> LogEnding:
    """How the log ends; checksums are RocksDB's business. Cost O(records)."""
    content = file.read_bytes()
    at, kind = 0, _LAST
    while at < len(content):
        rest = _BLOCK - at % _BLOCK
        if rest < _RECORD.size:
            at += rest
            continue
        if at + _RECORD.size > len(content):
            return LogEnding.PARTIAL
        _, length, kind = _RECORD.unpack_from(content, at)
        if kind == _NONE and not length:
            return LogEnding.ZEROS
        at += _RECORD.size + length
    return LogEnding.WHOLE if at == len(content) and kind in (_WHOLE, _LAST) else LogEnding.PARTIAL


def first_sequence(file: Path) -> int | None:
    """The sequence of a write-ahead log's first record; None where it has none."""
    with file.open("rb") as opened:
        start = opened.read(_FIRST.size)
    if len(start) < _FIRST.size:
        return None
    _, _, kind, sequence = _FIRST.unpack(start)
    return sequence if kind in (_WHOLE, _BEGIN) else None


def zeroed_logs(path: Path) -> list[str]:
    """Names of the write-ahead logs that end in zeros, where once there was something."""
    return sorted(file.name for file in path.glob("*.log") if ending_of(file) is LogEnding.ZEROS)
