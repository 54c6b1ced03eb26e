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
from typing import Final, TypeVar

import msgspec

from routing.bounds import DECISION_MARKS_MAX, PREDICTED_MARKS_MAX
from routing.sizes import OBJECT_SIZE, text_bytes
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
        self._bytes = 0
        self._marks: dict[MarkKey, PredictedMark] = {}
        # By how long they last, the least recently used first: so each is in order of its end.
        self._order: dict[float, OrderedDict[MarkKey, None]] = {}
        # Those that last by capacity, likewise, with the sum of their widths.
        self._bounded: dict[Target, OrderedDict[MarkKey, None]] = {}
        self._widths: Counter[Target] = Counter()
        self._by_prefix: dict[tuple[DecidedScope, int], dict[Target, PredictedMark]] = {}
        self._depths: dict[DecidedScope, dict[int, int]] = {}

    def __len__(self) -> int:
        """How many marks there are."""
        return len(self._marks)

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
        for key, blocks, width in reversed(found):  # so that tails go before their heads
            self._note(key, PredictedMark(blocks, width, lasts, time + lasts if lasts else 0.0))
        mine = self._bounded.get(target)
        while mine and (not capacity_blocks or self._widths[target] > capacity_blocks):
            self._drop(next(iter(mine)))
        while len(self._marks) > self._most or self._bytes > self._bytes_most:
            self._drop(self._first_to_end())
            self.forgotten += 1

    def failed(self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]) -> None:
        """The request failed there, or never came: it is not known to hold any of the prompt."""
        for _, prefix in marks[:DECISION_MARKS_MAX]:
            self._drop((target, scope, prefix))

    def forget(self, target: Target, model_name: str) -> None:
        """Nothing is known any more of what it holds of a model. Cost O(marks)."""
        gone = [key for key in self._marks if key[0] == target and key[1].model_name == model_name]
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
        """The longest prefix of a prompt that each target is to hold, in blocks.

        Cost O(depths at which anything is marked in the scope, and their holders).

        Args:
            scope: of the prompt.
            hashes: prefix hashes of its whole blocks; as bytes u64 LE.
            now: Unix seconds.
            but: marks that do not count.
        """
        found: dict[Target, int] = {}
        for blocks, prefix in _falling(self._depths.get(scope, {}), hashes):
            holders = self._by_prefix.get((scope, prefix))
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

    def state(self) -> PredictedState:
        """All of it, as it stands: to be encoded before anything else is folded."""
        return PredictedState(
            tuple(
                (key, self._marks[key]) for _, keys in sorted(self._order.items()) for key in keys
            ),
            self.forgotten,
        )

    def restore(self, state: PredictedState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        for key, mark in state.marks:
            self._note(key, mark)

    def _note(self, key: MarkKey, mark: PredictedMark) -> None:
        self._drop(key)
        target, scope, prefix = key
        self._marks[key] = mark
        self._bytes += _size_of(key)
        _append(self._order, mark.lasts_s, key)
        self._by_prefix.setdefault((scope, prefix), {})[target] = mark
        depths = self._depths.get(scope)
        if depths is None:
            depths = self._depths[scope] = {}
        depths[mark.blocks] = depths.get(mark.blocks, 0) + 1
        if mark.lasts_s == _BY_CAPACITY:
            _append(self._bounded, target, key)
            self._widths[target] += mark.width

    def _drop(self, key: MarkKey) -> None:
        mark = self._marks.pop(key, None)
        if mark is None:
            return
        self._bytes -= _size_of(key)
        target, scope, prefix = key
        _discard(self._order, mark.lasts_s, key)
        holders = self._by_prefix[scope, prefix]
        del holders[target]
        if not holders:
            del self._by_prefix[scope, prefix]
        depths = self._depths[scope]
        depths[mark.blocks] -= 1
        if not depths[mark.blocks]:
            del depths[mark.blocks]
        if not depths:
            del self._depths[scope]
        if mark.lasts_s == _BY_CAPACITY:
            _discard(self._bounded, target, key)
            self._widths[target] -= mark.width
            if target not in self._bounded:
                del self._widths[target]

    def _expire(self, now: float) -> None:
        """Drops what has ended."""
        for lasts_s in list(self._order):
            while keys := self._order.get(lasts_s):
                key = next(iter(keys))
                if self._marks[key].is_true(now):
                    break
                self._drop(key)

    def _first_to_end(self) -> MarkKey:
        """The one that ends first; of those that last by capacity the least recently used."""
        firsts = {lasts: next(iter(keys)) for lasts, keys in self._order.items()}
        timed = [
            (self._marks[key].until, lasts)
            for lasts, key in firsts.items()
            if lasts != _BY_CAPACITY
        ]
        return firsts[min(timed)[1] if timed else _BY_CAPACITY]


def _size_of(key: MarkKey) -> int:
    """Of a mark, in bytes, about; marks of one decision have the names together."""
    (_, instance_id, _), (tenant_id, model_name, lora_name, _, salt), _ = key
    return OBJECT_SIZE + text_bytes(instance_id, tenant_id, model_name, lora_name, salt)


def _append(
    ordered: dict[_GroupT, OrderedDict[MarkKey, None]], group: _GroupT, key: MarkKey
) -> None:
    """Puts the key at the end of its group, which there may not be yet."""
    keys = ordered.get(group)
    if keys is None:
        keys = ordered[group] = OrderedDict()
    keys[key] = None


def _discard(
    ordered: dict[_GroupT, OrderedDict[MarkKey, None]], group: _GroupT, key: MarkKey
) -> None:
    """Takes the key out of its group, which goes with its last one."""
    keys = ordered[group]
    del keys[key]
    if not keys:
        del ordered[group]


def _falling(depths: Mapping[int, int], hashes: Sequence[int] | bytes) -> Iterator[tuple[int, int]]:
    """Depths of the prompt at which anything is marked, the deepest first, and its hashes there."""
    whole = len(hashes) // 8 if isinstance(hashes, bytes) else len(hashes)
    for blocks in sorted((depth for depth in depths if 0 < depth <= whole), reverse=True):
        if isinstance(hashes, bytes):
            yield blocks, struct.unpack_from("<Q", hashes, 8 * (blocks - 1))[0]
        else:
            yield blocks, hashes[blocks - 1]
