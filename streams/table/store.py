"""The rows of a table on this disk, in RocksDB, as bytes (`streams.table.rows.format`).

A worker's store is a copy of its partition of the table topic: rows go to the topic first, then
here, unchanged, with facts that only this disk has (`LocalCopy`) under keys that no row has.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from schemas.codec import decode_row_body
from schemas.errors import DamagedError, DiskError, RowCorruptError
from schemas.identities import Offset
from schemas.limits import MIB
from schemas.positions import LogOffset, Seconds
from storage.rocksdb import (
    TABLE,
    Database,
    WriteBatch,
    disk_errors,
    new_batch,
    says_corruption,
)
from storage.salvage import move_aside
from streams.table.rows import format as rows
from streams.table.rows.format import RowWrite

STORE_BATCH_BYTES_MAX: Final = 8 * MIB  # of rows that do not count yet, in one WriteBatch: memory

_logger = logging.getLogger(__name__)

_LOCAL_KEY: Final = b"L"
"""No row's key begins with it."""


class LocalCopy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a worker's store remembers of its copy of the topic.

    Attributes:
        position: the topic's offset of the last `covered` row that is here.
        written_at: Unix seconds of the last write: older copies may have missed tombstones.
        is_partial: whether rows behind `position` are here, too, in place of those that counted
            there: nothing counts before the rest of them is read.
    """

    position: LogOffset
    written_at: Seconds
    is_partial: bool = False


_local_decoder: Final = msgspec.msgpack.Decoder(LocalCopy)


class TableStore:
    """Rows of one table. One owner; not thread-safe.

    Attributes:
        damage: why what was there could not be opened, and was moved aside; "" where it could.
    """

    def __init__(self, path: Path) -> None:
        """Opens or creates the store. One whose files are damaged is set aside: rows can always be
        made again.

        Raises:
            DataDirectoryInUseError: another process has it open.
            StorageError: it cannot be opened.
        """
        self.path = path
        self._aside = path.with_name(path.name + ".corrupt")
        self.damage = ""
        try:
            self._db = Database(path, TABLE)
        except DamagedError as error:
            self.damage = str(error)
        else:
            return
        moved = move_aside(path, TABLE.name, self._aside)
        _logger.warning(
            "%s. Its files were moved to %s, and the table is built again", self.damage, moved
        )
        self._db = Database(path, TABLE)

    # Reading

    def covered(self) -> Offset | None:
        """The log offset that the rows cover, or None for an empty store.

        Raises:
            RowCorruptError, RowVersionError: the rows cannot be used.
        """
        row = self._get(rows.COVERED_KEY)
        return None if row is None else Offset(row.covers)

    def table(self) -> bytes:
        """The name of the table that the rows belong to; see `RowWriter.table`."""
        row = self._get(rows.COVERED_KEY)
        return b"" if row is None else row.body

    def seed(self) -> int | None:
        """The prefix hash's seed with which the rows were made."""
        row = self._get(rows.SEED_KEY)
        return None if row is None else rows.parse_seed(rows.SEED_KEY, row.body)

    def _get(self, key: bytes) -> rows.Row | None:
        value = self.get(key)
        return None if value is None else rows.decode_row(key, value)

    def get(self, key: bytes) -> bytes | None:
        """The value under a key."""
        with self._reading(key):
            return self._db.get(key)

    def read(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows whose keys begin with the prefix, in order.

        Raises:
            RowCorruptError: the database finds them corrupt.
            DiskError: they cannot be read.
        """
        with self._reading(prefix):
            yield from self._db.scan(prefix, prefix)

    def context_prefixes(self) -> list[bytes]:
        """What the rows of each context begin with. Cost O(contexts) seeks."""
        found: list[bytes] = []
        with self._reading(rows.CONTEXT):
            row = self._db.cursor()
            row.seek(rows.CONTEXT)
            while row.valid() and row.key()[:1] == rows.CONTEXT:
                found.append(rows.context_prefix(rows.parse_row_key(row.key()).context))
                row.seek(rows.end_of(found[-1]))
            row.status()
        return found

    @contextmanager
    def _reading(self, key: bytes) -> Iterator[None]:
        """What RocksDB finds corrupt is raised as a corrupt row: the table can be rebuilt."""
        try:
            with disk_errors("read the table", self.path):
                yield
        except DiskError as error:
            if says_corruption(error):
                raise RowCorruptError(key=key, detail=str(error)) from error
            raise

    def all_rows(self) -> Iterator[RowWrite]:
        """Every row, in the order in which a flush would write them: `covered` is the last."""
        covered = None
        for prefix in (rows.CONTEXT, rows.MARK, rows.PUBLISHER, rows.REGISTRATION, rows.FACT):
            for key, value in self.read(prefix):
                if key == rows.COVERED_KEY:
                    covered = RowWrite(key, value)
                else:
                    yield RowWrite(key, value)
        if covered is not None:
            yield covered

    def local(self) -> LocalCopy | None:
        """What is remembered of the topic, or None where this is no complete copy of one."""
        value = self.get(_LOCAL_KEY)
        if value is None:
            return None
        return decode_row_body(_local_decoder, key=_LOCAL_KEY, body=value)

    # Writing

    def commit(self, written: Iterable[RowWrite], local: LocalCopy | None = None) -> None:
        """Puts rows in one WriteBatch: all of them are there afterwards, or none.

        Args:
            local: what to remember of the topic; None to let stand what was remembered.

        Raises:
            DiskError: none of them was written.
        """
        batch = new_batch()
        for write in written:
            _add(batch, write)
        if local is not None:
            batch.put(_LOCAL_KEY, msgspec.msgpack.encode(local))
        with disk_errors("write the table", self.path):
            self._db.write(batch)

    def write(self, written: Iterable[RowWrite]) -> None:
        """Puts rows that do not count yet, in as many batches as it takes.

        Raises:
            DiskError: some of them may have been written.
        """
        batch = new_batch()
        with disk_errors("write the table", self.path):
            for write in written:
                _add(batch, write)
                if batch.size_in_bytes() > STORE_BATCH_BYTES_MAX:
                    self._db.write(batch)
                    batch = new_batch()
            self._db.write(batch)

    def sync(self) -> None:
        """Makes what was written survive a power cut.

        Raises:
            DiskError: it may not.
        """
        with disk_errors("sync the table", self.path):
            self._db.sync()

    # Opening and closing

    def set_aside(self) -> Path | None:
        """Moves rows that cannot be used out of the way, beside the store, and begins an empty one.

        An earlier set of them is replaced: at most one is kept.

        Returns:
            Where the rows are now; None where there were none: the store stays then.
        """
        if self._is_empty():
            return None
        self._db.set_aside(self._aside)
        return self._aside

    def _is_empty(self) -> bool:
        with suppress(RowCorruptError, DiskError):
            return not any(True for _ in self.read(b""))
        return False

    def reopen(self) -> None:
        """Closes and opens the store, which is how RocksDB leaves its state after a failed write.

        Raises:
            StorageError: it cannot be opened now; retry later.
        """
        self._db.reopen()

    def close(self) -> None:
        """Closes the database; what was flushed stays."""
        self._db.close()


class StoredRows:
    """A `RowSource` over all rows of a store; `strays` are the keys of those that do not count."""

    def __init__(self, store: TableStore) -> None:
        self._store = store
        self.strays: list[bytes] = []

    def covered(self) -> bytes | None:
        """See `RowSource`."""
        return self._store.get(rows.COVERED_KEY)

    def plain_rows(self) -> Iterator[tuple[bytes, bytes | None]]:
        """See `RowSource`."""
        for prefix in (rows.MARK, rows.PUBLISHER, rows.REGISTRATION, rows.FACT):
            for key, value in self._store.read(prefix):
                if key != rows.COVERED_KEY:
                    yield key, value

    def context_prefixes(self) -> list[bytes]:
        """See `RowSource`."""
        return self._store.context_prefixes()

    def context_rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """See `RowSource`."""
        yield from self._store.read(prefix)

    def keep(self, key: bytes, value: bytes) -> None:
        """See `RowSource`: nothing will follow that it could wait for."""
        self.drop(key)

    def drop(self, key: bytes) -> None:
        """See `RowSource`."""
        self.strays.append(key)


def _add(batch: WriteBatch, write: RowWrite) -> None:
    if write.value is None:
        batch.delete(write.key)
    else:
        batch.put(write.key, write.value)
