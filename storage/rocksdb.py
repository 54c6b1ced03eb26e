"""The databases of Reprise: RocksDB through rocksdict.

    database   values                       options of its own
    ---------  ---------------------------  -------------------------------------------------------
    LOG        records under rising keys    no compression: hashes and tokens hardly compress, and
                                            trying costs a third of what writing them does
    TABLE      rows, overwritten in place   no compression: it would save a fifth of the space and
                                            make writing them cost half as much again; opens as it
                                            was before what is damaged
    SPOOL      records, soon deleted        a smaller write buffer: mostly it is empty
    HISTORY    past rows of a table         as TABLE
    ANSWERS    records under rising keys    data files are never merged: the oldest goes where they
                                            are too much, and merging cost a quarter of writing

Keys and values are raw bytes. The write-ahead log is on, so a write that has returned survives
`kill -9`, and a power cut once a later `sync` has returned.

A power cut may leave a write-ahead log with a torn end: cut off, or zeros. Such a database opens,
with all that was written before, and says so (`torn`). With damage anywhere else it does not open:
`storage.salvage` reads what can be read. A database of which an earlier moment is as good as the
last one, since what came later is made again, opens at the last moment before the damage.
"""

import contextlib
import gc
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakSet

from rocksdict import (
    AccessType,
    DBCompactionStyle,
    DBCompressionType,
    DBRecoveryMode,
    FifoCompactOptions,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from schemas.errors import ClosedDatabaseError, StorageError
from schemas.limits import AUDIT_FILES_BYTES, MIB
from storage.faults import disk_errors, opening_error, says_corruption
from storage.log_format import zeroed_logs
from storage.manifest import check_manifest

DATABASE_WRITE_BUFFER_BYTES: Final = 32 * MIB  # of a log or a table, in memory until it is flushed
SPOOL_WRITE_BUFFER_BYTES: Final = 16 * MIB  # a spool is mostly empty
ROCKSDB_JOBS_MAX: Final = 2  # threads that flush and compact, for each database
ROCKSDB_LOG_FILES_MAX: Final = 3  # of RocksDB's own text log, kept for each database
ROCKSDB_LOG_FILE_BYTES_MAX: Final = 4 * MIB  # of one file of RocksDB's own text log

__all__ = [
    "ANSWERS",
    "HISTORY",
    "LOG",
    "SPOOL",
    "TABLE",
    "Database",
    "Preset",
    "WriteBatch",
    "disk_errors",
    "examine",
    "memory_by_database",
    "new_batch",
    "repair_in_place",
    "says_corruption",
]

_IN_MEMORY: Final = (
    "rocksdb.cur-size-all-mem-tables",
    "rocksdb.block-cache-usage",
    "rocksdb.estimate-table-readers-mem",
)
_ALL_OF_IT: Final = DBRecoveryMode.absolute_consistency()
_BUT_A_TORN_END: Final = DBRecoveryMode.tolerate_corrupted_tail_records()
_UP_TO_DAMAGE: Final = DBRecoveryMode.point_in_time()
_PAST_DAMAGE: Final = DBRecoveryMode.skip_any_corrupted_record()


class Preset(NamedTuple):
    """What one kind of database is opened with.

    Attributes:
        name: of the database, in errors.
        write_buffer_bytes: held in memory before they become a data file.
        compressed: whether new data files are; old ones are read either way.
        made_again: whether what was written after some moment is made again where it is lost.
        files_bytes_max: data files are kept in the order in which they were written, and the oldest
            is dropped where they are more; 0: they are merged, and none is.
    """

    name: str
    write_buffer_bytes: int
    compressed: bool
    made_again: bool = False
    files_bytes_max: int = 0


LOG: Final = Preset("the log", DATABASE_WRITE_BUFFER_BYTES, compressed=False)
TABLE: Final = Preset("the table", DATABASE_WRITE_BUFFER_BYTES, compressed=False, made_again=True)
HISTORY: Final = Preset(
    "the history", DATABASE_WRITE_BUFFER_BYTES, compressed=False, made_again=True
)
ANSWERS: Final = Preset(
    "the log of answers",
    DATABASE_WRITE_BUFFER_BYTES,
    compressed=False,
    files_bytes_max=AUDIT_FILES_BYTES,
)
SPOOL: Final = Preset("the spool", SPOOL_WRITE_BUFFER_BYTES, compressed=True)


class Database:
    """A database that can be closed and opened again. One owner, but `sync` may run on a thread of
    its own, as long as no other one opens or closes meanwhile.

    Its methods raise what RocksDB raises, plain `Exception`s: call them within `disk_errors`, which
    says what was tried.

    Attributes:
        path: its directory.
        torn: why it was found with a torn end as it was first opened; "" where it was whole, or
            where that does not matter (`Preset.made_again`).
    """

    def __init__(
        self,
        path: Path,
        preset: Preset,
        *,
        access: AccessType | None = None,
        mode: DBRecoveryMode = _BUT_A_TORN_END,
    ) -> None:
        """Opens it, and creates it where it is missing.

        Raises:
            DataDirectoryInUseError: another process, or another object of this one, has it open.
            DamagedError: its files are damaged; nothing was changed.
            DiskFullError: there is no room to open it.
            StorageError: it cannot be opened for another reason.
        """
        self.path = path
        self.torn = ""
        self._preset = preset
        self._access = access
        self._mode = mode  # of readers
        self._opened = False
        self._why_closed = ""
        self._open(self._open_first)
        with _known_lock:
            _known.add(self)

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

    @classmethod
    def up_to_damage(cls, path: Path, preset: Preset) -> "Database":
        """As `read_only`, of one whose end may be torn: what was written before that."""
        _expect_database(path, preset)
        return cls(path, preset, access=AccessType.read_only(False), mode=_UP_TO_DAMAGE)

    @classmethod
    def past_damage(cls, path: Path, preset: Preset) -> "Database":
        """As `read_only`, of one that is damaged: what of its write-ahead log cannot be read is
        passed over. Its data files may be damaged yet.
        """
        _expect_database(path, preset)
        check_manifest(preset.name, path, _options(preset, _PAST_DAMAGE))
        return cls(path, preset, access=AccessType.read_only(False), mode=_PAST_DAMAGE)

    def _open(self, open_for_writing: Callable[[], Rdict]) -> None:
        try:
            if self._access is None:
                self._rdict = open_for_writing()
            else:
                with disk_errors(f"read {self._preset.name}", self.path):
                    self._rdict = _opened(self.path, self._preset, self._mode, self._access)
        except StorageError as error:
            self._why_closed = str(error)
            raise
        self._opened = True

    @property
    def _live(self) -> Rdict:
        """Raises DiskError where it is closed: an earlier reopening failed."""
        if not self._opened:
            why = self._why_closed or f"Expected {self._preset.name} to be open at {self.path}"
            raise ClosedDatabaseError(why, path=str(self.path))
        return self._rdict

    def _open_first(self) -> Rdict:
        """Tells a torn end from other damage."""
        with _opening(self._preset, self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            check_manifest(self._preset.name, self.path, _options(self._preset, _ALL_OF_IT))
            if self._preset.made_again:
                return _opened(self.path, self._preset, _UP_TO_DAMAGE)
            self.torn = _said_of_zeros(self.path)
            try:
                return _opened(self.path, self._preset, _ALL_OF_IT)
            except Exception as error:
                if not says_corruption(error) or not _is_torn(self.path, self._preset):
                    raise
                self.torn = str(error)
            return _opened(self.path, self._preset, _UP_TO_DAMAGE)

    def _open_again(self) -> Rdict:
        """After a failed write: what it left of itself is no damage, and anything else is."""
        with _opening(self._preset, self.path):
            return _opened(self.path, self._preset, _BUT_A_TORN_END)

    def reopen(self) -> None:
        """Closes and opens again, which is how RocksDB leaves the state after a failed write.

        Raises:
            StorageError: it cannot be opened now; call again later.
        """
        with contextlib.suppress(StorageError):  # opening it tells, if it still matters
            self.close()
        self._open(self._open_again)

    def close(self) -> None:
        """Closes it; iterators end. Does nothing where it is closed already.

        Raises:
            DiskError: RocksDB failed as it closed.
        """
        if not self._opened:
            return  # an earlier reopening closed it and could not open it again
        self._opened = False
        gc.collect()  # an iterator that is still referenced keeps the directory locked
        try:
            with disk_errors(f"close {self._preset.name}", self.path):
                self._rdict.close()
        except StorageError:
            del self._rdict  # it is closed by its end, where a damaged file kept it from closing
            raise

    def set_aside(self, to: Path) -> None:
        """Moves all there is to another directory, in place of what was there, and begins an
        empty database. Iterators end.

        Raises:
            StorageError: it cannot be moved, or not be opened; call `reopen` later.
        """
        with contextlib.suppress(StorageError):  # which may be why it is moved
            self.close()
        with disk_errors(f"move {self._preset.name}", self.path):
            shutil.rmtree(to, ignore_errors=True)
            self.path.rename(to)
        self._open(self._open_first)

    @property
    def name(self) -> str:
        """Of its kind, as `log`."""
        return self._preset.name.removeprefix("the ")

    # Reading

    def get(self, key: bytes) -> bytes | None:
        """The value of the key, or None."""
        value: bytes | None = self._live.get(key)
        return value

    def cursor(self) -> RdictIter:
        """A cursor over a snapshot. Where it ends, ask `status`: what cannot be read looks like an
        end.
        """
        return self._live.iter()

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

    def live_bytes(self) -> int:
        """About how much its data files hold, and what is to become one; without what is gone."""
        names = ("rocksdb.estimate-live-data-size", "rocksdb.cur-size-active-mem-table")
        return sum(int(self._live.property_int_value(name) or 0) for name in names)

    def memory_bytes(self) -> int:
        """What it takes of this process's memory: writes that are in no data file yet, what was
        read, and the indexes of its data files. 0 while it is closed. Any thread.
        """
        rdict = self._rdict if self._opened else None
        total = 0
        for name in _IN_MEMORY:
            with contextlib.suppress(Exception):  # its owner closes it meanwhile
                total += int(rdict.property_int_value(name) or 0) if rdict is not None else 0
        return total

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
        self._live.write(batch)

    def sync(self) -> None:
        """Makes what was written survive a power cut."""
        self._live.flush_wal(sync=True)

    def flush(self) -> None:
        """Moves what was written into data files."""
        self._live.flush()

    def catch_up(self) -> None:
        """Of `following`: lets reading find what the writer has written since."""
        self._live.try_catch_up_with_primary()


_known: Final[WeakSet[Database]] = WeakSet()
_known_lock: Final = threading.Lock()


def memory_by_database() -> dict[str, int]:
    """Bytes of this process's memory by kind of database: `log`, `table`, ... Any thread."""
    with _known_lock:
        known = list(_known)
    found: dict[str, int] = {}
    for one in known:
        name = one.name
        found[name] = found.get(name, 0) + one.memory_bytes()
    return found


def examine(path: Path, preset: Preset) -> str:
    """Why the database would be found torn as it is opened, or ""; changes nothing.

    Raises:
        DamagedError: it would not be opened.
        StorageError: it cannot be read.
    """
    with _opening(preset, path):
        check_manifest(preset.name, path, _options(preset, _ALL_OF_IT))
        mode = _UP_TO_DAMAGE if preset.made_again else _ALL_OF_IT
        try:
            _opened(path, preset, mode, AccessType.read_only(False)).close()
        except Exception as error:
            if not says_corruption(error) or not _is_torn(path, preset):
                raise
            return str(error)
    return "" if preset.made_again else _said_of_zeros(path)


def new_batch() -> WriteBatch:
    """An empty batch of raw keys and values."""
    return WriteBatch(raw_mode=True)


def _options(preset: Preset, mode: DBRecoveryMode) -> Options:
    """What a database is opened with, recovering its write-ahead log in this mode."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(preset.write_buffer_bytes)
    options.set_max_background_jobs(ROCKSDB_JOBS_MAX)
    options.set_keep_log_file_num(ROCKSDB_LOG_FILES_MAX)
    options.set_max_log_file_size(ROCKSDB_LOG_FILE_BYTES_MAX)
    options.set_compression_type(
        DBCompressionType.lz4() if preset.compressed else DBCompressionType.none()
    )
    options.set_wal_recovery_mode(mode)
    if preset.files_bytes_max:
        in_order = FifoCompactOptions()
        in_order.max_table_files_size = preset.files_bytes_max
        options.set_fifo_compaction_options(in_order)
        options.set_compaction_style(DBCompactionStyle.fifo())
    return options


def repair_in_place(path: Path, preset: Preset) -> None:
    """RocksDB's own repair: names anew the data files that it can read, and no others.

    Raises:
        DiskError: it failed; the files may be anything now.
    """
    with disk_errors(f"repair {preset.name}", path):
        Rdict.repair(str(path), _options(preset, _PAST_DAMAGE))


def _opened(
    path: Path, preset: Preset, mode: DBRecoveryMode, access: AccessType | None = None
) -> Rdict:
    return Rdict(str(path), _options(preset, mode), access_type=access or AccessType.read_write())


@contextlib.contextmanager
def _opening(preset: Preset, path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise opening_error(preset.name, path, error) from error


def _said_of_zeros(path: Path) -> str:
    return ", ".join(f"{name} ends in zeros" for name in zeroed_logs(path))


def _is_torn(path: Path, preset: Preset) -> bool:
    """Whether nothing that can be read stands behind the damage of the write-ahead log.

    A damaged record costs the rest of its block of 32 KiB, here as in any recovery of RocksDB. So
    damage in the last block is a torn end.
    """
    reached = []
    for mode in (_UP_TO_DAMAGE, _PAST_DAMAGE):
        try:
            rdict = _opened(path, preset, mode, AccessType.read_only(False))
        except Exception:  # noqa: BLE001 -- it is damaged elsewhere
            return False
        reached.append(rdict.latest_sequence_number())
        rdict.close()
    return reached[0] == reached[1]


def _expect_database(path: Path, preset: Preset) -> None:
    if not (path / "CURRENT").exists():
        what = preset.name.removeprefix("the ")
        raise StorageError(f"Expected a {what} at {path}, got no such directory")
