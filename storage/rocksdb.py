"""Opening RocksDB through rocksdict, and the meaning of its errors, which all arrive as
`Exception`.

Keys and values are raw bytes. The write-ahead log is on, so whatever a write returned from survives
`kill -9`; it survives the machine's death once `flush_wal(sync=True)` has returned after it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict

from schemas.errors import DataDirectoryInUseError, DiskError, StorageError
from schemas.limits import MIB


def database_options(*, write_buffer_bytes: int = 32 * MIB) -> Options:
    """Options for a database of large values under rising keys."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(4 * MIB)
    options.set_compression_type(DBCompressionType.lz4())
    # A torn last write (the machine died) ends recovery there; anything else is corruption and is
    # said.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def open_database(path: Path, options: Options) -> Rdict:
    """Opens or creates the database.

    Raises:
        DataDirectoryInUseError: another process, or another object of this one, has it open.
        StorageError: it cannot be opened: permissions, a full disk, corruption.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        return Rdict(str(path), options)
    except Exception as error:
        text = str(error)
        if "lock hold by" in text or "LOCK:" in text:
            raise DataDirectoryInUseError(str(path)) from error
        raise StorageError(
            f"Expected a readable and writable database at {path}, got: {text}"
        ) from error


def scan(database: Rdict, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys from `start` on that begin with `prefix`, in order, with their values.

    Raises:
        Exception: a block could not be read; without asking, RocksDB's iterator just ends there.
    """
    cursor = database.iter()
    cursor.seek(start)
    while cursor.valid():
        key = cursor.key()
        if not key.startswith(prefix):
            return
        yield key, cursor.value()
        cursor.next()
    cursor.status()


def says_corruption(error: Exception) -> bool:
    """Whether the database itself found that what it reads is not what was written."""
    return "Corruption" in str(error)


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turns an error of a write, a sync or a read into `DiskError`, naming what was tried where."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        raise DiskError(action=action, path=str(path), detail=str(error)) from error
