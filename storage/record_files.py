"""Records under rising numbers in files beside a database: each byte is written once, and an old
file is dropped whole.

Format version 1, in `records-NUMBER.rec`; the number is that of its first record. All of it is
little-endian. A newer version keeps the layout of the head, which tells it from damage.

    head    b"RPRH", version (u32), lengths of the mark's key and value (u32 each), checksum (u64),
            the mark: an entry of the database that stands for the file
    frame   b"RPRF", length of its body (u32), number of its first record (u64), how far the file
            was durable then (u64), checksum (u64), body: how many records (u32), the length of each
            (u32), the records

Checksums are XXH3-64 of what is behind the first four bytes, without themselves. What one append
brings is a frame, so it is there as a whole or not at all.

All files but the last are durable, for the next one begins only then. Where a frame of the last one
cannot be read, that is its torn end, unless one behind it says that it was durable: that is damage.
So a power cut never leaves a hole, and nothing that was durable is lost without a word; where it is
closed, a frame without records says so of all of it.

A reader has the oldest files open from the start, and so keeps what the writer drops meanwhile.
"""

import os
import re
import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from xxhash import xxh3_64

from schemas.errors import NewerVersionError, StorageError
from schemas.limits import KIB
from storage.files import sync_path

RECORD_INDEX_BYTES: Final = 64 * KIB  # of a file between two places that are remembered
READER_FILES_MAX: Final = 256  # that a reader has open: the oldest, which are dropped first

SUFFIX: Final = ".rec"
_NAME: Final = re.compile(rf"records-\d{{20}}{re.escape(SUFFIX)}")
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIIIQ")
_FRAME: Final = struct.Struct("<4sIQQQ")
_HEAD_MAGIC, _FRAME_MAGIC = b"RPRH", b"RPRF"
_GUARDED_HEAD: Final = struct.Struct("<III")
_GUARDED_FRAME: Final = struct.Struct("<IQQ")
_COUNT: Final = struct.Struct("<I")
_NUMBER: Final = struct.Struct(">Q")
_SHORTEST: Final = _HEAD.size + _FRAME.size + _COUNT.size  # of a file with a frame
_sync_data: Final = getattr(os, "fdatasync", os.fsync)  # not everywhere


def name_of(first: int) -> str:
    """The name of the file that begins with the record of this number."""
    return f"records-{first:020d}{SUFFIX}"


def _paths_in(directory: Path) -> list[Path]:
    return sorted(
        path for path in directory.glob(f"records-*{SUFFIX}") if _NAME.fullmatch(path.name)
    )


class Entry(NamedTuple):
    """A key and a value of the database."""

    key: bytes
    value: bytes


class AppendedPart(NamedTuple):
    """Records of consecutive numbers.

    Attributes:
        first: number of the first one.
        mark: of the file that they begin; None where they go on with the last one.
    """

    first: int
    values: Sequence[bytes]
    mark: Entry | None = None


class _Frame(NamedTuple):
    place: int
    end: int
    first: int
    durable_to: int
    body: bytes

    def values(self) -> Iterator[tuple[int, bytes]]:
        """Its records by number."""
        (count,) = _COUNT.unpack_from(self.body)
        at = _COUNT.size * (1 + count)
        for number, length in enumerate(
            struct.unpack_from(f"<{count}I", self.body, _COUNT.size), self.first
        ):
            yield number, self.body[at : at + length]
            at += length

    @property
    def next(self) -> int:
        """The number behind its last record."""
        return self.first + int(_COUNT.unpack_from(self.body)[0])


class _UnreadableError(Exception):
    """What stands at a place of a file is no whole frame."""


class _CorruptionError(OSError):
    """A file is not as it was written."""

    def __init__(self, path: Path, detail: object) -> None:
        super().__init__(f"Corruption: {path.name}: {detail}")


