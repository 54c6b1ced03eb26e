"""Who will hold a prompt soon, as decisions say: a fold of them, apart from what engines publish.

An engine that was given a prompt holds it once it is computed. Its events say so a moment later;
until then a burst of prompts that begin alike would go to many instances. Of engines that publish
no events decisions are all that is known of their caches.

A decision says the prefix hashes of its prompt at 1, 2, 4, 8... blocks, where its longest match
ends, and at its last whole block. That is enough: a prompt finds the deepest of these that it has
in common with one before. Of the published conversation trace (blocks of 512 tokens) that is 98 %
of the depth that all hashes would find, with five marks for each request in place of 24; without
the last block of each prompt it would be 78 %, since the next turn of a conversation goes on from
there.

How long a prediction lasts is the caller's to say, by the time of records: for engines with events
as `predicted_s` says, APPROXIMATE_S for those without. Where the capacity of an engine is known, it
lasts until so much else was sent there: its least recently used blocks go first, tails before
heads.
"""

import struct
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

import msgspec

from routing.bounds import DECISION_MARKS_MAX, PREDICTED_MARKS_MAX
from routing.sizes import OBJECT_SIZE
from schemas.limits import MIB
from schemas.routing_records import DecidedScope, PrefixMark, Target

PREDICTED_BYTES_MAX: Final = 192 * MIB  # of them, with their names: likewise
PREDICTED_S: Final = 2.0  # until the engine's events should have come; longer where it has to wait

_GroupT = TypeVar("_GroupT")

_LONGEST: Final = 32  # times PREDICTED_S: nobody is chosen who would begin later
_BY_CAPACITY: Final = 0.0
"""In place of how long a prediction lasts, where its target's capacity is known."""

MarkKey = tuple[Target, DecidedScope, int]
"""Who is to hold a prefix, and its hash."""


def predicted_s(ttft_s: float) -> float:
    """How long a prediction lasts, where events are to come once the prompt is computed: until
    then, and a while. Of few values, PREDICTED_S times a power of two up to 32, since what lasts
    equally long is kept in one order.

    Args:
        ttft_s: after which the first token is expected.
    """
    lasts = PREDICTED_S
    while lasts < ttft_s + PREDICTED_S / 2 and lasts < _LONGEST * PREDICTED_S:
        lasts *= 2
    return lasts


class PredictedMark(msgspec.Struct, array_like=True):
    """A prefix that a target is to hold.

    Attributes:
        blocks: of the prefix.
        width: of these, the ones behind the mark before it: what it takes of a capacity.
        lasts_s: for how long, or `_BY_CAPACITY`.
        until: when that is true no more, Unix seconds; 0 where it lasts by capacity.
    """

    blocks: int
    width: int
    lasts_s: float
    until: float

    def is_true(self, now: float) -> bool:
        """Whether the target is still to hold it."""
        return self.lasts_s == _BY_CAPACITY or self.until > now


class PredictedState(msgspec.Struct, frozen=True, array_like=True):
    """See `PredictedHolders.state`; its encoding is canonical."""

    marks: tuple[tuple[MarkKey, PredictedMark], ...]
    forgotten: int


class _ScopeMarks:
    """The marks of one scope.

    Attributes:
        holders: by prefix, who is to hold it.
        depths: how many marks there are at each number of blocks.
        chars, is_ascii: of the scope's names.
    """

    __slots__ = ("chars", "depths", "holders", "is_ascii")

    def __init__(self, scope: DecidedScope) -> None:
        names = "".join((*scope[:3], scope.additional_salt))
        self.holders: dict[int, dict[Target, PredictedMark]] = {}
        self.depths: dict[int, int] = {}
        self.chars, self.is_ascii = len(names), names.isascii()

    def mark_bytes(self, instance_id: str) -> int:
        """That a mark takes, about: as `text_bytes` counts, with the scope's names read once."""
        is_ascii = self.is_ascii and instance_id.isascii()
        return OBJECT_SIZE + (self.chars + len(instance_id)) * (1 if is_ascii else 4)


