"""A copy of a database that another process goes on writing: all that it had at one moment.

A reader keeps the moment at which it opened the files; what the writer merges away meanwhile stays
readable here. Only while it opens them may one be gone, and then it is opened again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from schemas.clock import REAL_CLOCK
from schemas.errors import DamagedError
from schemas.limits import MIB
from storage.faults import disk_errors
from storage.rocksdb import Database, Preset, new_batch

COPY_BATCH_BYTES: Final = 8 * MIB  # copied in one write into a backup: memory
SNAPSHOT_ATTEMPTS: Final = 5  # to open a database that another process is writing
SNAPSHOT_RETRY_S: Final = 0.05  # between two of these attempts

_COUNTED_EVERY: Final = 1000


def open_snapshot(
    path: Path, preset: Preset, *, sleep: Callable[[float], None] = REAL_CLOCK.sleep
) -> Database:
    """The database as it is now, for reading.

    Raises:
        DamagedError: it cannot be read, however often it is tried.
        StorageError: there is none.
    """
    for _ in range(SNAPSHOT_ATTEMPTS - 1):
        try:
            return Database.read_only(path, preset)
        except DamagedError:
            sleep(SNAPSHOT_RETRY_S)
    return Database.read_only(path, preset)


def copy_database(
    source: Database, preset: Preset, to: Path, *, copied: Callable[[int, int], None]
) -> None:
    """Copies every entry into a new database, which is durable on return. Cost O(bytes).

    Args:
        source: as it was opened; anything that cannot be read ends the copy.
        to: a directory that does not exist.
        copied: told how many entries and bytes more are done, now and then.

    Raises:
        DamagedError: an entry cannot be read.
        DiskError: the copy cannot be written.
    """
    target = Database(to, preset)
    try:
        batch, entries, size = new_batch(), 0, 0
        with disk_errors(f"copy {preset.name}", source.path):
            for key, value in source.scan(b"", b""):
                batch.put(key, value)
                entries += 1
                size += len(key) + len(value)
                if batch.size_in_bytes() > COPY_BATCH_BYTES:
                    target.write(batch)
                    batch = new_batch()
                if entries == _COUNTED_EVERY:
                    copied(entries, size)
                    entries = size = 0
        with disk_errors(f"write the copy of {preset.name}", to):
            target.write(batch)
            target.flush()
            target.sync()
        copied(entries, size)
    finally:
        target.close()
