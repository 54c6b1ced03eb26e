"""The databases of Reprise: RocksDB through rocksdict.

RocksDB's errors all arrive as `Exception` with a text; what the texts mean is known here alone.

    database   values                       options of its own
    ---------  ---------------------------  -------------------------------------------------------
    LOG        records under rising keys    no compression: hashes and tokens hardly compress, and
                                            trying costs a third of what writing them does
    TABLE      rows, overwritten in place   -
    SPOOL      records, soon deleted        a smaller write buffer: mostly it is empty

Keys and values are raw bytes. The write-ahead log is on, so a write that has returned survives
`kill -9`, and a power cut once a later `sync` has returned.
"""

import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rocksdict import (
    AccessType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from schemas.errors import DataDirectoryInUseError, DiskError, StorageError
from schemas.limits import (
    DATABASE_WRITE_BUFFER_BYTES,
    ROCKSDB_JOBS_MAX,
    ROCKSDB_LOG_FILE_BYTES_MAX,
    ROCKSDB_LOG_FILES_MAX,
    SPOOL_WRITE_BUFFER_BYTES,
)

__all__ = [
    "LOG",
    "SPOOL",
    "TABLE",
    "Database",
    "Preset",
    "WriteBatch",
    "disk_errors",
    "new_batch",
    "says_corruption",
]


class Preset(NamedTuple):
    """What one kind of database is opened with.

    Attributes:
        name: of the database, in errors.
        write_buffer_bytes: held in memory before they become a data file.
        compressed: whether new data files are; old ones are read either way.
    """

    name: str
    write_buffer_bytes: int
    compressed: bool


LOG: Final = Preset("the log", DATABASE_WRITE_BUFFER_BYTES, compressed=False)
TABLE: Final = Preset("the table", DATABASE_WRITE_BUFFER_BYTES, compressed=True)
SPOOL: Final = Preset("the spool", SPOOL_WRITE_BUFFER_BYTES, compressed=True)


class Database:
    """A database that can be closed and opened again. One owner, but `sync` may run on a thread of
    its own, as long as no other one opens or closes meanwhile.

    Its methods raise what RocksDB raises, plain `Exception`s: call them within `disk_errors`, which
    says what was tried.
    """

    def __init__(self, path: Path, preset: Preset, *, access: AccessType | None = None) -> None:
        """Opens it, and creates it where it is missing.

        Raises:
            DataDirectoryInUseError: another process, or another object of this one, has it open.
            StorageError: it cannot be opened: permissions, a full disk, corruption.
        """
        self.path = path
        self._preset = preset
        self._access = access
        self._opened = False
        self._open()

    @classmethod
    def read_only(cls, path: Path, preset: Preset) -> "Database":
        """The database as it is now, while another process may go on writing it.

        Raises:
            StorageError: there is none, or it cannot be read.
        """
        _expect_database(path, preset)
        return cls(path, preset, access=AccessType.read_only(False))

    @classmethod
    def following(cls, path: Path, preset: Preset, scratch: Path) -> "Database":
        """As `read_only`, and `catch_up` lets it see what was written since.

        Args:
            path: of the database.
            preset: of the database.
            scratch: a directory for RocksDB's own notes on this reader.
        """
        _expect_database(path, preset)
        return cls(path, preset, access=AccessType.secondary(str(scratch)))

    def _open(self) -> None:
        if self._access is not None:
            with disk_errors(f"read {self._preset.name}", self.path):
                self._rdict = Rdict(
                    str(self.path), _options(self._preset), access_type=self._access
                )
        else:
            self._rdict = _open_for_writing(self.path, self._preset)
        self._opened = True

    def reopen(self) -> None:
        """Closes and opens again, which is how RocksDB leaves the state after a failed write.

        Raises:
            StorageError: it cannot be opened now; call again later.
        """
        self.close()
        self._open()

    def close(self) -> None:
        """Closes it; iterators end. Does nothing where it is closed already.

        Raises:
            DiskError: RocksDB failed as it closed.
        """
        if not self._opened:
            return  # an earlier reopening closed it and could not open it again
        self._opened = False
        gc.collect()  # an iterator that is still referenced keeps the directory locked
        with disk_errors(f"close {self._preset.name}", self.path):
            self._rdict.close()

    def set_aside(self, to: Path) -> None:
        """Moves all there is to another directory, in place of what was there, and begins an
        empty database. Iterators end.

        Raises:
            StorageError: it cannot be moved, or not be opened; call `reopen` later.
        """
        self.close()
        with disk_errors(f"move {self._preset.name}", self.path):
            shutil.rmtree(to, ignore_errors=True)
            self.path.rename(to)
        self._open()

    # Reading

    def get(self, key: bytes) -> bytes | None:
        """The value of the key, or None."""
        value: bytes | None = self._rdict.get(key)
        return value

    def cursor(self) -> RdictIter:
        """A cursor over a snapshot. Where it ends, ask `status`: what cannot be read looks like an
        end.
        """
        return self._rdict.iter()

    def scan(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from `start` on that begin with `prefix`, in order, with their values.

        Raises:
            Exception: a block could not be read; those before it have been yielded.
        """
        cursor = self.cursor()
        cursor.seek(start)
        while cursor.valid():
            key = cursor.key()
            if not key.startswith(prefix):
                return
            yield key, cursor.value()
            cursor.next()
        cursor.status()

    def last_key_before(self, end: bytes) -> bytes | None:
        """The last key at or before `end`, or None."""
        cursor = self.cursor()
        cursor.seek_for_prev(end)
        if cursor.valid():
            return bytes(cursor.key())
        cursor.status()
        return None

    # Writing

    def write(self, batch: WriteBatch) -> None:
        """Writes all of the batch or nothing."""
        self._rdict.write(batch)

    def sync(self) -> None:
        """Makes what was written survive a power cut."""
        self._rdict.flush_wal(sync=True)

    def flush(self) -> None:
        """Moves what was written into data files."""
        self._rdict.flush()

    def catch_up(self) -> None:
        """Of `following`: lets reading find what the writer has written since."""
        self._rdict.try_catch_up_with_primary()


def new_batch() -> WriteBatch:
    """An empty batch of raw keys and values."""
    return WriteBatch(raw_mode=True)


def _options(preset: Preset) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(preset.write_buffer_bytes)
    options.set_max_background_jobs(ROCKSDB_JOBS_MAX)
    options.set_keep_log_file_num(ROCKSDB_LOG_FILES_MAX)
    options.set_max_log_file_size(ROCKSDB_LOG_FILE_BYTES_MAX)
    options.set_compression_type(
        DBCompressionType.lz4() if preset.compressed else DBCompressionType.none()
    )
    # A torn last write (the machine died) ends recovery there; anything else is corruption and is
    # reported.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def _open_for_writing(path: Path, preset: Preset) -> Rdict:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return Rdict(str(path), _options(preset))
    except Exception as error:
        if _says_in_use(error):
            raise DataDirectoryInUseError(str(path)) from error
        raise StorageError(
            f"Cannot open the database at {path} for reading and writing: {error}"
        ) from error


def _expect_database(path: Path, preset: Preset) -> None:
    if not (path / "CURRENT").exists():
        what = preset.name.removeprefix("the ")
        raise StorageError(f"Expected a {what} at {path}, got no such directory")


# The texts of RocksDB's errors


def _says_in_use(error: Exception) -> bool:
    return any(text in str(error) for text in ("lock hold by", "LOCK:"))


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
