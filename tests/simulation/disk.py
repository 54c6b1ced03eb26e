"""RocksDB in memory, under the names of `storage.rocksdb`: durable, torn, full, or in use.

A write survives the death of the process at once, and a power cut only once it has been synced:
what a power cut leaves is the synced state and the first few of the writes after it. Of records in
files of their own it leaves the first few of the appends, too, whatever becomes of the writes.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

from schemas.errors import DataDirectoryInUseError, DiskError, StorageError
from storage.record_files import AppendedPart
from tests.simulation.loop import Process, State, current

_WriteOp = tuple[str, bytes, bytes]


class KilledError(BaseException):
    """The process has died within a step; what it still does reaches no disk."""


class WriteBatch:
    """In place of rocksdict's."""

    def __init__(self) -> None:
        self.ops: list[_WriteOp] = []
        self._size = 0

    def put(self, key: bytes, value: bytes) -> None:
        self.ops.append(("put", key, value))
        self._size += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        self.ops.append(("delete", key, b""))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.ops.append(("range", begin, end))

    def size_in_bytes(self) -> int:
        return self._size

    def len(self) -> int:
        return len(self.ops)


def _apply(rows: "SortedDict[bytes, bytes]", ops: list[_WriteOp]) -> None:
    for kind, key, value in ops:
        if kind == "put":
            rows[key] = value
        elif kind == "delete":
            rows.pop(key, None)
        else:
            for gone in list(rows.irange(key, value, inclusive=(True, False))):
                del rows[gone]


class _Files:
    """What is on the disk under one path."""

    def __init__(self) -> None:
        self.synced: SortedDict[bytes, bytes] = SortedDict()
        self.unsynced: list[list[_WriteOp]] = []
        self.unsynced_appends: list[list[_WriteOp]] = []
        self.rows: SortedDict[bytes, bytes] = SortedDict()
        self.owner: Process | None = None
        self.open = False


class SimulatedDisk:
    """One machine's disk."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._files: dict[Path, _Files] = {}
        self.full = False
        self.strains_left = 0

    def abandon(self, process: Process) -> None:
        """What the process has open counts as closed."""
        for files in self._files.values():
            if files.owner is process:
                files.open = False

    def make_room(self) -> None:
        """Is full no longer."""
        self.full = False

    def strain(self) -> None:
        """Called before each write and sync: the process may die there, between two of them.

        Raises:
            KilledError: it has.
        """
        if self.strains_left:
            self.strains_left -= 1
            process = current()
            if not self.strains_left and process is not None:
                process.state = State.DEAD
                raise KilledError(process.name)

    def files(self, path: Path) -> _Files:
        """What is under the path; made where it is missing."""
        return self._files.setdefault(path, _Files())

    def move(self, old: Path, new: Path) -> None:
        """Renames a directory, over whatever was there."""
        if old in self._files:
            self._files[new] = self._files.pop(old)

    def lose(self, path: Path) -> None:
        """The directory is deleted; its owner must be dead."""
        self._files.pop(path, None)

    def clear(self) -> None:
        """Everything is deleted; its owners must be dead."""
        self._files.clear()

    def cut_power(self, *paths: Path) -> None:
        """What was not synced may be gone, from some write on; its owners must be dead."""
        for path in paths or tuple(self._files):
            files = self.files(path)
            for unsynced in (files.unsynced, files.unsynced_appends):
                kept = self._rng.randint(0, len(unsynced))
                for ops in unsynced[:kept]:
                    _apply(files.synced, ops)
                unsynced.clear()
            files.rows = SortedDict(files.synced)

    # What is put in place of `storage.rocksdb`

    def database(self, path: Path, preset: Any, *, access: object = None) -> "Database":
        """In place of `Database`."""
        return Database(self, path, preset)


class _Cursor:
    """In place of RocksDB's iterator: over a snapshot."""

    def __init__(self, rows: "SortedDict[bytes, bytes]") -> None:
        self._rows = SortedDict(rows)
        self._place = 0

    def seek(self, key: bytes) -> None:
        self._place = self._rows.bisect_left(key)

    def seek_for_prev(self, key: bytes) -> None:
        self._place = self._rows.bisect_right(key) - 1

    def valid(self) -> bool:
        return 0 <= self._place < len(self._rows)

    def key(self) -> bytes:
        found: bytes = self._rows.keys()[self._place]
        return found

    def value(self) -> bytes:
        found: bytes = self._rows.values()[self._place]
        return found

    def next(self) -> None:
        self._place += 1

    def status(self) -> None: ...


class Database:
    """In place of `storage.rocksdb.Database`."""

    def __init__(self, disk: SimulatedDisk, path: Path, preset: Any) -> None:
        self.path = path
        self.torn = ""
        self._disk = disk
        self._name: Final[str] = preset.name
        self._open()

    def _open(self) -> None:
        self._check()
        files = self._disk.files(self.path)
        if files.open and files.owner is not None and files.owner.state is not State.DEAD:
            raise DataDirectoryInUseError(str(self.path))
        if self._disk.full:
            raise StorageError(f"simulated: no space to open {self.path}")
        files.open, files.owner = True, current()
        self._files = files

    def _check(self) -> None:
        process = current()
        if process is not None and process.state is State.DEAD:
            raise DiskError(
                action="use a disk after death", path=str(self.path), detail="simulated"
            )

    def reopen(self) -> None:
        self.close()
        self._open()

    def set_aside(self, to: Path) -> None:
        self._disk.strain()
        self._disk.move(self.path, to)
        self._open()

    def close(self) -> None:
        if self._files.owner is current():
            self._files.open = False

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._files.rows.get(key)
        return value

    def cursor(self) -> _Cursor:
        return _Cursor(self._files.rows)

    def scan(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows = self._files.rows
        found = list(itertools.takewhile(lambda key: key.startswith(prefix), rows.irange(start)))
        yield from [(key, rows[key]) for key in found]

    def last_key_before(self, end: bytes) -> bytes | None:
        place = self._files.rows.bisect_right(end) - 1
        if place < 0:
            return None
        key: bytes = self._files.rows.keys()[place]
        return key

    def write(self, batch: WriteBatch, *, drop_before: int = 0) -> None:
        self._check()
        self._disk.strain()
        if self._disk.full:
            raise OSError("No space left on device (simulated)")
        _apply(self._files.rows, batch.ops)
        self._files.unsynced.append(list(batch.ops))

    has_files = True

    def append(self, parts: Sequence[AppendedPart]) -> None:
        self._check()
        self._disk.strain()
        if self._disk.full:
            raise OSError("No space left on device (simulated)")
        ops: list[_WriteOp] = []
        for first, values, mark in parts:
            if mark is not None:
                ops.append(("put", *mark))
            keys = (b"r" + number.to_bytes(8, "big") for number in itertools.count(first))
            ops += [("put", key, value) for key, value in zip(keys, values, strict=False)]
        _apply(self._files.rows, ops)
        self._files.unsynced_appends.append(ops)

    last_in_files = None

    def scan_files(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(())

    def sync(self) -> None:
        self._check()
        self._disk.strain()
        if self._disk.full:
            raise OSError("No space left on device (simulated)")
        for unsynced in (self._files.unsynced, self._files.unsynced_appends):
            for ops in unsynced:
                _apply(self._files.synced, ops)
            unsynced.clear()

    def flush(self) -> None:
        self.sync()
