"""The databases of Reprise: RocksDB through rocksdict.

    database   values                       options of its own
    ---------  ---------------------------  -------------------------------------------------------
    LOG        records under rising keys    new ones are in files (`storage.record_files`); no
                                            compression: hashes and tokens hardly compress, and
                                            trying costs a third of what writing them does
    TABLE      rows, overwritten in place   no compression: it would save a fifth of the space and
                                            make writing them cost half as much again; opens as it
                                            was before what is damaged
    SPOOL      records, soon deleted        a smaller write buffer: mostly it is empty
    HISTORY    past rows of a table         as TABLE, and no write-ahead log: what a kill costs is
                                            copied from the table's rows
    ANSWERS    records under rising keys    as LOG; older ones are in data files that are never
                                            merged: the oldest goes where they are too much

Keys and values are raw bytes. The write-ahead log is on, so a write that has returned survives
`kill -9`, and a power cut once a later `sync` has returned; without one both are so of what has
come into data files. Data files are written past the page cache, where the file system takes that:
it has no use for them, and copying them into it cost more than all else of making them.

A power cut may leave a write-ahead log with a torn end: cut off, or zeros. Such a database opens,
with all that was written before, and says so (`torn`). With damage anywhere else it does not open:
`storage.salvage` reads what can be read. A database of which an earlier moment is as good as the
last one, since what came later is made again, opens at the last moment before the damage.
"""

import contextlib
import gc
import heapq
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
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
    WriteOptions,
)

from schemas.errors import ClosedDatabaseError, StorageError
from schemas.limits import AUDIT_FILES_BYTES, MIB
from storage.faults import disk_errors, opening_error, says_corruption
from storage.files import takes_direct_io
from storage.log_format import zeroed_logs
from storage.manifest import check_manifest
from storage.ownership import Ownership
from storage.record_files import AppendedPart, Entry, RecordFiles, name_of

DATABASE_WRITE_BUFFER_BYTES: Final = 32 * MIB  # of a log or a table, in memory until it is flushed
SPOOL_WRITE_BUFFER_BYTES: Final = 16 * MIB  # a spool is mostly empty
ROCKSDB_FILES_MERGED: Final = 12  # new data files that are merged with the older ones at once
ROCKSDB_JOBS_MAX: Final = 2  # threads that flush and compact, for each database
ROCKSDB_LOG_FILES_MAX: Final = 3  # of RocksDB's own text log, kept for each database
ROCKSDB_LOG_FILE_BYTES_MAX: Final = 4 * MIB  # of one file of RocksDB's own text log

__all__ = [
    "ANSWERS",
    "DIRECTORY",
    "HISTORY",
    "LOG",
    "SPOOL",
    "TABLE",
    "AppendedPart",
    "Database",
    "Entry",
    "Preset",
    "WriteBatch",
    "disk_errors",
    "examine",
    "memory_by_database",
    "new_batch",
    "repair_in_place",
    "says_corruption",
]

