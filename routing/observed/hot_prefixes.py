"""Which prefixes are asked for most, and what became of them: a fold of decisions and outcomes.

A prompt counts at the depths at which its decision marks it: 1, 2, 4, 8... blocks, and where its
longest match ends. Counts are kept for each scope by Space-Saving, and halve every HOT_HALF_LIFE_S.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from routing.bounds import DECISION_MARKS_MAX, HOT_COUNTERS_MAX
from routing.observed.decay import per_second, step_of
from routing.observed.promises import Promise
from routing.observed.space_saving import SpaceSaving, SpaceSavingState
from schemas.routing_records import DecidedScope, PrefixMark

HOT_SCOPES_MAX: Final = 64  # the one that is asked for least goes: of="hot_scopes"


class HotPrefix(msgspec.Struct, frozen=True):
    """A prefix as of a moment; see `HotCounter` for what is not said here.

    Attributes:
        count: prompts that had it, each halved for each half-life since; never too low.
        error: by how much the count may be too high.
        age_s: since it has a counter.
    """

    scope: DecidedScope
    prefix: int
    parent: int
    blocks: int
    count: float
    error: float
    since: float
    last_asked: float
    asked: int
    promised: int
    checked: int
    confirmed: int
    saved: int
    missed: int
    age_s: float = math.inf

    @property
    def tokens(self) -> int:
        """Of the prefix."""
        return self.blocks * self.scope.block_size

    @property
    def certain(self) -> float:
        """Of the count, what is known to have come."""
        return max(self.count - self.error, 0.0)

    @property
    def rate(self) -> float:
        """Prompts a second of late, by what came since it has a counter."""
        return per_second(self.certain, self.age_s)


class HotScope(NamedTuple):
    """The prefixes of a scope as of a moment.

    Attributes:
        total: the sum of all counts, of prefixes without a counter, too; decayed.
        error_max: by how much a count may be too high, and what a prefix that is not here may
            have; at most total / HOT_COUNTERS_MAX.
        last_asked: Unix seconds.
        prefixes: by what is known to have come of each, the most first: where most prefixes come
            once, the counts of the others are hardly more than their errors.
    """

    total: float
    error_max: float
    last_asked: float
    prefixes: list[HotPrefix]


class HotState(msgspec.Struct, frozen=True, array_like=True):
    """See `HotPrefixes.state`; its encoding is canonical."""

    scopes: tuple[tuple[DecidedScope, SpaceSavingState], ...]
    forgotten: int


class HotPrefixes:
    """See the module. Cost O(marks * log(counters)) a decision.

    Attributes:
        forgotten: scopes that were given up for want of room.
    """

    def __init__(
        self, scopes_max: int = HOT_SCOPES_MAX, counters_max: int = HOT_COUNTERS_MAX
    ) -> None:
        self.forgotten = 0
        self._scopes_max, self._counters_max = scopes_max, counters_max
        self.scopes: dict[DecidedScope, SpaceSaving] = {}

    def __len__(self) -> int:
        """How many counters there are."""
        return sum(map(len, self.scopes.values()))

    def asked(
        self, time: float, scope: DecidedScope, marks: Sequence[PrefixMark], times: int = 1
    ) -> None:
        """So many prompts had these prefixes: plain queries, or decisions that chose nobody.

        Args:
            time: of the record; never earlier than the one before.
            marks: by rising depth.
            times: so many prompts, as of a window.
        """
        self._counters(time, scope).note(time, marks[:DECISION_MARKS_MAX], times)

    def decided(self, time: float, promise: Promise) -> None:
        """A prompt was sent to somebody."""
        marks, cached, held = promise.marks, promise.cached, promise.held
        there = cached + promise.fetched
        size, usable = promise.scope.block_size, promise.usable
        counters = self._counters(time, promise.scope).note(time, marks)
        if not cached and held <= there:
            return
        for (blocks, _), counter in zip(marks, counters, strict=True):
            tokens = blocks * size
            if tokens > usable:
                tokens = usable
            if 0 < tokens <= cached:
                counter.promised += 1
            elif tokens > there and held > there:
                counter.missed += min(held, tokens) - there

    def confirmed(self, promise: Promise, cached: int) -> None:
        """An engine has told how many tokens of the prompt it had."""
        counters = self.scopes.get(promise.scope)
        if counters is None:
            return
        size, usable, made_at = promise.scope.block_size, promise.usable, promise.time
        promised = 0 if promise.moved else promise.cached
        marks = promise.marks
        for (blocks, _), counter in zip(marks, counters.find(marks), strict=True):
            # One that began later knows nothing of the decision.
            if counter is None or counter.since > made_at:
                continue
            tokens = blocks * size
            if tokens > usable:
                tokens = usable
            counter.saved += cached if cached < tokens else tokens
            if 0 < tokens <= promised:
                counter.checked += 1
                counter.confirmed += tokens <= cached

    def state(self) -> HotState:
        """All of it, as it stands: to be encoded before anything else is folded."""
        return HotState(
            tuple((scope, self.scopes[scope].state()) for scope in sorted(self.scopes)),
            self.forgotten,
        )

    def restore(self, state: HotState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        for scope, counters in state.scopes:
            self.scopes[scope] = SpaceSaving.of(counters, self._counters_max)

    def _counters(self, time: float, scope: DecidedScope) -> SpaceSaving:
        counters = self.scopes.get(scope)
        if counters is None:
            if len(self.scopes) >= self._scopes_max:
                step = step_of(time)
                least = min(self.scopes, key=lambda one: (self.scopes[one].total_at(step), one))
                del self.scopes[least]
                self.forgotten += 1
            counters = self.scopes[scope] = SpaceSaving(time, self._counters_max)
        return counters


def view(prefixes: HotPrefixes, now: float) -> dict[DecidedScope, HotScope]:
    """All prefixes as of a moment. Cost O(counters).

    Args:
        prefixes: as they were folded.
        now: Unix seconds; where some record is later, that.
    """
    now = max([now, *(one.last_asked for one in prefixes.scopes.values())])
    return {scope: _shown(scope, prefixes.scopes[scope], now) for scope in sorted(prefixes.scopes)}


def _shown(scope: DecidedScope, counters: SpaceSaving, now: float) -> HotScope:
    step = step_of(now)
    found = [
        HotPrefix(
            scope,
            counter.prefix,
            counter.parent,
            counter.blocks,
            *counters.count_at(counter, step),
            counter.since,
            counter.last_asked,
            counter.asked,
            counter.promised,
            counter.checked,
            counter.confirmed,
            counter.saved,
            counter.missed,
            now - counter.since,
        )
        for counter in counters
    ]
    found.sort(key=lambda one: (-one.certain, one.blocks, one.prefix))
    error_max = counters.lowest_at(step)
    return HotScope(counters.total_at(step), error_max, counters.last_asked, found)
