"""Records that wait on disk for Kafka: bounded, in order for each publisher. Format version 1.

    key                                      value
    b"f"                                     the format version (u32 LE); version 1 has none
    b"l" + lane (u32 BE)                     the publisher of the lane (msgpack)
    b"r" + lane (u32 BE) + number (u64 BE)   a record (`schemas.records`)

A lane is one publisher; numbers rise over all lanes. Records are read from a lane's head, and
deleted when the log has acknowledged them; what was read but not deleted is read again after a
restart, so the log may get it twice, but never loses it. What cannot be read is deleted and
counted; `bridge.delivery.unreadable_records` puts a gap in its place. What a newer Reprise has left
it can read itself: such a spool is not opened.

Writes go to RocksDB's write-ahead log: they survive `kill -9`; a power cut may cost the last
moments. Of a spool whose files are damaged what can be read is kept, and the damaged files beside
it. What is gone shows as any other loss: whoever takes a publisher over asks its engine for what
came after the records that are left, and batches missing between them are a hole for the fold.
"""

import logging
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bridge.bounds import BRIDGE_RETRY_S, SPOOL_BYTES_MAX, SPOOL_CHANGES_MAX
from schemas.causes import cause_of
from schemas.clock import REAL_CLOCK
from schemas.codec import KEY_MISMATCH, MALFORMED_KEY, decode_publisher, decode_record
from schemas.errors import (
    DamagedError,
    DiskFullError,
    EntryError,
    NewerVersionError,
    RecordError,
    RecordVersionError,
    StorageError,
)
from schemas.identities import PublisherKey
from schemas.limits import ENTRIES_NAMED_MAX
from schemas.records import NEWEST_VERSION, Record
from schemas.topics import encode_publisher
from storage.rocksdb import SPOOL, Database, WriteBatch, disk_errors, new_batch
from storage.salvage import move_aside, salvage

_RECORD_KEY: Final = struct.Struct(">cIQ")
_LANE_KEY: Final = struct.Struct(">cI")
_U32: Final = struct.Struct("<I")
_FORMAT: Final = 1
_RECORD, _LANE, _FORMAT_KEY = b"r", b"l", b"f"
FAULT: Final = "fault"
WRONG_LANE: Final = "wrong_lane"
"""Reasons of unreadable records, beside those of RecordError."""

_logger = logging.getLogger(__name__)


class SpooledRecord(NamedTuple):
    """One record of a lane."""

    number: int
    encoded: bytes

    def decoded(self) -> Record:
        """The record.

        Raises:
            RecordError: it is no record, or a newer Reprise wrote it.
        """
        return decode_record(self.encoded)


class _SpoolLane:
    """A lane, as it is kept in memory."""

    __slots__ = ("head", "number", "records")

    def __init__(self, number: int) -> None:
        self.number = number
        self.records = 0
        self.head = 0  # no record of the lane has a lower number


