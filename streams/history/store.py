r"""The rows that a table wrote, past ones included, in RocksDB. Format version 1.

A table overwrites and removes its rows; here each one stays until retention drops it, so the table
as of any flush can be read. A *run* is an unbroken sequence of flushes of one table: a table that
is built anew, or whose rows were written while nobody recorded them, begins another run.

    key                                             value
    b"f"                                            the format version (u32 LE)
    b"E" + run                                      the seed of the prefix hash, the offsets of
                                                    `RunBounds.since` and `begun_at` (u64 LE each)
    b"F" + run + offset                             a flush covers the log up to this offset: the
                                                    `covered` row
    b"C" + run + a context row's key without "C"    the row
    b"K" + run + key length (u16 BE) + key + offset any other row, as of that flush; b"" where
                                                    it was removed

`run` is the partition (u32 BE) and the number of the run in it (u32 BE); `offset` is 1 + the offset
of the log (u64 BE), so that -1, of nothing, sorts first. Rows and their keys are those of
`streams.table.rows.format`.
"""

import logging
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from schemas.errors import DamagedError, NewerVersionError
from schemas.identities import ModelContext
from storage.rocksdb import HISTORY, Database, WriteBatch, disk_errors, new_batch
from storage.salvage import move_aside
from streams.table.rows import format as rows

_logger = logging.getLogger(__name__)

FORMAT: Final = 1
_FORMAT_KEY: Final = b"f"
_RUN, _FLUSH, _ROW, _PLAIN = b"E", b"F", b"C", b"K"
_NUMBERS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">H")
_OFFSET: Final = struct.Struct(">Q")
_BEGUN: Final = struct.Struct("<QQQ")
_U32: Final = struct.Struct("<I")


class FlushRun(NamedTuple):
    """An unbroken sequence of flushes of one partition's table."""

    partition: int
    number: int

    @property
    def prefix(self) -> bytes:
        """What stands behind the first byte of its keys."""
        return _NUMBERS.pack(*self)


class RunBounds(NamedTuple):
    """What is kept of a run.

    Attributes:
        seed: of the prefix hash.
        since: from which position on it says what a fold of the log gives: 0 where the whole log
            was folded, else where it began.
        begun_at: the log's next offset when it began: what came before was folded again.
        first, last: flushes, by what they cover.
    """

    run: FlushRun
    seed: int
    since: int
    begun_at: int
    first: int
    last: int

    def was_built_anew_at(self, position: int) -> bool:
        """Whether its table was built anew at the position, of a log that had lost its beginning:
        the one before it has answered there, too, and need not agree.
        """
        return self.since > 0 and self.begun_at == position + 1


def plain_key(run: FlushRun, key: bytes, offset: int) -> bytes:
    """Where a row that is of no context stands, as of a flush."""
    return _PLAIN + run.prefix + _LENGTH.pack(len(key)) + key + _OFFSET.pack(offset + 1)


def flush_key(run: FlushRun, offset: int) -> bytes:
    """Where the mark of a flush stands."""
    return _FLUSH + run.prefix + _OFFSET.pack(offset + 1)


def context_key(run: FlushRun, key: bytes) -> bytes:
    """Where a context's row stands; `key` is the table's."""
    return _ROW + run.prefix + key[1:]