class MarkIndex:
    """Who is to hold which prefix, for as long as the owner keeps the mark. Cost O(1) a mark.

    Attributes:
        size_bytes: that the marks take, about.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._count = 0
        self._scopes: dict[DecidedScope, _ScopeMarks] = {}

    def __len__(self) -> int:
        """How many marks there are."""
        return self._count

    def put(self, key: MarkKey, mark: PredictedMark) -> None:
        """Keeps the mark of a prefix that has none at its target."""
        target, scope, prefix = key
        marks = self._scopes.get(scope)
        if marks is None:
            marks = self._scopes[scope] = _ScopeMarks(scope)
        marks.holders.setdefault(prefix, {})[target] = mark
        marks.depths[mark.blocks] = marks.depths.get(mark.blocks, 0) + 1
        self._count += 1
        self.size_bytes += marks.mark_bytes(target.instance_id)

    def take(self, key: MarkKey) -> PredictedMark | None:
        """Takes out the mark of a prefix at a target; None where there is none."""
        target, scope, prefix = key
        marks = self._scopes.get(scope)
        holders = None if marks is None else marks.holders.get(prefix)
        mark = None if holders is None else holders.pop(target, None)
        if marks is None or mark is None:
            return None
        if not holders:
            del marks.holders[prefix]
        marks.depths[mark.blocks] -= 1
        if not marks.depths[mark.blocks]:
            del marks.depths[mark.blocks]
            if not marks.depths:
                del self._scopes[scope]
        self._count -= 1
        self.size_bytes -= marks.mark_bytes(target.instance_id)
        return mark

    def find(self, key: MarkKey) -> PredictedMark | None:
        """The mark of a prefix at a target."""
        marks = self._scopes.get(key[1])
        holders = None if marks is None else marks.holders.get(key[2])
        return None if holders is None else holders.get(key[0])

    def longest(
        self,
        scope: DecidedScope,
        hashes: Sequence[int] | bytes,
        now: float,
        *,
        but: Collection[MarkKey] = (),
    ) -> dict[Target, int]:
        """The longest prefix of a prompt that each target is to hold, in blocks.

        Cost O(depths at which anything is marked in the scope, and their holders).

        Args:
            scope: of the prompt.
            hashes: prefix hashes of its whole blocks; as bytes u64 LE.
            now: Unix seconds.
            but: marks that do not count.
        """
        found: dict[Target, int] = {}
        marks = self._scopes.get(scope)
        if marks is None:
            return found
        for blocks, prefix in _falling(marks.depths, hashes):
            holders = marks.holders.get(prefix)
            if holders is None:
                continue
            # Most hold what is above, too: those that are found already cost nothing here.
            for target in holders.keys() - found.keys():
                mark = holders[target]
                if mark.blocks != blocks or not mark.is_true(now):
                    continue
                if not but or (target, scope, prefix) not in but:
                    found[target] = blocks
        return found


class MarkHolders(Protocol):
    """What the rules of predictions are applied to: see `PredictedHolders`."""

    def decided(
        self,
        time: float,
        target: Target,
        scope: DecidedScope,
        marks: Sequence[PrefixMark],
        *,
        lasts_s: float,
        capacity_blocks: int = 0,
    ) -> None:
        """A prompt was sent to a target."""
        ...

    def failed(self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]) -> None:
        """The request failed there, or never came."""
        ...


class PredictedHolders:
    """See the module. At most `most` marks; the one that ends first goes first. Cost O(marks) a
    decision.

    Attributes:
        forgotten: marks that were given up for want of room, here and not at an engine.
    """

    def __init__(
        self, most: int = PREDICTED_MARKS_MAX, bytes_most: int = PREDICTED_BYTES_MAX
    ) -> None:
        self.forgotten = 0
        self._most = most
        self._bytes_most = bytes_most
        self._index = MarkIndex()
        # By how long they last, the least recently used first: so each is in order of its end.
        self._order: dict[float, OrderedDict[MarkKey, PredictedMark]] = {}
        # Those that last by capacity, likewise, with the sum of their widths.
        self._bounded: dict[Target, OrderedDict[MarkKey, PredictedMark]] = {}
        self._widths: Counter[Target] = Counter()

    def __len__(self) -> int:
        """How many marks there are."""
        return len(self._index)

    def decided(
        self,
        time: float,
        target: Target,
        scope: DecidedScope,
        marks: Sequence[PrefixMark],
        *,
        lasts_s: float,
        capacity_blocks: int = 0,
    ) -> None:
        """A prompt was sent to a target.

        Args:
            time: of the record; never earlier than the one before.
            target: that is to compute it.
            scope: of the prompt.
            marks: prefixes of the prompt, by rising depth; the last should be its last whole block.
            lasts_s: above 0, for how long the target is taken to hold it; not looked at with a
                capacity.
            capacity_blocks: of the target's cache, 0 where it is not known.
        """
        self._expire(time)
        before, found = 0, []
        for blocks, prefix in marks[:DECISION_MARKS_MAX]:
            found.append(((target, scope, prefix), blocks, max(blocks - before, 0)))
            before = max(blocks, before)
        lasts = _BY_CAPACITY if capacity_blocks else lasts_s
        until = time + lasts if lasts else 0.0
        for key, blocks, width in reversed(found):  # so that tails go before their heads
            self._note(key, PredictedMark(blocks, width, lasts, until))
        mine = self._bounded.get(target)
        while mine and (not capacity_blocks or self._widths[target] > capacity_blocks):
            self._drop(next(iter(mine)))
        while len(self._index) > self._most or self._index.size_bytes > self._bytes_most:
            self._drop(self._first_to_end())
            self.forgotten += 1

    def failed(self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]) -> None:
        """The request failed there, or never came: it is not known to hold any of the prompt."""
        for _, prefix in marks[:DECISION_MARKS_MAX]:
            self._drop((target, scope, prefix))

    def forget(self, target: Target, model_name: str) -> None:
        """Nothing is known any more of what it holds of a model. Cost O(marks)."""
        keys = (key for group in self._order.values() for key in group)
        gone = [key for key in keys if key[0] == target and key[1].model_name == model_name]
        for key in gone:
            self._drop(key)

    def longest(
        self,
        scope: DecidedScope,
        hashes: Sequence[int] | bytes,
        now: float,
        *,
        but: Collection[MarkKey] = (),
    ) -> dict[Target, int]:
        """See `MarkIndex.longest`."""
        return self._index.longest(scope, hashes, now, but=but)

    def state(self) -> PredictedState:
        """All of it, as it stands: to be encoded before anything else is folded."""
        return PredictedState(
            tuple(one for _, group in sorted(self._order.items()) for one in group.items()),
            self.forgotten,
        )

    def restore(self, state: PredictedState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        for key, mark in state.marks:
            self._note(key, mark)

    def _note(self, key: MarkKey, mark: PredictedMark) -> None:
        self._drop(key)
        self._index.put(key, mark)
        _append(self._order, mark.lasts_s, key, mark)
        if mark.lasts_s == _BY_CAPACITY:
            _append(self._bounded, key[0], key, mark)
            self._widths[key[0]] += mark.width

    def _drop(self, key: MarkKey) -> None:
        mark = self._index.take(key)
        if mark is None:
            return
        _discard(self._order, mark.lasts_s, key)
        if mark.lasts_s == _BY_CAPACITY:
            target = key[0]
            _discard(self._bounded, target, key)
            self._widths[target] -= mark.width
            if target not in self._bounded:
                del self._widths[target]

    def _expire(self, now: float) -> None:
        """Drops what has ended."""
        for lasts_s in list(self._order):
            while group := self._order.get(lasts_s):
                key, mark = next(iter(group.items()))
                if mark.is_true(now):
                    break
                self._drop(key)

    def _first_to_end(self) -> MarkKey:
        """The one that ends first; of those that last by capacity the least recently used."""
        firsts = {lasts: next(iter(group.items())) for lasts, group in self._order.items()}
        timed = [
            (mark.until, lasts) for lasts, (_, mark) in firsts.items() if lasts != _BY_CAPACITY
        ]
        return firsts[min(timed)[1] if timed else _BY_CAPACITY][0]


def _append(
    ordered: dict[_GroupT, OrderedDict[MarkKey, PredictedMark]],
    group: _GroupT,
    key: MarkKey,
    mark: PredictedMark,
) -> None:
    """Puts the mark at the end of its group, which there may not be yet."""
    marks = ordered.get(group)
    if marks is None:
        marks = ordered[group] = OrderedDict()
    marks[key] = mark


def _discard(
    ordered: dict[_GroupT, OrderedDict[MarkKey, PredictedMark]], group: _GroupT, key: MarkKey
) -> None:
    """Takes the mark out of its group, which goes with its last one."""
    marks = ordered[group]
    del marks[key]
    if not marks:
        del ordered[group]


def _falling(depths: Mapping[int, int], hashes: Sequence[int] | bytes) -> Iterator[tuple[int, int]]:
    """Depths of the prompt at which anything is marked, the deepest first, and its hashes there."""
    whole = len(hashes) // 8 if isinstance(hashes, bytes) else len(hashes)
    for blocks in sorted((depth for depth in depths if 0 < depth <= whole), reverse=True):
        if isinstance(hashes, bytes):
            yield blocks, struct.unpack_from("<Q", hashes, 8 * (blocks - 1))[0]
        else:
            yield blocks, hashes[blocks - 1]
