"""The table on disk: rows in RocksDB, and the log offset that they cover, always in one write.

A flush writes the rows that `streams.table.row_writer` names, in this order:

    Step 1. nothing: the caller has made the log durable up to the offset that the flush will cover.
    Step 2. one WriteBatch: a delta row for each changed context, the changed publishers and
            registrations, and the covered offset. It is there whole or not at all.
    Step 3. for each context whose deltas outweigh its live entries, a new generation: chunks of a
            full dump, in as many batches as it takes, then one batch with the mark that makes it
            the current one and the removal of the old rows. Until that mark the old rows count.

So a crash anywhere leaves the table exactly as of some flush, and replaying the log from the
covered offset on brings it to where it was.

A worker's store is a copy of its partition of the table topic: rows go to the topic first, then
here, unchanged, with facts that only this disk has (`Local`) under keys that no row has.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from schemas.codec import decode_row_body
from schemas.errors import DiskError, RowCorruptError
from schemas.identities import ModelContext, Offset, PublisherKey
from schemas.limits import GENERATION_MIN_BYTES
from schemas.positions import LogOffset, PublisherState, Seconds
from storage.rocksdb import (
    TABLE,
    Database,
    WriteBatch,
    disk_errors,
    new_batch,
    says_corruption,
)
from streams.table import rows
from streams.table.fold import Fold, Registered, TableChanges
from streams.table.row_loader import ContextRow, by_stream, load_rows
from streams.table.row_writer import ContextRows, RowWrite, TableWriter
from streams.table.rows import RowKind

_BATCH_BYTES_MAX: Final = 8 * 2**20
_LOCAL_KEY: Final = b"L"
"""Sorts among the rows' first bytes, but none of them has it."""


class Local(msgspec.Struct, frozen=True):
    """What a worker's store remembers of its copy of the topic.

    Attributes:
        position: the topic's offset of the last `covered` row that is here.
        written_at: Unix seconds of the last write: older copies may have missed tombstones.
    """

    position: LogOffset
    written_at: Seconds


