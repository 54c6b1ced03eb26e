"""Which prefixes of one scope come most often, in bounded memory: Space-Saving.

There are at most K counters. A prefix that has none takes that of the one with the lowest count,
and its count, too, as its error. So for each counter

    count - error <= true count <= count,    error <= (sum of all counts) / K

and whatever comes more often than that has a counter (Metwally et al., ICDT 2005). Counts decay
(`decay.py`); the bounds hold at each moment, since all counts and their sum decay alike.
"""

import heapq
from collections.abc import Iterable, Iterator

import msgspec

from routing.bounds import HOT_COUNTERS_MAX
from routing.observed.decay import decayed, rebased, step_of, weight
from schemas.routing_records import PrefixMark


class HotCounter(msgspec.Struct, array_like=True, gc=False):
    """What is known of a prefix since it has a counter.

    Attributes:
        prefix: its hash.
        parent: of the shorter prefix that was marked before it; 0 for none.
        blocks: of the prefix.
        count, error: weighed by the base of its `SpaceSaving`; the count is never too low.
        since, last_asked: Unix seconds.
        asked: prompts that had it, not decayed.
        promised: of these, those sent to who was said to hold all of it.
        checked: of these, those whose engine has told its hits.
        confirmed: of these, those whose engine had it.
        saved: tokens of it that engines had.
        missed: tokens of it that somebody held, but not the one that was chosen.
    """

    prefix: int
    parent: int
    blocks: int
    count: float
    error: float
    since: float
    last_asked: float
    asked: int = 0
    promised: int = 0
    checked: int = 0
    confirmed: int = 0
    saved: int = 0
    missed: int = 0


class SpaceSavingState(msgspec.Struct, frozen=True, array_like=True):
    """See `SpaceSaving.state`; its encoding is canonical."""

    base: int
    total: float
    last_asked: float
    counters: tuple[HotCounter, ...]


class SpaceSaving:
    """See the module. Cost O(log K) a note, amortised.

    Attributes:
        last_asked: when the last one came, Unix seconds.
    """

    def __init__(self, time: float, most: int = HOT_COUNTERS_MAX) -> None:
        self.last_asked = time
        self._most = most
        self._base = self._step = step_of(time)
        self._weight = 1.0  # of one that is counted now: in that step
        self._total = 0.0
        self._counters: dict[int, HotCounter] = {}
        # Counts only rise, so an entry is never above its counter: the lowest entry that is equal
        # to its counter is the lowest counter, whatever else is out of date. Built when needed.
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        """How many counters there are."""
        return len(self._counters)

    def __iter__(self) -> Iterator[HotCounter]:
        """All counters, in no order."""
        return iter(self._counters.values())

    def find(self, marks: Iterable[PrefixMark]) -> list[HotCounter | None]:
        """Those of the prefixes, where they have one."""
        return [self._counters.get(prefix) for _, prefix in marks]

    def note(self, time: float, marks: Iterable[PrefixMark], times: int = 1) -> list[HotCounter]:
        """So many prompts had these prefixes; their counters.

        Args:
            time: Unix seconds, which never goes back.
            marks: by rising depth.
            times: how many prompts.
        """
        if time != self.last_asked:
            self._advance(time)
        more, parent, found = times * self._weight, 0, []
        counters, total = self._counters, self._total
        for blocks, prefix in marks:
            total += more
            counter = counters.get(prefix)
            if counter is None:
                lowest = self._make_room()
                count = lowest + more
                counter = HotCounter(prefix, parent, blocks, count, lowest, time, time, times)
                counters[prefix] = counter
                if self._heap:  # in place of the one that went
                    heapq.heapreplace(self._heap, (count, prefix))
            else:
                counter.count += more
                counter.asked += times
                counter.last_asked = time
            found.append(counter)
            parent = prefix
        self._total = total
        return found

    def total_at(self, step: int) -> float:
        """The sum of all counts in that step, decayed."""
        return decayed(self._total, self._base, step)

    def lowest_at(self, step: int) -> float:
        """What a prefix without a counter may have been counted, decayed; 0 while there is room."""
        if len(self._counters) < self._most:
            return 0.0
        return decayed(min(one.count for one in self), self._base, step)

    def count_at(self, counter: HotCounter, step: int) -> tuple[float, float]:
        """Count and error of one of the counters in that step, decayed."""
        return (
            decayed(counter.count, self._base, step),
            decayed(counter.error, self._base, step),
        )

    def state(self) -> SpaceSavingState:
        """All of it, as it stands: to be encoded before more is noted. Cost O(K log K)."""
        return SpaceSavingState(
            self._base,
            self._total,
            self.last_asked,
            tuple(self._counters[prefix] for prefix in sorted(self._counters)),
        )

    @classmethod
    def of(cls, state: SpaceSavingState, most: int = HOT_COUNTERS_MAX) -> "SpaceSaving":
        """The inverse of `state`."""
        one = cls(state.last_asked, most)
        one._base, one._total = state.base, state.total
        one._weight = weight(one._base, one._step)
        one._counters = {counter.prefix: counter for counter in state.counters}
        return one

    def _make_room(self) -> float:
        """The count that a new counter begins with: of the one that goes for it, whose entry is
        the first of the heap.
        """
        if len(self._counters) < self._most:
            return 0.0
        heap = self._heap
        if not heap:
            heap += [(one.count, one.prefix) for one in self]
            heapq.heapify(heap)
        while True:
            count, prefix = heap[0]
            now = self._counters[prefix].count
            if now == count:
                del self._counters[prefix]
                return count
            heapq.heapreplace(heap, (now, prefix))

    def _advance(self, time: float) -> None:
        self.last_asked = time
        step = step_of(time)
        if step != self._step:
            self._rebase(step)
            self._step, self._weight = step, weight(self._base, step)

    def _rebase(self, step: int) -> None:
        base = rebased(self._base, step)
        if base == self._base:
            return
        scale = weight(base, self._base)
        self._base = base
        self._total *= scale
        for counter in self:
            counter.count *= scale
            counter.error *= scale
        self._heap.clear()
