"""A table as of a past position: the rows of the last flush that the history has at or before it,
and the records of the log from there to the position, folded.

It is what a fold of the whole log up to the position gives, for the streams that are wanted: rows
are exact at a flush, and the fold is the same one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Final, NamedTuple

from logs.interface import LogEntry, ReadableLog
from schemas.clock import REAL_CLOCK
from schemas.codec import decode_log_record, decode_row_body
from schemas.errors import PastError, RecordError, StorageError
from schemas.identities import ModelContext, Offset
from schemas.limits import GIB, HISTORY_ANSWER_S
from schemas.records import BridgeRecord
from streams.history.log_times import first_written
from streams.history.needed_rows import NeededRows
from streams.history.rows_as_of import RowsAsOf, StreamFilter
from streams.history.store import FlushRun, HistoryStore, RunBounds
from streams.kernel.interface import Kernel
from streams.table.fold import NO_OFFSET, Fold
from streams.table.rows import bodies
from streams.table.rows.format import (
    PUBLISHER,
    REGISTRATION,
    RowKind,
    decode_row,
    parse_context_prefix,
    parse_publisher_key,
)
from streams.table.rows.reader import RowReader

HISTORY_TAIL_BYTES_MAX: Final = GIB  # of records for one answer: reason="as_of_takes_too_long"
HISTORY_RECORDS_MAX: Final = 1_000_000  # folded to find the one that changed a block

_CHECK_EVERY: Final = 256


class Blocks(NamedTuple):
    """What is to be asked of a fold, and nothing else.

    Attributes:
        prefixes: prefix hashes, (n,) u64 LE.
        lora_name: of the scope that is asked.
    """

    prefixes: bytes
    lora_name: str


class FlushPoint(NamedTuple):
    """Where a fold begins: a flush of a run; no run: nothing, before the log's first record."""

    run: FlushRun | None
    covers: int


