"""The fold: (table, record) -> table. Deterministic; no clock, no I/O, no randomness.

Rules, in the order in which they are applied to a record:

1. It cannot be decoded, or a newer Reprise wrote it: skipped and counted; the fold goes on.
2. Its (incarnation, last sequence) is not above the publisher's cursor: it is a duplicate, or late;
   skipped and counted. So a log that delivers a record twice gives the state of one that delivers
   it once. Where only the record's beginning has been folded, the kernel skips those events. Of a
   batch that is spread over records, what was folded is skipped by its number (`PartialBatch`); the
   cursor moves with the last of them.
3. Its incarnation is newer: whatever the publisher held is dropped first, `reset` record or none.
4. Its first sequence is not the one after the cursor, and no `gap` record said so: the log itself
   has a hole (old records retired, the table lost). Counted, and the publisher is degraded. So it
   is where a batch was begun and does not go on with the next event.
5. `events` go to the kernel. `gap`, and a batch that is `incomplete`, degrade the publisher: the
   table may miss blocks of it and may list evicted ones, until a reset or a later `cleared` event.
   Blocks that the kernel cannot use degrade it for as long as it holds them (`left_out`); those
   of which it is not known whether it holds them leave it unconfirmed (`UNSURE`). Objects of a
   pool wait until an engine announces their blocks, so the pool's state may end with an engine's
   record.
6. `registered` and `unregistered` make and end the publisher's part in answers. An engine that
   publishes no events is registered, and has none. Of one that `continues` it stays known what is
   not known of its other tiers, and that its model is a hybrid. An incarnation that begins after
   another one, or a registration that ends, may have lent memory to a pool of the scope: that is
   not confirmed then, until it begins anew or clears (`PublisherState.lender_gone`).
7. A publisher that is registered in a fold that has not seen the log's beginning (`distrust`) is
   degraded, where nothing proves that it held nothing before: no record of an incarnation, and no
   `unregistered` record. Its next incarnation or a `cleared` event ends that, like any other loss.
8. `heartbeat` says that a bridge is there, and what it knows of its publishers: whether they are
   confirmed (`schemas.answer_states`). Of a publisher that is not registered it says nothing. One
   that a complete heartbeat of its bridge leaves out is no longer followed. None is confirmed
   whose incarnation leaves out a number, before a heartbeat says so again.
9. What became of each batch is kept in the publisher's ledger (`streams.table.ledger`), which no
   answer depends on.
10. `memory` says what a segment in the memory of a host holds: `streams.table.segments`.
11. An unexpected error on a record stops nothing: the record is counted and skipped, and its
   publisher is degraded, since a part of the record may have been folded.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from schemas.answer_states import Doubt
from schemas.codec import decode_log_record, decode_record
from schemas.errors import RecordError
from schemas.identities import (
    OBJECTS_WAIT,
    PARTIAL_BLOCK,
    POOL_REMOVED,
    ModelContext,
    Offset,
    PublisherKey,
)
from schemas.limits import OTHER_RANKS_MAX
from schemas.memory_segments import MemoryRecord, SegmentKey, SegmentState
from schemas.positions import (
    POOL_CLEARED,
    REUSES_IN_PART,
    Confirmation,
    Heartbeat,
    PartialBatch,
    Proof,
    PublisherState,
    SequenceNumber,
    media_continued,
    media_of_next,
)
from schemas.records import (
    EventsRecord,
    GapRecord,
    HeartbeatRecord,
    LogRecord,
    PublisherReport,
    RegisteredRecord,
    ResetRecord,
    SequencedRecord,
    UnregisteredRecord,
)
from schemas.registration import LiveRegistration, Registration, facts_of
from streams.bounds import BRIDGES_REMEMBERED_MAX, TIERS_SHOWN_BATCHES
from streams.kernel.interface import Kernel, PublisherId
from streams.table.batch_parts import events_after, goes_on, is_folded
from streams.table.ledger import NO_LEDGERS, Ledger, Ledgers
from streams.table.scope_states import Scope, ScopeStates, scope_of
from streams.table.segments import SegmentsFold
from streams.table.skip_log import SkippedRecord

# A table that was built from a log without its beginning: publishers seen unregistered since, which
# are proven empty when they register again. 150 bytes each, in one row. Whoever is forgotten is
# degraded at its registration: reprise_fold_records{outcome="unregistered_forgotten"}.
UNREGISTERED_REMEMBERED_MAX: Final = 256  # publishers of a partition

NO_OFFSET = Offset(-1)
"""The position of a table that has folded nothing."""

DUPLICATE = "duplicate_record"
"""Reason of a record whose batches were all folded before; the others are those of errors."""

INTERNAL_ERROR = "internal_error"
"""Reason of a record on which the fold itself failed."""


class UnprovenState(msgspec.Struct, frozen=True):
    """What a fold that has not seen the log's beginning does not know.

    Attributes:
        before: a registration that is met below this offset may be older than what was seen.
        unregistered: publishers that were seen unregistered since: their next registration is a new
            one. The oldest are forgotten, and are degraded like the others then.
    """

    before: int = 0
    unregistered: tuple[PublisherKey, ...] = ()


ALL_PROVEN = UnprovenState()
"""Of a fold that has seen the log from its beginning."""


class TableChanges(NamedTuple):
    """What a table must write so that it covers `offset`. None stands for a deletion."""

    offset: Offset
    contexts: list[tuple[ModelContext, bytes]]
    publishers: dict[PublisherKey, PublisherState | None]
    registrations: dict[PublisherKey, LiveRegistration | None]
    unproven: UnprovenState | None = None
    bridges: Mapping[str, Heartbeat | None] = MappingProxyType({})
    ledgers: Mapping[PublisherKey, Ledger | None] = MappingProxyType({})
    segments: Mapping[SegmentKey, SegmentState | None] = MappingProxyType({})


class Fold:
    """One table's state in memory. One writer; `offset`, `publishers` and `registrations` may be
    read from other threads.

    Attributes:
        when_left_out: called as the first blocks of a publisher are left out, with their reasons.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        when_folded: Callable[[Offset], None] = lambda offset: None,
        partition: int = 0,
    ) -> None:
        """Args:
        kernel: empty.
        when_folded: called as `offset` has changed.
        partition: of the log, where the kernel has other ones beside it.
        """
        self.kernel = kernel
        self._when_folded = when_folded
        self._partition = partition
        self.offset = NO_OFFSET
        self.publishers: dict[PublisherKey, PublisherState] = {}
        self.registrations: dict[PublisherKey, LiveRegistration] = {}
        self.unproven = ALL_PROVEN
        self.counters: Counter[str] = Counter()
        self.when_left_out: Callable[[PublisherKey, Mapping[str, int]], None] = lambda *_: None
        self._handles: dict[PublisherKey, PublisherId] = {}
        self._pools: dict[Scope, dict[PublisherKey, None]] = {}  # that do not say what is gone
        self._waiting: dict[Scope, dict[PublisherKey, None]] = {}  # pools of which objects wait
        self.bridges: dict[str, Heartbeat] = {}
        self.memory = SegmentsFold(self.counters)
        self.states = ScopeStates()
        self.ledgers = Ledgers()
        # In the order of the log, so that the same log gives the same rows in the same order.
        self._changed_publishers: dict[PublisherKey, None] = {}
        self._changed_registrations: dict[PublisherKey, None] = {}
        self._changed_bridges: dict[str, None] = {}
        self._unproven_changed = False

    # Records

    def apply(self, offset: Offset, encoded: bytes) -> SkippedRecord | None:
        """Folds the record at `offset`; returns it where it was skipped, by rule 1, 2 or 10.

        Records at or below the fold's own offset are ignored: they are part of it.
        """
        if offset <= self.offset:
            self.counters["offset_replayed"] += 1
            return None
        try:
            duplicate = self._apply_record(offset, decode_log_record(encoded))
        except RecordError as error:
            self.counters[error.reason] += 1
            return SkippedRecord(offset, error.reason, str(error))
        except Exception as error:  # noqa: BLE001 -- rule 11
            self.counters[INTERNAL_ERROR] += 1
            self._degrade_publisher_of(encoded)
            return SkippedRecord(offset, INTERNAL_ERROR, f"{type(error).__name__}: {error}", error)
        finally:
            # Only now: other threads take it for what queries see.
            self.offset = offset
            self._when_folded(offset)
        self.counters["records"] += 1
        return SkippedRecord(offset, DUPLICATE, duplicate) if duplicate else None

    def _apply_record(self, offset: Offset, record: LogRecord) -> str:
        """Returns why the record is a duplicate, or ""."""
        match record:
            case RegisteredRecord():
                self._register(offset, record)
            case UnregisteredRecord():
                self._unregister(offset, record)
            case HeartbeatRecord():
                self._take_heartbeat(record)
            case MemoryRecord():
                self.memory.take(record)
            case _:
                return self._apply_sequenced(record)
        return ""

    def _apply_sequenced(self, record: SequencedRecord) -> str:
        publisher = record.publisher
        before = self.publishers.get(publisher, PublisherState())
        state = msgspec.structs.replace(before)
        if record.incarnation > state.incarnation:
            if isinstance(record, EventsRecord) and state.incarnation:
                # What is no array of events may not drop what the publisher holds either.
                self.kernel.check_events(bytes(record.events))
            self._begin_incarnation(publisher, state, record.incarnation, record.bridge_time)
        elif record.last <= state.cursor or is_folded(record, state):
            self.counters["duplicate_records"] += 1
            return (
                f"Expected batches after {before.incarnation}:{before.sequence}, got"
                f" {record.incarnation}:{record.first_sequence} to {record.last_sequence}"
                f" of publisher: {publisher}"
            )
        begun, state.begun = state.begun, None
        is_torn = False
        match record:
            case ResetRecord():
                self.counters["resets"] += 1
            case GapRecord():
                self.counters["gaps"] += 1
                first = max(record.first_sequence, state.sequence + 1)
                self.counters["lost_batches"] += record.last_sequence - first + 1
                self._expect(state, record)
                _degrade(state, record.first_sequence, record.bridge_time)
                # Nothing is known of the batch at the cursor.
                state.engine_time, state.proof = 0.0, None
            case EventsRecord():
                is_torn = self._apply_events(publisher, state, record, begun)
        state.sequence = max(state.sequence, record.reached.sequence)
        self._put(publisher, state)
        is_proven = not self.unproven.before
        self.ledgers.note(publisher, before, record, is_torn=is_torn, is_proven=is_proven)
        return ""

    def _begin_incarnation(
        self, publisher: PublisherKey, state: PublisherState, incarnation: int, at: float
    ) -> None:
        if state.incarnation:
            self.kernel.clear(self._handle(publisher))
            self._doubt_pools(publisher, at)
        said = state.confirmation
        if incarnation > state.incarnation + 1 and said is not None and not said.reason:
            # Begun by a bridge that did not know how far the log was: it repeats what is older than
            # what another one has confirmed.
            doubt = Doubt.CATCHING_UP
            state.confirmation = msgspec.structs.replace(said, reason=doubt, since=at)
        state.incarnation = incarnation
        state.sequence = -1
        state.engine_time, state.proof = 0.0, None
        state.degraded_since, state.degraded_at = None, 0.0
        left_out, state.left_out, state.left_out_at = state.left_out, {}, 0.0
        state.begun = state.heard = None
        state.other_ranks, state.window, state.base_group = (), None, False
        state.sparse_blocks = state.tiers_unheard = None
        state.by_rule = state.forms_prefixes = False
        state.unheld_removed, state.lender_gone = 0, None
        is_unsure = POOL_REMOVED in left_out  # and stays so, whatever becomes of this publisher
        state.media = media_of_next(state.media) | (POOL_CLEARED if is_unsure else 0)

    def _expect(self, state: PublisherState, record: SequencedRecord) -> None:
        if record.first_sequence > state.sequence + 1:
            self.counters["log_holes"] += 1
            _degrade(state, state.sequence + 1, record.bridge_time)

    def _apply_events(
        self,
        publisher: PublisherKey,
        state: PublisherState,
        record: EventsRecord,
        begun: PartialBatch | None,
    ) -> bool:
        """Returns whether parts of its first batch are missing."""
        events = events_after(record, state, begun)
        handle = self._handle(publisher)
        cleared = self.kernel.apply(handle, events, state.sequence)
        state.base_group = self.kernel.has_base_group(handle)
        state.sparse_blocks = self.kernel.sparse_blocks(handle)
        state.by_rule = self.kernel.by_rule(handle)
        state.forms_prefixes = self.kernel.forms_prefixes(handle)
        state.unheld_removed = self.kernel.unheld_removed(handle)
        self._note_left_out(publisher, state, record.bridge_time)
        self._note_joined(publisher, record.bridge_time)
        self._expect(state, record)  # only of events that were folded
        is_torn = not goes_on(record, state, begun)
        if is_torn:
            self.counters["log_holes"] += 1
            _degrade(state, record.first_sequence, record.bridge_time)
        if record.doubted is True:
            if state.proof is None:
                state.proof = Proof(state.sequence, state.engine_time)
        elif not record.is_unfinished:
            state.proof = None
        state.heard = record.heard or state.heard
        if record.other_ranks is not msgspec.UNSET:
            ranks = sorted({*state.other_ranks, *record.other_ranks})
            state.other_ranks = tuple(ranks[:OTHER_RANKS_MAX])
        state.window = record.window_after(state.window)
        lasting = state.media & (POOL_CLEARED | REUSES_IN_PART)
        state.media = record.media_after(state.media) | lasting
        if not record.is_unfinished:
            state.engine_time = record.engine_time
        elif record.part is not msgspec.UNSET:
            if record.first_sequence > state.sequence + 1:
                state.engine_time = 0.0  # nothing is known of the batch before
            state.begun = PartialBatch(record.part.end, record.part.total, record.engine_time)
        self._settle_losses(publisher, state, record, cleared)
        if state.unheld_removed is None and self._drops_unsaid(publisher, state):
            state.media |= REUSES_IN_PART
        return is_torn

    def _drops_unsaid(self, publisher: PublisherKey, state: PublisherState) -> bool:
        """Whether a publisher that has stored once more what it held had dropped it without an
        event: it is of a kind that holds blocks once, and no event is lost.
        """
        registered = self.registrations.get(publisher)
        if registered is None or state.degraded_since is not None:
            return False
        return facts_of(registered.registration.kind).holds_once

    def _settle_losses(
        self,
        publisher: PublisherKey,
        state: PublisherState,
        record: EventsRecord,
        cleared: SequenceNumber | None,
    ) -> None:
        """What was lost before a clear is settled by it, but for what it says nothing of."""
        degraded_since = state.degraded_since
        if cleared is not None:
            state.lender_gone = None
        if cleared is not None and degraded_since is not None and cleared > degraded_since:
            if not self._has_gpu_alone(publisher, state, degraded_since):
                state.tiers_unheard = cleared
            state.degraded_since, state.degraded_at = None, 0.0
        if record.incomplete is not msgspec.UNSET:
            incomplete = min(record.incomplete, record.last_sequence)
            if incomplete > state.sequence and (cleared is None or cleared <= incomplete):
                _degrade(state, incomplete, record.bridge_time)
        if _shows_gpu_alone(state, record.reached.sequence):
            state.tiers_unheard = None

    def _has_gpu_alone(self, publisher: PublisherKey, state: PublisherState, lost: int) -> bool:
        """Whether a clear of a publisher is of all that it holds, after the loss of a batch.
        Other kinds than vLLM, and Dynamo, which may be in front of it, clear all their tiers.
        """
        registered = self.registrations.get(publisher)
        if registered is None or not facts_of(registered.registration.kind).clears_gpu_alone:
            return True
        if state.media or state.tiers_unheard is not None:
            return False
        return registered.registration.kv_offloading == "none" or lost >= TIERS_SHOWN_BATCHES

    def _note_left_out(self, publisher: PublisherKey, state: PublisherState, at: float) -> None:
        before, state.left_out = state.left_out, dict(self.kernel.left_out(self._handle(publisher)))
        state.left_out.pop(PARTIAL_BLOCK, None)
        if not (before and state.left_out):
            state.left_out_at = at if state.left_out else 0.0
        if state.left_out and not before:
            self.when_left_out(publisher, state.left_out)

    def _note_joined(self, engine: PublisherKey, at: float) -> None:
        """Of pools of which objects wait: what an engine has announced may be theirs."""
        if not self._waiting:
            return
        for pool in list(self._waiting.get(scope_of(engine.stream), ())):
            if pool == engine:
                continue
            before = self.publishers[pool]
            state = msgspec.structs.replace(before)
            self._note_left_out(pool, state, at)
            if state.left_out != before.left_out:
                self._put(pool, state)

    def _doubt_pools(self, ended: PublisherKey, at: float) -> None:
        """A process has ended that may have lent memory to the pools of its scope."""
        live = self.registrations.get(ended)
        if live is None or live.registration.is_pool or live.registration.kv_offloading == "none":
            return
        for pool in list(self._pools.get(scope_of(ended.stream), ())):
            state = self.publishers.get(pool)
            if state is not None and state.incarnation and state.lender_gone is None:
                self._put(pool, msgspec.structs.replace(state, lender_gone=at))

    def _degrade_publisher_of(self, encoded: bytes) -> None:
        try:
            record = decode_record(encoded)
            publisher = record.publisher
        except Exception:  # noqa: BLE001 -- a record that names no publisher degrades none
            return
        before = self.publishers.get(publisher, PublisherState())
        state = msgspec.structs.replace(before)
        _degrade(state, state.sequence + 1, record.bridge_time)
        self._put(publisher, state)

    def _handle(self, publisher: PublisherKey) -> PublisherId:
        handle = self._handles.get(publisher)
        if handle is None:
            handle = self._handles[publisher] = self.kernel.open_publisher(*publisher)
            self.kernel.set_domain(handle, self._partition)
        return handle

    def _put(self, publisher: PublisherKey, state: PublisherState | None) -> None:
        """Replaces the state whole, so that readers on other threads never see half of a change."""
        if state is None:
            self.publishers.pop(publisher, None)
        else:
            self.publishers[publisher] = state
        self.states.put(publisher, state)
        self._changed_publishers[publisher] = None
        waits = state is not None and OBJECTS_WAIT in state.left_out
        if waits or self._waiting:
            scope = scope_of(publisher.stream)
            waiting = self._waiting.setdefault(scope, {})
            if waits:
                waiting[publisher] = None
            else:
                waiting.pop(publisher, None)
            if not waiting:
                del self._waiting[scope]

    # Heartbeats

    def _take_heartbeat(self, record: HeartbeatRecord) -> None:
        """Cost O(reports), of a complete one O(publishers)."""
        reported = set()
        for report in record.reports:
            publisher = report.publisher
            reported.add(publisher)
            if self._is_followed(publisher) and not self._is_foreign(record.bridge, report):
                said = Confirmation(
                    record.bridge,
                    report.reason,
                    report.since,
                    report.activity,
                    report.activity_since,
                    report.process,
                    report.facts,
                    report.clock_s,
                    report.troubles,
                )
                self._confirm(publisher, said)
        if record.complete:
            gone = Confirmation(record.bridge, Doubt.NOT_FOLLOWED, record.bridge_time)
            for publisher, state in list(self.publishers.items()):
                said_before = state.confirmation
                if (
                    publisher not in reported
                    and said_before is not None
                    and said_before.bridge == record.bridge
                    and said_before.reason != gone.reason
                ):
                    self._confirm(publisher, gone)
        self.bridges.pop(record.bridge, None)  # the one that was heard of last stands last
        self.bridges[record.bridge] = Heartbeat(record.uptime, record.bridge_time, record.age)
        self._changed_bridges[record.bridge] = None
        while len(self.bridges) > BRIDGES_REMEMBERED_MAX:
            oldest = next(iter(self.bridges))
            del self.bridges[oldest]
            self._changed_bridges[oldest] = None

    def _is_foreign(self, bridge: str, report: PublisherReport) -> bool:
        """Whether the bridge gives up a publisher that another one has taken over meanwhile."""
        if report.reason != Doubt.NOT_FOLLOWED:
            return False
        said = self.publishers.get(report.publisher, PublisherState()).confirmation
        return said is not None and said.bridge != bridge

    def _is_followed(self, publisher: PublisherKey) -> bool:
        registered = self.registrations.get(publisher)
        return registered is not None and registered.registration.has_events

    def _confirm(self, publisher: PublisherKey, said: Confirmation) -> None:
        before = self.publishers.get(publisher, PublisherState())
        if before.confirmation != said:
            self._put(publisher, msgspec.structs.replace(before, confirmation=said))

    # Registrations

    def _register(self, offset: Offset, record: RegisteredRecord) -> None:
        publisher = record.publisher
        registered = self.registrations.get(publisher)
        if registered is not None and registered.registration == record.registration:
            self.counters["duplicate_records"] += 1
            return
        registration = record.registration
        if not registration.has_events:
            self._end_part(publisher)  # an earlier registration may have had one
            self.registrations[publisher] = LiveRegistration(registration, offset)
            self._changed_registrations[publisher] = None
            return
        register(self.kernel, self._handle(publisher), registration)
        self.registrations[publisher] = LiveRegistration(record.registration, offset)
        self.states.register(publisher, True, registration)
        self._note_pool(record.registration)
        self._changed_registrations[publisher] = None
        if registered is None and offset < self.unproven.before:
            self._register_unproven(publisher, record.bridge_time)

    def _note_pool(self, registration: Registration) -> None:
        if not registration.is_pool:
            return
        pools = self._pools.setdefault(scope_of(registration.stream), {})
        if registration.kv_offloading == "native":
            pools.pop(registration.publisher, None)
            state = self.publishers.get(registration.publisher)
            if state is not None and state.lender_gone is not None:  # who ended had lent nothing
                self._put(registration.publisher, msgspec.structs.replace(state, lender_gone=None))
        else:
            pools[registration.publisher] = None

    def _register_unproven(self, publisher: PublisherKey, bridge_time: float) -> None:
        """Rule 7. Whoever has a cursor was judged by its sequences, rules 3 to 5."""
        seen = self.unproven.unregistered
        if publisher in seen:
            self._put_unproven(tuple(other for other in seen if other != publisher))
            return
        before = self.publishers.get(publisher, PublisherState())
        if before.incarnation == 0:
            state = msgspec.structs.replace(before)
            _degrade(state, 0, bridge_time)
            self._put(publisher, state)

    def _put_unproven(self, unregistered: tuple[PublisherKey, ...]) -> None:
        self.unproven = UnprovenState(self.unproven.before, unregistered)
        self._unproven_changed = True

    def _unregister(self, offset: Offset, record: UnregisteredRecord) -> None:
        publisher = record.publisher
        before = self.publishers.get(publisher)
        if record.continues is not True:
            self._doubt_pools(publisher, record.bridge_time)
        self._forget(offset, publisher)
        if record.continues is True and before is not None:
            is_unsure = POOL_REMOVED in before.left_out
            media = media_continued(before.media) | (POOL_CLEARED if is_unsure else 0)
            sparse_blocks = None if before.sparse_blocks is None else 0
            if sparse_blocks is not None:
                handle = self._handle(publisher)
                self.kernel.set_sparse_blocks(handle, sparse_blocks, before.by_rule)
            state = PublisherState(media=media, sparse_blocks=sparse_blocks, by_rule=before.by_rule)
            self._put(publisher, state)

    def _forget(self, offset: Offset, publisher: PublisherKey) -> None:
        if offset < self.unproven.before:
            seen = [other for other in self.unproven.unregistered if other != publisher]
            dropped = len(seen) + 1 - UNREGISTERED_REMEMBERED_MAX
            if dropped > 0:
                self.counters["unregistered_forgotten"] += dropped
            self._put_unproven((*seen, publisher)[-UNREGISTERED_REMEMBERED_MAX:])
        if not self._end_part(publisher) and publisher not in self.registrations:
            self.counters["duplicate_records"] += 1
            return
        self.registrations.pop(publisher, None)
        self._changed_registrations[publisher] = None

    def _end_part(self, publisher: PublisherKey) -> bool:
        """Ends a publisher's part in the table; whether it had one."""
        if publisher not in self._handles and publisher not in self.publishers:
            return False
        self.kernel.unregister(self._handle(publisher))
        del self._handles[publisher]
        self._pools.get(scope_of(publisher.stream), {}).pop(publisher, None)
        self.states.register(publisher, False)
        self._put(publisher, None)
        self.ledgers.forget(publisher)
        return True

    # Rows

    def take_changes(self) -> TableChanges:
        """What changed since the last call; O(changes)."""
        changes = TableChanges(
            self.offset,
            self.kernel.take_changes(),
            {key: self.publishers.get(key) for key in self._changed_publishers},
            {key: self.registrations.get(key) for key in self._changed_registrations},
            self.unproven if self._unproven_changed else None,
            {bridge: self.bridges.get(bridge) for bridge in self._changed_bridges},
            self.ledgers.take_changes(),
            self.memory.take_changes(),
        )
        self._changed_bridges.clear()
        self._unproven_changed = False
        self._changed_publishers.clear()
        self._changed_registrations.clear()
        return changes

    def distrust(self, before: Offset) -> None:
        """Applies rule 7 to registrations below `before`, from now on. Stored with the next
        changes, so that whoever goes on from any later rows does the same.
        """
        assert not self.registrations, "a fold is distrusted before it folds"
        self.unproven = UnprovenState(before)
        self._unproven_changed = True

    def restore(
        self,
        offset: Offset,
        publishers: dict[PublisherKey, PublisherState],
        registrations: dict[PublisherKey, LiveRegistration],
        unproven: UnprovenState = ALL_PROVEN,
        bridges: Mapping[str, Heartbeat] = MappingProxyType({}),
        ledgers: Mapping[PublisherKey, Ledger] = NO_LEDGERS,
        segments: Mapping[SegmentKey, SegmentState] = MappingProxyType({}),
    ) -> None:
        """Takes over what a table's rows say; whoever read them has loaded the kernel."""
        assert self.offset == NO_OFFSET, "a fold is restored before it folds"
        self.offset = offset
        self._when_folded(offset)
        self.unproven = unproven
        for publisher, state in publishers.items():
            handle = self._handle(publisher)
            if state.base_group:
                self.kernel.set_base_group(handle)
            if state.sparse_blocks is not None:
                self.kernel.set_sparse_blocks(handle, state.sparse_blocks, state.by_rule)
            self.kernel.set_unheld_removed(handle, state.unheld_removed)
            self._put(publisher, state)
        for publisher, registered in registrations.items():
            self.registrations[publisher] = registered
            if registered.registration.has_events:
                self._handle(publisher)
                self.states.register(publisher, True, registered.registration)
                self._note_pool(registered.registration)
        self.bridges = dict(sorted(bridges.items(), key=_heard_at))
        self.ledgers.restore(ledgers, publishers)
        self.memory.restore(segments)
        self._changed_publishers.clear()


def register(kernel: Kernel, publisher: PublisherId, registration: Registration) -> None:
    """Makes a publisher of events what it is registered as in a kernel's answers."""
    one = registration
    kernel.register(publisher, one.lora_name, not one.is_pool, one.is_shard, one.reads, one.pool)


def _shows_gpu_alone(state: PublisherState, reached: int) -> bool:
    """Whether a publisher has been heard for long enough since such a clear."""
    if state.tiers_unheard is None or state.degraded_since is not None or state.media:
        return False
    return reached - state.tiers_unheard >= TIERS_SHOWN_BATCHES


def _degrade(state: PublisherState, sequence: int, at: float) -> None:
    if state.degraded_since is None:
        state.degraded_since, state.degraded_at = sequence, at


def _heard_at(item: tuple[str, Heartbeat]) -> tuple[float, str]:
    return item[1].time, item[0]