class _File:
    """One file; `begin` is where its first frame is, and `end` behind its last one."""

    def __init__(self, path: Path, mark: Entry | None, begin: int) -> None:
        self.path = path
        self.first = int(path.stem.rpartition("-")[2])
        self.mark = mark
        self.begin = self.end = begin
        self.next = self.first
        self.kept: int | None = None  # its descriptor, where it is to stay readable
        self._places = [(self.first, begin)]
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, *, keeps: bool) -> "_File":
        """A file that is there.

        Raises:
            OSError: it cannot be read, or its head is damaged.
            NewerVersionError: a newer Reprise wrote it.
        """
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.pread(opened, _HEAD.size, 0)
            if len(head) < _HEAD.size:
                raise _CorruptionError(path, "it has no head")
            magic, version, key_length, value_length, checksum = _HEAD.unpack(head)
            mark = os.pread(opened, min(key_length + value_length, KIB), _HEAD.size)
            guarded = _GUARDED_HEAD.pack(version, key_length, value_length)
            if magic != _HEAD_MAGIC or checksum != _checksum(guarded, mark):
                raise _CorruptionError(path, "its head is not as it was written")
            if version > _VERSION:
                raise NewerVersionError(
                    "a file of records", version=version, supported=_VERSION, where=str(path)
                )
            entry = Entry(mark[:key_length], mark[key_length:])
            found = cls(path, entry, _HEAD.size + len(mark))
            if keeps:
                found.kept, opened = opened, -1
            return found
        finally:
            if opened >= 0:
                os.close(opened)

    def check_order(self, frame: _Frame, expected: int, is_first: bool) -> None:
        """Raises OSError where the frame is of another file, or stands twice."""
        if frame.first < expected or (is_first and frame.first != self.first):
            raise _CorruptionError(
                self.path, f"expected record {expected} at {frame.place}, got {frame.first}"
            )

    def take_all(self) -> None:
        """Another one follows: all of it counts, and reading tells what is damaged."""
        reader = self.reader()
        try:
            self.end = os.fstat(reader).st_size
        finally:
            os.close(reader)

    def reader(self) -> int:
        """A descriptor to be closed by the caller.

        Raises:
            FileNotFoundError: it was dropped.
        """
        if self.kept is not None:
            return os.dup(self.kept)
        return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Closes what is kept open."""
        if self.kept is not None:
            os.close(self.kept)
            self.kept = None

    def note(self, first: int, place: int) -> None:
        """Remembers where a record stands, now and then."""
        if place >= self._places[-1][1] + RECORD_INDEX_BYTES:
            with self._lock:
                if place > self._places[-1][1]:
                    self._places.append((first, place))

    def forget_from(self, place: int) -> None:
        """The file ends there."""
        with self._lock:
            while len(self._places) > 1 and self._places[-1][1] >= place:
                self._places.pop()

    def place_of(self, reader: int, number: int, end: int) -> int:
        """Of the frame that may have the record, or of one before it."""
        known = bisect_right(self._places, (number, end)) - 1
        place = self._places[max(known, 0)][1]
        before = place
        while place < end:
            head = os.pread(reader, _FRAME.size, place)
            if len(head) < _FRAME.size or head[:4] != _FRAME_MAGIC:
                break  # reading tells
            _, length, first, _, _ = _FRAME.unpack(head)
            if first > number:
                break
            self.note(first, place)
            before, place = place, place + _FRAME.size + length
        return before

    def frames(self, reader: int, place: int, end: int) -> Iterator[_Frame]:
        """The whole frames from a place on.

        Raises:
            _UnreadableError: what is behind them is none.
        """
        while place < end:
            frame = _frame_at(reader, place, end)
            self.note(frame.first, place)
            yield frame
            place = frame.end

    def frame_behind(self, reader: int, place: int, end: int) -> _Frame | None:
        """The first whole frame behind a place where none can be read."""
        content = os.pread(reader, end - place, place)
        at = content.find(_FRAME_MAGIC, 1)
        while at >= 0:
            if self._may_begin(content, at, place):
                with suppress(_UnreadableError):
                    return _frame_at(reader, place + at, end)
            at = content.find(_FRAME_MAGIC, at + 1)
        return None

    def _may_begin(self, content: bytes, at: int, place: int) -> bool:
        """Whether what stands there says nothing impossible: records may have such bytes, too, and
        a checksum costs the length that they say.
        """
        if at + _FRAME.size + _COUNT.size > len(content):
            return False
        _, length, first, durable_to, _ = _FRAME.unpack_from(content, at)
        (count,) = _COUNT.unpack_from(content, at + _FRAME.size)
        has_room = bool(_COUNT.size * (1 + count) <= length)
        return has_room and bool(first >= self.first and durable_to <= place + at)

    def _was_durable(self, reader: int, behind: _Frame | None, size: int) -> bool:
        """Whether a frame behind says so of what stands at `end`."""
        while behind is not None:
            if behind.durable_to > self.end:
                return True
            place = behind.end
            try:
                behind = _frame_at(reader, place, size) if place < size else None
            except _UnreadableError:
                behind = self.frame_behind(reader, place, size)
        return False

    def find_end(self, *, skips_damage: bool) -> str:
        """Reads what is behind `end`, and moves that and `next`; returns how it is torn, or "".

        Raises:
            OSError: it is damaged elsewhere.
        """
        reader = self.reader()
        try:
            size = os.fstat(reader).st_size
            while True:
                try:
                    for frame in self.frames(reader, self.end, size):
                        if not skips_damage:
                            self.check_order(frame, self.next, self.end == self.begin)
                        self.end, self.next = frame.end, frame.next
                    return ""
                except _UnreadableError as error:
                    behind = self.frame_behind(reader, self.end, size)
                    if not skips_damage and self._was_durable(reader, behind, size):
                        raise _CorruptionError(self.path, f"{error} at {self.end}") from error
                    if behind is None or not skips_damage:
                        return f"{self.path.name} ends within a record: {error}"
                    self.end = behind.place
        finally:
            os.close(reader)


def _checksum(guarded: bytes, content: bytes) -> int:
    made = xxh3_64(guarded)
    made.update(content)
    return made.intdigest()


def _frame_at(reader: int, place: int, end: int) -> _Frame:
    head = os.pread(reader, _FRAME.size, place)
    if len(head) < _FRAME.size:
        raise _UnreadableError("expected a frame, got a part of its head")
    magic, length, first, durable_to, checksum = _FRAME.unpack(head)
    if magic != _FRAME_MAGIC or place + _FRAME.size + length > end or length < _COUNT.size:
        raise _UnreadableError("expected a frame, got something else or a part of one")
    body = os.pread(reader, length, place + _FRAME.size)
    if _checksum(_GUARDED_FRAME.pack(length, first, durable_to), body) != checksum:
        raise _UnreadableError("expected a frame, got one whose checksum is another")
    return _Frame(place, place + _FRAME.size + length, first, durable_to, body)


class _End(NamedTuple):
    """How far the files go."""

    files: int
    place: int
    next: int


class RecordFiles:
    """The files of one directory; see the module. One writer, whose `sync` may run on another
    thread; `scan` on any.

    Args:
        directory: where they are.
        prefix: of the keys that records have in the database; the number behind it is big-endian.
        writes: whether this is the writer; else nothing is changed, and what is there now stays
            readable.
        skips_damage: read what stands behind damage, too.

    Attributes:
        torn: how the last one's end was torn, or "".
    """

    def __init__(
        self, directory: Path, prefix: bytes, *, writes: bool, skips_damage: bool = False
    ) -> None:
        """
        Raises:
            OSError: they are damaged, or cannot be read.
            NewerVersionError: a newer Reprise wrote one.
        """
        self.torn = ""
        self._directory = directory
        self._prefix = prefix
        self._writes = writes
        self._skips_damage = skips_damage
        self._lock = threading.Lock()  # guards the descriptor that `sync` uses
        self._files: list[_File] = []
        self._dropped: list[Path] = []
        self._descriptor = -1
        self._durable_to = 0
        self._failed: _End | None = None  # an append left more than this
        self._has_appended = False
        self._is_uncut = False  # the torn end is there
        self._has_failed_sync = False
        try:
            self._find(directory)
        except BaseException:
            self.close()
            raise

    def _find(self, directory: Path) -> None:
        for path in _paths_in(directory):
            try:
                keeps = not self._writes and len(self._files) < READER_FILES_MAX
                self._files.append(_File.open(path, keeps=keeps))
            except FileNotFoundError:
                continue  # dropped meanwhile
            except OSError as error:
                if self._skips_damage:
                    self._files.append(_File(path, None, 0))
                elif not self._is_unbegun(path, error):
                    raise
        for sealed in self._files[:-1]:
            with suppress(FileNotFoundError):
                sealed.take_all()
        if self._files:
            last = self._files[-1]
            self.torn = last.find_end(skips_damage=self._skips_damage) or self.torn
            if self._writes:
                self._descriptor = os.open(last.path, os.O_WRONLY | os.O_CLOEXEC)
                self._is_uncut = os.fstat(self._descriptor).st_size > last.end

    def _is_unbegun(self, path: Path, error: OSError) -> bool:
        """Whether a power cut left it so: its head comes first, and it is too short for a frame."""
        size = path.stat().st_size
        if not isinstance(error, _CorruptionError) or size >= _SHORTEST:
            return False
        if path != _paths_in(self._directory)[-1]:
            return False
        if size >= _HEAD.size:  # else it was never begun
            self.torn = f"{path.name} has no record"
        if self._writes:
            path.unlink()
        return True

    def _cut(self) -> None:
        """By the first append: until then each opening tells how the end is torn."""
        if self._is_uncut:
            os.ftruncate(self._descriptor, self._files[-1].end)
            self._is_uncut = False

    # Reading

    def __bool__(self) -> bool:
        return bool(self._files)

    def has(self, name: str) -> bool:
        """Whether the file is there, or was as they were opened."""
        known = any(file.path.name == name for file in self._files)
        return known or (self._directory / name).exists()

    def names(self) -> list[str]:
        """Of the files that are there."""
        return [file.path.name for file in self._files]

    def has_before(self, number: int) -> bool:
        """Whether `drop_before` drops any."""
        return len(self._files) > 1 and self._files[1].first <= number

    def marks(self) -> list[Entry]:
        """The entry that stands for each file, where it can be read."""
        return [file.mark for file in list(self._files) if file.mark is not None]

    @property
    def last_key(self) -> bytes | None:
        """Of the last record; None where there is none."""
        number = self._files[-1].next - 1 if self._files else -1
        return None if number < 0 else self._prefix + _NUMBER.pack(number)

    def scan(self, start: bytes) -> Iterator[Entry]:
        """The records from a key on, in order.

        Raises:
            OSError: one cannot be read; those before it have been yielded.
        """
        if start <= self._prefix:
            number = 0
        elif start[: len(self._prefix)] == self._prefix:
            rest = start[len(self._prefix) :]
            number = int.from_bytes(rest[:8].ljust(8, b"\0"), "big") + (len(rest) > 8)
        else:
            return
        files = list(self._files)
        expected = 0
        ends = [file.end for file in files]  # what is appended meanwhile is left for the next one
        for place, (file, end) in enumerate(zip(files, ends, strict=True)):
            if files[place + 1 :] and files[place + 1].first <= number:
                continue
            try:
                reader = file.reader()
            except FileNotFoundError:
                continue  # dropped meanwhile
            try:
                for frame in self._frames(file, reader, number, end):
                    if not self._skips_damage:
                        file.check_order(
                            frame, max(expected, file.first), frame.place == file.begin
                        )
                    expected = frame.next
                    for found, value in frame.values():
                        if found >= number:
                            yield Entry(self._prefix + _NUMBER.pack(found), value)
            finally:
                os.close(reader)

    def _frames(self, file: _File, reader: int, number: int, end: int) -> Iterator[_Frame]:
        place = file.place_of(reader, number, end)
        while True:
            try:
                for frame in file.frames(reader, place, end):
                    yield frame
                    place = frame.end
                return
            except _UnreadableError as error:
                behind = file.frame_behind(reader, place, end) if self._skips_damage else None
                if behind is None:
                    if self._skips_damage:
                        return
                    raise _CorruptionError(file.path, f"{error} at {place}") from error
                place = behind.place

    def refresh(self) -> None:
        """Of a reader: finds what the writer has appended since."""
        known = {file.path.name: file for file in self._files}
        found: list[_File] = []
        for path in _paths_in(self._directory):
            with suppress(OSError):  # dropped, or just begun
                name = path.name
                keeps = len(found) < READER_FILES_MAX
                found.append(known.pop(name) if name in known else _File.open(path, keeps=keeps))
        for gone in known.values():
            gone.close()
        for file in found[:-1]:
            with suppress(OSError):
                file.take_all()
        for file in found[-1:]:
            file.find_end(skips_damage=self._skips_damage)
        self._files = found

    # Writing

    def append(self, parts: Sequence[AppendedPart]) -> None:
        """Appends all of them, or none.

        Raises:
            OSError: none of them was appended; where `reopen` has to see to that, until it did
                every append fails.
        """
        if self._failed is not None:
            raise OSError("Writer has previous error")
        before = self._end()
        try:
            self._cut()
            for part in parts:
                self._append(part)
        except BaseException:
            self._failed = before
            with suppress(OSError, StorageError):
                self.reopen()
            raise

    def _end(self) -> _End:
        if not self._files:
            return _End(0, 0, 0)
        return _End(len(self._files), self._files[-1].end, self._files[-1].next)

    def _append(self, part: AppendedPart) -> None:
        if part.mark is not None:
            self._begin(part.first, part.mark)
        self._has_appended = True
        file = self._files[-1]
        lengths = struct.pack(f"<{1 + len(part.values)}I", len(part.values), *map(len, part.values))
        body = b"".join((lengths, *part.values))
        guarded = _GUARDED_FRAME.pack(len(body), part.first, self._durable_to)
        head = _FRAME_MAGIC + guarded + struct.pack("<Q", _checksum(guarded, body))
        place = file.end
        _write(self._descriptor, place, head, body)
        file.note(part.first, place)
        file.next = part.first + len(part.values)
        file.end = place + len(head) + len(body)

    def _begin(self, first: int, mark: Entry) -> None:
        guarded = _GUARDED_HEAD.pack(_VERSION, len(mark.key), len(mark.value))
        content = mark.key + mark.value
        head = _HEAD_MAGIC + guarded + struct.pack("<Q", _checksum(guarded, content)) + content
        path = self._directory / name_of(first)
        with self._lock:
            if self._descriptor >= 0:
                self._make_durable()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o644)
            try:
                _write(descriptor, 0, head)
                os.fsync(descriptor)
                sync_path(self._directory)
            except BaseException:
                os.close(descriptor)
                with suppress(OSError):
                    path.unlink()
                raise
            self._close_descriptor()
            self._descriptor = descriptor
            self._durable_to = 0
            self._files.append(_File(path, mark, len(head)))

    @property
    def dropped(self) -> int:
        """How many files are to go."""
        return len(self._dropped)

    def sync(self, *, dropped: int = 0) -> None:
        """Makes durable what was appended; so many of those that are to go are gone then."""
        with self._lock:
            if self._descriptor >= 0:
                self._make_durable()
            for path in self._dropped[:dropped]:
                path.unlink(missing_ok=True)
            del self._dropped[:dropped]

    def _make_durable(self) -> None:
        end = self._files[-1].end
        if self._has_failed_sync:
            self._write_again(end)
        self._has_failed_sync = True
        _sync_data(self._descriptor)
        self._has_failed_sync = False
        self._durable_to = end

    def _write_again(self, end: int) -> None:
        """A system that could not write takes what it has in memory for written: the next sync
        would say that it is durable.
        """
        file = self._files[-1]
        reader = file.reader()
        try:
            for frame in file.frames(reader, max(self._durable_to, file.begin), end):
                content = os.pread(reader, frame.end - frame.place, frame.place)
                _write(self._descriptor, frame.place, content)
        except _UnreadableError as error:
            raise _CorruptionError(file.path, f"{error}: a sync failed before") from error
        finally:
            os.close(reader)

    def settle(self) -> None:
        """Makes durable what was found, and the names of the files."""
        with self._lock:
            if self._descriptor >= 0:
                self._make_durable()
            sync_path(self._directory)

    def drop_before(self, number: int) -> None:
        """Drops the files all of whose records are before a number, but for the last one. They go
        by a `sync` that comes after what the database writes about it is durable.
        """
        while self.has_before(number):
            self._dropped.append(self._files.pop(0).path)

    def reopen(self) -> None:
        """After a failed append: leaves what there was before.

        Raises:
            OSError: that cannot be done now; call again later.
            StorageError: the files are not what this writer left.
        """
        self._check_as_left()
        before = self._failed
        if before is None:
            return
        with self._lock:
            for begun in self._files[before.files :]:
                with suppress(FileNotFoundError):
                    begun.path.unlink()
            sync_path(self._directory)  # else a power cut brings them back behind the others
            begun_any = len(self._files) > before.files
            del self._files[before.files :]
            if begun_any:
                self._close_descriptor()
                self._durable_to = 0
            if self._files:
                last = self._files[-1]
                last.end, last.next = before.place, before.next
                last.forget_from(before.place)
                if self._descriptor < 0:
                    self._descriptor = os.open(last.path, os.O_WRONLY | os.O_CLOEXEC)
                os.ftruncate(self._descriptor, last.end)
                self._is_uncut = False
                self._durable_to = min(self._durable_to, last.end)
        self._failed = None

    def _check_as_left(self) -> None:
        """Where a file system has no `Ownership`, another process may have gone on with them."""
        if self._descriptor < 0:
            return
        last, opened = self._files[-1], os.fstat(self._descriptor)
        found = os.stat(last.path) if last.path.exists() else None
        is_as_left = found is not None and os.path.samestat(found, opened)
        if self._failed is None:  # else the append left some bytes, and perhaps a file
            is_last = last.path.name == max(path.name for path in _paths_in(self._directory))
            is_whole = self._is_uncut or opened.st_size == last.end
            is_as_left = is_as_left and is_last and is_whole
        if not is_as_left:
            raise StorageError(
                f"Expected {last.path} to be as this process left it, with {last.end} bytes and the"
                " last one of its kind, but another process has written there. Restart this one"
            )

    def _close_descriptor(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def end(self) -> None:
        """Says that all of it is durable, where it is.

        Raises:
            OSError: it does not say so.
        """
        if self._files and self._has_appended and self._durable_to == self._files[-1].end:
            self.append([AppendedPart(self._files[-1].next, ())])
            self._has_appended = False

    def close(self) -> None:
        """Closes all files."""
        with self._lock:
            self._close_descriptor()
            for file in self._files:
                file.close()


def _write(descriptor: int, place: int, *parts: bytes) -> None:
    total = sum(map(len, parts))
    done = os.pwritev(descriptor, parts, place)
    if done < total:  # a signal, or a disk that is nearly full
        rest = b"".join(parts)
        while done < total:
            done += os.pwrite(descriptor, rest[done:], place + done)
