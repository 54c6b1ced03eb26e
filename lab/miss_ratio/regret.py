"""Eviction regret: how often a block that an engine removed was stored again within a given time.

A removal waits for its block to be stored again by the same publisher on the same medium. Where the
publisher clears its cache, restarts or is unregistered, the block would have gone anyway: nothing
is waited for any more. A removal whose time was not over then, or when the capture ended, is
`open`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from replay.chains import numbers_of
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks
from schemas.identities import Medium, PublisherKey

REGRET_BLOCKS_MAX: Final = 2_097_152  # removed and waited for; the oldest go: `forgotten`


class RegretScope(msgspec.Struct, frozen=True):
    """Whose removals."""

    source: str
    tenant: str
    model: str
    medium: Medium


class RegretWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Of one time.

    Attributes:
        seconds: within which.
        stored_again: removals whose block was stored again within it.
        open: removals of which nobody can tell, see the module.
        share: `stored_again` of all removals; at the least, where some are open.
    """

    seconds: float
    stored_again: int
    open: int
    share: float


class Regret(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one scope.

    Attributes:
        scope: whose.
        stored, removed: blocks.
        within: by time, rising.
    """

    scope: RegretScope
    stored: int
    removed: int
    within: tuple[RegretWindow, ...]


class _Counts:
    def __init__(self, windows: int) -> None:
        self.stored = 0
        self.removed = 0
        self.again = [0] * windows
        self.open = [0] * windows


_Tier = tuple[PublisherKey, Medium, int, bool]
"""Publisher, medium, cache group, whether it is shared."""


class Regrets:
    """Counts from the events of publishers, each publisher's in their order.

    Cost O(1) for each block; some 150 bytes for each that is waited for.

    Args:
        source: the name of the file.
        windows: seconds, each above 0.
        blocks_max: that are waited for at a time; the oldest are forgotten, and counted.

    Attributes:
        forgotten: removals of which it is not known whether they were regretted.
    """

    def __init__(
        self, source: str, windows: Sequence[float], *, blocks_max: int = REGRET_BLOCKS_MAX
    ) -> None:
        self._source = source
        self._windows = sorted(set(windows))
        self._blocks_max = blocks_max
        self._waiting: dict[_Tier, dict[int, float]] = {}
        self._count = 0
        self._counts: dict[RegretScope, _Counts] = {}
        self._ends_at: dict[PublisherKey, float] = {}
        self.forgotten = 0

    def take(self, publisher: PublisherKey, event: BlockEvent, time: float) -> None:
        """One event, and when it came: Unix seconds by one clock for each publisher."""
        self._ends_at[publisher] = max(time, self._ends_at.get(publisher, time))
        if isinstance(event, ClearedBlocks):
            if not event.owned:
                self.forget(publisher, event.medium)
            return
        counts = self._counts_of(publisher, event.medium)
        tier = (publisher, event.medium, event.group, event.shared)
        waiting = self._waiting.setdefault(tier, {})
        hashes = numbers_of(event.hashes)
        if isinstance(event, RemovedBlocks):
            counts.removed += len(hashes)
            before = len(waiting)
            for value in hashes:
                waiting.pop(value, None)  # so that those that wait stand in the order of time
                waiting[value] = time
            self._count += len(waiting) - before
            self._expire(waiting, time)
            if self._count > self._blocks_max:
                self._forget_oldest()
            return
        counts.stored += len(hashes)
        if not waiting:
            return
        for value in hashes:
            removed_at = waiting.pop(value, None)
            if removed_at is not None:
                self._count -= 1
                for number, seconds in enumerate(self._windows):
                    counts.again[number] += time - removed_at <= seconds

    def forget(self, publisher: PublisherKey, medium: Medium | None = None) -> None:
        """All that it held, or held on a medium, is gone: nothing of it is waited for."""
        of_it = [tier for tier in self._waiting if tier[0] == publisher]
        for tier in [tier for tier in of_it if medium in (None, tier[1])]:
            left = self._open_of(tier)
            counts = self._counts_of(publisher, tier[1])
            counts.open = [sum(both) for both in zip(counts.open, left, strict=True)]
            self._count -= len(self._waiting.pop(tier))

    def results(self) -> list[Regret]:
        """Of each scope, in the order in which they came."""
        left: dict[RegretScope, list[int]] = {}
        for tier in self._waiting:
            scope = self._scope_of(tier[0], tier[1])
            before = left.get(scope, self._counts[scope].open)
            left[scope] = [sum(both) for both in zip(before, self._open_of(tier), strict=True)]
        return [
            self._result(scope, counts, left.get(scope, counts.open))
            for scope, counts in self._counts.items()
        ]

    def _open_of(self, tier: _Tier) -> list[int]:
        """Of each time, how many that wait have waited for less, as far as the publisher came."""
        ends_at = self._ends_at[tier[0]]
        ages = [ends_at - removed_at for removed_at in self._waiting[tier].values()]
        return [sum(age < seconds for age in ages) for seconds in self._windows]

    def _result(self, scope: RegretScope, counts: _Counts, left: list[int]) -> Regret:
        within = (
            RegretWindow(
                seconds=seconds,
                stored_again=again,
                open=still_open,
                share=again / counts.removed if counts.removed else 0.0,
            )
            for seconds, again, still_open in zip(self._windows, counts.again, left, strict=True)
        )
        return Regret(
            scope=scope, stored=counts.stored, removed=counts.removed, within=tuple(within)
        )

    def _counts_of(self, publisher: PublisherKey, medium: Medium) -> _Counts:
        scope = self._scope_of(publisher, medium)
        counts = self._counts.get(scope)
        if counts is None:
            counts = self._counts[scope] = _Counts(len(self._windows))
        return counts

    def _scope_of(self, publisher: PublisherKey, medium: Medium) -> RegretScope:
        stream = publisher.stream
        return RegretScope(self._source, stream.tenant_id, stream.model_name, medium)

    def _expire(self, waiting: dict[int, float], time: float) -> None:
        """Whoever waits for longer than the longest time is not regretted."""
        oldest = time - self._windows[-1]
        gone = []
        for value, removed_at in waiting.items():
            if removed_at >= oldest:
                break
            gone.append(value)
        for value in gone:
            del waiting[value]
        self._count -= len(gone)

    def _forget_oldest(self) -> None:
        """An eighth of each tier's."""
        for waiting in self._waiting.values():
            oldest = list(waiting)[: (len(waiting) + 7) // 8]
            for value in oldest:
                del waiting[value]
            self._count -= len(oldest)
            self.forgotten += len(oldest)
