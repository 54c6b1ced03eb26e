"""Turns rows into a kernel's state: of a store that is opened, of topics that are followed.

Rows of a topic come in its order, from its beginning, and it may have been compacted up to any
point by then: superseded rows are gone, so is the order between rows of different keys. Therefore

1. rows are only gathered, the last of each key, until the partition is caught up with where it
   ended when reading began; then they are loaded, chunks and deltas of a context in order. Those
   behind the last `covered` row are kept apart: what was read may end in the middle of a flush,
   whose rows stand for others that still count;
2. from there on rows wait until the `covered` row of their partition, the commit mark of a flush,
   reaches the offset that they cover: whatever a dead worker left of a flush is replaced by its
   successor before;
3. a `covered` row of another table than the one before (its body names the table) says that the
   table was rebuilt from the log: what the partition held is dropped first.

The rows of a store are a partition that is loaded once, and read from the disk stream by stream.

Rows that are corrupt or of a newer version are skipped, counted and logged; what they belong to is
degraded until a whole row replaces them: the next generation does for a context. Without a
`covered` row that can be read, everything is. A strict reader raises instead: whoever owns a store
has a log to rebuild the table from.

A topic is to be read with `isolation_level="read_committed"`: a large flush is a transaction, and
what a dying worker wrote of one was never there.

No I/O, clock or logging: the reader of the topic logs what `take_skipped` returns.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar

from schemas.codec import decode_row_body
from schemas.errors import RowCorruptError, RowVersionError
from schemas.identities import OBJECTS_WAIT, ModelContext, Offset, PrefixScope, PublisherKey
from schemas.memory_segments import SegmentKey, SegmentState
from schemas.positions import Heartbeat, PublisherState
from schemas.registration import LiveRegistration
from streams.kernel.interface import Kernel
from streams.table.fold import ALL_PROVEN, NO_OFFSET, UnprovenState, register
from streams.table.ledger import Ledger
from streams.table.rows import bodies
from streams.table.rows import format as rows
from streams.table.rows.contexts import CORRUPT_ROWS, PartitionContexts
from streams.table.rows.format import Row
from streams.table.rows.source import GatheredRows, RowSource, SkippedRow, SkippedRows
from streams.table.scope_states import ScopeStates, common_scope, scope_of

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

RESETS: Final = "resets"
"""Counts how often another table than the one before was met."""


class _Partition:
    """The state of one partition.

    Attributes:
        counted: rows up to the last `covered` row, which are loaded once it has caught up.
        gathered: rows that do not count yet.
    """

    def __init__(self, contexts: PartitionContexts) -> None:
        self.caught_up = False
        self.covered = NO_OFFSET
        self.table = b""
        self.unproven = ALL_PROVEN
        self.counted = GatheredRows()
        self.gathered = GatheredRows()
        self.contexts = contexts
        self.publishers: dict[PublisherKey, None] = {}  # a set in the order of its rows
        self.bridges: dict[str, Heartbeat] = {}
        self.segments: dict[SegmentKey, SegmentState] = {}


class _Commit:
    """Rows of no context that count from now on, sorted out by what they are."""

    def __init__(self) -> None:
        self.forgotten: list[PublisherKey] = []
        self.generations: dict[ModelContext, int] = {}
        self.states: dict[PublisherKey, PublisherState] = {}
        self.registrations: dict[PublisherKey, LiveRegistration] = {}
        self.unproven: UnprovenState | None = None
        self.bridges: dict[str, Heartbeat | None] = {}
        self.ledgers: dict[PublisherKey, Ledger | None] = {}
        self.segments: dict[SegmentKey, SegmentState | None] = {}


class RowReader:
    """The state of all partitions that it is given. One writer; reading may run beside it, in other
    threads.

    Attributes:
        kernel: the index to query.
        publishers, registrations: as `Fold`'s.
        ledgers: of publishers; see `streams.table.ledger`.
        states: of the answers, but for what `is_damaged` says.
    """

    def __init__(self, kernel: Kernel, *, strict: bool = False, has_registry: bool = False) -> None:
        """Args:
        kernel: empty.
        strict: raise RowCorruptError or RowVersionError at the first row that has one.
        has_registry: see `ScopeStates`.
        """
        self.kernel = kernel
        self.states = ScopeStates(has_registry=has_registry)
        self.publishers: dict[PublisherKey, PublisherState] = {}
        self.registrations: dict[PublisherKey, LiveRegistration] = {}
        self.ledgers: dict[PublisherKey, Ledger] = {}
        self._partitions: dict[int, _Partition] = {}
        # Members of pools, by the pool and with their partitions: see `_put_pools`.
        self._pools: dict[PublisherKey, dict[PublisherKey, int]] = {}
        self._pool_of: dict[PublisherKey, PublisherKey] = {}
        self._skipped = SkippedRows(strict=strict)
        self._spoiled: set[int] = set()

    # Reading

    @property
    def counters(self) -> Counter[str]:
        """Rows by outcome: `rows`, `corrupt_rows`, `newer_rows`, `missing_rows`, `repeated_rows`,
        `stale_marks`, `resets`, `healed`.
        """
        return self._skipped.counters

    def release_left(self, entries: int) -> int:
        """Of large clears; see `Kernel.release_left`."""
        return self.kernel.release_left(entries)

    def covered(self, partition: int) -> Offset:
        """The offset of the events topic up to which the partition is folded; -1 for nothing."""
        part = self._partitions.get(partition)
        return NO_OFFSET if part is None or not part.caught_up else part.covered

    def contexts(self, partition: int) -> PartitionContexts:
        """Where the contexts of a partition stand."""
        return self._partition(partition).contexts

    def unproven(self, partition: int) -> UnprovenState:
        """What the fold that wrote the partition's rows had not seen of its log."""
        return self._partition(partition).unproven

    def bridges(self, partition: int) -> Mapping[str, Heartbeat]:
        """The last heartbeat of each bridge in the partition."""
        part = self._partitions.get(partition)
        return {} if part is None else part.bridges

    def segments(self) -> dict[SegmentKey, SegmentState]:
        """What is known of segments in the memory of hosts. Cost O(segments)."""
        found: dict[SegmentKey, SegmentState] = {}
        for part in list(self._partitions.values()):
            found |= dict(part.segments)
        return found

    def is_damaged(self, scope: PrefixScope) -> bool:
        """Whether a row of the scope was skipped, or a partition has no `covered` row that can be
        read: it is going to be built again.

        Cost O(damaged streams).
        """
        if self._spoiled:
            return True
        if not self._skipped.damaged:
            return False
        wanted = common_scope(scope)
        return any(scope_of(stream) == wanted for stream in list(self._skipped.damaged))

    def take_skipped(self) -> list[SkippedRow]:
        """Rows skipped since the last call, the latest of them; see `SkippedRows`."""
        return self._skipped.take()

    # Rows

    def is_of_another_table(self, partition: int, key: bytes, value: bytes | None) -> bool:
        """Whether to put this row would drop what the partition holds (see rule 3), or count what
        may have been written for another table: where none could be read before.
        """
        known = self._partitions.get(partition)
        if key != rows.COVERED_KEY or value is None or known is None:
            return False
        try:
            table = rows.decode_row(key, value).body
        except (RowCorruptError, RowVersionError):
            return False
        return table != known.table if known.table else partition in self._spoiled

    def put(self, partition: int, key: bytes, value: bytes | None) -> None:
        """The next row of the partition's topic; None for a tombstone.

        Cost O(1), but for a `covered` row: O(changes of its flush).
        """
        part = self._partition(partition)
        part.gathered.put(key, value)
        if key != rows.COVERED_KEY:
            return
        if part.caught_up:
            for _ in self._commit(partition, part, part.gathered):
                pass
        else:
            part.counted.replace(part.gathered)
            part.gathered = GatheredRows()

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
        part = self._partition(partition)
        if not part.caught_up:
            yield from self._commit(partition, part, part.counted)
            part.caught_up = True
            part.counted.add(part.gathered)
            part.counted, part.gathered = GatheredRows(), part.counted

    def load(self, source: RowSource) -> None:
        """Loads what a store has, as partition 0. Cost O(rows); holds those of one stream at a
        time.
        """
        part = self._partition(0)
        for _ in self._commit(0, part, source):
            pass
        part.caught_up = True

    def _partition(self, partition: int) -> _Partition:
        part = self._partitions.get(partition)
        if part is None:
            contexts = PartitionContexts(partition, self.kernel, self._skipped)
            part = self._partitions[partition] = _Partition(contexts)
        return part

    def _commit(self, partition: int, part: _Partition, source: RowSource) -> Iterator[None]:
        """Applies what counts now, in steps.

        Step 1. the `covered` row: how far rows count, and whether the table is still the same.
        Step 2. publishers that were unregistered, with whatever they held.
        Step 3. context rows, then the states of publishers, then registrations.
        """
        value = source.covered()
        covered = None if value is None else part.contexts.decode(rows.COVERED_KEY, value)
        if value is not None and covered is None:
            self._spoiled.add(partition)
        if covered is None:
            return
        self._spoiled.discard(partition)
        if part.table and covered.body != part.table:
            self._reset(partition, part)
        elif covered.covers < part.covered:
            self.counters["stale_marks"] += 1
            return
        before, part.covered, part.table = part.covered, Offset(covered.covers), covered.body
        commit = self._sort_out(partition, part, source)
        for publisher in commit.forgotten:
            self._forget(part, publisher)
        yield from part.contexts.apply(
            source, commit.generations, part.publishers, before=before, now=part.covered
        )
        for publisher, state in commit.states.items():
            self._put_state(partition, part, publisher, state)
        for publisher, registered in commit.registrations.items():
            part.publishers[publisher] = None
            self.registrations[publisher] = registered
            self._register(publisher)
            if registered.registration.pool:
                pool = registered.registration.as_registered.publisher
                self._pool_of[publisher] = pool
                self._pools.setdefault(pool, {})[publisher] = partition
        if self._pools:
            self._put_pools([*commit.states, *commit.registrations])
        _update(part.bridges, commit.bridges)
        _update(self.ledgers, commit.ledgers)
        _update(part.segments, commit.segments)
        if commit.unproven is not None:
            part.unproven = commit.unproven

    def _sort_out(self, partition: int, part: _Partition, source: RowSource) -> _Commit:
        """Takes the rows of no context that count out of the source. Cost O(such rows)."""
        commit = _Commit()
        for key, value in source.plain_rows():
            try:
                if value is None:
                    self._sort_tombstone(part, commit, key)
                elif (row := part.contexts.decode(key, value)) is None:
                    continue
                elif row.covers > part.covered:
                    source.keep(key, value)
                else:
                    self._sort_row(commit, key, row)
            except RowCorruptError as error:
                self._skipped.skip(SkippedRow(partition, key, CORRUPT_ROWS), error)
        return commit

    def _sort_tombstone(self, part: _Partition, commit: _Commit, key: bytes) -> None:
        if key[:1] in (rows.PUBLISHER, rows.REGISTRATION):
            publisher = rows.parse_publisher_key(key)
            if key[:1] == rows.REGISTRATION:
                self._unlist(publisher, self.registrations.pop(publisher, None))
            if publisher in part.publishers:
                commit.forgotten.append(publisher)
        elif (bridge := rows.parse_bridge_key(key)) is not None:
            commit.bridges[bridge] = None
        elif rows.is_ledger_key(key):
            commit.ledgers[rows.parse_ledger_key(key)] = None
        elif (segment := rows.parse_segment_key(key)) is not None:
            commit.segments[segment] = None

    @staticmethod
    def _sort_row(commit: _Commit, key: bytes, row: Row) -> None:
        match key[:1]:
            case rows.MARK:
                commit.generations[rows.parse_mark_key(key)] = rows.parse_mark(key, row.body)
            case rows.PUBLISHER:
                state = decode_row_body(bodies.PUBLISHER_STATE, key=key, body=row.body)
                commit.states[rows.parse_publisher_key(key)] = state
            case rows.REGISTRATION:
                registered = decode_row_body(bodies.REGISTERED, key=key, body=row.body)
                publisher = rows.parse_publisher_key(key)
                if registered.registration.publisher != publisher:
                    raise RowCorruptError(key=key, detail="it registers another publisher")
                commit.registrations[publisher] = registered
            case rows.FACT if key == rows.UNPROVEN_KEY:
                commit.unproven = decode_row_body(bodies.UNPROVEN, key=key, body=row.body)
            case rows.FACT if (bridge := rows.parse_bridge_key(key)) is not None:
                commit.bridges[bridge] = decode_row_body(bodies.HEARTBEAT, key=key, body=row.body)
            case rows.FACT if rows.is_ledger_key(key):
                ledger = decode_row_body(bodies.LEDGER, key=key, body=row.body)
                commit.ledgers[rows.parse_ledger_key(key)] = ledger
            case rows.FACT if (segment := rows.parse_segment_key(key)) is not None:
                memory = decode_row_body(bodies.SEGMENT_STATE, key=key, body=row.body)
                commit.segments[segment] = memory

    # Publishers

    def _put_state(
        self, partition: int, part: _Partition, publisher: PublisherKey, state: PublisherState
    ) -> None:
        part.publishers[publisher] = None
        self.kernel.open_publisher(*publisher)
        self.publishers[publisher] = state
        if publisher not in self._pool_of:
            self.states.put(publisher, state, partition)

    def _put_pools(self, changed: Iterable[PublisherKey]) -> None:
        """The states of the members of pools. Each waits for what engines of other partitions
        announce, so an object counts as one that waits where it does at all of them.
        """
        pools = dict.fromkeys(self._pool_of[one] for one in changed if one in self._pool_of)
        for members in map(self._pools.__getitem__, pools):
            states = {one: self.publishers.get(one, PublisherState()) for one in members}
            waits = all(OBJECTS_WAIT in state.left_out for state in states.values())
            if waits:
                handles = [self.kernel.open_publisher(*one) for one in members]
                waits = self.kernel.wait_together(handles)
            for one, state in states.items():
                if one in self.publishers:
                    self.states.put(one, state, members[one], waits=waits)

    def _register(self, publisher: PublisherKey) -> None:
        registration = self.registrations[publisher].registration
        if not registration.has_events:
            self.kernel.unregister(self.kernel.open_publisher(*publisher))
            self.states.register(publisher, False)
            return
        register(self.kernel, self.kernel.open_publisher(*publisher), registration)
        self.states.register(publisher, True, registration)
        if self.registrations[publisher].registration.is_self_registered:
            self.states.list(publisher, True)

    def _unlist(self, publisher: PublisherKey, registered: LiveRegistration | None) -> None:
        """It is registered no more; of one that the registry does not know it says nothing."""
        self.states.register(publisher, False)
        pool = self._pool_of.pop(publisher, None)
        if pool is not None:
            del self._pools[pool][publisher]
            if not self._pools[pool]:
                del self._pools[pool]
        if registered is not None and registered.registration.is_self_registered:
            self.states.list(publisher, False)

    def _forget(self, part: _Partition, publisher: PublisherKey) -> None:
        """Drops a publisher with its entries, before the rows of what it stored since count."""
        self.kernel.unregister(self.kernel.open_publisher(*publisher))
        self.publishers.pop(publisher, None)
        self.ledgers.pop(publisher, None)
        self.states.put(publisher, None)
        if publisher in self.registrations:
            self._register(publisher)
        else:
            part.publishers.pop(publisher, None)

    def _reset(self, partition: int, part: _Partition) -> None:
        """Drops all that the partition held: its table was rebuilt."""
        self.counters[RESETS] += 1
        for publisher in list(part.publishers):
            self._unlist(publisher, self.registrations.pop(publisher, None))
            self._forget(part, publisher)
            self._skipped.damaged.discard(publisher.stream)
        part.contexts = PartitionContexts(partition, self.kernel, self._skipped)
        part.covered, part.unproven, part.bridges = NO_OFFSET, ALL_PROVEN, {}
        part.segments = {}


def _update(known: dict[KeyT, ValueT], changed: Mapping[KeyT, ValueT | None]) -> None:
    """Takes over what changed; None stands for a deletion."""
    for key, value in changed.items():
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value
