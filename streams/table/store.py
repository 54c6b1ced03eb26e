"""The table on disk: rows in RocksDB, and the log offset that they cover, always in one write.

A flush writes, in this order:

    Step 1. nothing: the caller has made the log durable up to the offset that the flush will cover.
    Step 2. one WriteBatch: a delta row for each changed context, the changed publishers and
            registrations, and the covered offset. It is there whole or not at all.
    Step 3. for each context whose deltas outweigh its live entries, a new generation: chunks of a
            full dump, in as many batches as it takes, then one batch with the mark that makes it
            the current one and the removal of the old rows. Until that mark the old rows count.

So a crash anywhere leaves the table exactly as of some flush, and replaying the log from the
covered offset on brings it to where it was.
"""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from rocksdict import WriteBatch

from schemas.errors import RowCorruptError
from schemas.identities import ModelContext, Offset, PublisherKey
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX, GENERATION_MIN_BYTES
from schemas.positions import PublisherState
from streams.database import database_options, disk_errors, open_database
from streams.kernel.changes import CHANGE_BYTES
from streams.table import rows
from streams.table.fold import Fold, Registered, TableChanges
from streams.table.rows import Place, RowKind

_BATCH_BYTES_MAX: Final = 8 * 2**20


class _ContextRows(msgspec.Struct):
    """Where a context's next row goes, and how much its generation has grown since its dump."""

    generation: int = 0
    next_n: int = 0
    delta_bytes: int = 0


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
        self._db = open_database(path, database_options())
        self._opened = True
        self._contexts: dict[ModelContext, _ContextRows] = {}
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
        return None if row is None else int.from_bytes(row.body, "little")

    def _get(self, key: bytes) -> rows.Row | None:
        with disk_errors("read the table", self._path):
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
            rows.parse_mark_key(key): int.from_bytes(row.body, "little")
            for key, row in self._scan(rows.MARK)
        }
        for key, row in self._scan(rows.CONTEXT):
            self._load_row(fold, rows.parse_row_key(key), row, marks, key)
        for context, generation in marks.items():
            self._contexts.setdefault(context, _ContextRows(generation=generation))
        fold.restore(
            covered,
            dict(self._structs(rows.PUBLISHER, PublisherState)),
            dict(self._structs(rows.REGISTRATION, Registered)),
        )

    def _load_row(
        self,
        fold: Fold,
        place: Place,
        row: rows.Row,
        marks: dict[ModelContext, int],
        key: bytes,
    ) -> None:
        generation = marks.get(place.context, 0)
        if place.generation != generation:
            return
        state = self._contexts.setdefault(place.context, _ContextRows(generation=generation))
        if place.n != state.next_n:
            raise RowCorruptError(
                key=key, detail=f"row `{state.next_n}` of its context is missing before it"
            )
        state.next_n = place.n + 1
        if row.kind == RowKind.DELTA:
            state.delta_bytes += len(row.body)
        try:
            fold.kernel.load(place.context, row.body)
        except ValueError as error:
            raise RowCorruptError(key=key, detail=str(error)) from error

    def _scan(self, prefix: bytes) -> Iterator[tuple[bytes, rows.Row]]:
        with disk_errors("read the table", self._path):
            cursor = self._db.iter()
            cursor.seek(prefix)
            while cursor.valid() and cursor.key()[:1] == prefix:
                key = cursor.key()
                yield key, rows.decode_row(key, cursor.value())
                cursor.next()

    def _structs(self, prefix: bytes, kind: type[rows.T]) -> Iterator[tuple[PublisherKey, rows.T]]:
        for key, row in self._scan(prefix):
            try:
                yield rows.parse_publisher_key(key), msgspec.msgpack.decode(row.body, type=kind)
            except msgspec.MsgspecError as error:
                raise RowCorruptError(key=key, detail=str(error)) from error

    # Writing

    def flush(self, fold: Fold, changes: TableChanges) -> None:
        """Writes the changes of the fold; see the module for the order.

        Raises:
            DiskError: step 2 failed, the store covers what it covered before; call again with the
                same changes. A failure of step 3 loses nothing and is tried again at a later flush.
        """
        batch = WriteBatch(raw_mode=True)
        covers = int(changes.offset)
        grown: dict[ModelContext, _ContextRows] = {}
        for context, body in changes.contexts:
            before = self._contexts.get(context, _ContextRows())
            place = Place(context, before.generation, before.next_n)
            batch.put(rows.row_key(place), rows.encode_row(RowKind.DELTA, covers, body))
            grown[context] = _ContextRows(
                before.generation, before.next_n + 1, before.delta_bytes + len(body)
            )
        for publisher, state in changes.publishers.items():
            self._put_struct(batch, rows.PUBLISHER, publisher, state, covers)
        for publisher, registered in changes.registrations.items():
            self._put_struct(batch, rows.REGISTRATION, publisher, registered, covers)
        batch.put(rows.COVERED_KEY, rows.encode_row(RowKind.DELTA, covers, b""))
        batch.put(rows.SEED_KEY, self._seed_row(fold, covers))
        with disk_errors("write the table", self._path):
            self._db.write(batch)
        self._contexts.update(grown)
        self.flushed_rows += len(grown)
        self.flushed_bytes += sum(len(body) for _, body in changes.contexts)
        self._rewrite_grown(fold, grown, covers)

    @staticmethod
    def _seed_row(fold: Fold, covers: int) -> bytes:
        return rows.encode_row(RowKind.DELTA, covers, fold.kernel.seed.to_bytes(8, "little"))

    @staticmethod
    def _put_struct(
        batch: WriteBatch,
        prefix: bytes,
        publisher: PublisherKey,
        value: PublisherState | Registered | None,
        covers: int,
    ) -> None:
        key = rows.publisher_key(prefix, publisher)
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, rows.encode_row(RowKind.DELTA, covers, msgspec.msgpack.encode(value)))

    # Generations

    def _rewrite_grown(
        self, fold: Fold, grown: dict[ModelContext, _ContextRows], covers: int
    ) -> None:
        heavy = [c for c, state in grown.items() if state.delta_bytes > self._generation_min_bytes]
        if not heavy:
            return
        live = {view.context: view.entries for view in fold.kernel.contexts()}
        for context in heavy:
            if grown[context].delta_bytes > 2 * CHANGE_BYTES * live.get(context, 0):
                self._rewrite(fold, context, covers)

    def _rewrite(self, fold: Fold, context: ModelContext, covers: int) -> None:
        generation = self._contexts[context].generation + 1
        # Rows that an unfinished rewriting left under this number may be more than the new ones.
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(
            rows.generation_key(context, generation), rows.end_of(rows.context_prefix(context))
        )
        n = 0
        with disk_errors("rewrite a context of the table", self._path):
            for body in fold.kernel.dump(context, DUMP_CHUNK_ENTRIES_MAX):
                row = rows.encode_row(RowKind.CHUNK, covers, body)
                batch.put(rows.row_key(Place(context, generation, n)), row)
                n += 1
                if batch.size_in_bytes() > _BATCH_BYTES_MAX:
                    self._db.write(batch)
                    batch = WriteBatch(raw_mode=True)
            mark = rows.encode_row(RowKind.CHUNK, covers, generation.to_bytes(4, "little"))
            batch.put(rows.mark_key(context), mark)
            batch.delete_range(
                rows.generation_key(context, 0), rows.generation_key(context, generation)
            )
            self._db.write(batch)
        self._contexts[context] = _ContextRows(generation, n, 0)
        self.generations += 1

    # Life

    def set_aside(self) -> Path:
        """Moves rows that cannot be used out of the way, beside the store, and begins an empty one.

        An earlier set of them is replaced: at most one is kept.
        """
        aside = self._path.with_name(self._path.name + ".corrupt")
        self.close()
        with disk_errors("move the corrupt table", self._path):
            shutil.rmtree(aside, ignore_errors=True)
            self._path.rename(aside)
        self._db = open_database(self._path, database_options())
        self._opened = True
        self._contexts.clear()
        return aside

    def reopen(self) -> None:
        """Closes and opens again, which is how RocksDB leaves the state after a failed write.

        Raises:
            StorageError: it cannot be opened now; call again later.
        """
        self.close()
        self._db = open_database(self._path, database_options())
        self._opened = True

    def close(self) -> None:
        """Closes the database; what was flushed stays."""
        if not self._opened:
            return  # an earlier reopening closed it and could not open it again
        self._opened = False
        gc.collect()  # an iterator that is still referenced keeps the directory locked
        with disk_errors("close the table", self._path):
            self._db.close()
