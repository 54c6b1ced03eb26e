"""Follows table topics into one kernel: what a query replica, or a worker without a disk, knows.

Rows come in the topic's order, from its beginning, and the topic may have been compacted up to any
point by then: superseded rows are gone, so is the order between rows of different keys. Therefore

1. rows are only gathered, the last of each key, until the partition is caught up with where it
   ended when the reader started; then they are loaded, chunks and deltas of a context in order;
2. from there on rows wait until the `covered` row of their partition, the commit mark of a flush,
   reaches the offset that they cover: whatever a dead worker left of a flush is replaced by its
   successor before;
3. a `covered` row of another table than the one before (its body names the table) says that the
   table was built anew: what the partition held is dropped first.

Rows that are corrupt or of a newer version are skipped, counted and named; what they belong to is
degraded until a whole row replaces them: the next generation does for a context.

The topic is to be read with `isolation_level="read_committed"`: a large flush is a transaction, and
what a dying worker wrote of one was never there.

No I/O, clock or logging: the reader of the topic asks `take_skipped` what to say.
"""

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from schemas.codec import decode_row_body
from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import ModelContext, Offset, PrefixScope, PublisherKey, StreamKey
from schemas.positions import Position, PublisherState
from streams.kernel.changes import Change, Op
from streams.kernel.interface import Kernel
from streams.table import rows
from streams.table.fold import NO_OFFSET, Registered
from streams.table.row_loader import ContextRow, load_rows
from streams.table.rows import Place, Row, RowKind

SKIPPED_NAMED_MAX: Final = 100
"""Skipped rows that wait to be named; all are counted."""

_STEP_BYTES: Final = 4 * 2**20

MISSING_ROWS: Final = "missing_rows"
"""Reason where a row does not follow on those before it."""

RESETS: Final = "resets"
"""Counts how often another table than the one before was met."""


class SkippedRow(NamedTuple):
    """A row that could not be used: where it is, and why."""

    partition: int
    key: bytes
    reason: str


class _Context(msgspec.Struct):
    """How far the rows of a context have been applied; `damaged` where one of them is missing."""

    generation: int = 0
    next_n: int = 0
    damaged: bool = False


class _Partition:
    """What is known of one partition; `gathered` are rows that do not count yet, by key."""

    def __init__(self) -> None:
        self.caught_up = False
        self.covered = NO_OFFSET
        self.table = b""
        self.gathered: dict[bytes, bytes | None] = {}
        self.contexts: dict[ModelContext, _Context] = {}
        self.publishers: set[PublisherKey] = set()


class _Commit:
    """Rows that count from now on, sorted out by what they are."""

    def __init__(self) -> None:
        self.forgotten: list[PublisherKey] = []
        self.generations: dict[ModelContext, int] = {}
        self.context_rows: dict[ModelContext, list[tuple[Place, Row]]] = {}
        self.states: dict[PublisherKey, PublisherState] = {}
        self.registrations: dict[PublisherKey, Registered] = {}


