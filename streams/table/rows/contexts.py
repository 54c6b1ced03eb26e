"""The contexts of one partition: which of their rows count, in which order, and what is missing."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import ModelContext, Offset, PublisherKey
from schemas.limits import MIB
from streams.kernel.changes import Change, Op
from streams.kernel.interface import Kernel
from streams.table.fold import NO_OFFSET
from streams.table.rows import format as rows
from streams.table.rows.format import Row, RowKind, RowPlace
from streams.table.rows.loader import ContextRow, by_stream, load_rows
from streams.table.rows.source import RowSource, SkippedRow, SkippedRows
from streams.table.rows.writer import ContextRows

ROW_LOAD_STEP_BYTES: Final = 4 * MIB  # loaded before the reader's loop has its turn

MISSING_ROWS: Final = "missing_rows"
"""Reason where a row does not follow on those before it."""

CORRUPT_ROWS: Final = "corrupt_rows"
NEWER_ROWS: Final = "newer_rows"


class ReadContext(ContextRows):
    """How far the rows of a context have been applied.

    Attributes:
        damaged: one of them is missing.
        has_unread: one of its generation was removed before it was read: a reader that was away
            finds the `covered` row of a flush whose deltas were compacted away since.
    """

    damaged: bool = False
    has_unread: bool = False


class _CountedOffsets(NamedTuple):
    """How far the rows of the partition counted before, and how far they count now."""

    before: Offset
    now: Offset


class _FoundRow(NamedTuple):
    """A row of a context, None where it was skipped."""

    place: RowPlace
    row: Row | None


def _dumped_at(found: Iterable[_FoundRow], generation: int) -> int:
    """What the last chunk of the generation covers: those before it are not that far alone.
    `NO_OFFSET` where it has none.
    """
    chunks = (
        row.covers
        for place, row in found
        if place.generation == generation and row is not None and row.kind == RowKind.CHUNK
    )
    return max(chunks, default=NO_OFFSET)


class PartitionContexts:
    """See the module. `states` says where each context stands, as a writer has to know it."""

    def __init__(self, partition: int, kernel: Kernel, skipped: SkippedRows) -> None:
        self.states: dict[ModelContext, ReadContext] = {}
        self._partition = partition
        self._kernel = kernel
        self._skipped = skipped

    def apply(
        self,
        source: RowSource,
        generations: Mapping[ModelContext, int],
        publishers: Iterable[PublisherKey],
        *,
        before: Offset,
        now: Offset,
    ) -> Iterator[None]:
        """Loads what counts now, stream by stream, in steps of some megabytes.

        Holds the rows of one stream at a time. Cost O(changes in them).

        Args:
            source: rows to sort out.
            generations: contexts that have another generation from now on, or the same.
            publishers: of the partition, before these rows.
            before: rows up to it were loaded already.
            now: rows up to it count.
        """
        prefixes = dict(self._find_contexts(source))
        counted = _CountedOffsets(before, now)
        loaded_bytes = 0
        for contexts in by_stream(prefixes.keys() | generations.keys()).values():
            ready: list[ContextRow] = []
            for context in contexts:
                found = []
                generation = generations.get(context, 0)
                if context in prefixes:
                    found = list(self._rows_of(source, context, prefixes[context], generation, now))
                ready += self._take_ready(source, context, generation, found, publishers, counted)
            for size_bytes, refused in load_rows(self._kernel, ready):
                if refused is not None:
                    generation = self.states[refused.context].generation
                    key = rows.row_key(RowPlace(refused.context, generation, refused.n))
                    self._damage(refused.context, key, CORRUPT_ROWS, "its changes do not load")
                loaded_bytes += size_bytes
                if loaded_bytes >= ROW_LOAD_STEP_BYTES:
                    loaded_bytes = 0
                    yield

    def decode(self, key: bytes, value: bytes) -> Row | None:
        """The row, or None where it has to be skipped."""
        try:
            row = rows.decode_row(key, value)
        except (RowVersionError, RowCorruptError) as error:
            reason = NEWER_ROWS if isinstance(error, RowVersionError) else CORRUPT_ROWS
            self._skipped.skip(SkippedRow(self._partition, key, reason), error)
            return None
        self._skipped.counters["rows"] += 1
        return row

    def _find_contexts(self, source: RowSource) -> Iterator[tuple[ModelContext, bytes]]:
        for prefix in source.context_prefixes():
            try:
                yield rows.parse_context_prefix(prefix), prefix
            except RowCorruptError as error:
                for key, value in source.context_rows(prefix):
                    if value is not None:
                        row = SkippedRow(self._partition, key, CORRUPT_ROWS)
                        self._skipped.skip(row, error)

    def _rows_of(
        self,
        source: RowSource,
        context: ModelContext,
        prefix: bytes,
        generation: int,
        now: Offset,
    ) -> Iterator[_FoundRow]:
        """The rows that count by their generation and their offset."""
        state = self.states.setdefault(context, ReadContext())
        for key, value in source.context_rows(prefix):
            try:
                place = rows.place_of(context, key)
            except RowCorruptError as error:
                if value is not None:
                    self._skipped.skip(SkippedRow(self._partition, key, CORRUPT_ROWS), error)
                    self._mark_damaged(context)
                continue
            if value is None:
                if place.generation == state.generation and place.n >= state.next_n:
                    state.has_unread = True
                continue
            state.last_generation = max(state.last_generation, place.generation)
            if place.generation > max(generation, state.generation):
                # Not read before its mark is there: it may be many megabytes, for many flushes.
                source.keep(key, value)
                continue
            row = self.decode(key, value)
            if row is None or row.covers <= now:
                yield _FoundRow(place, row)
            else:
                source.keep(key, value)

    def _take_ready(
        self,
        source: RowSource,
        context: ModelContext,
        generation: int,
        found: list[_FoundRow],
        publishers: Iterable[PublisherKey],
        counted: _CountedOffsets,
    ) -> list[ContextRow]:
        """The rows of a context that have to be loaded now, in order; the rest is kept or dropped.

        The chunks repeat what was applied up to the offset that the last of them covers: they are
        loaded only where that has not been, where a row of the generation before was removed before
        it was read, or where the context is damaged. A generation without
        a chunk begins with an empty context, whatever of the one before was compacted away before
        it was read.
        """
        state = self.states.setdefault(context, ReadContext())
        switched = generation > state.generation
        heals = switched and state.damaged
        has_unread = switched and state.has_unread
        if switched:
            state.generation, state.next_n, state.delta_bytes = generation, 0, 0
            state.damaged = state.has_unread = False
        state.last_generation = max(state.last_generation, state.generation)
        ready: list[ContextRow] = []
        dumped_at = _dumped_at(found, state.generation)
        replaces = heals or (switched and dumped_at == NO_OFFSET)
        for place, row in sorted(found):
            if place.generation < state.generation:
                source.drop(rows.row_key(place))
                continue
            if row is None:
                self._mark_damaged(context)
                continue
            if not self._follows(state, place):
                continue
            if row.kind == RowKind.DELTA:
                state.delta_bytes += rows.weight(row.body)
            is_chunk = row.kind == RowKind.CHUNK
            covers = dumped_at if is_chunk else row.covers
            applied = covers <= counted.before
            if is_chunk and (heals or has_unread or not applied):
                replaces = True
            elif applied:
                continue
            ready.append(ContextRow(Offset(covers), context, place.n, row.body))
        if replaces and counted.before != NO_OFFSET:
            self._clear(context, publishers)
        if heals and not state.damaged:
            self._note_healed(context)
        return ready

    def _follows(self, state: ReadContext, place: RowPlace) -> bool:
        """Whether the row is new; a row that is missing before it damages the context."""
        if place.n < state.next_n:
            self._skipped.counters["repeated_rows"] += 1
            return False
        if place.n > state.next_n:
            key = rows.row_key(place._replace(n=state.next_n))
            self._damage(place.context, key, MISSING_ROWS, "it is missing")
        state.next_n = place.n + 1
        return True

    def _clear(self, context: ModelContext, publishers: Iterable[PublisherKey]) -> None:
        for publisher in publishers:
            if publisher.stream == context.stream:
                change = Change(0, 0, publisher.dp_rank, 0, Op.CLEAR, 0)
                self._kernel.load(context, change.encode())

    def _damage(self, context: ModelContext, key: bytes, reason: str, detail: str) -> None:
        error = RowCorruptError(key=key, detail=detail)
        self._skipped.skip(SkippedRow(self._partition, key, reason), error)
        self._mark_damaged(context)

    def _mark_damaged(self, context: ModelContext) -> None:
        self.states[context].damaged = True
        self._skipped.damaged.add(context.stream)

    def _note_healed(self, context: ModelContext) -> None:
        self._skipped.counters["healed"] += 1
        stream = context.stream
        if not any(
            context.stream == stream and state.damaged for context, state in self.states.items()
        ):
            self._skipped.damaged.discard(stream)