class HistoryStore:
    """See the module. One writer; readers may run beside it on other threads.

    Attributes:
        damage: why what was there could not be opened, and was moved aside; "" where it could.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Opens or creates it. Damaged files are set aside: what is lost is the past alone.

        Args:
            path: its directory.
            read_only: open what there is, as it is now, and change nothing; another process may go
                on writing it.

        Raises:
            DataDirectoryInUseError: another process has it open.
            NewerVersionError: a newer Reprise wrote it.
            StorageError: it cannot be opened.
        """
        self.path = path
        self.damage = ""
        try:
            self._db = Database.read_only(path, HISTORY) if read_only else Database(path, HISTORY)
        except DamagedError as error:
            if read_only:
                raise
            self.damage = str(error)
            move_aside(path, HISTORY.name, path.with_name(path.name + ".corrupt"))
            self._db = Database(path, HISTORY)
            _logger.warning(
                "%s. It was moved aside: the history begins empty, and nothing else is lost",
                self.damage,
            )
        with disk_errors("read the history", path):
            value = self._db.get(_FORMAT_KEY)
            written = FORMAT if value is None else _U32.unpack(value)[0]
            if value is None and not read_only:
                batch = new_batch()
                batch.put(_FORMAT_KEY, _U32.pack(FORMAT))
                self._db.write(batch)
        if written > FORMAT:
            self._db.close()
            raise NewerVersionError("a history", version=written, supported=FORMAT, where=str(path))

    # Writing

    def begin_run(self, partition: int, seed: int, *, since: int, begun_at: int) -> FlushRun:
        """A new run of a partition, behind all others; see `RunBounds`.

        Raises:
            DiskError: it was not begun.
        """
        numbers = [found.run.number for found in self._runs(partition)]
        run = FlushRun(partition, max(numbers, default=0) + 1)
        batch = new_batch()
        batch.put(_RUN + run.prefix, _BEGUN.pack(seed, since, begun_at))
        self.write(batch)
        return run

    def write(self, batch: WriteBatch) -> None:
        """Puts what `context_key`, `plain_key` and `flush_key` name.

        Raises:
            DiskError: nothing of it was written.
        """
        with disk_errors("write the history", self.path):
            self._db.write(batch)

    def drop_before(self, offset: int, partition: int = 0) -> int:
        """Forgets what only flushes before the offset need; returns how many flushes that were.
        Cost O(contexts + publishers) for each run.

        Raises:
            DiskError: some of it may still be there.
        """
        dropped = 0
        with disk_errors("retire old rows of the history", self.path):
            runs = self._runs(partition)
            if not runs:
                return 0
            newest = runs.pop()
            for bounds in runs:
                if bounds.last < offset:
                    dropped += self._drop_run(bounds.run)
            floor = self.flush_before(newest.run, offset)
            if floor is not None and floor > newest.first:
                dropped += self._drop_flushes(newest.run, floor)
        return dropped

    def drop_all(self, partition: int) -> None:
        """Forgets all of a partition.

        Raises:
            DiskError: some of it may still be there.
        """
        with disk_errors("drop the history of another log", self.path):
            for bounds in self._runs(partition):
                self._drop_run(bounds.run)

    def _drop_run(self, run: FlushRun) -> int:
        flushes = sum(1 for _ in self._db.scan(_FLUSH + run.prefix, _FLUSH + run.prefix))
        batch = new_batch()
        for kind in (_RUN, _FLUSH, _ROW, _PLAIN):
            start = kind + run.prefix
            batch.delete_range(start, rows.end_of(start))
        self._db.write(batch)
        return flushes

    def _drop_flushes(self, run: FlushRun, floor: int) -> int:
        batch = new_batch()
        for prefix in self.context_prefixes(run):
            context = rows.parse_context_prefix(prefix)
            generation = self._generation(run, prefix, floor)
            start = context_key(run, prefix)
            batch.delete_range(start, context_key(run, rows.generation_key(context, generation)))
        for key in self._plain_keys(run):
            start = plain_key(run, key, -1)
            end = plain_key(run, key, floor)
            newest = self._db.last_key_before(end)
            if newest is not None and newest > start and newest.startswith(start[: -_OFFSET.size]):
                batch.delete_range(start, newest)
        start, end = flush_key(run, -1), flush_key(run, floor)
        dropped = 0
        for key, _ in self._db.scan(start, _FLUSH + run.prefix):
            if key >= end:
                break
            dropped += 1
        batch.delete_range(start, end)
        self._db.write(batch)
        return dropped

    def begin_sync(self) -> None:
        """Begins to make what was written survive a kill, and a power cut; returns at once."""
        with disk_errors("sync the history", self.path):
            self._db.begin_flush()

    # Reading

    def live_bytes(self) -> int:
        """About how much it takes."""
        with disk_errors("read the history", self.path):
            return self._db.live_bytes()

    def runs(self, partition: int = 0) -> list[RunBounds]:
        """All runs of a partition that have a flush, the oldest first.

        Raises:
            DiskError: they cannot be read.
        """
        with disk_errors("read the history", self.path):
            return [bounds for bounds in self._runs(partition) if bounds.first <= bounds.last]

    def _runs(self, partition: int) -> list[RunBounds]:
        found = []
        prefix = _RUN + _NUMBERS.pack(partition, 0)[:4]
        for key, value in self._db.scan(prefix, prefix):
            run = FlushRun(*_NUMBERS.unpack(key[1:]))
            marks = _FLUSH + run.prefix
            first = next((_offset_of(mark) for mark, _ in self._db.scan(marks, marks)), None)
            last = self._db.last_key_before(rows.end_of(marks))
            seed, since, begun_at = _BEGUN.unpack(value)
            if first is None or last is None or not last.startswith(marks):
                found.append(RunBounds(run, seed, since, begun_at, 0, -1))
            else:
                found.append(RunBounds(run, seed, since, begun_at, first, _offset_of(last)))
        return found

    def newest_run(self, partition: int = 0) -> FlushRun | None:
        """The last that was begun, with a flush or without.

        Raises:
            DiskError: they cannot be read.
        """
        with disk_errors("read the history", self.path):
            runs = self._runs(partition)
        return runs[-1].run if runs else None

    def flush_before(self, run: FlushRun, offset: int) -> int | None:
        """What the last flush at or below the offset covers; None where there is none."""
        with disk_errors("read the history", self.path):
            key = self._db.last_key_before(flush_key(run, offset))
        if key is None or not key.startswith(_FLUSH + run.prefix):
            return None
        return _offset_of(key)

    def flushes(self, run: FlushRun, start: int) -> Iterator[int]:
        """What each flush from `start` on covers."""
        with disk_errors("read the history", self.path):
            for key, _ in self._db.scan(flush_key(run, start), _FLUSH + run.prefix):
                yield _offset_of(key)

    def covered_row(self, run: FlushRun, covers: int) -> bytes | None:
        """The `covered` row of a flush."""
        with disk_errors("read the history", self.path):
            return self._db.get(flush_key(run, covers))

    def context_prefixes(self, run: FlushRun) -> Iterator[bytes]:
        """What the table's keys of each context's rows begin with. Cost O(contexts) seeks."""
        start = _ROW + run.prefix
        with disk_errors("read the history", self.path):
            cursor = self._db.cursor()
            cursor.seek(start)
            while cursor.valid():
                key = cursor.key()
                if not key.startswith(start):
                    return
                prefix = rows.prefix_of(rows.CONTEXT + key[len(start) :])
                yield prefix
                cursor.seek(rows.end_of(context_key(run, prefix)))
            cursor.status()

    def context_rows(
        self, run: FlushRun, prefix: bytes, covers: int
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a context that counted at a flush, under the table's keys, in order."""
        with disk_errors("read the history", self.path):
            generation = self._generation(run, prefix, covers)
            context = rows.parse_context_prefix(prefix)
            start = context_key(run, rows.generation_key(context, generation))
            end = context_key(run, rows.generation_key(context, generation + 1))
            for key, value in self._db.scan(start, context_key(run, prefix)):
                if key >= end or rows.covers_of(value) > covers:
                    return
                yield rows.CONTEXT + key[1 + _NUMBERS.size :], value

    def all_rows_of(self, run: FlushRun, context: ModelContext) -> Iterator[bytes]:
        """All rows of a context that are kept, of every generation."""
        start = context_key(run, rows.context_prefix(context))
        with disk_errors("read the history", self.path):
            for _, value in self._db.scan(start, start):
                yield value

    def _generation(self, run: FlushRun, prefix: bytes, covers: int) -> int:
        key = rows.mark_key(rows.parse_context_prefix(prefix))
        value = self._plain_as_of(run, key, covers)
        return rows.parse_mark(key, rows.decode_row(key, value).body) if value else 0

    def plain_rows(
        self, run: FlushRun, covers: int, first_bytes: Iterable[bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The other rows whose keys begin so, as they were at a flush. Cost O(such keys) seeks."""
        wanted = tuple(first_bytes)
        with disk_errors("read the history", self.path):
            for key in self._plain_keys(run):
                if key.startswith(wanted):
                    value = self._plain_as_of(run, key, covers)
                    if value:
                        yield key, value

    def _plain_keys(self, run: FlushRun) -> Iterator[bytes]:
        """Each one once."""
        start = _PLAIN + run.prefix
        cursor = self._db.cursor()
        cursor.seek(start)
        while cursor.valid():
            found = cursor.key()
            if not found.startswith(start):
                return
            key = found[len(start) + _LENGTH.size : -_OFFSET.size]
            yield key
            cursor.seek(plain_key(run, key, 2**64 - 2) + b"\0")
        cursor.status()

    def _plain_as_of(self, run: FlushRun, key: bytes, covers: int) -> bytes | None:
        end = plain_key(run, key, covers)
        found = self._db.last_key_before(end)
        if found is None or found[: -_OFFSET.size] != end[: -_OFFSET.size]:
            return None
        return self._db.get(found)

    def close(self) -> None:
        """Closes the database."""
        self._db.close()


def _offset_of(key: bytes) -> int:
    return int(_OFFSET.unpack(key[-_OFFSET.size :])[0]) - 1
