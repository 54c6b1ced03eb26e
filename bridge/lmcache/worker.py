"""One worker of LMCache: its operations in order, what is missing of them, its full syncs. Pure.

What is known of a worker's cache (`Contents`):

    WHOLE     all that it holds: its process was seen from its beginning, or a full sync came
    PARTIAL   what it has said since a place before which something is missing; so says the log
    UNKNOWN   nothing: this process has just started, and the log has what an earlier one wrote.
              That stays, and what the worker sends waits, until its full sync puts the truth in the
              place of both, or until LMCACHE_HELD_S; then what waited is written behind a gap

LMCache numbers operations by location, from 0 in each process. A number that does not follow on is
a loss; LMCache itself only warns of it. We write a gap and ask for a full sync.

A full sync has the keys of one location as of some moment after it was asked for. So operations
that come from then on are kept, and applied to the keys that came: whether one of them happened
before that moment or after it, in a set the last one decides. Nothing that comes during a sync is
discarded, as LMCache's own controller does.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from bridge.lmcache.full_sync import FullSync
from bridge.lmcache.keys import Budget, Keys
from bridge.lmcache.locations import SYNCED, Tier, tier_of
from bridge.lmcache.messages import (
    FullSyncBatch,
    FullSyncEnd,
    FullSyncStart,
    FullSyncStatusRet,
    Operation,
    key_of,
)
from schemas.limits import (
    LMCACHE_HELD_S,
    LMCACHE_SYNC_AGAIN_MAX_S,
    LMCACHE_SYNC_START_S,
    LMCACHE_UNHEARD_S,
)

ADMIT: Final = "admit"
_FURTHER: Final = "*"  # stands for all locations beyond the bound


class Contents(Enum):
    """How much is known of what a worker holds; see the module."""

    WHOLE = "whole"
    PARTIAL = "partial"
    UNKNOWN = "unknown"


class Reason:
    """Why an incarnation begins, or what is missing: words in the log, and in LMCache's own."""

    REGISTERED: Final = "registered"
    FULL_SYNC: Final = "full_sync"
    RESTARTED: Final = "controller_restart"
    REWRITTEN: Final = "log_lost_records"
    OPERATIONS: Final = "operations_missed"
    NOT_SYNCED: Final = "not_synced"
    NO_ROOM: Final = "too_many_keys"
    LOCATION: Final = "location_not_synced"
    UNSOUND: Final = "full_sync_unsound"
    UNHEARD: Final = "nothing_pushed"


class Dropped:
    """Why something that came is not used: labels of reprise_lmcache_dropped_total."""

    NO_ROOM: Final = "too_many_keys"
    LOCATIONS: Final = "too_many_locations"
    LATE: Final = "late_operation"
    BATCH: Final = "unexpected_batch"


class Address(NamedTuple):
    """Where a worker is.

    Attributes:
        ip, port: of its socket for commands.
        peer_url: `host:port` for other workers, or "".
    """

    ip: str
    port: int
    peer_url: str


class _Held(NamedTuple):
    """Operations that wait."""

    location: str
    operations: Sequence[Operation]


class _Put(Protocol):
    def __call__(self, tier: Tier, key: int, *, is_stored: bool) -> None: ...


class Lines(Protocol):
    """What is written of a worker; see `bridge.lmcache.journal.Journal`."""

    def begin(self, reason: str) -> None:
        """See `Journal`."""
        ...

    def gap(self, reason: str) -> None:
        """See `Journal`."""
        ...

    def put(self, tier: Tier, key: int, *, is_stored: bool) -> None:
        """See `Journal`."""
        ...


class Count(Protocol):
    """Counts what happens, by a word."""

    def __call__(self, reason: str, count: int = 1, /) -> None:
        """It has happened so often."""
        ...