class Spool:
    """See the module. One owner.

    Args:
        path: its directory, made where it is missing.
        monotonic: seconds.

    Attributes:
        dropped: unreadable records that were deleted, by publisher and reason.
        unusable_entries: entries that belong to no lane; deleted, or left to a newer version.
        faults: records whose decoding failed unexpectedly; they are in `dropped`, too.
        damage: why records may be gone that were in the spool before this start, or "".

    Raises:
        DataDirectoryInUseError: another process has it open.
        NewerVersionError: a newer Reprise wrote it, or a record of it.
        StorageError: it cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int = SPOOL_BYTES_MAX,
        monotonic: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self.bytes_max = bytes_max
        self._monotonic = monotonic
        self._failure: StorageError | None = None
        self._mend_at = 0.0
        self._is_closed = False  # it could not be opened again
        self.spooled_records = 0
        self.dropped: Counter[tuple[PublisherKey, str]] = Counter()
        self.unusable_entries = 0
        self.faults = 0
        self.damage = ""
        self._path = path
        self._begin()
        salvaged = path.with_name(path.name + ".salvaged")
        if salvaged.exists() and not path.exists():  # it died when it had moved the damaged one
            salvaged.rename(path)
        if not self._opened():
            self._replace_by(salvaged)
        if self.damage:
            _logger.error(
                "The spool in %s was damaged (%s); %d records of %d publishers are left. What else"
                " it had is asked of the engines, and is a gap where one cannot replay it",
                path,
                self.damage,
                self.records,
                len(self._lanes),
            )

    def _begin(self) -> None:
        self.size_bytes = 0
        self.records = 0
        self._lanes: dict[PublisherKey, _SpoolLane] = {}
        self._next_lane = 0
        self._next_number = 0

    def _replace_by(self, salvaged: Path) -> None:
        """Puts what can be read of the spool in its place."""
        try:
            salvage(self._path, SPOOL, salvaged)
        except DiskFullError:
            raise
        except StorageError as error:
            self.damage += f"; nothing of it can be read: {error}"
            shutil.rmtree(salvaged, ignore_errors=True)
        moved = move_aside(self._path, SPOOL.name)
        self.damage += f"; its files are kept in {moved}"
        if salvaged.exists():
            salvaged.rename(self._path)
        self._begin()
        self._db = Database(self._path, SPOOL)
        with disk_errors("read the spool", self._path):
            self._load()

    def _opened(self) -> bool:
        """False where it is damaged; it is closed then."""
        database: Database | None = None
        try:
            database = self._db = Database(self._path, SPOOL)
            self.damage = database.torn
            with disk_errors("read the spool", self._path):
                self._load()
            return True
        except DamagedError as error:
            self.damage = str(error)
        # Not while the error is handled: it holds on to what was being read.
        if database is not None:
            database.close()
        return False

    def _load(self) -> None:
        self._check_versions()
        by_number: dict[int, _SpoolLane] = {}
        unusable: list[bytes] = []
        for key, value in self._db.scan(_LANE, b""):
            try:
                if key[:1] == _LANE:
                    self._load_lane(by_number, key, value)
                elif key[:1] == _RECORD:
                    _, lane_number, number = _RECORD_KEY.unpack(key)
                    self._count(by_number[lane_number], number, len(value))
                else:
                    raise EntryError(MALFORMED_KEY, detail="neither a lane nor a record")
            except (EntryError, KeyError, struct.error) as error:
                self.unusable_entries += 1
                if self.unusable_entries <= ENTRIES_NAMED_MAX:
                    _logger.warning(
                        "Skipping an entry of the spool in %s, at key %s: %s. The engine is asked"
                        " for its batch, or a gap stands for it",
                        self._path,
                        key[:64].hex(),
                        f"no usable entry, {cause_of(error)}",
                    )
                if key[:1] in (_LANE, _RECORD):  # others may be a newer version's
                    unusable.append(key)
            if len(unusable) >= SPOOL_CHANGES_MAX:
                self._clear(unusable)
        for publisher, lane in list(self._lanes.items()):
            if not lane.records:
                unusable.append(_LANE_KEY.pack(_LANE, lane.number))
                del self._lanes[publisher]
        self._clear(unusable)

    def _check_versions(self) -> None:
        """Before anything is deleted. Closes the database where it raises NewerVersionError."""
        written = self._db.get(_FORMAT_KEY) or b""
        what, supported = "a spool", _FORMAT
        version = _U32.unpack(written)[0] if len(written) == _U32.size else _FORMAT
        if version <= _FORMAT:
            what, supported = "spooled records", NEWEST_VERSION
            version = max(map(_version_of, self._records()), default=NEWEST_VERSION)
        if version > supported:
            self._db.close()
            where = str(self._path)
            raise NewerVersionError(what, version=version, supported=supported, where=where)

    def _records(self) -> Iterator[bytes]:
        return (value for _, value in self._db.scan(_RECORD, _RECORD))

    def _load_lane(self, by_number: dict[int, _SpoolLane], key: bytes, value: bytes) -> None:
        lane = _SpoolLane(_LANE_KEY.unpack(key)[1])
        self._next_lane = max(self._next_lane, lane.number + 1)
        publisher = decode_publisher(value)
        if publisher in self._lanes:
            detail = "a second lane of one publisher"
            raise EntryError(KEY_MISMATCH, detail=detail, publisher=publisher)
        self._lanes[publisher] = by_number[lane.number] = lane

    def _clear(self, keys: list[bytes]) -> None:
        batch = new_batch()
        for key in keys:
            batch.delete(key)
        self._write(batch)
        keys.clear()

    def _count(self, lane: _SpoolLane, number: int, size_bytes: int) -> None:
        if not lane.records:
            lane.head = number
        lane.records += 1
        self.records += 1
        self.size_bytes += size_bytes
        self._next_number = max(self._next_number, number + 1)

    # Writing

    def append(self, publisher: PublisherKey, encoded: Sequence[bytes]) -> list[int]:
        """Appends records to the publisher's lane, also above the bound. Returns their numbers.

        Raises:
            StorageError: nothing was appended.
        """
        self._mend()
        batch = new_batch()
        lane = self._lanes.get(publisher)
        if lane is None:
            lane = _SpoolLane(self._next_lane)
            batch.put(_LANE_KEY.pack(_LANE, lane.number), encode_publisher(publisher))
        numbers = list(range(self._next_number, self._next_number + len(encoded)))
        for number, value in zip(numbers, encoded, strict=True):
            batch.put(_RECORD_KEY.pack(_RECORD, lane.number, number), value)
        self._write(batch)
        if publisher not in self._lanes:
            self._lanes[publisher] = lane
            self._next_lane += 1
        for number, value in zip(numbers, encoded, strict=True):
            self._count(lane, number, len(value))
        self.spooled_records += len(encoded)
        return numbers

    def fits(self, size_bytes: int) -> bool:
        """Whether records of that size are within the bound."""
        return self.size_bytes + size_bytes <= self.bytes_max

    def delete(self, publisher: PublisherKey, records: Iterable[SpooledRecord]) -> None:
        """Deletes records that `read` gave, in their order, those that are still there.

        Raises:
            StorageError: nothing was deleted.
        """
        self.replace(publisher, ((record.number, None) for record in records))

    def replace(self, publisher: PublisherKey, changes: Iterable[tuple[int, bytes | None]]) -> None:
        """Replaces or deletes records that `read` gave.

        Args:
            changes: rising numbers, each with its new record, or None to delete it; numbers of
                records that are no longer there are skipped.

        Raises:
            StorageError: nothing was changed.
        """
        self._mend()
        lane = self._lanes.get(publisher)
        if lane is None:
            return
        batch = new_batch()
        deleted = size_bytes = 0
        first: int | None = None
        for number, encoded in changes:
            key = _RECORD_KEY.pack(_RECORD, lane.number, number)
            stored = self._db.get(key) if number >= lane.head else None
            if stored is None:
                continue
            size_bytes += len(stored) - len(encoded or b"")
            if encoded is not None:
                batch.put(key, encoded)
                continue
            batch.delete(key)
            deleted += 1
            first = number if first is None else first
        if not batch.len():
            return
        emptied = deleted == lane.records
        if emptied:
            batch.delete(_LANE_KEY.pack(_LANE, lane.number))
        self._write(batch)
        lane.records -= deleted
        self.records -= deleted
        self.size_bytes -= size_bytes
        if emptied:
            del self._lanes[publisher]
        elif first == lane.head:
            lane.head = next(self.read(publisher, bytes_max=0)).number

    def discard(self, publisher: PublisherKey) -> None:
        """Deletes the publisher's records."""
        gone = list(self.read(publisher))
        if gone:
            self.delete(publisher, gone)

    # Reading

    def publishers(self) -> list[PublisherKey]:
        """The publishers that have records here."""
        return list(self._lanes)

    def __contains__(self, publisher: object) -> bool:
        return publisher in self._lanes

    def read(
        self, publisher: PublisherKey, *, bytes_max: int | None = None
    ) -> Iterator[SpooledRecord]:
        """The publisher's records in order.

        Args:
            bytes_max: stop once that much was read; None for all.

        Raises:
            StorageError: they cannot be read.
        """
        if self._is_closed:
            self._mend()
        lane = self._lanes.get(publisher)
        if lane is None:
            return
        start = _RECORD_KEY.pack(_RECORD, lane.number, lane.head)
        prefix = _LANE_KEY.pack(_RECORD, lane.number)
        size_bytes = 0
        with disk_errors("read the spool", self._path):
            for key, value in self._db.scan(start, prefix):
                yield SpooledRecord(_RECORD_KEY.unpack(key)[2], value)
                size_bytes += len(value)
                if bytes_max is not None and size_bytes >= bytes_max:
                    return

    def decoded(self, publisher: PublisherKey) -> Iterator[tuple[SpooledRecord, Record]]:
        """The publisher's records with their numbers; unreadable ones are skipped."""
        for spooled in self.read(publisher):
            record = self.decode(publisher, spooled)
            if isinstance(record, Record):
                yield spooled, record

    def decode(self, publisher: PublisherKey, spooled: SpooledRecord) -> Record | str:
        """The record, or the reason why it cannot be read.

        An unexpected error is a reason, too: raised, it would stop the writer at each attempt.
        """
        try:
            record = spooled.decoded()
        except RecordError as error:
            return error.reason
        except Exception:
            self.faults += 1
            _logger.exception(
                "Unexpected error in spooled record %d of %s; dropping it",
                spooled.number,
                publisher,
            )
            return FAULT
        return record if record.publisher == publisher else WRONG_LANE

    def close(self) -> None:
        """Closes the database; iterators end."""
        self._db.close()

    def _write(self, batch: WriteBatch) -> None:
        try:
            with disk_errors("write the spool", self._path):
                self._db.write(batch)
        except StorageError as error:
            self._failure = error
            raise

    def _mend(self) -> None:
        """After a failed write RocksDB takes no other one until it is opened again, and what it has
        then may be more than was told: it is counted anew. At most each BRIDGE_RETRY_S.

        Raises:
            StorageError: it still cannot be written.
        """
        if self._failure is None:
            return
        now = self._monotonic()
        if now < self._mend_at:
            raise StorageError(str(self._failure))
        self._mend_at = now + BRIDGE_RETRY_S
        numbers = self._next_lane, self._next_number
        try:
            self._is_closed = True
            self._db.reopen()
            self._is_closed = False
            self._begin()
            with disk_errors("read the spool", self._path):
                self._load()
        except StorageError as error:
            self._failure = error
            raise
        finally:  # none is given twice
            self._next_lane = max(self._next_lane, numbers[0])
            self._next_number = max(self._next_number, numbers[1])
        self._failure = None


def _version_of(encoded: bytes) -> int:
    """The version of a record that is newer than this Reprise; NEWEST_VERSION of any other, also of
    what is none.
    """
    try:
        decode_record(encoded)
    except RecordVersionError as error:
        return error.version
    except RecordError:
        pass  # whoever drains it finds that
    return NEWEST_VERSION
