"""Hit rate against the size of an LRU cache, of one pass over the accesses.

**Exact** (R. L. Mattson and others, 1970): a cache of n blocks that evicts the least recently used
has, at any time, the n blocks that were used last. So an access hits in all caches from the size of
its block's rank on, and one pass gives every size. What a request reads is looked up before the
request changes the cache, and then its blocks count as used from its last one to its first: tails
go before the heads they hang on, so that what a cache has of a chain is a prefix.

**Sampled** (SHARDS, C. Waldspurger and others, FAST'15): blocks whose hash is below a threshold are
followed, all others not at all, and ranks and counts are divided by the rate. Totals are those of
all accesses (their correction `SHARDS-adj`), so whether a block that everybody uses is among the
sampled costs nothing. More blocks than there is room for halve the threshold (their fixed size).
The standard error that is given is measured: the sampled blocks are sixteen groups by their hash,
and how much these differ says how far off all of them are likely to be.

A block is a 64-bit hash that is evenly distributed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from lab.miss_ratio.order import RecencyOrder

CURVE_BLOCKS_MAX: Final = 2_097_152  # blocks of all curves; above, half of them are sampled
CURVE_GROUPS_MAX: Final = 1024  # tenants and models of one command; further ones: `other_groups`
CURVE_POINTS: Final = 121  # of a curve in a file, at most; sizes in equal ratios

_ALL: Final = 2**64
_GROUPS: Final = 16
"""Of the sampled blocks, by which the error is measured."""


class Scope(msgspec.Struct, frozen=True):
    """Whose cache it is.

    Attributes:
        source: the name of the file.
        tenant, model: of a capture; "" of a trace.
        block_size: tokens of a block.
    """

    source: str
    tenant: str
    model: str
    block_size: int


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One size of a cache.

    Attributes:
        blocks, tokens: of the cache.
        block_hit_rate, token_hit_rate: shares of what was accessed, 0 to 1.
        error: the standard error of the first one; 0 where it is exact.
    """

    blocks: int
    tokens: int
    block_hit_rate: float
    token_hit_rate: float
    error: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one scope.

    Attributes:
        scope: whose.
        accesses, tokens: how many blocks were accessed, and their tokens.
        distinct_blocks: how many there are, by the sample where it is one.
        sample_rate: share of the blocks that were followed at the end; 1 where it is exact.
        sampled_blocks: how many these are.
        block_hit_rate, token_hit_rate: of a cache that never evicts.
        error: the standard error of the first one.
        full_at_blocks: the least size that reaches them.
        points: by size, rising.
    """

    scope: Scope
    accesses: int
    tokens: int
    distinct_blocks: int
    sample_rate: float
    sampled_blocks: int
    block_hit_rate: float
    token_hit_rate: float
    error: float
    full_at_blocks: int
    points: tuple[Point, ...]


class _Misses:
    """Of one group of blocks: by the size from which an access hits, how many there were."""

    __slots__ = ("blocks", "cold_blocks", "cold_tokens", "tokens")

    def __init__(self) -> None:
        self.blocks: dict[int, float] = {}
        self.tokens: dict[int, float] = {}
        self.cold_blocks = 0.0
        self.cold_tokens = 0.0

    def add(self, size: int, blocks: float, tokens: float) -> None:
        """Notes an access that hits from this size on; 0 for never."""
        if not size:
            self.cold_blocks += blocks
            self.cold_tokens += tokens
            return
        self.blocks[size] = self.blocks.get(size, 0.0) + blocks
        self.tokens[size] = self.tokens.get(size, 0.0) + tokens


class _Scope:
    """What is known of one scope so far."""

    def __init__(self, groups: int) -> None:
        self.order = RecencyOrder()
        self.accesses = 0
        self.tokens = 0
        self.distinct = 0.0
        self.groups = [_Misses() for _ in range(groups)]


class MissRatios:
    """Curves of all scopes, from accesses in the order of time.

    Cost for each access that is sampled O(log blocks); some 200 bytes for each block.

    Args:
        sample: share of the blocks to follow; 1 for all of them: exact.
        blocks_max: that are followed at a time, of all scopes together.

    Attributes:
        other_groups: accesses of scopes for which there was no room.
        was_full: whether there were more blocks than are followed, so that fewer were.
    """

    def __init__(self, *, sample: float = 1.0, blocks_max: int = CURVE_BLOCKS_MAX) -> None:
        self._threshold = min(_ALL, max(1, math.ceil(sample * _ALL)))
        self._blocks_max = blocks_max
        self._count = 0
        self._scopes: dict[Scope, _Scope] = {}
        self.other_groups = 0
        self.was_full = False

    @property
    def rate(self) -> float:
        """Share of the blocks that is followed now."""
        return self._threshold / _ALL

    def use(self, scope: Scope, blocks: Sequence[int], tokens: Sequence[int]) -> None:
        """One request, or one run of blocks: all are looked up, then all are used.

        Args:
            scope: whose cache.
            blocks: in the order of their chain, each once.
            tokens: that each has.
        """
        found = self._scopes.get(scope)
        if found is None:
            if len(self._scopes) >= CURVE_GROUPS_MAX:
                self.other_groups += len(blocks)
                return
            found = self._scopes[scope] = _Scope(_GROUPS)
        found.accesses += len(blocks)
        found.tokens += sum(tokens)
        threshold, order, groups = self._threshold, found.order, found.groups
        weight = _ALL / threshold
        sampled = []
        for block, size in zip(blocks, tokens, strict=True):
            if block < threshold:
                sampled.append(block)
                rank = order.rank(block)
                if not rank:
                    found.distinct += weight
                    self._count += 1
                elif weight > 1:
                    rank = 1 + round((rank - 1) * weight)
                groups[block % _GROUPS].add(rank, weight, size * weight)
        for block in reversed(sampled):
            order.use(block)
        while self._count > self._blocks_max and self._threshold > 1:
            self._halve()

    def curves(self, sizes: Callable[[int], Sequence[int]] | None = None) -> list[Curve]:
        """The curves so far. Cost O(sizes + ranks that there were).

        Args:
            sizes: in blocks, of a block size; None for sizes in equal ratios up to where the curve
                rises no more.
        """
        return [
            self._curve(scope, found, None if sizes is None else sizes(scope.block_size))
            for scope, found in self._scopes.items()
        ]

    def _halve(self) -> None:
        self._threshold //= 2
        self.was_full = True
        for found in self._scopes.values():
            found.order.keep(self._threshold)
        self._count = sum(len(found.order) for found in self._scopes.values())

    def _curve(self, scope: Scope, found: _Scope, sizes: Sequence[int] | None) -> Curve:
        full = max((size for group in found.groups for size in group.blocks), default=0)
        wanted = sizes_up_to(full) if sizes is None else sorted(set(sizes))
        rows = [_missed(group, wanted) for group in found.groups]
        points = []
        for number, size in enumerate(wanted):
            missed = [row[number] for row in rows]
            points.append(
                Point(
                    blocks=size,
                    tokens=size * scope.block_size,
                    block_hit_rate=_hit_rate((one[0] for one in missed), found.accesses),
                    token_hit_rate=_hit_rate((one[1] for one in missed), found.tokens),
                    error=self._error([one[0] for one in missed], found.accesses),
                )
            )
        cold = [group.cold_blocks for group in found.groups]
        return Curve(
            scope=scope,
            accesses=found.accesses,
            tokens=found.tokens,
            distinct_blocks=round(found.distinct),
            sample_rate=self.rate,
            sampled_blocks=len(found.order),
            block_hit_rate=_hit_rate(cold, found.accesses),
            token_hit_rate=_hit_rate((group.cold_tokens for group in found.groups), found.tokens),
            error=self._error(cold, found.accesses),
            full_at_blocks=full,
            points=tuple(points),
        )

    def _error(self, missed: Sequence[float], accesses: int) -> float:
        """Of a sum over groups that were drawn at random: what their differences say."""
        if self._threshold == _ALL or not accesses:
            return 0.0
        mean = sum(missed) / len(missed)
        squares = sum((one - mean) ** 2 for one in missed)
        variance = (1 - self.rate) * len(missed) / (len(missed) - 1) * squares
        return math.sqrt(variance) / accesses


def sizes_up_to(full: int, count: int = CURVE_POINTS) -> list[int]:
    """Whole numbers in equal ratios from 1 to `full`, at most so many."""
    if full < 1:
        return []
    return sorted({round(full ** (step / (count - 1))) for step in range(count)})


def _missed(group: _Misses, sizes: Sequence[int]) -> list[tuple[float, float]]:
    """Of each size, the blocks and tokens that miss in a cache of it."""
    ranks = sorted(group.blocks)
    at = len(ranks)
    blocks, tokens = group.cold_blocks, group.cold_tokens
    found = []
    for size in reversed(sizes):
        while at and ranks[at - 1] > size:
            at -= 1
            blocks += group.blocks[ranks[at]]
            tokens += group.tokens[ranks[at]]
        found.append((blocks, tokens))
    return found[::-1]


def _hit_rate(missed: Iterable[float], total: int) -> float:
    return min(1.0, max(0.0, 1 - sum(missed) / total)) if total else 0.0