class TableFollower:
    """The state of all partitions that it is given. One writer; reading may run beside it, in other
    threads.

    Attributes:
        kernel: the index to query.
        publishers, registrations: as `Fold`'s.
        counters: rows by outcome: `rows`, `corrupt_rows`, `newer_rows`, `missing_rows`,
            `repeated_rows`, `stale_marks`, `resets`, `healed`.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.publishers: dict[PublisherKey, PublisherState] = {}
        self.registrations: dict[PublisherKey, Registered] = {}
        self.counters: Counter[str] = Counter()
        self._partitions: dict[int, _Partition] = {}
        self._degraded: Counter[StreamKey] = Counter()
        self._damaged: set[StreamKey] = set()
        self._skipped: deque[SkippedRow] = deque(maxlen=SKIPPED_NAMED_MAX)

    # Reading

    def covered(self, partition: int) -> Offset:
        """The offset of the events topic up to which the partition is folded; -1 for nothing."""
        known = self._partitions.get(partition)
        return NO_OFFSET if known is None or not known.caught_up else known.covered

    def positions(self) -> list[Position]:
        """Where each partition stands, sorted."""
        return [Position(number, self.covered(number)) for number in sorted(self._partitions)]

    def is_degraded(self, scope: PrefixScope) -> bool:
        """Whether a publisher of the scope has lost batches, or a row of the scope was skipped.

        Cost O(degraded streams).
        """
        tenant_id, model_name, _, block_size, additional_salt = scope
        wanted = (tenant_id, model_name, block_size, additional_salt)
        streams = [*self._degraded, *self._damaged]
        return any(stream[:4] == wanted for stream in streams)

    def take_skipped(self) -> list[SkippedRow]:
        """Rows skipped since the last call, the latest `SKIPPED_NAMED_MAX` of them."""
        skipped = list(self._skipped)
        self._skipped.clear()
        return skipped

    # Rows

    def put(self, partition: int, key: bytes, value: bytes | None) -> None:
        """The next row of the partition's topic; None for a tombstone.

        Cost O(1), but for a `covered` row once caught up: O(changes of its flush).
        """
        known = self._partitions.get(partition)
        if known is None:
            known = self._partitions[partition] = _Partition()
        gathered = known.gathered
        gathered.pop(key, None)
        if known.caught_up:
            gathered[key] = value
            if key == rows.COVERED_KEY:
                for _ in self._commit(partition, known):
                    pass
        elif value is not None:
            gathered[key] = value  # a tombstone needs nothing: it has taken the row away

    def caught_up(self, partition: int) -> None:
        """The reader has put every row that the partition had when reading began: they are loaded.

        Cost O(changes in them).
        """
        for _ in self.catching_up(partition):
            pass

    def catching_up(self, partition: int) -> Iterator[None]:
        """As `caught_up`, in steps of some megabytes, so that the reader may do other work between.

        Until the last step the partition's part of the kernel is not whole, and nothing may be put
        into it.
        """
        known = self._partitions.setdefault(partition, _Partition())
        if not known.caught_up:
            yield from self._commit(partition, known)
            known.caught_up = True

    def _commit(self, partition: int, known: _Partition) -> Iterator[None]:
        """Applies what counts now, in steps.

        Step 1. the `covered` row: how far rows count, and whether the table is still the same.
        Step 2. publishers that were unregistered, with whatever they held.
        Step 3. context rows, then the states of publishers, then registrations.
        """
        covered = self._decode(
            partition, rows.COVERED_KEY, known.gathered.pop(rows.COVERED_KEY, None)
        )
        if covered is None:
            return
        if known.table and covered.body != known.table:
            self._reset(known)
        elif covered.covers < known.covered:
            self.counters["stale_marks"] += 1
            return
        before, known.covered, known.table = known.covered, Offset(covered.covers), covered.body
        commit = self._sort_out(partition, known)
        for publisher in commit.forgotten:
            self._forget(known, publisher)
        yield from self._apply_contexts(partition, known, commit, before)
        for publisher, state in commit.states.items():
            self._put_state(known, publisher, state)
        for publisher, registered in commit.registrations.items():
            known.publishers.add(publisher)
            self.registrations[publisher] = registered
            self._register(publisher)

    def _decode(self, partition: int, key: bytes, value: bytes | None) -> Row | None:
        """The row, or None where there is none or it has to be skipped."""
        if value is None:
            return None
        try:
            row = rows.decode_row(key, value)
        except RowVersionError:
            self._skip(partition, key, "newer_rows")
            return None
        except RowCorruptError:
            self._skip(partition, key, "corrupt_rows")
            return None
        self.counters["rows"] += 1
        return row

    def _skip(self, partition: int, key: bytes, reason: str) -> None:
        self.counters[reason] += 1
        self._skipped.append(SkippedRow(partition, key, reason))
        with suppress(RowCorruptError):
            if key[:1] in (rows.PUBLISHER, rows.REGISTRATION):
                self._damaged.add(rows.parse_publisher_key(key).stream)
            elif key[:1] == rows.MARK:
                self._damaged.add(rows.parse_mark_key(key).stream)

    def _sort_out(self, partition: int, known: _Partition) -> _Commit:
        """Takes the rows that count out of those gathered. Cost O(rows gathered)."""
        commit = _Commit()
        waiting: dict[bytes, bytes | None] = {}
        for key, value in known.gathered.items():
            try:
                if value is None:
                    self._sort_tombstone(known, commit, key)
                    continue
                row = self._decode(partition, key, value)
                if row is None or row.covers <= known.covered:
                    if row is not None:
                        self._sort_row(commit, key, row)
                    continue
            except RowCorruptError:
                self._skip(partition, key, "corrupt_rows")
                continue
            waiting[key] = value
        known.gathered = waiting
        return commit

    def _sort_tombstone(self, known: _Partition, commit: _Commit, key: bytes) -> None:
        if key[:1] in (rows.PUBLISHER, rows.REGISTRATION):
            publisher = rows.parse_publisher_key(key)
            if key[:1] == rows.REGISTRATION:
                self.registrations.pop(publisher, None)
            if publisher in known.publishers:
                commit.forgotten.append(publisher)

    @staticmethod
    def _sort_row(commit: _Commit, key: bytes, row: Row) -> None:
        match key[:1]:
            case rows.CONTEXT:
                place = rows.parse_row_key(key)
                commit.context_rows.setdefault(place.context, []).append((place, row))
            case rows.MARK:
                commit.generations[rows.parse_mark_key(key)] = rows.parse_mark(key, row.body)
            case rows.PUBLISHER:
                state = decode_row_body(PublisherState, key=key, body=row.body)
                commit.states[rows.parse_publisher_key(key)] = state
            case rows.REGISTRATION:
                registered = decode_row_body(Registered, key=key, body=row.body)
                publisher = rows.parse_publisher_key(key)
                if registered.registration.publisher != publisher:
                    raise RowCorruptError(key=key, detail="it registers another publisher")
                commit.registrations[publisher] = registered

    # Contexts

    def _apply_contexts(
        self, partition: int, known: _Partition, commit: _Commit, before: Offset
    ) -> Iterator[None]:
        ready: dict[StreamKey, list[ContextRow]] = {}
        for context in commit.context_rows.keys() | commit.generations.keys():
            for row in self._ready_rows(partition, known, commit, context, before):
                ready.setdefault(context.stream, []).append(row)
        for stream_rows in ready.values():
            loaded_bytes = sum(len(row.body) for row in stream_rows)
            for refused in load_rows(self.kernel, stream_rows):
                if refused is not None:
                    key = rows.row_key(Place(refused.context, 0, refused.n))
                    self._damage(partition, known, refused.context, key, "corrupt_rows")
                if loaded_bytes >= _STEP_BYTES:
                    yield

    def _ready_rows(
        self,
        partition: int,
        known: _Partition,
        commit: _Commit,
        context: ModelContext,
        before: Offset,
    ) -> list[ContextRow]:
        """The rows of a context that have to be loaded now, in order; the rest is kept or dropped.

        A chunk repeats what was applied up to the offset that it covers: it is loaded only where
        that has not been, or where the context is damaged.
        """
        state = known.contexts.setdefault(context, _Context())
        generation = max(commit.generations.get(context, 0), state.generation)
        switched = generation > state.generation
        heals = switched and state.damaged
        if switched:
            state.generation, state.next_n, state.damaged = generation, 0, False
        ready: list[ContextRow] = []
        replaces = heals
        for place, row in sorted(commit.context_rows.get(context, ())):
            if place.generation > generation:
                known.gathered[rows.row_key(place)] = rows.encode_row(RowKind(row.kind), *row[1:])
                continue
            if place.generation < generation:
                continue
            if place.n < state.next_n:
                self.counters["repeated_rows"] += 1
                continue
            if place.n > state.next_n:
                key = rows.row_key(place._replace(n=state.next_n))
                self._damage(partition, known, context, key, MISSING_ROWS)
            state.next_n = place.n + 1
            applied = row.covers <= before
            if row.kind == RowKind.CHUNK and (heals or not applied):
                replaces = True
            elif applied:
                continue
            ready.append(ContextRow(row.covers, context, place.n, row.body))
        if replaces and before != NO_OFFSET:
            self._clear(known, context)
        if heals and not state.damaged:
            self.counters["healed"] += 1
            if not any(c.stream == context.stream and s.damaged for c, s in known.contexts.items()):
                self._damaged.discard(context.stream)
        return ready

    def _clear(self, known: _Partition, context: ModelContext) -> None:
        for publisher in known.publishers:
            if publisher.stream == context.stream:
                change = Change(0, 0, publisher.dp_rank, 0, Op.CLEAR, 0)
                self.kernel.load(context, change.encode())

    def _damage(
        self, partition: int, known: _Partition, context: ModelContext, key: bytes, reason: str
    ) -> None:
        known.contexts[context].damaged = True
        self._damaged.add(context.stream)
        self._skip(partition, key, reason)

    # Publishers

    def _put_state(self, known: _Partition, publisher: PublisherKey, state: PublisherState) -> None:
        known.publishers.add(publisher)
        self.kernel.open_publisher(*publisher)
        self._note_degraded(publisher, state)
        self.publishers[publisher] = state

    def _note_degraded(self, publisher: PublisherKey, state: PublisherState) -> None:
        before = self.publishers.get(publisher, PublisherState())
        change = (state.degraded_since is not None) - (before.degraded_since is not None)
        if not change:  # an entry that comes and goes at once would be seen by other threads
            return
        self._degraded[publisher.stream] += change
        if not self._degraded[publisher.stream]:
            del self._degraded[publisher.stream]

    def _register(self, publisher: PublisherKey) -> None:
        lora_name = self.registrations[publisher].registration.lora_name
        self.kernel.register(self.kernel.open_publisher(*publisher), lora_name, True)

    def _forget(self, known: _Partition, publisher: PublisherKey) -> None:
        """Drops a publisher with its entries, before the rows of what it stored since count."""
        self.kernel.unregister(self.kernel.open_publisher(*publisher))
        self._note_degraded(publisher, PublisherState())
        self.publishers.pop(publisher, None)
        if publisher in self.registrations:
            self._register(publisher)
        else:
            known.publishers.discard(publisher)

    def _reset(self, known: _Partition) -> None:
        """Drops all that the partition held: its table was built anew."""
        self.counters[RESETS] += 1
        for publisher in list(known.publishers):
            self.registrations.pop(publisher, None)
            self._forget(known, publisher)
            self._damaged.discard(publisher.stream)
        known.contexts.clear()
        known.covered = NO_OFFSET
