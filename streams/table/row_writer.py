"""What a table writes, as rows in order: the store puts them into RocksDB, a worker into the topic.

A flush is these rows, in this order:

    Step 1. removals of rows that no longer belong to anything (`strays`).
    Step 2. a delta row for each changed context, the changed publishers and registrations, once the
            seed, and last the `covered` row, which commits them all.
    Step 3. for each context whose deltas outweigh its live entries, a new generation: chunks of a
            full dump, the mark that makes it the current one, and the removal of the old rows.

In a topic the `covered` row comes once more after step 3, so that every flush ends in it.

A reader lets a row count once `covered` has reached the offset that the row covers, so a flush
that ends anywhere leaves what the one before left, or the whole of step 2. Rows of a generation
without a mark never count; a number that was begun is never used again.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from schemas.identities import ModelContext, PublisherKey
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX, GENERATION_MIN_BYTES
from schemas.positions import PublisherState
from streams.kernel.changes import CHANGE_BYTES
from streams.table import rows
from streams.table.fold import Fold, Registered, TableChanges
from streams.table.rows import RowKind, RowPlace

_ROW_BYTES: Final = 128  # what a row takes beside its body: key, header, the log's own framing
_DELTA_BYTES_MAX: Final = DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES


class RowWrite(NamedTuple):
    """A row to put, or to remove where the value is None."""

    key: bytes
    value: bytes | None


class ContextRows(msgspec.Struct):
    """Where a context's next row goes.

    Attributes:
        delta_bytes: what was written since the generation's dump.
        last_generation: the highest number ever begun.
    """

    generation: int = 0
    next_n: int = 0
    delta_bytes: int = 0
    last_generation: int = 0


class Flush(NamedTuple):
    """Step 1 and 2, and where they leave the contexts; `RowWriter.note` makes that so."""

    rows: list[RowWrite]
    grown: dict[ModelContext, ContextRows]
    covers: int


class Rewrite(NamedTuple):
    """Step 3 for one context."""

    context: ModelContext
    chunks: list[RowWrite]
    switch: list[RowWrite]
    after: ContextRows


class RowWriter:
    """Turns changes of a fold into rows. Pure but for its own bookkeeping.

    Attributes:
        table: names this table among those that may have had the same topic before.
        strays: keys to remove at the next flush.
        contexts: where each context's next row goes.
    """

    def __init__(self, *, generation_min_bytes: int = GENERATION_MIN_BYTES) -> None:
        self.table = b""
        self.strays: list[bytes] = []
        self.contexts: dict[ModelContext, ContextRows] = {}
        self.seed_written = False
        self._generation_min_bytes = generation_min_bytes

    @staticmethod
    def weight(body: bytes) -> int:
        """What a delta row takes in a log, in bytes."""
        return len(body) + _ROW_BYTES

    def flush(self, fold: Fold, changes: TableChanges) -> Flush:
        """Steps 1 and 2. Nothing is noted: called again with the same changes, it says the same."""
        covers = int(changes.offset)
        written = [RowWrite(key, None) for key in self.strays]
        grown: dict[ModelContext, ContextRows] = {}
        for context, body in changes.contexts:
            state = msgspec.structs.replace(self.contexts.get(context) or ContextRows())
            for start in range(0, len(body), _DELTA_BYTES_MAX):
                part = body[start : start + _DELTA_BYTES_MAX]
                key = rows.row_key(RowPlace(context, state.generation, state.next_n))
                written.append(RowWrite(key, rows.encode_row(RowKind.DELTA, covers, part)))
                state.next_n += 1
                state.delta_bytes += self.weight(part)
            grown[context] = state
        written += _structs(rows.PUBLISHER, changes.publishers.items(), covers)
        written += _structs(rows.REGISTRATION, changes.registrations.items(), covers)
        if not self.seed_written:
            seed = fold.kernel.seed.to_bytes(8, "little")
            written.append(RowWrite(rows.SEED_KEY, rows.encode_row(RowKind.DELTA, covers, seed)))
        covered = rows.encode_row(RowKind.DELTA, covers, self.table)
        written.append(RowWrite(rows.COVERED_KEY, covered))
        return Flush(written, grown, covers)

    def note(self, flush: Flush) -> None:
        """The rows of the flush have been written."""
        self.contexts.update(flush.grown)
        self.strays = []
        self.seed_written = True

    def rewrites(self, fold: Fold, flush: Flush) -> Iterator[Rewrite]:
        """Step 3, after `note`; pass each to `note_rewritten` once its rows have been written.

        Where that is never said, its rows are removed by a later flush.
        """
        heavy = [
            context
            for context, state in flush.grown.items()
            if state.delta_bytes > self._generation_min_bytes
        ]
        if not heavy:
            return
        live = {view.context: view.entries for view in fold.kernel.contexts()}
        for context in heavy:
            if flush.grown[context].delta_bytes > 2 * CHANGE_BYTES * live.get(context, 0):
                yield self._rewrite(fold, context, flush.covers)

    def _rewrite(self, fold: Fold, context: ModelContext, covers: int) -> Rewrite:
        old = self.contexts[context]
        generation = max(old.generation, old.last_generation) + 1
        old.last_generation = generation
        bodies = fold.kernel.dump(context, DUMP_CHUNK_ENTRIES_MAX)
        chunks = [
            RowWrite(
                rows.row_key(RowPlace(context, generation, n)),
                rows.encode_row(RowKind.CHUNK, covers, body),
            )
            for n, body in enumerate(bodies)
        ]
        self.strays += [chunk.key for chunk in chunks]
        mark = rows.encode_row(RowKind.CHUNK, covers, generation.to_bytes(4, "little"))
        removed = (rows.row_key(RowPlace(context, old.generation, n)) for n in range(old.next_n))
        switch = [RowWrite(rows.mark_key(context), mark)]
        switch += [RowWrite(key, None) for key in removed]
        return Rewrite(context, chunks, switch, ContextRows(generation, len(chunks), 0, generation))

    def note_rewritten(self, rewrite: Rewrite) -> None:
        """The rows of the rewriting have been written."""
        self.contexts[rewrite.context] = rewrite.after
        kept = {chunk.key for chunk in rewrite.chunks}
        self.strays = [key for key in self.strays if key not in kept]


def _structs(
    prefix: bytes,
    values: Iterable[tuple[PublisherKey, PublisherState | Registered | None]],
    covers: int,
) -> Iterator[RowWrite]:
    for publisher, value in values:
        key = rows.publisher_key(prefix, publisher)
        if value is None:
            yield RowWrite(key, None)
        else:
            body = msgspec.msgpack.encode(value)
            yield RowWrite(key, rows.encode_row(RowKind.DELTA, covers, body))
