"""What RocksDB's errors mean. They all arrive as `Exception` with a text, which is read here alone.

An opening that fails, whatever the text, is one of these; in this order:

    in use     another process, or another object of this one, has the database open
    full       the file system has no room
    outside    what no change of its files mends: permissions, memory, a newer version
    damaged    any other: its files are not as they were written, or some are gone
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from schemas.causes import cause_of
from schemas.errors import (
    DamagedError,
    DataDirectoryInUseError,
    DiskError,
    DiskFullError,
    StorageError,
)
from schemas.limits import DATABASE_OPENING_BYTES, MIB

PID_FILE: Final = "pid"
"""In a data directory: the id of the process that serves it, or that was killed."""

_IN_USE: Final = ("lock hold by", "LOCK:")
_READ_ONLY: Final = ("Read-only file system",)
_FULL: Final = ("No space left", "quota exceeded")
_AFTER_ANOTHER: Final = ("Writer has previous error",)
_OUTSIDE: Final = (
    "Permission denied",
    "Operation not permitted",
    "Read-only file system",
    "Too many open files",
    "Cannot allocate memory",
    "Not a directory",
    "Is a directory",
    "File exists",
    "Not implemented",
    "not supported",
)
_FILE: Final = re.compile(
    r"\b(records-\d+\.rec|\d{6,}\.(?:sst|log|ldb)|MANIFEST-\d+|CURRENT|OPTIONS-\d+)\b"
)


def _says(error: Exception, texts: tuple[str, ...]) -> bool:
    return any(text in str(error) for text in texts)


def says_corruption(error: Exception) -> bool:
    """Whether the database itself found that what it reads is not what was written."""
    return "Corruption" in str(error)


def opening_error(name: str, path: Path, error: Exception) -> StorageError:
    """What to raise for an opening that failed; see the module.

    Args:
        name: of the database, as `the log`.
        error: RocksDB's, or the system's.
    """
    if isinstance(error, StorageError):
        return error
    if _says(error, _IN_USE):
        return DataDirectoryInUseError(str(path), holder=holder_of(path))
    if _says(error, _FULL):
        return disk_full(f"open {name}", path, DATABASE_OPENING_BYTES + _wal_bytes(path))
    if _says(error, _OUTSIDE) or not path.is_dir():
        remedy = ". Mount it for writing, or give a directory elsewhere by --data"
        return StorageError(
            f"Cannot open {name} at {path} for reading and writing: {cause_of(error)}"
            f"{remedy if _says(error, _READ_ONLY) else ''}"
        )
    return damaged(f"open {name}", path, error)


def holder_of(path: Path) -> int | None:
    """The process that has noted itself in the data directory of a database, while it lives."""
    with suppress(OSError, ValueError):
        pid = int((path.parent / PID_FILE).read_text())
        os.kill(pid, 0)
        return pid
    return None


def damaged(action: str, path: Path, error: Exception) -> DamagedError:
    """The error of damaged files, with the name of the first one that RocksDB blames."""
    detail = " ".join(str(error).split())
    blamed = _FILE.findall(detail)
    file = blamed[0] if blamed else " or ".join(_write_ahead_logs(path))
    return DamagedError(action=action, path=str(path), detail=detail, file=file)


def disk_full(action: str, path: Path, needed_bytes: int) -> DiskFullError:
    """The error of a full file system, with how much is free of how much is needed."""
    return DiskFullError(
        action=action,
        path=str(path),
        needed_bytes=needed_bytes,
        free_bytes=shutil.disk_usage(_existing(path)).free,
    )


def _no_space(path: Path) -> str:
    return f"no space left on its file system ({_free(path)}). Free some there"


def _free(path: Path) -> str:
    return f"{shutil.disk_usage(_existing(path)).free / MIB:.1f} MiB are free"


def _existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if place.exists())


def _write_ahead_logs(path: Path) -> list[str]:
    """Names of those that have anything; of them RocksDB says no name."""
    return sorted(file.name for file in path.glob("*.log") if file.stat().st_size)


def _wal_bytes(path: Path) -> int:
    """What the write-ahead log has, which becomes data files as the database is opened."""
    return sum(file.stat().st_size for file in path.glob("*.log"))


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turns an error of a write, a sync or a read into `DiskError`, naming what was tried where;
    into its kind `DamagedError` where RocksDB found damage.
    """
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if says_corruption(error):
            raise damaged(action, path, error) from error
        detail = str(error)
        if _says(error, _FULL):
            detail = _no_space(path)
        elif _says(error, _AFTER_ANOTHER):
            detail = f"an earlier write failed, and {_free(path)}. The next one opens it again"
        raise DiskError(action=action, path=str(path), detail=detail) from error
