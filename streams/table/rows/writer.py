"""What a table writes, as rows in order: the store puts them into RocksDB, a worker into the topic.

A flush is these rows:

    removals of rows that no longer belong to anything (`strays`), a delta row for each changed
    context, the changed publishers, registrations and ledgers, what is `unproven` where that
    changed, once the seed, and last the `covered` row, which commits them all.

A context whose deltas outweigh its live entries gets a new generation: chunks of a full dump, which
go ahead in steps (`streams.table.rows.rewriting`), then after a flush the mark that makes it the
current one, the removal of the old rows, and the `covered` row once more, which commits these.

A reader lets a row count once `covered` has reached the offset that the row covers, so a flush
that ends anywhere leaves what the one before left, or all of it. Rows of a generation without a
mark never count; a number that was begun is never reused.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from schemas.identities import ModelContext, PublisherKey
from schemas.limits import DUMP_CHUNK_ENTRIES_MAX
from schemas.positions import PublisherState
from schemas.registration import LiveRegistration
from streams.bounds import STORE_GENERATION_DELTAS
from streams.kernel.changes import CHANGE_BYTES
from streams.table.fold import Fold, TableChanges
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind, RowPlace, RowWrite
from streams.table.rows.rewriting import Rewriting

ROWS_AT_ONCE_MAX: Final = 128  # rows written between two records, where they are small: some 2 ms


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
    """The rows of a flush, and where they leave the contexts; `RowWriter.note` makes that so.

    Attributes:
        ahead: rows that do not count before `last` is there, made as they are taken.
        last: rows to be written at once, behind those; the one that commits them all is the last.
        grown: where each changed context's next row goes then; complete once `ahead` is taken.
        changes: what they hold.
        strays: what they remove.
    """

    ahead: Iterator[RowWrite]
    last: list[RowWrite]
    grown: dict[ModelContext, ContextRows]
    changes: TableChanges
    strays: list[bytes]

    def rest(self) -> list[RowWrite]:
        """All rows that were not taken yet."""
        return [*self.ahead, *self.last]

    def take_ahead(self, bytes_max: int) -> tuple[list[RowWrite], bool]:
        """The next rows of `ahead`, until they have so many bytes or are ROWS_AT_ONCE_MAX; and
        whether those are all that was left.
        """
        taken: list[RowWrite] = []
        size_bytes = 0
        for write in self.ahead:
            taken.append(write)
            size_bytes += len(write.value or b"")
            if size_bytes >= bytes_max or len(taken) == ROWS_AT_ONCE_MAX:
                return taken, False
        return taken, True


class RowWriter:
    """Turns changes of a fold into rows. Pure but for its own bookkeeping.

    Attributes:
        table: names this table among those that may have had the same topic before.
        strays: keys to remove at the next flush.
        contexts: where each context's next row goes.
        rewriting: the generation that is being made.
    """

    def __init__(
        self,
        *,
        generation_min_bytes: int,
        generation_deltas: float = STORE_GENERATION_DELTAS,
        table: bytes = b"",
        strays: Iterable[bytes] = (),
        contexts: Mapping[ModelContext, ContextRows] | None = None,
        seed_written: bool = False,
    ) -> None:
        """Args:
        generation_min_bytes: a context with fewer bytes of deltas is not rewritten.
        generation_deltas: nor is one with deltas of less than so many times its live entries.
        """
        self.table = table
        self.strays = list(strays)
        self.contexts: dict[ModelContext, ContextRows] = dict(contexts or {})
        self.rewriting: Rewriting | None = None
        self._due: dict[ModelContext, None] = {}  # a set in the order in which they got heavy
        self._seed_written = seed_written
        self._generation_min_bytes = generation_min_bytes
        self._generation_deltas = generation_deltas

    def flush(self, fold: Fold, changes: TableChanges) -> Flush:
        """The rows of a flush; until `note` is called, the same changes give the same rows."""
        covers = int(changes.offset)
        grown: dict[ModelContext, ContextRows] = {}
        written = list(_structs(rows.PUBLISHER, changes.publishers.items(), covers))
        written += _structs(rows.REGISTRATION, changes.registrations.items(), covers)
        written += _bodies(
            ((rows.bridge_key(bridge), beat) for bridge, beat in changes.bridges.items()), covers
        )
        written += _bodies(
            ((rows.ledger_key(one), ledger) for one, ledger in changes.ledgers.items()), covers
        )
        written += _bodies(
            ((rows.segment_key(key), state) for key, state in changes.segments.items()), covers
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
        strays = list(self.strays)
        ahead = chain((RowWrite(key, None) for key in strays), self._deltas(changes, grown))
        return Flush(ahead, written, grown, changes, strays)

    def _deltas(
        self, changes: TableChanges, grown: dict[ModelContext, ContextRows]
    ) -> Iterator[RowWrite]:
        """Under keys that nothing that counts has."""
        part_bytes = DUMP_CHUNK_ENTRIES_MAX * CHANGE_BYTES
        covers = int(changes.offset)
        for context, body in changes.contexts:
            state = msgspec.structs.replace(self.contexts.get(context) or ContextRows())
            for start in range(0, len(body), part_bytes):
                part = body[start : start + part_bytes]
                key = rows.row_key(RowPlace(context, state.generation, state.next_n))
                state.next_n += 1
                state.delta_bytes += rows.weight(part)
                yield RowWrite(key, rows.encode_row(RowKind.DELTA, covers, part))
            grown[context] = state

    def note(self, flush: Flush) -> None:
        """The rows of the flush have been written."""
        self.contexts.update(flush.grown)
        del self.strays[: len(flush.strays)]
        self._seed_written = True
        if self.rewriting is not None:
            for context, body in flush.changes.contexts:
                if context == self.rewriting.context:
                    self.rewriting.note(body, covers=int(flush.changes.offset))

    # Rewriting

    def find_heavy(self, fold: Fold, flush: Flush) -> None:
        """Notes which contexts are to be rewritten after the flush."""
        heavy = [
            context
            for context, state in flush.grown.items()
            if state.delta_bytes > self._generation_min_bytes and context not in self._due
        ]
        if self.rewriting is not None and self.rewriting.context in heavy:
            heavy.remove(self.rewriting.context)
        if not heavy:
            return
        live = {view.context: view.entries for view in fold.kernel.contexts()}
        for context in heavy:
            live_bytes = CHANGE_BYTES * live.get(context, 0)
            if flush.grown[context].delta_bytes > self._generation_deltas * live_bytes:
                self._due[context] = None

    @property
    def has_heavy(self) -> bool:
        """Whether `begin_rewriting` would begin one."""
        return bool(self._due)

    @property
    def waits_for_flush(self) -> bool:
        """Whether rewriting can go on only once the rows cover all that was folded."""
        return self.has_heavy if self.rewriting is None else self.rewriting.may_end

    def begin_rewriting(self, fold: Fold) -> Rewriting | None:
        """Begins a new generation of a context that is heavy, if there is one; everything that the
        fold has must have been written.
        """
        assert self.rewriting is None, "one at a time: the dump of each is held in memory"
        if not self._due:
            return None
        context = next(iter(self._due))
        del self._due[context]
        old = self.contexts[context]
        generation = old.last_generation = max(old.generation, old.last_generation) + 1
        dump = fold.kernel.open_dump(context)
        self.rewriting = Rewriting(context, generation, dump, covers=int(fold.offset))
        return self.rewriting

    def switch(self, rewriting: Rewriting, covers: int) -> list[RowWrite]:
        """What makes a generation the current one, to be written at once and after its chunks."""
        old = self.contexts[rewriting.context]
        context, generation = rewriting.context, rewriting.generation
        mark = rows.encode_row(RowKind.CHUNK, covers, generation.to_bytes(4, "little"))
        switch = [RowWrite(rows.mark_key(context), mark)]
        for n in range(old.next_n):
            switch.append(RowWrite(rows.row_key(RowPlace(context, old.generation, n)), None))
        covered = rows.encode_row(RowKind.DELTA, covers, self.table)
        return [*switch, RowWrite(rows.COVERED_KEY, covered)]

    def note_rewritten(self, rewriting: Rewriting) -> None:
        """The rows of the generation have been written, and what makes it the current one."""
        generation = rewriting.generation
        after = ContextRows(generation, rewriting.next_n, 0, generation)
        self.contexts[rewriting.context] = after
        self.rewriting = None

    def give_up_rewriting(self) -> None:
        """What was written of the generation is removed by the next flush; another one is begun
        once the context has grown again.
        """
        if self.rewriting is not None:
            self.strays += self.rewriting.keys()
            self.rewriting = None


def _structs(
    prefix: bytes,
    values: Iterable[tuple[PublisherKey, PublisherState | LiveRegistration | None]],
    covers: int,
) -> Iterator[RowWrite]:
    keyed = ((rows.publisher_key(prefix, publisher), value) for publisher, value in values)
    return _bodies(keyed, covers)


def _bodies(
    values: Iterable[tuple[bytes, msgspec.Struct | LiveRegistration | None]], covers: int
) -> Iterator[RowWrite]:
    for key, value in values:
        if value is None:
            yield RowWrite(key, None)
        else:
            body = msgspec.msgpack.encode(value)
            yield RowWrite(key, rows.encode_row(RowKind.DELTA, covers, body))
