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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
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


class PredictedMark(msgspec.Struct, array_like=True, gc=False):
    """A prefix that a target is to hold.

    Attributes:
        blocks: of the prefix.
        width: of these, the ones behind the mark before it: what it takes of a capacity.
        lasts_s: for how long, or `_BY_CAPACITY`.
        until: when that is true no more, Unix seconds; 0 where it lasts by capacity.
        since: when it was first so, and its events had not told it, likewise.
    """

    blocks: int
    width: int
    lasts_s: float
    until: float
    since: float = 0.0

    def is_true(self, now: float) -> bool:
        """Whether the target is still to hold it."""
        return self.lasts_s == _BY_CAPACITY or self.until > now


class PredictedState(msgspec.Struct, frozen=True, array_like=True):
    """See `PredictedHolders.state`; its encoding is canonical."""

    marks: tuple[tuple[MarkKey, PredictedMark], ...]
    forgotten: int


class PromptMarks(msgspec.Struct, eq=False):
    """The marks that one decision made, at one target and in one scope. They last equally long.

    Attributes:
        marks: by prefix; those that a later decision made again are not here any more.
        place, mark_bytes: the scope's, and what each mark takes; set by the index.
    """

    target: Target
    scope: DecidedScope
    lasts_s: float
    until: float
    marks: dict[int, PredictedMark]
    mark_bytes: int = 0
    place: "_ScopeMarks | None" = None


TakenMark = tuple[PromptMarks, PredictedMark]
"""A mark that was taken out, and of which it was one."""


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
        self.holders: dict[int, dict[Target, PromptMarks]] = {}
        self.depths: dict[int, int] = {}
        self.chars, self.is_ascii = len(names), names.isascii()

    def mark_bytes(self, instance_id: str) -> int:
        """That a mark takes, about: as `text_bytes` counts, with the scope's names read once."""
        is_ascii = self.is_ascii and instance_id.isascii()
        return OBJECT_SIZE + (self.chars + len(instance_id)) * (1 if is_ascii else 4)


_Prompts = OrderedDict[PromptMarks, None]
"""The least recently used first."""