_FILES: Final = b"\xfe"
"""What the keys begin with that name files of records, of which none may be gone; the last ones."""

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
        logged: whether there is a write-ahead log.
        in_files: what the keys of records begin with that are appended in files of their own; b"":
            none are.
    """

    name: str
    write_buffer_bytes: int
    compressed: bool
    made_again: bool = False
    files_bytes_max: int = 0
    logged: bool = True
    in_files: bytes = b""


LOG: Final = Preset("the log", DATABASE_WRITE_BUFFER_BYTES, compressed=False, in_files=b"r")
TABLE: Final = Preset("the table", DATABASE_WRITE_BUFFER_BYTES, compressed=False, made_again=True)
HISTORY: Final = Preset(
    "the history", DATABASE_WRITE_BUFFER_BYTES, compressed=False, made_again=True, logged=False
)
ANSWERS: Final = Preset(
    "the log of answers",
    DATABASE_WRITE_BUFFER_BYTES,
    compressed=False,
    files_bytes_max=AUDIT_FILES_BYTES,
    in_files=b"r",
)
SPOOL: Final = Preset("the spool", SPOOL_WRITE_BUFFER_BYTES, compressed=True)
DIRECTORY: Final = Preset("LMCache's directory", SPOOL_WRITE_BUFFER_BYTES, compressed=True)


class Database:
    """A database that can be closed and opened again. One owner, but `sync` may run on a thread of
    its own, as long as no other one opens or closes meanwhile.

    Its methods raise what RocksDB raises, plain `Exception`s: call them within `disk_errors`, which
    says what was tried.

    Attributes:
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
        self._writing = WriteOptions()
        # Its stub takes the property for a method.
        self._writing.disable_wal = not preset.logged  # type: ignore[method-assign, assignment]
        self._access = access
        self._mode = mode  # of readers
        self._opened = False
        self._why_closed = ""
        self._has_unsynced = True  # whoever wrote it last may have died before
        self._files: RecordFiles | None = None
        self._ownership: Ownership | None = None  # of a directory with files of records
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
                self._open_files()
                self._opened = True
                self._check_files()
            else:
                with disk_errors(f"read {self._preset.name}", self.path):
                    # First: what is dropped meanwhile may have become entries of the database.
                    self._open_files()
                    self._rdict = _opened(self.path, self._preset, self._mode, self._access)
                    self._opened = True
                    self._check_files()
        except StorageError as error:
            self._why_closed = str(error)
            if self._files is not None and (self._opened or self._access is not None):
                self._files.close()
                self._files = None
            if self._opened:
                self._close()
            if self._files is None:
                self._disown()
            raise

    def _own(self) -> None:
        """Raises StorageError where another process owns the directory, or it is another one."""
        if not self._preset.in_files:
            return
        with _opening(self._preset, self.path):
            if self._ownership is None:
                self._ownership = Ownership(self.path)
            else:
                self._ownership.check()

    def _disown(self) -> None:
        if self._ownership is not None:
            self._ownership.end()
            self._ownership = None

    def _check_files(self) -> None:
        """Names those that are not named yet; raises DamagedError where one is gone."""
        files = self._files
        if files is None or self._mode == _PAST_DAMAGE:
            return
        with disk_errors(f"open {self._preset.name}", self.path):
            named = set()
            for key, _ in self._scan(_FILES, _FILES):
                name = key[len(_FILES) :].decode("ascii", "replace")
                if not files.has(name):
                    raise OSError(f"Corruption: {name} is gone")
                named.add(name)
            unnamed = [name for name in files.names() if name not in named]
            if unnamed and self._access is None:  # a kill or a power cut came in between
                files.settle()
                self._name_files(unnamed)

    def _open_files(self) -> None:
        """Raises where they are damaged, or cannot be written as they are to go on."""
        if not self._preset.in_files:
            return
        writes = self._access is None
        try:
            if self._files is not None and writes:
                self._files.reopen()
                return
            self._files = RecordFiles(
                self.path,
                self._preset.in_files,
                writes=writes,
                skips_damage=self._mode == _PAST_DAMAGE,
            )
        except Exception as error:
            if writes:
                self._rdict.close()
                del self._rdict
                raise opening_error(self._preset.name, self.path, error) from error
            raise
        self.torn = self.torn or self._files.torn

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
            self._own()
            if self._preset.logged:
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
            self._own()
            return _opened(self.path, self._preset, _BUT_A_TORN_END)

    def reopen(self) -> None:
        """Closes and opens again, which is how RocksDB leaves the state after a failed write. What
        has files of records stays this process's meanwhile, also where it cannot be opened.

        Raises:
            StorageError: it cannot be opened now, or is not what this process left; call again
                later.
        """
        with contextlib.suppress(StorageError):  # opening it tells, if it still matters
            self._close()
        self._open(self._open_again)

    def close(self) -> None:
        """Closes it; iterators end. Does nothing where it is closed already.

        Raises:
            DiskError: RocksDB failed as it closed.
        """
        if self._files is not None:
            with contextlib.suppress(OSError):  # then it is torn where it is damaged
                self._files.end()
            self._files.close()
            self._files = None
        try:
            self._close()
        finally:
            self._disown()

    def _close(self) -> None:
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
        own = self.scan_own(start, prefix)
        return own if self._files is None else _merged(own, self.scan_files(start, prefix))

    def scan_files(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, of the files of records alone, with the marks that stand for them."""
        files, records = self._files, self._preset.in_files
        if files is None:
            return
        marks = sorted(mark for mark in files.marks() if mark.key >= start)
        named = [mark for mark in marks if mark.key.startswith(prefix)]
        yield from (mark for mark in named if mark.key < records)
        if records.startswith(prefix) or prefix.startswith(records):
            yield from (one for one in files.scan(start) if one.key.startswith(prefix))
        yield from (mark for mark in named if mark.key > records)

    def scan_own(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `scan`, without the files of records."""
        for found in self._scan(start, prefix):
            if found[0] >= _FILES:
                return
            yield found

    def _scan(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
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

    @property
    def last_in_files(self) -> bytes | None:
        """The key of the last record that was appended; None where none is kept."""
        return None if self._files is None else self._files.last_key

    def last_key_before(self, end: bytes) -> bytes | None:
        """The last key at or before `end` that is not in the files of records, or None."""
        cursor = self.cursor()
        cursor.seek_for_prev(end)
        if cursor.valid():
            return bytes(cursor.key())
        cursor.status()
        return None

    # Writing

    def write(self, batch: WriteBatch, *, drop_before: int = 0) -> None:
        """Writes all of the batch or nothing, and drops the files of records that are all before a
        number: these are gone once the batch is durable.
        """
        files = self._files
        drops = files is not None and files.has_before(drop_before)
        if drops:
            batch.delete_range(_FILES, _FILES + name_of(drop_before).encode())
        self._write(batch)
        if files is not None and drops:
            files.drop_before(drop_before)

    def _write(self, batch: WriteBatch) -> None:
        try:
            self._live.write(batch, self._writing)
        finally:  # behind it: a `sync` that comes between has not made it durable
            self._has_unsynced = True

    def append(self, parts: Sequence[AppendedPart]) -> None:
        """Appends records under `Preset.in_files`, all of them or none; their numbers rise.

        Raises:
            OSError: none of them was appended; where the next one fails, too, call `reopen`.
        """
        assert self._files is not None
        _ = self._live
        self._files.append(parts)
        begun = [name_of(part.first) for part in parts if part.mark is not None]
        if begun:
            self._name_files(begun)

    def _name_files(self, names: Sequence[str]) -> None:
        batch = new_batch()
        for name in names:
            batch.put(_FILES + name.encode(), b"")
        self._write(batch)

    @property
    def has_files(self) -> bool:
        """Whether there is a file that records can go on with."""
        return bool(self._files)

    def sync(self) -> None:
        """Makes what was written survive a power cut."""
        if not self._preset.logged:
            self._live.flush()
            return
        dropped = 0 if self._files is None else self._files.dropped
        live = self._live
        if self._has_unsynced:
            self._has_unsynced = False
            try:
                live.flush_wal(sync=True)
            except BaseException:
                self._has_unsynced = True
                raise
        if self._files is not None:
            self._files.sync(dropped=dropped)

    def flush(self) -> None:
        """Moves what was written into data files."""
        self._live.flush()

    def begin_flush(self) -> None:
        """As `flush`, and it goes on in a thread of RocksDB's."""
        self._live.flush(wait=False)

    def catch_up(self) -> None:
        """Of `following`: lets reading find what the writer has written since."""
        if self._files is not None:
            self._files.refresh()
        self._live.try_catch_up_with_primary()


def _merged(
    own: Iterator[tuple[bytes, bytes]], in_files: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes]]:
    """Both in order; what both have is the database's own."""
    last = b""
    for found in heapq.merge(own, in_files, key=itemgetter(0)):
        if found[0] != last:
            last = found[0]
            yield found


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
        torn = ""
        if preset.in_files:
            files = RecordFiles(path, preset.in_files, writes=False)
            torn = files.torn
            files.close()
    return "" if preset.made_again else _said_of_zeros(path) or torn


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
    options.set_level_zero_file_num_compaction_trigger(ROCKSDB_FILES_MERGED)
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
    options = _options(preset, mode)
    if access is None and takes_direct_io(path):
        options.set_use_direct_io_for_flush_and_compaction(True)
    return Rdict(str(path), options, access_type=access or AccessType.read_write())


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