class Past:
    """Folds as of past positions of one partition. Any thread.

    Args:
        make_kernel: an empty kernel, of the seed that the rows were made with.

    Attributes:
        partition: of the log.
    """

    def __init__(
        self,
        store: HistoryStore,
        log: Callable[[], ReadableLog],
        make_kernel: Callable[[], Kernel],
        *,
        partition: int = 0,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
    ) -> None:
        self._store = store
        self._log = log
        self._make_kernel = make_kernel
        self._seed = make_kernel().seed
        self.partition = partition
        self._clock = clock

    def oldest(self, after: int = -1) -> int:
        """The first position behind another one that can be asked; the log's next offset where
        there is none. Cost O(runs).

        Raises:
            StorageError: it cannot be read.
        """
        log = self._log()
        if log.complete_from == 0:
            return after
        found = [int(log.end_offset)]
        for bounds in self._runs():
            # The oldest flush from which the log has everything.
            reach = next(self._store.flushes(bounds.run, int(log.complete_from) - 1), None)
            if reach is not None:
                found.append(max(reach, bounds.since - 1))
        return min(one for one in found if one > after)

    def fold_as_of(
        self,
        position: Offset,
        wanted: StreamFilter,
        *,
        blocks: Blocks | None = None,
        kernel: Kernel | None = None,
    ) -> Fold:
        """The fold of the log up to and including a position, of the streams that are wanted.

        Cost O(entries of these streams + records since the flush before); some 30 ns an entry where
        blocks are given, 300 where they are not.

        Args:
            position: an offset; -1 for nothing.
            wanted: of which streams.
            blocks: all that is to be asked of the fold, which then lacks what is not needed for it.
            kernel: to fold into, beside what it has of other partitions; a new one if None.

        Raises:
            PastError: it is beyond what is kept, or takes too long.
            StorageError: rows or records cannot be read.
        """
        log = self._log()
        if position >= log.end_offset:
            raise PastError(
                "as_of_in_future",
                f"Expected a position of this log, which ends at"
                f" {self.partition}:{log.end_offset - 1}, got: {self.partition}:{position}",
            )
        flushed = self.flush_before(position)
        with self._kept(flushed, position):
            return self._folded(flushed, position, wanted, blocks, kernel)

    @contextmanager
    def _kept(self, flushed: FlushPoint, position: int) -> Iterator[None]:
        """Raises PastError where retention has dropped meanwhile what the body has read."""
        try:
            yield
        except (StorageError, RecordError):
            self._check_kept(flushed, position)
            raise
        self._check_kept(flushed, position)

    def _check_kept(self, flushed: FlushPoint, position: int) -> None:
        if self._log().complete_from > flushed.covers + 1:
            raise self._too_old(position)

    def _folded(
        self,
        flushed: FlushPoint,
        position: Offset,
        wanted: StreamFilter,
        blocks: Blocks | None,
        kernel: Kernel | None,
    ) -> Fold:
        tail = self._tail(flushed.covers, position, wanted)
        fold = Fold(kernel or self._make_kernel(), partition=self.partition)
        if flushed.run is not None:
            needed = None
            if blocks is not None and self._is_all_registered(flushed, wanted, blocks.lora_name):
                contexts = map(parse_context_prefix, self._store.context_prefixes(flushed.run))
                needed = NeededRows(blocks.prefixes, (entry.value for entry in tail), contexts)
            self._load(fold, flushed.run, flushed.covers, wanted, needed)
        for entry in tail:
            fold.apply(entry.offset, entry.value)
        fold.kernel.take_changes()
        return fold

    def _is_all_registered(self, flushed: FlushPoint, wanted: StreamFilter, lora_name: str) -> bool:
        """Whether everybody's part in answers comes of a registration: of others it depends on any
        block that they hold.
        """
        assert flushed.run is not None
        states: set[bytes] = set()
        registered: set[bytes] = set()
        kinds = (PUBLISHER, REGISTRATION)
        for key, value in self._store.plain_rows(flushed.run, flushed.covers, kinds):
            if not wanted(parse_publisher_key(key).stream):
                continue
            if key[:1] == PUBLISHER:
                states.add(key[1:])
                continue
            body = decode_row(key, value).body
            known = decode_row_body(bodies.REGISTERED, key=key, body=body)
            if known.registration.lora_name == lora_name:
                registered.add(key[1:])
        return states <= registered

    def _tail(self, covers: int, position: int, wanted: StreamFilter) -> list[LogEntry]:
        """The records after a flush, up to a position, of the streams that are wanted."""
        deadline = self._clock() + HISTORY_ANSWER_S
        tail, size_bytes = [], 0
        for count, entry in enumerate(self._log().read(Offset(covers + 1))):
            if entry.offset > position:
                break
            if is_wanted(entry.value, wanted):
                tail.append(entry)
                size_bytes += len(entry.value)
            is_late = count % _CHECK_EVERY == 0 and self._clock() > deadline
            if is_late or size_bytes > HISTORY_TAIL_BYTES_MAX:
                raise PastError(
                    "as_of_takes_too_long",
                    f"Expected position {position} to be reached within {HISTORY_ANSWER_S:g} s and"
                    f" {HISTORY_TAIL_BYTES_MAX} bytes of records from the flush before, at"
                    f" {covers}; got {count} records far",
                    status=503,
                )
        return tail

    def fold_through(
        self, position: Offset, wanted: StreamFilter
    ) -> tuple[Fold, Iterator[LogEntry]]:
        """A fold as of the flush before a position, and the records from there up to it, of the
        streams that are wanted, for the caller to fold.

        Raises:
            PastError: it is older than all that is kept.
            StorageError: rows or records cannot be read.
        """
        flushed = self.flush_before(position - 1)
        with self._kept(flushed, position):
            fold = self.fold_at(flushed, wanted)
        entries = islice(
            takewhile(
                lambda entry: entry.offset <= position,
                self._log().read(Offset(flushed.covers + 1)),
            ),
            HISTORY_RECORDS_MAX,
        )

        def kept() -> Iterator[LogEntry]:
            with self._kept(flushed, position):
                yield from (entry for entry in entries if is_wanted(entry.value, wanted))

        return fold, kept()

    def fold_at(self, flushed: FlushPoint, wanted: StreamFilter) -> Fold:
        """The fold as of a flush, of the streams that are wanted, to be folded on by the caller.
        Cost O(entries).

        Raises:
            StorageError: rows cannot be read.
        """
        fold = Fold(self._make_kernel())
        if flushed.run is not None:
            self._load(fold, flushed.run, flushed.covers, wanted)
        return fold

    def end(self) -> Offset:
        """The next offset of the log."""
        return self._log().end_offset

    def written_at(self, offset: int) -> float | None:
        """When a record was written, Unix seconds of its bridge's clock; None where it cannot be
        read, or is not there yet.
        """
        log = self._log()
        found, seconds = first_written(log, offset, min(offset + 1, int(log.end_offset)))
        return seconds if found == offset else None

    def changes_of(self, context: ModelContext) -> Iterator[tuple[int, bytes]]:
        """All changes of a context that are kept, as of which flush each, a row at a time. Cost
        O(rows).
        """
        for bounds in self._store.runs(self.partition):
            for value in self._store.all_rows_of(bounds.run, context):
                row = decode_row(b"", value)
                if row.kind == RowKind.DELTA:
                    yield row.covers, row.body

    def flush_after(self, position: int) -> int:
        """What the first flush at or after a position covers; the end of the log where there is
        none. Cost O(runs).
        """
        found = (
            next(self._store.flushes(bounds.run, position), None)
            for bounds in self._store.runs(self.partition)
        )
        return min((covers for covers in found if covers is not None), default=self.end() - 1)

    def flush_before(self, position: int) -> FlushPoint:
        """The flush from which the position is folded.

        Raises:
            PastError: it is older than all that is kept.
        """
        log = self._log()
        for _, flushed in self._flushes_before(position):
            return flushed
        if log.complete_from > 0:
            raise self._too_old(position)
        return FlushPoint(None, NO_OFFSET)

    def _too_old(self, position: int) -> PastError:
        return PastError(
            "as_of_too_old",
            f"Expected a position that the log and its history reach, the next of which is"
            f" {self.partition}:{self.oldest(position)}, got: {self.partition}:{position}",
        )

    def flushes_before_again(self, position: int) -> list[FlushPoint]:
        """The same of the tables before, the newest first, where one after the other was built anew
        at the position, of a log that had lost its beginning: all have answered there, and they
        need not agree.
        """
        return [flushed for _, flushed in self._tables_at(position)[1:]]

    def was_built_anew_at(self, position: int) -> bool:
        """Whether tables have answered at the position that are kept no more: see
        `RunBounds.was_built_anew_at`. Cost O(runs).
        """
        tables = self._tables_at(position)
        runs = [tables[-1][0]] if len(tables) > 1 else self._runs()
        return any(one.was_built_anew_at(position) for one in runs)

    def _tables_at(self, position: int) -> list[tuple[RunBounds, FlushPoint]]:
        tables: list[tuple[RunBounds, FlushPoint]] = []
        for bounds, flushed in self._flushes_before(position):
            if tables and not tables[-1][0].was_built_anew_at(position):
                break
            tables.append((bounds, flushed))
        return tables

    def _flushes_before(self, position: int) -> Iterator[tuple[RunBounds, FlushPoint]]:
        complete_from = self._log().complete_from
        runs = [
            bounds
            for bounds in self._runs()
            if bounds.first <= position and bounds.since <= position + 1
        ]
        # The table that folded the position as it came; else one that folded it again.
        live = [bounds for bounds in runs if bounds.begun_at <= position + 1]
        again = [bounds for bounds in runs if bounds.begun_at > position + 1]
        for bounds in [*reversed(live), *again]:
            covers = self._store.flush_before(bounds.run, position)
            if covers is not None and covers + 1 >= complete_from:
                yield bounds, FlushPoint(bounds.run, covers)
            elif bounds.since and not bounds.was_built_anew_at(position):
                return  # the tables before it had what the log had lost when it was built

    def _runs(self) -> list[RunBounds]:
        return [one for one in self._store.runs(self.partition) if one.seed == self._seed]

    def _load(
        self,
        fold: Fold,
        run: FlushRun,
        covers: int,
        wanted: StreamFilter,
        needed: NeededRows | None = None,
    ) -> None:
        reader = RowReader(fold.kernel, strict=True)
        reader.load(RowsAsOf(self._store, run, covers, wanted, needed))
        fold.restore(
            Offset(covers),
            reader.publishers,
            reader.registrations,
            reader.unproven(0),
            reader.bridges(0),
            segments=reader.segments(),
        )


def is_wanted(encoded: bytes, wanted: StreamFilter) -> bool:
    """Whether a record changes what is asked for; what cannot be decoded does not."""
    try:
        record = decode_log_record(encoded)
    except RecordError:
        return False
    return isinstance(record, BridgeRecord) or wanted(record.stream)
