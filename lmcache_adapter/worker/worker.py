"""One worker of LMCache: its operations in order, what is missing of them, its full syncs. Pure.

What is known of a worker's cache (`Contents`):

    WHOLE     all that it holds: its process was seen from its beginning, or a full sync came
    PARTIAL   what it has said since a place before which something is missing; so says the log
    UNKNOWN   nothing: this process has just started, and the log has what an earlier one wrote.
              That stays, and what the worker sends waits, until its full sync puts the truth in the
              place of both, or until LMCACHE_HELD_S; then what waited is written behind a gap.
              Of locations that no full sync has it is known what an earlier run has `KeptLocation`,
              if that ended in order: it holds once their next number follows on

LMCache numbers operations by location, from 0 in each process. A number that does not follow on is
a loss; LMCache itself only warns of it. We write a gap and ask for a full sync.

A full sync has the keys of one location as of some moment after it was asked for. So operations
that come from then on are kept, and applied to the keys that came: whether one of them happened
before that moment or after it, in a set the last one decides. Nothing that comes during a sync is
discarded, as LMCache's own controller does. Of which chunks there are several: `copies.py`.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from struct import iter_unpack
from types import MappingProxyType
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta

from lmcache_adapter.wire.locations import SYNCED, Tier, tier_of
from lmcache_adapter.wire.messages import (
    FullSyncBatch,
    FullSyncEnd,
    FullSyncStart,
    FullSyncStatusRet,
    Operation,
    key_of,
)
from lmcache_adapter.worker.copies import Copies
from lmcache_adapter.worker.full_sync import FullSync
from lmcache_adapter.worker.keys import Budget, Keys
from lmcache_adapter.worker.numbering import Numbering
from lmcache_adapter.worker.reasons import Count, DropReason, Reason
from lmcache_adapter.worker.waiting import HeldOperations, SyncWindow, WaitingOperations
from schemas.arrays import to_little_endian

LMCACHE_SYNC_START_S: Final = 15.0  # for a worker to begin, which it delays by up to 5 s
LMCACHE_SYNC_AGAIN_MAX_S: Final = 300.0  # between two requests; doubled with each that failed
LMCACHE_UNHEARD_S: Final = 15.0  # a worker that has pushed nothing for so long since its link is

ADMIT: Final = "admit"
_FURTHER: Final = "*"  # stands for all locations beyond the bound


class Contents(Enum):
    """How much is known of what a worker holds; see the module."""

    WHOLE = "whole"
    PARTIAL = "partial"
    UNKNOWN = "unknown"


class KeptLocation(msgspec.Struct, frozen=True):
    """What one run tells the next of a location that no full sync has.

    Attributes:
        number: of the next operation there: where it comes, nothing was lost between.
        keys: that are there; (n,) u64 LE.
    """

    number: Annotated[int, Meta(ge=0)]
    keys: bytes

    def read_keys(self) -> Iterator[int]:
        """The keys."""
        whole = len(self.keys) // 8 * 8
        return (key for (key,) in iter_unpack("<Q", self.keys[:whole]))


class _Put(Protocol):
    def __call__(self, tier: Tier, key: int, *, is_stored: bool) -> None: ...


class Lines(Protocol):
    """What is written of a worker; see `lmcache_adapter.journal.Journal`."""

    def begin(self, reason: str) -> None:
        """See `Journal`."""
        ...

    def gap(self, reason: str) -> None:
        """See `Journal`."""
        ...

    def put(self, tier: Tier, key: int, *, is_stored: bool) -> None:
        """See `Journal`."""
        ...

    def rewrite(
        self, reason: str, held: Iterable[tuple[Tier, Iterable[int]]], lost: str = ""
    ) -> None:
        """See `Journal`."""
        ...


class Worker:
    """See the module. Times are monotonic seconds.

    Args:
        lines: of its publisher.
        budget: of all workers.
        strays: how many links have ended of which nobody knows whether they were the worker's.
        locations: those of which an earlier process of this bridge has written: what they hold is
            not known, and only of one of them a full sync tells it.
        kept: what that process has told of some of them.

    Attributes:
        keys: what it holds, as far as that is known.
        copies: of which of that it holds several.
        contents: how far that is.
        syncs_asked, syncs_whole: full syncs.
    """

    def __init__(
        self,
        lines: Lines,
        budget: Budget,
        dropped: Count,
        *,
        strays: Callable[[], int],
        locations: Iterable[str] = (),
        kept: Mapping[str, KeptLocation] = MappingProxyType({}),
    ) -> None:
        self.keys = Keys(budget)
        self.copies = Copies()
        self.contents = Contents.UNKNOWN
        self.jumps = self.syncs_asked = self.syncs_whole = 0
        self._lines = lines
        self._budget = budget
        self._dropped = dropped
        self._strays = strays
        self._numbering = Numbering()
        self._missing = set(locations) - {SYNCED}  # of these locations something is
        for location, one in kept.items():
            if self.keys.replace(location, one.read_keys()):
                self._numbering.resume(location, one.number)
                self._missing.discard(location)
        self._sync: FullSync | None = None
        self._since: SyncWindow | None = None  # of a full sync that is asked for, or under way
        self._waiting = WaitingOperations(budget)
        self._ask_at = 0.0
        self._pause_s = LMCACHE_SYNC_START_S
        self._heard = False  # something was pushed over the link that is up
        self._unheard_since = 0.0

    # Its process

    def begin(self, now: float, reason: str = Reason.REGISTERED) -> None:
        """A new process, or none: it holds nothing, and numbers from 0."""
        self.end()
        self._numbering = Numbering(is_new=True)
        self._missing.clear()
        self._ask_at, self._pause_s = 0.0, LMCACHE_SYNC_START_S
        self._heard, self._unheard_since = False, now
        self.contents = Contents.WHOLE
        self._lines.begin(reason)

    def end(self) -> None:
        """Drops what is held of it."""
        self._drop_sync()
        self._since = None
        self._waiting.close()
        self.keys.clear()
        self.copies.clear()

    def heard(self) -> None:
        """It has pushed something over a link that is up."""
        self._heard = True

    def unlink(self, now: float) -> None:
        """The link over which it pushes is down: what was under way may be lost."""
        self._heard, self._unheard_since = False, now
        self._numbering.cut()
        if self._since is not None:
            self._since.was_cut = True

    @property
    def is_whole(self) -> bool:
        """Whether all that it holds is known, and nothing that came may be missing."""
        return self.contents is Contents.WHOLE and self._heard and not self._numbering.unproven

    @property
    def locations(self) -> list[str]:
        """Those that it has ever named, sorted."""
        return sorted({location for location, _ in self.keys} | self._missing)

    def keep(self) -> dict[str, KeptLocation]:
        """What the next run is to know of the locations that no full sync has; of this one nothing
        is asked any more. Cost O(keys).
        """
        self._replay(self._waiting.close(), _not_written)
        kept = {}
        for location, keys in self.keys:
            number = self._numbering.expected(location)
            is_known = location not in self._missing and not self.copies.at(location)
            if location != SYNCED and is_known and number is not None:
                kept[location] = KeptLocation(number, to_little_endian(array("Q", keys)))
        return kept

    # Operations

    def operate(self, location: str, operations: Sequence[Operation], now: float) -> None:
        """Takes operations that came together. Cost O(operations)."""
        if not operations:
            return
        held = self.keys.at(location)
        if held is None:
            self._dropped(DropReason.LOCATIONS, len(operations))
            self._miss(Reason.LOCATION, _FURTHER)
            return
        if not self._numbering.follows(location, operations):
            self.jumps += 1
            self._miss(Reason.OPERATIONS, location)
        if self._waiting.is_open and not self._waiting.add(
            HeldOperations(location, operations), now
        ):
            self._dropped(DropReason.NO_ROOM, len(operations))
            self._miss(Reason.NO_ROOM, location)
            if self.contents is Contents.UNKNOWN:
                self._release_waiting()
        if self.contents is not Contents.UNKNOWN:
            self._apply(location, held, operations, self._lines.put)

    def _apply(
        self,
        location: str,
        held: set[int],
        operations: Sequence[Operation],
        put: _Put,
        *,
        is_known: bool = True,
    ) -> None:
        """Where not `is_known`, what is held may have these operations already."""
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
                elif is_known:
                    self.copies.add(location, key)
            elif key in held and not self.copies.remove(location, key, is_counted=is_known):
                keys.remove(held, key)
                put(tier, key, is_stored=False)
        if refused:
            self._dropped(DropReason.NO_ROOM, refused)
            self._miss(Reason.NO_ROOM, location)

    def _miss(self, reason: str, location: str) -> None:
        """Something of the location is missing; the log is told once."""
        self._missing.add(location)
        if self._since is not None:
            self._since.lost.add(location)
        if self.contents is Contents.WHOLE:
            self.contents = Contents.PARTIAL
            self._lines.gap(reason)

    # What waits for a full sync

    def _drop_waiting(self) -> None:
        """A full sync that was asked for before must not be believed: operations are gone that came
        after its keys.
        """
        self._waiting.close()
        if self._since is not None:
            self._since.is_broken = True

    def _release_waiting(self) -> None:
        """No full sync has come: what waited is written behind a gap."""
        held = list(self._waiting)
        self._drop_waiting()
        self._missing.add(SYNCED)
        self.contents = Contents.PARTIAL
        self._lines.rewrite(Reason.RESTARTED, self._held(), Reason.NOT_SYNCED)
        self._replay(held, self._lines.put)

    def _replay(self, held: Iterable[HeldOperations], put: _Put) -> None:
        for location, operations in held:
            keys = self.keys.at(location)
            assert keys is not None, "operations at further locations do not wait"
            self._apply(location, keys, operations, put, is_known=False)

    def look(self, now: float) -> None:
        """Ends what takes too long; to be called now and then."""
        sync = self._sync
        if sync is not None and not sync.is_whole and sync.is_idle(now):
            self._drop_sync()
            self._since = None
        if self.contents is Contents.UNKNOWN:
            if self._waiting.is_over(now) and not self.is_syncing:
                self._release_waiting()
        elif self._waiting.is_open and not self.is_freezing(now):
            self._drop_waiting()  # it was asked, and has not begun

    # Full syncs

    def ask(self, now: float, *, may_ask: bool) -> str:
        """Why the worker is asked now to send all that it holds, or ""."""
        reason = self._wants(now)
        if not reason or not may_ask or self.is_freezing(now) or self._budget.is_full:
            return ""
        self.syncs_asked += 1
        self._ask_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LMCACHE_SYNC_AGAIN_MAX_S)
        if self._since is None:  # or it may yet begin what it was asked for before
            self._since = SyncWindow(len(self._waiting), self._strays(), self._numbering)
        self._waiting.open()
        return reason

    def _wants(self, now: float) -> str:
        if self.contents is Contents.UNKNOWN:
            return Reason.RESTARTED
        if SYNCED in self._missing:
            return Reason.OPERATIONS
        is_unsure = not self._heard or SYNCED in self._numbering.unproven
        if is_unsure and now - self._unheard_since > LMCACHE_UNHEARD_S:
            return Reason.UNHEARD
        return ""

    @property
    def is_syncing(self) -> bool:
        """Whether a full sync is under way."""
        return self._sync is not None and not self._sync.is_whole

    @property
    def missing_batches(self) -> int:
        """Of a full sync under way, those that have not come yet."""
        return self._sync.missing_count if self._sync is not None and self.is_syncing else 0

    def is_freezing(self, now: float) -> bool:
        """Whether its cache is frozen, or may soon be."""
        return self.is_syncing or now < self._ask_at

    def start_sync(self, message: FullSyncStart, now: float) -> str:
        """The worker will send all that it holds; returns why it may not, or "".

        One that was not asked for, as by the bridge before this one, may have keys from before the
        first operation that is known here: it is taken, and asked for again.
        """
        sync = self._sync
        if sync is not None and sync.sync_id == message.sync_id:
            return ""  # the answer to the first attempt was lost
        refusal = FullSync.refusal(message.total_keys, message.batch_count)
        if refusal:
            return refusal
        self._drop_sync()
        if self._since is None:
            self._since = SyncWindow(0, self._strays(), (), is_broken=True)
        self._waiting.open()
        self._sync = FullSync(
            sync_id=message.sync_id,
            location=message.location,
            total=message.total_keys,
            batches=message.batch_count,
            budget=self._budget,
            now=now,
        )
        return ""

    def take_batch(self, message: FullSyncBatch, now: float) -> None:
        """Takes some of its keys; with the last batch they are what it holds."""
        sync = self._sync
        if (
            sync is None
            or sync.sync_id != message.sync_id
            or not sync.add(message.batch_id, message.keys, now)
        ):
            self._dropped(DropReason.BATCH)
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
        Step 2. what came since it was asked for follows; of other locations, where nothing was
                known, all that came.
        Step 3. all that is known is written, in the place of whatever the log has.
        """
        since, self._since = self._since, None
        assert since is not None, "start_sync made one"
        held = self._waiting.close()
        was_unknown = self.contents is Contents.UNKNOWN
        location = sync.location
        keys = set(sync.keys())
        self.copies.replace(location, sync.keys() if len(keys) < sync.total else ())
        is_sound = sync.has_all and not since.is_broken and location not in since.lost
        sync.release()
        if not self.keys.replace(location, keys):  # Step 1.
            self._dropped(DropReason.NO_ROOM, len(keys))
            is_sound = False
        self.contents = Contents.PARTIAL
        if not since.was_cut and since.strays == self._strays():
            self._numbering.prove(location)
        elif location not in since.numbered:
            is_sound = False  # what was lost since the keys were gathered would never show
        if is_sound:
            self._missing.discard(location)
        self._replay(  # Step 2.
            (
                one
                for number, one in enumerate(held)
                if (one.location == location and number >= since.first)
                or (one.location != location and was_unknown)
            ),
            _not_written,
        )
        if not is_sound:
            sync.is_unsound = True
            self._missing.add(location)
        lost = ""
        if self._missing:
            lost = Reason.LOCATION if is_sound else Reason.UNSOUND
        self._lines.rewrite(Reason.FULL_SYNC, self._held(), lost)  # Step 3.
        if lost:
            return
        self.contents = Contents.WHOLE
        self.syncs_whole += 1
        self._ask_at, self._pause_s = 0.0, LMCACHE_SYNC_START_S

    def _held(self) -> Iterator[tuple[Tier, set[int]]]:
        return ((tier_of(location), keys) for location, keys in self.keys)

    def rewrite(self) -> None:
        """The log has lost some of what was written of the worker: all of it is written again."""
        if self.contents is not Contents.UNKNOWN:
            lost = Reason.OPERATIONS if self.contents is Contents.PARTIAL else ""
            self._lines.rewrite(Reason.REWRITTEN, self._held(), lost)

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