_NOBODY: Final[dict[Target, PromptMarks]] = {}


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

    def put(self, prompt: PromptMarks) -> list[TakenMark]:
        """Keeps the marks of a prompt; those that are gone for it, of the same prefixes."""
        target, scope = prompt.target, prompt.scope
        if not prompt.marks:
            return []
        place = self._scopes.get(scope)
        if place is None:
            place = self._scopes[scope] = _ScopeMarks(scope)
        prompt.place, prompt.mark_bytes = place, place.mark_bytes(target.instance_id)
        found, depths, gone = place.holders, place.depths, []
        for prefix, mark in prompt.marks.items():
            holders = found.get(prefix)
            if holders is None:
                found[prefix] = {target: prompt}
            else:
                before = holders.get(target)
                holders[target] = prompt
                if before is not None:
                    again = before.marks.pop(prefix)
                    mark.since = again.since
                    gone.append((before, again))
                    if again.blocks == mark.blocks:
                        continue
                    _one_less(depths, again.blocks)
            depths[mark.blocks] = depths.get(mark.blocks, 0) + 1
        more = len(prompt.marks) - len(gone)
        self._count += more
        self.size_bytes += more * prompt.mark_bytes
        return gone

    def found(
        self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]
    ) -> Iterator[tuple[int, PredictedMark]]:
        """Those of a prompt's prefixes that have a mark at a target: blocks, and the mark."""
        place = self._scopes.get(scope)
        if place is None:
            return
        holders = place.holders
        for blocks, prefix in marks:
            held = holders.get(prefix)
            prompt = None if held is None else held.get(target)
            if prompt is not None:
                yield blocks, prompt.marks[prefix]

    def prompt(self, target: Target, scope: DecidedScope, prefix: int) -> PromptMarks | None:
        """The prompt that made the mark of a prefix at a target; None where there is none."""
        place = self._scopes.get(scope)
        return None if place is None else place.holders.get(prefix, _NOBODY).get(target)

    def take(self, target: Target, scope: DecidedScope, prefix: int) -> list[TakenMark]:
        """Takes out the mark of a prefix at a target, where there is one."""
        prompt = self.prompt(target, scope, prefix)
        if prompt is None:
            return []
        mark = prompt.marks.pop(prefix)
        self._take(prompt, {prefix: mark})
        return [(prompt, mark)]

    def leave(self, prompt: PromptMarks) -> None:
        """Takes out the marks of a prompt, as far as none was made again."""
        if prompt.marks:
            self._take(prompt, prompt.marks)
            prompt.marks.clear()

    def _take(self, prompt: PromptMarks, gone: dict[int, PredictedMark]) -> None:
        place, target = prompt.place, prompt.target
        assert place is not None, "it was put"
        found, depths = place.holders, place.depths
        for prefix, mark in gone.items():
            holders = found[prefix]
            if len(holders) == 1:
                del found[prefix]
            else:
                del holders[target]
            _one_less(depths, mark.blocks)
        if not depths:
            del self._scopes[prompt.scope]
        self._count -= len(gone)
        self.size_bytes -= len(gone) * prompt.mark_bytes

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
            hashes: prefix hashes of its whole blocks; as bytes u64 LE.
            now: Unix seconds.
            but: marks that do not count.
        """
        found: dict[Target, int] = {}
        place = self._scopes.get(scope)
        if place is None:
            return found
        for blocks, prefix in _falling(place.depths, hashes):
            holders = place.holders.get(prefix)
            if holders is None:
                continue
            # Most hold what is above, too: those that are found already cost nothing here.
            for target in holders.keys() - found.keys():
                mark = holders[target].marks[prefix]
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


class MarkWatcher(MarkHolders, Protocol):
    """What is told all that `PredictedHolders` is."""

    def forget(self, target: Target, model_name: str) -> None:
        """Nothing is known any more of what it holds of a model."""
        ...


class PredictedHolders:
    """See the module. At most `most` marks; the one that ends first goes first. Cost O(marks) a
    decision.

    Attributes:
        forgotten: marks that were given up for want of room, here and not at an engine.
        watcher: is told the same; None: nobody is.
    """

    def __init__(
        self, most: int = PREDICTED_MARKS_MAX, bytes_most: int = PREDICTED_BYTES_MAX
    ) -> None:
        self.forgotten = 0
        self.watcher: MarkWatcher | None = None
        self._most = most
        self._bytes_most = bytes_most
        self._index = MarkIndex()
        # By how long they last, the least recently used first: so each is in order of its end.
        self._order: dict[float, _Prompts] = {}
        # Those that last by capacity, likewise, with the sum of their widths.
        self._bounded: dict[Target, _Prompts] = {}
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
            marks: prefixes of the prompt, by rising depth; the last should be its last whole block.
            lasts_s: above 0, for how long the target is taken to hold it; not looked at with a
                capacity.
            capacity_blocks: of the target's cache, 0 where it is not known.
        """
        if self.watcher is not None:
            self.watcher.decided(
                time, target, scope, marks, lasts_s=lasts_s, capacity_blocks=capacity_blocks
            )
        self._expire(time)
        marks = marks[:DECISION_MARKS_MAX]
        if not capacity_blocks and self._made_again(time, target, scope, marks, lasts_s):
            return
        lasts = _BY_CAPACITY if capacity_blocks else lasts_s
        until = time + lasts if lasts else 0.0
        before, made = 0, dict[int, PredictedMark]()
        for blocks, prefix in marks:
            width = blocks - before if blocks > before else 0
            if prefix not in made:
                made[prefix] = PredictedMark(blocks, width, lasts, until, time)
            before += width
        tails_first = dict(reversed(made.items()))  # so that tails go before their heads
        self._note(PromptMarks(target, scope, lasts, until, tails_first))
        mine = self._bounded.get(target)
        while mine and (not capacity_blocks or self._widths[target] > capacity_blocks):
            self._drop_first(mine)
        while len(self._index) > self._most or self._index.size_bytes > self._bytes_most:
            self._drop_first(self._first_to_end())
            self.forgotten += 1

    def _made_again(
        self,
        time: float,
        target: Target,
        scope: DecidedScope,
        marks: Sequence[PrefixMark],
        lasts_s: float,
    ) -> bool:
        """The marks of a prompt as they were made before, none of them by another one since, are
        kept as they are, and last from now on: so of a prompt that was computed, or comes again.
        The same as making them, at a quarter of its cost.
        """
        prompt = self._index.prompt(target, scope, marks[-1].prefix) if marks else None
        if prompt is None or prompt.lasts_s != lasts_s or len(prompt.marks) != len(marks):
            return False
        if target in self._bounded:  # which end by this
            return False
        for (prefix, mark), one in zip(prompt.marks.items(), reversed(marks), strict=True):
            if prefix != one.prefix or mark.blocks != one.blocks:
                return False
        until = prompt.until = time + lasts_s
        for mark in prompt.marks.values():
            mark.until = until
        self._order[lasts_s].move_to_end(prompt)
        return True

    def overdue(
        self,
        now: float,
        target: Target,
        scope: DecidedScope,
        marks: Sequence[PrefixMark],
        indexed_blocks: int,
    ) -> int:
        """How many blocks of a prompt a target is to hold of which its events should have told,
        PREDICTED_S ago or more; told before `decided`.

        Args:
            now: of the record.
            target: that is to compute it.
            scope: of the prompt.
            marks: prefixes of the prompt, by rising depth.
            indexed_blocks: of the prompt, its first ones: its events have told these.
        """
        found = 0
        for blocks, mark in self._index.found(target, scope, marks[:DECISION_MARKS_MAX]):
            if blocks <= indexed_blocks or not mark.since:  # 0: kept by 0.2.0, which did not know
                mark.since = now
            elif now - mark.since >= PREDICTED_S and mark.is_true(now):
                found = blocks
        return found

    def failed(self, target: Target, scope: DecidedScope, marks: Sequence[PrefixMark]) -> None:
        """The request failed there, or never came: it is not known to hold any of the prompt."""
        if self.watcher is not None:
            self.watcher.failed(target, scope, marks)
        for _, prefix in marks[:DECISION_MARKS_MAX]:
            self._left(self._index.take(target, scope, prefix))

    def forget(self, target: Target, model_name: str) -> None:
        """Nothing is known any more of what it holds of a model. Cost O(prompts)."""
        if self.watcher is not None:
            self.watcher.forget(target, model_name)
        prompts = (prompt for group in self._order.values() for prompt in group)
        gone = [one for one in prompts if one.target == target and one.scope[1] == model_name]
        for prompt in gone:
            while prompt.marks:
                self._drop_first((prompt,))

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
        prompts = (prompt for _, group in sorted(self._order.items()) for prompt in group)
        return PredictedState(
            tuple(
                ((prompt.target, prompt.scope, prefix), mark)
                for prompt in prompts
                for prefix, mark in prompt.marks.items()
            ),
            self.forgotten,
        )

    def restore(self, state: PredictedState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        for (target, scope, lasts_s, until), its in groupby(state.marks, _prompt_of):
            marks = {key[2]: mark for key, mark in its}
            self._note(PromptMarks(target, scope, lasts_s, until, marks))

    def _note(self, prompt: PromptMarks) -> None:
        self._left(self._index.put(prompt))
        if not prompt.marks:
            return
        self._order.setdefault(prompt.lasts_s, OrderedDict())[prompt] = None
        if prompt.lasts_s == _BY_CAPACITY:
            self._bounded.setdefault(prompt.target, OrderedDict())[prompt] = None
            self._widths[prompt.target] += sum(mark.width for mark in prompt.marks.values())

    def _drop_first(self, prompts: Iterable[PromptMarks]) -> None:
        prompt = next(iter(prompts))
        self._left(self._index.take(prompt.target, prompt.scope, next(iter(prompt.marks))))

    def _left(self, taken: Sequence[TakenMark]) -> None:
        """These marks were taken out."""
        for prompt, mark in taken:
            if mark.lasts_s == _BY_CAPACITY:
                self._widths[prompt.target] -= mark.width
        for prompt in {prompt for prompt, _ in taken if not prompt.marks}:
            _discard(self._order, prompt.lasts_s, prompt)
            if prompt.lasts_s == _BY_CAPACITY:
                _discard(self._bounded, prompt.target, prompt)
                if prompt.target not in self._bounded:
                    del self._widths[prompt.target]

    def _expire(self, now: float) -> None:
        """Drops what has ended."""
        for lasts_s, group in [*self._order.items()]:
            while group and lasts_s != _BY_CAPACITY:
                prompt = next(iter(group))
                if prompt.until > now:
                    break
                del group[prompt]
                self._index.leave(prompt)
            if not group:
                del self._order[lasts_s]

    def _first_to_end(self) -> _Prompts:
        """Those of which one ends first; of those that last by capacity the least recently used."""
        timed = [
            (next(iter(group)).until, lasts)
            for lasts, group in self._order.items()
            if lasts != _BY_CAPACITY
        ]
        return self._order[min(timed)[1] if timed else _BY_CAPACITY]


def _prompt_of(item: tuple[MarkKey, PredictedMark]) -> tuple[Target, DecidedScope, float, float]:
    (target, scope, _), mark = item
    return target, scope, mark.lasts_s, mark.until


def _discard(ordered: dict[_GroupT, _Prompts], group: _GroupT, prompt: PromptMarks) -> None:
    """Takes the prompt out of its group, which goes with its last one."""
    prompts = ordered[group]
    del prompts[prompt]
    if not prompts:
        del ordered[group]


def _one_less(depths: dict[int, int], blocks: int) -> None:
    depths[blocks] -= 1
    if not depths[blocks]:
        del depths[blocks]


def _falling(depths: Mapping[int, int], hashes: Sequence[int] | bytes) -> Iterator[tuple[int, int]]:
    """Depths of the prompt at which anything is marked, the deepest first, and its hashes there."""
    whole = len(hashes) // 8 if isinstance(hashes, bytes) else len(hashes)
    for blocks in sorted((depth for depth in depths if 0 < depth <= whole), reverse=True):
        if isinstance(hashes, bytes):
            yield blocks, struct.unpack_from("<Q", hashes, 8 * (blocks - 1))[0]
        else:
            yield blocks, hashes[blocks - 1]
