"""What a table writes, as rows in order: the store puts them into RocksDB, a worker into the topic.

A flush is these rows:

    removals of rows that no longer belong to anything (`strays`), a delta row for each changed
    context, the changed publishers and registrations, what is `unproven` where that changed, once
    the seed, and last the `covered` row, which commits them all.

After it comes, for each context whose deltas outweigh its live entries, a new generation: chunks of
a full dump, then the mark that makes it the current one, the removal of the old rows, and the
`covered` row once more, which commits these.

A reader lets a row count once `covered` has reached the offset that the row covers, so a flush
that ends anywhere leaves what the one before left, or all of it. Rows of a generation without a
mark never count; a number that was begun is never reused.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from schemas.identities import ModelContext, PublisherKey
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX
from schemas.positions import PublisherState
from schemas.registration import Registered
from streams.kernel.changes import CHANGE_BYTES
from streams.table.fold import Fold, TableChanges
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowPlace


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
    """The rows of a flush, and where they leave the contexts; `RowWriter.note` makes that so."""

    rows: list[RowWrite]
    grown: dict[ModelContext, ContextRows]
    covers: int


class Rewrite(NamedTuple):
    """A new generation of one context.

    Attributes:
        bodies: of the chunks: 24 bytes for each live entry of the context.
        covers: what the flush before it covers.
        switch: what makes it the current one, to be written at once and after the chunks.
        after: where the context's next row goes then.
    """

    context: ModelContext
    bodies: list[bytes]
    covers: int
    switch: list[RowWrite]
    after: ContextRows

    def keys(self) -> list[bytes]:
        """Of its chunks."""
        generation = self.after.generation
        return [
            rows.row_key(RowPlace(self.context, generation, n)) for n in range(len(self.bodies))
        ]

    def chunks(self) -> Iterator[RowWrite]:
        """Its rows, encoded one by one; until the switch they do not count."""
        for key, body in zip(self.keys(), self.bodies, strict=True):
            yield RowWrite(key, rows.encode_row(RowKind.CHUNK, self.covers, body))


class RowWriter:
    """Turns changes of a fold into rows. Pure but for its own bookkeeping.

    Attributes:
        table: names this table among those that may have had the same topic before.
        strays: keys to remove at the next flush.
        contexts: where each context's next row goes.
    """

    def __init__(
        self,
        *,
        generation_min_bytes: int,
        table: bytes = b"",
        strays: Iterable[bytes] = (),
        contexts: Mapping[ModelContext, ContextRows] | None = None,
        seed_written: bool = False,
    ) -> None:
        """`generation_min_bytes`: a context with fewer bytes of deltas is not rewritten."""
        self.table = table
        self.strays = list(strays)
        self.contexts: dict[ModelContext, ContextRows] = dict(contexts or {})
        self._seed_written = seed_written
        self._generation_min_bytes = generation_min_bytes

    def flush(self, fold: Fold, changes: TableChanges) -> Flush:
        """The rows of a flush; until `note` is called, the same changes give the same rows."""
        covers = int(changes.offset)
        part_bytes = DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES
        written = [RowWrite(key, None) for key in self.strays]
        grown: dict[ModelContext, ContextRows] = {}
        for context, body in changes.contexts:
            state = msgspec.structs.replace(self.contexts.get(context) or ContextRows())
            for start in range(0, len(body), part_bytes):
                part = body[start : start + part_bytes]
                key = rows.row_key(RowPlace(context, state.generation, state.next_n))
                written.append(RowWrite(key, rows.encode_row(RowKind.DELTA, covers, part)))
                state.next_n += 1
                state.delta_bytes += rows.weight(part)
            grown[context] = state
        written += _structs(rows.PUBLISHER, changes.publishers.items(), covers)
        written += _structs(rows.REGISTRATION, changes.registrations.items(), covers)
        written += _bodies(
            ((rows.bridge_key(bridge), beat) for bridge, beat in changes.bridges.items()), covers
        )
        if changes.unproven is not None:
            body = msgspec.msgpack.encode(changes.unproven)
            row = rows.encode_row(RowKind.DELTA, covers, body)
            written.append(RowWrite(rows.UNPROVEN_KEY, row))
        if not self._seed_written:
            seed = fold.kernel.seed.to_bytes(8, "little")
            written.append(RowWrite(rows.SEED_KEY, rows.encode_row(RowKind.DELTA, covers, seed)))
        covered = rows.encode_row(RowKind.DELTA, covers, self.table)
        written.append(RowWrite(rows.COVERED_KEY, covered))
        return Flush(written, grown, covers)

    def note(self, flush: Flush) -> None:
        """The rows of the flush have been written."""
        self.contexts.update(flush.grown)
        self.strays = []
        self._seed_written = True

    def rewrites(self, fold: Fold, flush: Flush) -> Iterator[Rewrite]:
        """New generations, after `note`; pass each to `note_rewritten` once its rows have been
        written. Where that is never said, its rows are removed by a later flush.
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
        after = ContextRows(generation, len(bodies), 0, generation)
        mark = rows.encode_row(RowKind.CHUNK, covers, generation.to_bytes(4, "little"))
        removed = (rows.row_key(RowPlace(context, old.generation, n)) for n in range(old.next_n))
        switch = [RowWrite(rows.mark_key(context), mark)]
        switch += [RowWrite(key, None) for key in removed]
        covered = rows.encode_row(RowKind.DELTA, covers, self.table)
        switch.append(RowWrite(rows.COVERED_KEY, covered))
        rewrite = Rewrite(context, bodies, covers, switch, after)
        self.strays += rewrite.keys()
        return rewrite

    def note_rewritten(self, rewrite: Rewrite) -> None:
        """The rows of the rewriting have been written."""
        self.contexts[rewrite.context] = rewrite.after
        kept = set(rewrite.keys())
        self.strays = [key for key in self.strays if key not in kept]


def _structs(
    prefix: bytes,
    values: Iterable[tuple[PublisherKey, PublisherState | Registered | None]],
    covers: int,
) -> Iterator[RowWrite]:
    keyed = ((rows.publisher_key(prefix, publisher), value) for publisher, value in values)
    return _bodies(keyed, covers)


def _bodies(
    values: Iterable[tuple[bytes, msgspec.Struct | Registered | None]], covers: int
) -> Iterator[RowWrite]:
    for key, value in values:
        if value is None:
            yield RowWrite(key, None)
        else:
            body = msgspec.msgpack.encode(value)
            yield RowWrite(key, rows.encode_row(RowKind.DELTA, covers, body))
