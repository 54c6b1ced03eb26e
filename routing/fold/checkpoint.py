"""A checkpoint of the routing fold in a file: XXH3-64 of the rest (u64 LE), then the state.

It is written beside the last one and put into its place, so that a crash leaves one or the other.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import xxhash

from routing.fold.fold import RoutingFold
from schemas.errors import NewerVersionError, RecordFormatError, StorageError

_SUM: Final = struct.Struct("<Q")


def write_checkpoint(path: Path, pieces: Iterable[bytes]) -> None:
    """Keeps what a fold has dumped; durable when it returns.

    Args:
        path: of the checkpoint.
        pieces: of the state, see `RoutingFold.pieces`.

    Raises:
        StorageError: the disk fails; the last one is still there.
    """
    beside = path.with_name(path.name + ".new")
    total = xxhash.xxh3_64()
    try:
        with beside.open("wb") as file:
            file.write(_SUM.pack(0))
            for piece in pieces:
                total.update(piece)
                file.write(piece)
            file.seek(0)
            file.write(_SUM.pack(total.intdigest()))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise StorageError(f"Cannot write {path}: {error.strerror or error}") from error


def read_checkpoint(path: Path) -> RoutingFold | None:
    """The fold of the last checkpoint; None where there is none.

    Raises:
        RecordFormatError: it is damaged.
        NewerVersionError: a newer Reprise wrote it.
        StorageError: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"Cannot read {path}: {error.strerror or error}") from error
    state = content[_SUM.size :]
    if len(content) < _SUM.size or _SUM.unpack_from(content)[0] != xxhash.xxh3_64_intdigest(state):
        raise RecordFormatError(detail=f"the checkpoint at {path} is damaged")
    try:
        return RoutingFold.load(state)
    except NewerVersionError as error:
        error.where = str(path)
        raise
