"""Cache groups of which an engine needs no more than the end of a prefix: sliding windows, and the
states of recurrent layers. What they hold, and how much of a prefix that leaves usable.

**The rule** is vLLM's (0.33.0, `HybridKVCacheCoordinator.find_longest_cache_hit`): full attention
gives the longest prefix of which it has all blocks, each other group cuts that to the longest one
that it can serve, until all agree. A window of w tokens needs ceil((w - 1) / block size) last
blocks of a prefix, a recurrent layer the last one, which has the state behind it: of each group
some last blocks, or as many as the prefix has (`StoredBlocks.last_blocks`). What all agree on is
the longest prefix of which each group has these. Groups of another block size than that of full
attention, chunks of local attention, of which no event says how long they are, and windows of no
size that is told have no rule here: of a publisher with one of these answers count full attention
alone, and `by_rule` is False.

**Which block** one of a sparse group is its event does not say: it names those that are kept of a
chain, and the tokens of the whole chain. But in groups of one block size an engine calls a block by
one hash, so it is the block that the publisher's full attention calls so. Where that comes later,
as in the same batch it may, the block is *unplaced* until then.

**What is kept.** Nothing of a publisher without such groups. Else entries like all others, under
the publisher's own keys (`engine_key` of hash and group), so that removals, copies, clears, rows,
digests and dumps need no more. They stand in hidden scopes, which no version puts into an answer:

    SPARSE + LoRA name   a block: its prefix hash, masked with the group as keys are
    UNPLACED             one that is not placed yet: its "prefix" is the engine's hash
    RULES                under RULES_MASK ^ group, the group's rule: its "prefix" is how many of the
                         last blocks. Under UNRULED_KEY, that another group has none, or another one
                         than before. Outlives a clear.

A version that does not know them counts full attention, and says `attention_only`, since
`PublisherState.sparse_blocks` still counts all that was announced. What it folds itself is missing
here, and it drops `by_rule` from the publisher's state: then it is False until the engine's end.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import xxhash

from streams.bounds import GROUP_MAX
from streams.kernel.changes import SHARED
from streams.kernel.interface import InstanceMatch, RankMatch

RULES_MASK: Final = xxhash.xxh3_64_intdigest(b"rules")
"""With the number of a cache group, the key of the entry that says by which rule it is used."""

UNRULED_KEY: Final = RULES_MASK ^ (GROUP_MAX + 1)
"""The key of the entry that says that there are groups without a known rule."""

Rules = Mapping[int, int]
"""By group, how many of the last blocks of a prefix it needs."""

Holds = Callable[[int, int, int], bool]
"""Whether a publisher holds a group's block at a place of the prompt: by medium, group, place."""


def usable(blocks: int, rules: Rules, holds: Callable[[int, int], bool]) -> int:
    """The longest prefix of at most so many blocks of which each group has what it needs.

    Args:
        holds: whether a group, by number, holds the block at a place.
    """
    length = blocks
    while length:
        missing = [
            place
            for group, needed in rules.items()
            for place in range(max(0, length - needed), length)
            if not holds(group, place)
        ]
        if not missing:
            break
        length = max(missing)  # any longer one needs it, too
    return length


class SparseRank(NamedTuple):
    """A rank that has such groups.

    Attributes:
        holds: whether it holds a block itself.
    """

    rules: Rules
    holds: Holds


def limited(
    match: InstanceMatch, ranks: Mapping[int, SparseRank], block_size: int, *, is_sharded: bool
) -> tuple[InstanceMatch, int | None]:
    """What of a match the instance can use, and the group that has cut the longest prefix, None
    where that is as long as before: of several the one that alone cuts it shortest, the first of
    these.

    Args:
        ranks: of the instance, those that have such groups, by number.
    """
    name, longest, gpu, cpu, disk, rank_matches = match
    every = tuple(range(SHARED))

    def of_rank(rank: SparseRank, tokens: int, media: tuple[int, ...]) -> int:
        def held(group: int, place: int) -> bool:
            return any(rank.holds(medium, group, place) for medium in media)

        return block_size * usable(tokens // block_size, rank.rules, held)

    parts = list(ranks.values()) if is_sharded else [_together(list(ranks.values()))]

    def of_all(tokens: int, media: tuple[int, ...]) -> int:
        return min(of_rank(one, tokens, media) for one in parts)

    whole = of_all(longest, every)
    found: list[tuple[int, int]] = []
    for group in {group for part in parts for group in part.rules}:
        alone = [
            SparseRank({group: part.rules[group]}, part.holds)
            for part in parts
            if group in part.rules
        ]
        found.append((min(of_rank(part, longest, every) for part in alone), group))
    by_rank: list[RankMatch] = []
    for told in rank_matches:
        rank = ranks.get(told.dp_rank)
        if rank is not None:
            dp_rank, matched, *walk = told
            matched = of_rank(rank, matched, every)
            ends = [of_rank(rank, end, every[: place + 1]) for place, end in enumerate(walk)]
            told = RankMatch(dp_rank, matched, *ends)
        by_rank.append(told)
    if is_sharded:
        by_rank = [RankMatch(one.dp_rank, *(min(end, whole) for end in one[1:])) for one in by_rank]
    gpu, cpu, disk = (of_all(depth, (medium,)) for medium, depth in enumerate((gpu, cpu, disk)))
    cut = min(found)[1] if whole < longest else None
    return InstanceMatch(name, whole, gpu, cpu, disk, by_rank), cut


def _together(ranks: list[SparseRank]) -> SparseRank:
    """What several ranks hold, as one."""
    rules: dict[int, int] = {}
    for rank in ranks:
        for group, needed in rank.rules.items():
            rules[group] = max(needed, rules.get(group, 0))
    return SparseRank(
        dict(sorted(rules.items())), lambda *block: any(rank.holds(*block) for rank in ranks)
    )