class TableStore:
    """Rows of one table. One owner; not thread-safe."""

    def __init__(self, path: Path, *, generation_min_bytes: int = GENERATION_MIN_BYTES) -> None:
        """Opens or creates the store.

        Raises:
            DataDirectoryInUseError: another process has it open.
            StorageError: it cannot be opened.
        """
        self._path = path
        self._generation_min_bytes = generation_min_bytes
        self._db = Database(path, TABLE)
        self.writer = TableWriter(generation_min_bytes=generation_min_bytes)
        self.flushed_rows = 0
        self.flushed_bytes = 0
        self.generations = 0

    # Reading

    def covered(self) -> Offset | None:
        """The log offset that the rows cover, or None for an empty store.

        Raises:
            RowCorruptError, RowVersionError: the rows cannot be used.
        """
        row = self._get(rows.COVERED_KEY)
        return None if row is None else Offset(row.covers)

    def seed(self) -> int | None:
        """The prefix hash's seed with which the rows were made."""
        row = self._get(rows.SEED_KEY)
        return None if row is None else rows.parse_seed(rows.SEED_KEY, row.body)

    def _get(self, key: bytes) -> rows.Row | None:
        with self._reading(key):
            value = self._db.get(key)
        return None if value is None else rows.decode_row(key, value)

    def load_into(self, fold: Fold) -> None:
        """Brings a new fold to where the store is. Cost O(rows).

        Raises:
            RowCorruptError, RowVersionError: the fold is half loaded and must be thrown away.
            DiskError: the same.
        """
        covered = self.covered()
        if covered is None:
            return
        marks = {
            rows.parse_mark_key(key): rows.parse_mark(key, row.body)
            for key, row in self._scan(rows.MARK)
        }
        self.writer = TableWriter(generation_min_bytes=self._generation_min_bytes)
        self.writer.table = self.table()
        self.writer.seed_written = self.seed() is not None
        for context, generation in marks.items():
            self.writer.contexts[context] = ContextRows(generation, 0, 0, generation)
        for stream_contexts in by_stream(self._contexts() | marks.keys()).values():
            self._load_stream(fold, stream_contexts)
        fold.restore(
            covered,
            dict(self._structs(rows.PUBLISHER, PublisherState)),
            dict(self._structs(rows.REGISTRATION, Registered)),
        )

    def table(self) -> bytes:
        """The name of the table that the rows belong to; see `TableWriter.table`."""
        row = self._get(rows.COVERED_KEY)
        return b"" if row is None else row.body

    def _contexts(self) -> set[ModelContext]:
        """Contexts that have rows. Cost O(contexts) seeks."""
        found: set[ModelContext] = set()
        with self._reading(rows.CONTEXT):
            cursor = self._db.cursor()
            cursor.seek(rows.CONTEXT)
            while cursor.valid() and cursor.key()[:1] == rows.CONTEXT:
                context = rows.parse_row_key(cursor.key()).context
                found.add(context)
                cursor.seek(rows.end_of(rows.context_prefix(context)))
            cursor.status()
        return found

    def _load_stream(self, fold: Fold, contexts: list[ModelContext]) -> None:
        """Loads one by one where the stream has one context; else the order between them counts."""
        if len(contexts) == 1:
            for row in self._context_rows(contexts[0]):
                self._load(fold, [row])
            return
        self._load(fold, [row for context in contexts for row in self._context_rows(context)])

    @staticmethod
    def _load(fold: Fold, loaded: list[ContextRow]) -> None:
        for refused in load_rows(fold.kernel, loaded):
            if refused is not None:
                raise RowCorruptError(
                    key=rows.context_prefix(refused.context), detail="its changes do not load"
                )

    def _context_rows(self, context: ModelContext) -> Iterator[ContextRow]:
        """The rows that count, in order; notes where the next one goes, and which are astray."""
        state = self.writer.contexts.setdefault(context, ContextRows())
        covered = self.covered() or 0
        for key, row in self._scan(rows.context_prefix(context)):
            place = rows.parse_row_key(key)
            if place.generation != state.generation or row.covers > covered:
                state.last_generation = max(state.last_generation, place.generation)
                self.writer.strays.append(key)
                continue
            if place.n != state.next_n:
                raise RowCorruptError(
                    key=key, detail=f"row `{state.next_n}` of its context is missing before it"
                )
            state.next_n = place.n + 1
            if row.kind == RowKind.DELTA:
                state.delta_bytes += self.writer.weight(row.body)
            yield ContextRow(row.covers, context, place.n, row.body)

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, rows.Row]]:
        for key, value in self._read(prefix):
            yield key, rows.decode_row(key, value)

    def _read(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._reading(prefix):
            yield from self._db.scan(prefix, prefix)

    @contextmanager
    def _reading(self, key: bytes) -> Iterator[None]:
        """What RocksDB finds corrupt is as a corrupt row: the table can be built again."""
        try:
            with disk_errors("read the table", self._path):
                yield
        except DiskError as error:
            if says_corruption(error):
                raise RowCorruptError(key=key, detail=str(error)) from error
            raise

    def _structs(self, prefix: bytes, kind: type[rows.T]) -> Iterator[tuple[PublisherKey, rows.T]]:
        for key, row in self._scan(prefix):
            body = decode_row_body(kind, key=key, body=row.body)
            yield rows.parse_publisher_key(key), body

    # Writing

    def flush(self, fold: Fold, changes: TableChanges) -> None:
        """Writes the changes of the fold; see the module for the order.

        Raises:
            DiskError: step 2 failed, the store covers what it covered before; call again with the
                same changes. A failure of step 3 loses nothing and is tried again at a later flush.
        """
        flush = self.writer.flush(fold, changes)
        with disk_errors("write the table", self._path):
            self._db.write(_batch_of(flush.rows))
        self.writer.note(flush)
        self.flushed_rows += len(flush.grown)
        self.flushed_bytes += sum(len(body) for _, body in changes.contexts)
        if fold.offset != changes.offset:
            return  # a flush that is tried again: a dump would hold more than its rows may claim
        for rewrite in self.writer.rewrites(fold, flush):
            self.write(rewrite.chunks)
            with disk_errors("rewrite a context of the table", self._path):
                self._db.write(_batch_of(rewrite.switch))
            self.writer.note_rewritten(rewrite)
            self.generations += 1

    def write(self, written: Iterable[RowWrite]) -> None:
        """Puts rows as they are, in as many batches as it takes.

        Raises:
            DiskError: some of them may have been written.
        """
        batch = new_batch()
        with disk_errors("write the table", self._path):
            for write in written:
                _add(batch, write)
                if batch.size_in_bytes() > _BATCH_BYTES_MAX:
                    self._db.write(batch)
                    batch = new_batch()
            self._db.write(batch)

    # A copy of a topic's partition

    def local(self) -> Local | None:
        """What is remembered of the topic, or None where this is no complete copy of one."""
        with self._reading(_LOCAL_KEY):
            value = self._db.get(_LOCAL_KEY)
        return None if value is None else decode_row_body(Local, key=_LOCAL_KEY, body=value)

    def copy(
        self, written: Iterable[RowWrite], local: Local | None = None, *, keep_local: bool = False
    ) -> None:
        """Takes over rows of the topic in one WriteBatch, and notes how far they reach.

        Args:
            written: in the topic's order.
            local: what to remember; None for a copy that is not complete yet.
            keep_local: let stand what was remembered: rows from there on may be copied again.

        Raises:
            DiskError: none of them was written.
        """
        batch = _batch_of(written)
        if local is not None:
            batch.put(_LOCAL_KEY, msgspec.msgpack.encode(local))
        elif not keep_local:
            batch.delete(_LOCAL_KEY)
        with disk_errors("write the table", self._path):
            self._db.write(batch)

    def all_rows(self) -> Iterator[RowWrite]:
        """Every row, in the order in which a flush would write them: `covered` is the last."""
        covered = None
        for prefix in (rows.CONTEXT, rows.MARK, rows.PUBLISHER, rows.REGISTRATION, rows.FACT):
            for key, value in self._read(prefix):
                if key == rows.COVERED_KEY:
                    covered = RowWrite(key, value)
                else:
                    yield RowWrite(key, value)
        if covered is not None:
            yield covered

    # Life

    def set_aside(self) -> Path:
        """Moves rows that cannot be used out of the way, beside the store, and begins an empty one.

        An earlier set of them is replaced: at most one is kept. A store without rows stays.
        """
        aside = self._path.with_name(self._path.name + ".corrupt")
        if self._is_empty():
            self.writer = TableWriter(generation_min_bytes=self._generation_min_bytes)
            return aside
        self._db.close()
        with disk_errors("move the corrupt table", self._path):
            shutil.rmtree(aside, ignore_errors=True)
            self._path.rename(aside)
        self._db.reopen()
        self.writer = TableWriter(generation_min_bytes=self._generation_min_bytes)
        return aside

    def _is_empty(self) -> bool:
        with suppress(RowCorruptError, DiskError):
            return not any(True for _ in self._read(b""))
        return False

    def reopen(self) -> None:
        """Closes and opens again, which is how RocksDB leaves the state after a failed write.

        Raises:
            StorageError: it cannot be opened now; call again later.
        """
        self._db.reopen()

    def close(self) -> None:
        """Closes the database; what was flushed stays."""
        self._db.close()


def _batch_of(written: Iterable[RowWrite]) -> WriteBatch:
    batch = new_batch()
    for write in written:
        _add(batch, write)
    return batch


def _add(batch: WriteBatch, write: RowWrite) -> None:
    if write.value is None:
        batch.delete(write.key)
    else:
        batch.put(write.key, write.value)
