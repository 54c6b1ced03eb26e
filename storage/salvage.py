"""What can be read of a damaged database, in a new one; and moving one out of the way.

Where the database opens for reading, its entries are copied, past blocks that cannot be read. That
fails where it does not open, and brings little where the index of a data file is damaged, which
stops a reader of all of them. So, unless all could be read, links to its files are repaired by
RocksDB in a directory beside it, which costs whole data files, where they have any damage; what is
left is copied, too, and the fuller copy counts. The damaged files themselves are never changed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from schemas.errors import DataDirectoryInUseError, DiskError, StorageError
from schemas.limits import DATABASE_OPENING_BYTES, MIB
from storage.faults import disk_errors, disk_full
from storage.ownership import Ownership
from storage.record_files import SUFFIX
from storage.rocksdb import Database, Preset, WriteBatch, new_batch, repair_in_place

SALVAGE_BATCH_BYTES: Final = 8 * MIB  # copied in one write from a damaged database: memory

_IMMUTABLE: Final = (".sst", ".log", SUFFIX)
_PLACE_WIDTH: Final = 16  # of a place between two keys, at least


class SalvageResult(NamedTuple):
    """What became of a damaged database.

    Attributes:
        entries: that could be read, and are in the new one.
        stretches: of keys that could not be read, one behind the other; entries that are gone with
            their files are not among them.
    """

    entries: int
    stretches: int


def salvage(path: Path, preset: Preset, to: Path) -> SalvageResult:
    """Copies what can be read into a new database, which is durable on return.

    Args:
        path: of the damaged one, which nobody uses.
        preset: of both.
        to: of the new one; whatever was there is replaced. In the same file system.

    Raises:
        DataDirectoryInUseError: it is open elsewhere.
        DiskFullError: there is no room for the copy.
        StorageError: nothing of it can be read, or the copy failed.
    """
    check_not_in_use(path)
    _check_room(path, preset, to)
    copied = _copied_as_it_is(path, preset, to)
    if copied is None or copied.stretches:
        other = to.with_name(to.name + ".2")
        with _repaired(path, preset) as source:
            repaired = _copied(source, preset, other)
        if copied is None or repaired.entries > copied.entries:
            shutil.rmtree(to, ignore_errors=True)
            other.rename(to)
            copied = repaired
        shutil.rmtree(other, ignore_errors=True)
    if not copied.entries and copied.stretches:
        raise DiskError(action=f"read {preset.name}", path=str(path), detail="no entry of it")
    return copied


def _copied_as_it_is(path: Path, preset: Preset, to: Path) -> SalvageResult | None:
    """None where it does not open."""
    try:
        source = Database.past_damage(path, preset)
    except StorageError:
        return None
    try:
        return _copied(source, preset, to)
    finally:
        source.close()


@contextmanager
def _repaired(path: Path, preset: Preset) -> Iterator[Database]:
    """What RocksDB's own repair makes of it, opened for reading."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.repairing-") as scratch:
        _link(path, Path(scratch))
        repair_in_place(Path(scratch), preset)
        source = Database.past_damage(Path(scratch), preset)
        try:
            yield source
        finally:
            source.close()


def _copied(source: Database, preset: Preset, to: Path) -> SalvageResult:
    shutil.rmtree(to, ignore_errors=True)
    target = Database(to, preset)
    try:
        copied = _copy(source, target)
        with disk_errors("write what was read", to):
            target.flush()
            target.sync()
    finally:
        target.close()
    return copied


def check_not_in_use(path: Path) -> None:
    """Raises DataDirectoryInUseError while another process has the database open, or is to open it
    again after its disk failed.
    """
    if path.is_dir():
        Ownership(path).end()
    lock = path / "LOCK"
    if not lock.exists():
        return
    with lock.open("r+b") as opened:
        try:
            fcntl.lockf(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DataDirectoryInUseError(str(path)) from error


def move_aside(path: Path, name: str, to: Path | None = None) -> Path:
    """Moves the directory of a damaged database out of the way.

    Args:
        path: of the database, which is not open here.
        name: of the database, in errors.
        to: where to, in place of what is there; None: to a name beside it that is free.

    Returns:
        Where it is now.

    Raises:
        DataDirectoryInUseError: it is open elsewhere.
        DiskError: it cannot be moved.
    """
    check_not_in_use(path)
    with disk_errors(f"move {name}", path):
        if to is None:
            to = free_name(path)
        else:
            shutil.rmtree(to, ignore_errors=True)
        path.rename(to)
    return to


def free_name(path: Path) -> Path:
    """The first of `NAME.damaged-1`, `-2`, ... that is free."""
    number = 1
    while (found := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return found


def _check_room(path: Path, preset: Preset, to: Path) -> None:
    """Twice all may be copied; links take nothing beside."""
    size_bytes = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    needed_bytes = 2 * (size_bytes + DATABASE_OPENING_BYTES)
    if shutil.disk_usage(to.parent).free < needed_bytes:
        raise disk_full(f"repair {preset.name}", path, needed_bytes)


def _link(path: Path, to: Path) -> None:
    """Repair moves files and writes new ones, but changes none of those that are links."""
    for file in path.iterdir():
        if not file.is_file() or file.name == "LOCK":
            continue
        if file.suffix in _IMMUTABLE:
            os.link(file, to / file.name)
        else:
            shutil.copy(file, to)


def _copy(source: Database, target: Database) -> SalvageResult:
    entries = stretches = 0
    start: bytes | None = b""
    while start is not None:
        batch = new_batch()
        try:
            for key, value in source.scan_own(start, b""):
                batch.put(key, value)
                entries += 1
                start = key + b"\0"
                if batch.size_in_bytes() > SALVAGE_BATCH_BYTES:
                    _write(target, batch)
                    batch = new_batch()
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 -- whatever it says, it cannot be read
            stretches += 1
            start = _readable_key_after(source, start)
        else:
            start = None
        _write(target, batch)
    batch = new_batch()
    for key, value in source.scan_files(b"", b""):  # past what is damaged
        batch.put(key, value)
        entries += 1
        if batch.size_in_bytes() > SALVAGE_BATCH_BYTES:
            _write(target, batch)
            batch = new_batch()
    _write(target, batch)
    return SalvageResult(entries, stretches)


def _write(target: Database, batch: WriteBatch) -> None:
    with disk_errors("write what was read", target.path):
        target.write(batch)


def _readable_key_after(source: Database, start: bytes) -> bytes | None:
    """A key from which on reading goes on, near the first one; None where there is none.

    Keys are taken for numbers. Steps that double lead past the block, and halving them back to its
    end; what lies between two damaged blocks that are closer to each other may be passed over.
    """
    width = max(len(start), _PLACE_WIDTH)
    origin = int.from_bytes(start.ljust(width, b"\0"), "big")
    end = int(256**width)
    low, step = origin, 1
    while not _can_read(source, min(low + step, end - 1).to_bytes(width, "big")):
        low += step
        step *= 2
        if low >= end:
            return None
    high = min(low + step, end - 1)
    while high - low > 1:
        middle = (low + high) // 2
        if _can_read(source, middle.to_bytes(width, "big")):
            high = middle
        else:
            low = middle
    return high.to_bytes(width, "big")


def _can_read(source: Database, key: bytes) -> bool:
    """Whether the first entry at or behind the key can be read; so is the end."""
    cursor = source.cursor()
    cursor.seek(key)
    if cursor.valid():
        return True
    try:
        cursor.status()
    except Exception:  # noqa: BLE001 -- whatever it says, it is the same damage
        return False
    return True
