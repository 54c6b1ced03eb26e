"""The log of the embedded service: append-only, one process, group commit.

Format version 2, of a database (`storage.rocksdb`):

    key                      value
    b"r" + offset (u64 BE)   the record
    b"s" + offset (u64 BE)   segment mark: [bytes before it (u64 LE), Unix seconds (f64 LE)]
    b"m" + name              log facts: `format`, `complete_from`, `next_offset`

Offsets rise by one. A segment is a stretch of about `LOG_SEGMENT_BYTES` of records; retention drops
whole segments from the front, so its work does not depend on how much is kept. Single records may
be exempt from it (live registrations): they are kept, and reading skips the holes.

A segment is a file (`storage.record_files`) that stands for its records and its mark. Those of
version 1 are entries of RocksDB, as are records that were exempt when their file was dropped; they
are read like the others, and go by retention.

Durability: an append survives `kill -9` as soon as it returns, and a power cut once `sync` has run;
the service syncs every `LOG_SYNC_S`. After a power cut the log ends at some record appended before
it, never with a hole; where it shows that there was more, `torn` says so. A log that is damaged
elsewhere is neither opened nor read past the damage: `reprise.embedded.repair` makes what can be
read a log again.
"""

import struct
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from logs.interface import LogEntry
from schemas.errors import DamagedError, NewerVersionError, StorageError
from schemas.identities import Offset
from schemas.limits import LOG_SEGMENT_BYTES
from schemas.positions import LogBounds
from storage.live_copy import open_snapshot
from storage.rocksdb import (
    LOG,
    AppendedPart,
    Database,
    Entry,
    Preset,
    disk_errors,
    new_batch,
)

_FORMAT: Final = 2
_KEY: Final = struct.Struct(">cQ")
_MARK: Final = struct.Struct("<Qd")
_U64: Final = struct.Struct("<Q")
_RECORD, _SEGMENT = b"r", b"s"
_FORMAT_KEY, _COMPLETE_KEY, _NEXT_KEY = b"mformat", b"mcomplete_from", b"mnext_offset"
_END: Final = 2**64 - 1


def repaired_path(path: Path) -> Path:
    """Where a repaired log stands until it takes the place of the log at `path`."""
    return path.with_name(path.name + ".repaired")


class Segment(NamedTuple):
    """A stretch of the log: its first offset, the log's bytes before it, and when it was begun."""

    first_offset: int
    bytes_before: int
    begun_at: float