class Worker:
    """See the module. Times are monotonic seconds.

    Args:
        lines: of its publisher.
        budget: of all workers.
        dropped: counts what is dropped, see `Dropped`.
        locations: those of which an earlier process of this bridge has written: what they hold is
            not known, and only of one of them a full sync tells it.

    Attributes:
        keys: what it holds, as far as that is known.
        contents: how far that is.
        jumps: how often operations were missing.
        syncs_asked, syncs_whole: full syncs.
    """

    def __init__(
        self, lines: Lines, budget: Budget, dropped: Count, locations: Iterable[str] = ()
    ) -> None:
        self.keys = Keys(budget)
        self.contents = Contents.UNKNOWN
        self.jumps = self.syncs_asked = self.syncs_whole = 0
        self._lines = lines
        self._budget = budget
        self._dropped = dropped
        self._expected: dict[str, int] = {}  # by location, the next number
        self._late: dict[str, int] = {}  # the same of the process before
        self._missing = set(locations) - {SYNCED}  # of these locations something is
        self._unproven: set[str] = set()  # a link was down: the next number will tell
        self._is_new = False  # the process was seen from its beginning
        self._sync: FullSync | None = None
        self._held: list[_Held] | None = []
        self._held_count = 0
        self._held_until: float | None = None
        self._ask_at = 0.0
        self._pause_s = LMCACHE_SYNC_START_S
        self._heard = False  # something was pushed over the link that is up
        self._unheard_since = 0.0
        self._was_cut = False  # that link was down since a full sync was asked for, or began

    # Its process

    def begin(self, now: float) -> None:
        """A new process: it holds nothing, and numbers from 0."""
        self.end()
        self._late, self._expected = self._expected, {}
        self._missing.clear()
        self._unproven.clear()
        self._is_new = True
        self._ask_at, self._pause_s = 0.0, LMCACHE_SYNC_START_S
        self._heard, self._unheard_since = False, now
        self.contents = Contents.WHOLE
        self._lines.begin(Reason.REGISTERED)

    def end(self) -> None:
        """Drops what is held of it."""
        self._drop_sync()
        self._drop_held()
        self.keys.clear()

    def heard(self) -> None:
        """It has pushed something over a link that is up."""
        self._heard = True

    def unlink(self, now: float) -> None:
        """The link over which it pushes is down: what was under way may be lost."""
        self._heard, self._unheard_since = False, now
        self._unproven.update(self._expected)
        self._was_cut = True

    @property
    def is_whole(self) -> bool:
        """Whether all that it holds is known, and nothing that came may be missing."""
        return self.contents is Contents.WHOLE and self._heard and not self._unproven

    @property
    def locations(self) -> list[str]:
        """Those that it has ever named, sorted."""
        return sorted({location for location, _ in self.keys} | self._missing)

    # Operations

    def operate(self, location: str, operations: Sequence[Operation], now: float) -> None:
        """Takes operations that came together. Cost O(operations)."""
        held = self.keys.at(location)
        if held is None:
            self._dropped(Dropped.LOCATIONS, len(operations))
            self._miss(Reason.LOCATION, _FURTHER)
            return
        operations = self._in_order(location, operations)
        if self._held is not None:
            self._hold(location, operations, now)
        if self.contents is not Contents.UNKNOWN:
            self._apply(location, held, operations, self._lines.put)

    def _in_order(self, location: str, operations: Sequence[Operation]) -> Sequence[Operation]:
        """Those that are of this process; finds out whether some are missing before them."""
        expected = self._expected.get(location)
        if expected is None and self._is_new:
            operations = self._without_late(location, operations)
            expected = 0
        if not operations:
            return operations
        first = operations[0].seq_num
        # Whoever numbers on where nobody has listened may have stored before.
        is_missing = (
            first != (expected or 0) if expected is not None or location != SYNCED else False
        )
        for place, operation in enumerate(operations, first):
            if operation.seq_num != place:
                is_missing = True
                break
        self._expected[location] = operations[-1].seq_num + 1
        if expected is not None:
            self._unproven.discard(location)
        if is_missing:
            self.jumps += 1
            self._miss(Reason.OPERATIONS, location)
        return operations

    def _without_late(self, location: str, operations: Sequence[Operation]) -> Sequence[Operation]:
        """What the process before has sent may come after its successor has registered."""
        late = self._late.get(location)
        if not late:
            return operations
        count = 0
        while count < len(operations) and operations[count].seq_num == late:
            late += 1
            count += 1
        self._late[location] = late
        if count:
            self._dropped(Dropped.LATE, count)
        return operations[count:]

    def _apply(
        self, location: str, held: set[int], operations: Sequence[Operation], put: _Put
    ) -> None:
        tier = tier_of(location)
        keys = self.keys
        refused = 0
        for operation in operations:
            key = key_of(operation.key)
            if operation.op_type == ADMIT:
                if key not in held:
                    if keys.add(held, key):
                        put(tier, key, is_stored=True)
                    else:
                        refused += 1
            elif key in held:
                keys.remove(held, key)
                put(tier, key, is_stored=False)
        if refused:
            self._dropped(Dropped.NO_ROOM, refused)
            self._miss(Reason.NO_ROOM, location)

    def _miss(self, reason: str, location: str) -> None:
        """Something of the location is missing; the log is told once."""
        self._missing.add(location)
        sync = self._sync
        if sync is not None and sync.location == location and not sync.is_whole:
            sync.is_unsound = True
        if self.contents is Contents.WHOLE:
            self.contents = Contents.PARTIAL
            self._lines.gap(reason)

    # What waits for a full sync

    def _hold(self, location: str, operations: Sequence[Operation], now: float) -> None:
        assert self._held is not None, "they are held for a full sync"
        if self._budget.take(len(operations)):
            self._held.append(_Held(location, operations))
            self._held_count += len(operations)
            if self._held_until is None:
                self._held_until = now + LMCACHE_HELD_S
            return
        self._dropped(Dropped.NO_ROOM, len(operations))
        self._miss(Reason.NO_ROOM, location)
        if self.contents is Contents.UNKNOWN:
            self._release_held()

    def _drop_held(self) -> None:
        self._budget.give_back(self._held_count)
        self._held, self._held_count, self._held_until = None, 0, None

    def _release_held(self) -> None:
        """No full sync has come: what waited is written behind a gap."""
        held = self._held or []
        self._drop_held()
        self._missing.add(SYNCED)
        self.contents = Contents.PARTIAL
        self._lines.begin(Reason.RESTARTED)
        self._lines.gap(Reason.NOT_SYNCED)
        self._replay(held, self._lines.put)

    def _replay(self, held: Iterable[_Held], put: _Put) -> None:
        for location, operations in held:
            keys = self.keys.at(location)
            assert keys is not None, "operations at further locations are not held"
            self._apply(location, keys, operations, put)

    def look(self, now: float) -> None:
        """Ends what takes too long; to be called now and then."""
        sync = self._sync
        if sync is not None and not sync.is_whole and sync.is_idle(now):
            self._drop_sync()
        if self.contents is Contents.UNKNOWN:
            if self._held_until is not None and now >= self._held_until and not self.is_syncing:
                self._release_held()
        elif self._held is not None and not self.is_freezing(now):
            self._drop_held()  # it was asked, and has not begun

    # Full syncs

    def ask(self, now: float, *, may_ask: bool) -> str:
        """Why the worker is asked now to send all that it holds, or ""."""
        reason = self._wants(now)
        if not reason or not may_ask or self.is_freezing(now) or self._budget.is_full:
            return ""
        self.syncs_asked += 1
        self._ask_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LMCACHE_SYNC_AGAIN_MAX_S)
        self._was_cut = False
        if self._held is None:
            self._held = []
        return reason

    def _wants(self, now: float) -> str:
        if self.contents is Contents.UNKNOWN:
            return Reason.RESTARTED
        if SYNCED in self._missing:
            return Reason.OPERATIONS
        is_unsure = not self._heard or SYNCED in self._unproven
        if is_unsure and now - self._unheard_since > LMCACHE_UNHEARD_S:
            return Reason.UNHEARD
        return ""

    @property
    def is_syncing(self) -> bool:
        """Whether a full sync is under way."""
        return self._sync is not None and not self._sync.is_whole

    def is_freezing(self, now: float) -> bool:
        """Whether its cache is frozen, or may soon be."""
        return self.is_syncing or now < self._ask_at

    def start_sync(self, message: FullSyncStart, now: float) -> str:
        """The worker will send all that it holds; returns why it may not, or ""."""
        sync = self._sync
        if sync is not None and sync.sync_id == message.sync_id:
            return ""  # the answer to the first attempt was lost
        refusal = FullSync.refusal(message.total_keys, message.batch_count)
        if refusal:
            return refusal
        self._drop_sync()
        self._sync = FullSync(
            sync_id=message.sync_id,
            location=message.location,
            total=message.total_keys,
            batches=message.batch_count,
            budget=self._budget,
            now=now,
        )
        if self._held is None:  # it was not asked
            self._held = []
            self._was_cut = False
        return ""

    def take_batch(self, message: FullSyncBatch, now: float) -> None:
        """Takes some of its keys; with the last batch they are what it holds."""
        sync = self._sync
        if (
            sync is None
            or sync.sync_id != message.sync_id
            or not sync.add(message.batch_id, message.keys, now)
        ):
            self._dropped(Dropped.BATCH)
        elif sync.is_whole:
            self._finish(sync)

    def end_sync(self, message: FullSyncEnd) -> None:
        """The worker has sent all batches, and tells how many keys these were."""
        sync = self._sync
        if sync is None or sync.sync_id != message.sync_id or not sync.is_whole:
            return
        if message.actual_total_keys != sync.total and not sync.is_unsound:
            sync.is_unsound = True
            self._miss(Reason.UNSOUND, sync.location)

    def status(self, sync_id: str, progress: float) -> FullSyncStatusRet:
        """Whether the cache may be used again: once its keys are here, or where they would be
        waited for in vain. `progress`: see `FullSyncStatusRet`.
        """
        sync = self._sync
        if sync is None or sync.sync_id != sync_id:
            return released(sync_id, progress)
        return FullSyncStatusRet(
            sync_id=sync_id,
            is_complete=sync.is_whole,
            global_progress=progress,
            can_exit_freeze=sync.is_whole,
            missing_batches=sync.missing(),
        )

    def _finish(self, sync: FullSync) -> None:
        """All batches are here. The order is the guarantee:

        Step 1. they are what the location held.
        Step 2. what came since follows: of the location, and where nothing was known of all.
        Step 3. all that is known is written, in the place of whatever the log has.
        """
        held = self._held or []
        was_unknown = self.contents is Contents.UNKNOWN
        keys = set(sync.keys())
        is_sound = sync.has_all and not sync.is_unsound
        sync.release()
        self._drop_held()
        if not self.keys.replace(sync.location, keys):  # Step 1.
            self._dropped(Dropped.NO_ROOM, len(keys))
            is_sound = False
        self.contents = Contents.PARTIAL
        self._missing.discard(sync.location)
        if not self._was_cut:
            self._unproven.discard(sync.location)
        elif sync.location not in self._expected:
            is_sound = False  # what was lost since the keys were gathered would never show
        self._replay(  # Step 2.
            (one for one in held if was_unknown or one.location == sync.location), _not_written
        )
        if not is_sound:
            sync.is_unsound = True
            self._missing.add(sync.location)
        self._write_all(Reason.FULL_SYNC)  # Step 3.
        if self._missing:
            self._lines.gap(Reason.LOCATION if is_sound else Reason.UNSOUND)
            return
        self.contents = Contents.WHOLE
        self.syncs_whole += 1
        self._ask_at, self._pause_s = 0.0, LMCACHE_SYNC_START_S

    def _write_all(self, reason: str) -> None:
        """What the log has is void: all that is known to be held is written."""
        self._lines.begin(reason)
        for location, keys in self.keys:
            tier = tier_of(location)
            for key in keys:
                self._lines.put(tier, key, is_stored=True)

    def rewrite(self) -> None:
        """The log has lost some of what was written of the worker: all of it is written again."""
        if self.contents is Contents.UNKNOWN:
            return
        self._write_all(Reason.REWRITTEN)
        if self.contents is Contents.PARTIAL:
            self._lines.gap(Reason.OPERATIONS)

    def _drop_sync(self) -> None:
        if self._sync is not None:
            self._sync.release()
            self._sync = None


def released(sync_id: str, progress: float) -> FullSyncStatusRet:
    """The answer to who waits for a full sync of which nothing is known here, as after a restart:
    its cache may be used; it will be asked again.
    """
    return FullSyncStatusRet(
        sync_id=sync_id, is_complete=False, global_progress=progress, can_exit_freeze=True
    )


def _not_written(tier: Tier, key: int, *, is_stored: bool) -> None:
    """For what is written as a whole, later."""