class EmbeddedLog:
    """See the module for the format, `RecordLog` for the contract. `sync` may run on another
    thread.

    Args:
        data: the directory of the data, which `reprise repair` is given; None: the one above.
        segment_bytes: see the module.

    Attributes:
        torn: why its end is known to be lost, as it was opened; "" where it is not.
    """

    _refuses_holes: ClassVar[bool] = True

    def __init__(
        self,
        path: Path,
        *,
        data: Path | None = None,
        segment_bytes: int = LOG_SEGMENT_BYTES,
        preset: Preset = LOG,
    ) -> None:
        """Opens or creates the log.

        Raises:
            DataDirectoryInUseError: another process has it open.
            DamagedError: it is damaged; its text says what to do, and nothing was changed.
            NewerVersionError: a newer Reprise wrote it.
            StorageError: it cannot be opened.
        """
        self.path = path
        self._data = data or path.parent
        self._segment_bytes = segment_bytes
        self._preset = preset
        self._lock = threading.Lock()  # guards the handle against `reopen` while `sync` runs
        self._has_moved = False  # to where the next record has none before it: not durable yet
        self._dirty = True  # a process that died may have left appends that were never synced
        with self._disk_errors():
            self._db = self._open()
        self.torn = self._db.torn
        try:
            self._load_facts()
        except BaseException:
            with suppress(StorageError):  # of damage that compaction has found meanwhile
                self._db.close()
            raise

    def _open(self) -> Database:
        if not self.path.exists() and repaired_path(self.path).exists():
            raise self._damaged("a repair of it was interrupted, and has to be finished")
        return Database(self.path, self._preset)

    @contextmanager
    def _disk_errors(self, action: str = "read the log") -> Iterator[None]:
        """As `disk_errors`; those of damage say what to do."""
        try:
            with disk_errors(action, self.path):
                yield
        except DamagedError as error:
            remedy = f"See what can be saved with `reprise repair --data {self._data}`"
            raise error.with_remedy(remedy) from error

    def _load_facts(self) -> None:
        with self._disk_errors():
            self._read_facts()

    def _read_facts(self) -> None:
        written_format = self._fact(_FORMAT_KEY, default=_FORMAT)
        if written_format > _FORMAT:
            raise NewerVersionError(
                "a log", version=written_format, supported=_FORMAT, where=str(self.path)
            )
        self._complete_from = self._fact(_COMPLETE_KEY, default=0)
        self._segments = deque(self._read_segments())
        last = self._last_record_offset()
        self._next = max(last + 1, self._fact(_NEXT_KEY, default=0), self._complete_from)
        begun = self._segments[-1] if self._segments else None
        self._size = begun.bytes_before if begun else 0
        for entry in self.read(Offset(begun.first_offset if begun else 0)):
            self._size += len(entry.value)

    def _fact(self, key: bytes, *, default: int) -> int:
        value = self._db.get(key)
        return default if value is None else int(self._unpack(_U64, value)[0])

    def _unpack(self, fields: struct.Struct, stored: bytes) -> tuple[Any, ...]:
        """Raises DamagedError where the bytes are not of the expected size."""
        try:
            return fields.unpack(stored)
        except struct.error as error:
            detail = f"expected {fields.size} bytes, got {len(stored)}"
            raise self._damaged(detail) from error

    def _damaged(self, detail: str) -> DamagedError:
        return DamagedError(action="read the log", path=str(self.path), detail=detail)

    def _read_segments(self) -> Iterator[Segment]:
        for key, value in self._db.scan(_KEY.pack(_SEGMENT, 0), _SEGMENT):
            yield Segment(self._unpack(_KEY, key)[1], *self._unpack(_MARK, value))

    def _last_record_offset(self) -> int:
        found = (self._db.last_key_before(_KEY.pack(_RECORD, _END)), self._db.last_in_files)
        keys = [key for key in found if key is not None and key[:1] == _RECORD]
        return max((int(self._unpack(_KEY, key)[1]) for key in keys), default=-1)

    # Reading

    @property
    def end_offset(self) -> Offset:
        """See `ReadableLog`."""
        return Offset(self._next)

    @property
    def bounds(self) -> LogBounds:
        """See `ReadableLog`."""
        return LogBounds(self._complete_from, self._next)

    @property
    def complete_from(self) -> Offset:
        """See `ReadableLog`."""
        return Offset(self._complete_from)

    @property
    def size_bytes(self) -> int:
        """Bytes of records kept, as retention counts them."""
        return self._size - (self._segments[0].bytes_before if self._segments else 0)

    def read(self, start: Offset) -> Iterator[LogEntry]:
        """See `ReadableLog`. Cost O(entries read); holds a snapshot while it runs.

        Raises:
            DiskError: a record cannot be read, or is gone; those before it have been yielded.
        """
        expected = max(start, self._complete_from)
        with self._disk_errors():
            for key, value in self._db.scan(_KEY.pack(_RECORD, start), _RECORD):
                offset = Offset(self._unpack(_KEY, key)[1])
                # Retention may have dropped some since `expected` was told.
                if offset > max(expected, self._complete_from) and self._refuses_holes:
                    raise self._damaged(f"records {expected} to {offset - 1} are missing")
                expected = max(expected, offset + 1)
                yield LogEntry(offset, value)

    def holes(self) -> list[tuple[int, int]]:
        """First and last offset of each stretch of records that are missing; reads all of it."""
        found = []
        expected = self._complete_from
        for entry in self.read(self.complete_from):
            if entry.offset > expected:
                found.append((expected, entry.offset - 1))
            expected = entry.offset + 1
        return found

    # Writing

    def append(self, values: Sequence[bytes], *, now: float = 0.0) -> Offset:
        """See `RecordLog`. `now`, in Unix seconds, dates a segment that begins here."""
        first, size = self._next, self._size
        segments: list[Segment] = []
        parts: list[AppendedPart] = []
        taken = 0
        begins = not (self._segments and self._db.has_files)
        for number, value in enumerate(values):
            begun = segments or self._segments
            if begins or size - begun[-1].bytes_before >= self._segment_bytes:
                begins = False
                self._end_part(parts, values[taken:number])
                taken = number
                segments.append(Segment(first + number, size, now))
                parts.append(AppendedPart(first + number, (), _mark_of(segments[-1])))
            size += len(value)
        if not parts:
            parts.append(AppendedPart(first, ()))
        self._end_part(parts, values[taken:])
        with self._disk_errors("append to the log"):
            if segments:
                self._note_format()
            if values:
                self._settle_facts()
                self._db.append(parts)
        self._segments.extend(segments)
        self._size = size
        self._next = first + len(values)
        self._dirty = True
        return Offset(first)

    def _end_part(self, parts: list[AppendedPart], values: Sequence[bytes]) -> None:
        if parts:
            parts[-1] = parts[-1]._replace(values=values)
        elif values:
            parts.append(AppendedPart(self._next, values))

    def _settle_facts(self) -> None:
        """A power cut that kept a record alone would leave a hole before it."""
        if self._has_moved:
            self._db.sync()
            self._has_moved = False

    def _note_format(self) -> None:
        """An earlier Reprise would take a log whose records are in files for an empty one."""
        if self._fact(_FORMAT_KEY, default=0) != _FORMAT:
            batch = new_batch()
            batch.put(_FORMAT_KEY, _U64.pack(_FORMAT))
            self._db.write(batch)

    def sync(self) -> None:
        """See `RecordLog`. Cheap when nothing was appended since the last call."""
        with self._lock, self._disk_errors("sync the log"):
            if self._dirty:
                self._dirty = False
                try:
                    self._db.sync()
                except BaseException:
                    self._dirty = True
                    raise

    def advance_to(self, offset: Offset) -> None:
        """See `RecordLog`."""
        if offset < self._next:
            raise ValueError(f"Expected an offset of at least `{self._next}`, got `{offset}`")
        batch = new_batch()
        batch.put(_NEXT_KEY, _U64.pack(offset))
        batch.put(_COMPLETE_KEY, _U64.pack(offset))
        with self._disk_errors("advance the log"):
            self._db.write(batch)
        self._has_moved = True
        self._next = self._complete_from = offset
        self._dirty = True

    def complete_only_from(self, offset: Offset) -> None:
        """Records before the offset are missing for good: the log counts as complete from there.

        Raises:
            DiskError: nothing was changed.
        """
        batch = new_batch()
        batch.put(_COMPLETE_KEY, _U64.pack(offset))
        with self._disk_errors("write to the log"):
            self._db.write(batch)
        self._has_moved = True
        self._complete_from = offset
        self._next = max(self._next, offset)
        self._dirty = True

    def reopen(self) -> None:
        """Closes and opens the log, which is how RocksDB leaves its state after a failed write.

        Raises:
            StorageError: it cannot be opened now, or another process has it; retry later.
        """
        with self._lock, self._disk_errors("open the log"):
            self._db.reopen()
            self._load_facts()

    def close(self) -> None:
        """Syncs and closes; the object is void afterwards."""
        try:
            self.sync()
        finally:
            with self._lock:
                self._db.close()

    # Retention

    def retain(
        self,
        *,
        bytes_max: int,
        age_max_s: float,
        now: float,
        floor: Offset,
        exempt: Iterable[int] = (),
    ) -> int:
        """Drops segments from the front while the rest is still too large or the segment too old.

        Args:
            bytes_max: keep at most about this much; the newest segment always stays.
            age_max_s: drop segments of which every record is older.
            now: Unix seconds.
            floor: nothing at or above it is dropped, whatever the bounds say: a table still needs
                it.
            exempt: offsets of records to keep for ever.

        Returns:
            How many segments were dropped. Cost O(dropped segments + exempt).

        Raises:
            DiskError: nothing was dropped.
        """
        dropped = 0
        while len(self._segments) - dropped > 1:
            following = self._segments[dropped + 1]
            kept = self._size - self._segments[dropped].bytes_before
            # The next segment's mark dates this one's last record.
            too_old = now - following.begun_at > age_max_s
            if following.first_offset > floor or not (kept > bytes_max or too_old):
                break
            dropped += 1
        if not dropped:
            return 0
        new_start = self._segments[dropped].first_offset
        batch = new_batch()
        begin = 0
        lasting = sorted(offset for offset in exempt if offset < new_start)
        for kept_offset in lasting:
            batch.delete_range(_KEY.pack(_RECORD, begin), _KEY.pack(_RECORD, kept_offset))
            begin = kept_offset + 1
        batch.delete_range(_KEY.pack(_RECORD, begin), _KEY.pack(_RECORD, new_start))
        for entry in self._in_files(lasting):
            batch.put(_KEY.pack(_RECORD, entry.offset), entry.value)
        batch.delete_range(_KEY.pack(_SEGMENT, 0), _KEY.pack(_SEGMENT, new_start))
        complete_from = max(self._complete_from, new_start)
        batch.put(_COMPLETE_KEY, _U64.pack(complete_from))
        # Told first: who reads what is dropped, from another thread, finds out afterwards.
        self._complete_from, before = complete_from, self._complete_from
        try:
            with self._disk_errors("retire old records of the log"):
                self._db.write(batch, drop_before=new_start)
        except BaseException:
            self._complete_from = before
            raise
        for _ in range(dropped):
            self._segments.popleft()
        self._dirty = True
        return dropped

    def _in_files(self, offsets: Iterable[int]) -> Iterator[LogEntry]:
        """Those of these records that are in files."""
        for offset in offsets:
            key = _KEY.pack(_RECORD, offset)
            with self._disk_errors():
                found = next(self._db.scan_files(key, key), None)
            if found is not None:
                yield LogEntry(Offset(offset), found[1])


def _mark_of(segment: Segment) -> Entry:
    key = _KEY.pack(_SEGMENT, segment.first_offset)
    return Entry(key, _MARK.pack(segment.bytes_before, segment.begun_at))


class ReadOnlyLog(EmbeddedLog):
    """The log as it was when opened; another process may go on writing it. Appending raises."""

    def _open(self) -> Database:
        return open_snapshot(self.path, self._preset)

    def append(self, values: Sequence[bytes], *, now: float = 0.0) -> Offset:
        """Refused."""
        raise StorageError(f"Expected a writable log, got one opened for reading: {self.path}")

    def sync(self) -> None:
        """Nothing: what is read here another process makes durable."""


class RepairedLog(EmbeddedLog):
    """A log of which records may be missing (`holes`)."""

    _refuses_holes = False


class ExaminedLog(ReadOnlyLog):
    """The same, as a start would find it, and read only."""

    _refuses_holes = False

    def _open(self) -> Database:
        return Database.up_to_damage(self.path, self._preset)
