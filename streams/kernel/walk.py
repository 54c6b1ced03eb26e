"""How far one instance holds a prompt: the rules of an answer, for the reference kernel."""

from collections.abc import Mapping, Sequence, Set
from functools import partial

from schemas.identities import MEDIA
from streams.kernel.changes import SHARED
from streams.kernel.interface import InstanceMatch, PublisherId, RankMatch

_GPU, _CPU, _DISK = range(len(MEDIA))

Holder = tuple[PublisherId, int]
"""A publisher and a tier."""


def match_instance(
    instance: str,
    ranks: Mapping[int, PublisherId],
    read: Mapping[int, Set[PublisherId]],
    held: Sequence[Set[Holder]],
    block_size: int,
) -> InstanceMatch:
    """What the instance holds of a prompt, in tokens.

    Args:
        ranks: its publishers that take part in answers, by rank.
        read: whose shared blocks each of these can read.
        held: the holders of each block of the prompt, up to the first without a holder.
        block_size: tokens per block.
    """
    run = partial(_run, held)
    matches = []
    for dp_rank, publisher in sorted(ranks.items()):
        pools = _pools(read[dp_rank])
        own = [{(publisher, medium)} for medium in range(SHARED)]
        gpu = run(own[_GPU])
        cpu = run(own[_CPU] | pools[_CPU], gpu)
        disk = run(own[_DISK] | pools[_DISK], cpu)
        walk = (gpu * block_size, cpu * block_size, disk * block_size)
        matched = run(own[_GPU] | own[_CPU] | own[_DISK])
        matches.append(RankMatch(dp_rank, matched * block_size, *walk))
    pools = _pools(set[PublisherId]().union(*read.values()))
    media = [
        pools[medium] | {(publisher, medium) for publisher in ranks.values()}
        for medium in range(SHARED)
    ]
    longest = run(media[_GPU] | media[_CPU] | media[_DISK])
    gpu_only, cpu_only, disk_only = (run(holders) * block_size for holders in media)
    return InstanceMatch(instance, longest * block_size, gpu_only, cpu_only, disk_only, matches)


def match_shards(
    instance: str,
    ranks: Mapping[int, PublisherId],
    read: Mapping[int, Set[PublisherId]],
    held: Sequence[Set[Holder]],
    block_size: int,
) -> InstanceMatch:
    """The same of one whose ranks have a part of each block: what all of them have."""
    alone = match_instance(instance, ranks, read, held, block_size)
    pools: dict[int, list[set[Holder]]] = {
        rank: [set(), *_pools(those)[_CPU:]] for rank, those in read.items()
    }

    def least(media: Sequence[int]) -> int:
        return block_size * min(
            _run(
                held,
                {(one, medium) for medium in media}.union(*(pools[rank][at] for at in media)),
            )
            for rank, one in ranks.items()
        )

    longest = least((_GPU, _CPU, _DISK))
    matches = [
        RankMatch(one.dp_rank, *(min(depth, longest) for depth in one[1:])) for one in alone.ranks
    ]
    return InstanceMatch(
        instance, longest, least((_GPU,)), least((_CPU,)), least((_DISK,)), matches
    )


def _run(held: Sequence[Set[Holder]], accepts: Set[Holder], start: int = 0) -> int:
    """How many blocks from `start` on have one of these holders; returns the end."""
    end = start
    while end < len(held) and held[end] & accepts:
        end += 1
    return end


def _pools(publishers: Set[PublisherId]) -> list[set[Holder]]:
    """Theirs, by medium."""
    return [{(publisher, SHARED + medium) for publisher in publishers} for medium in range(SHARED)]


def further(plain: InstanceMatch, paired: InstanceMatch) -> InstanceMatch:
    """What the instance holds of a prompt, by blocks of either kind: it has one of them."""
    longest, gpu, cpu, disk = map(max, plain[1:5], paired[1:5])
    ranks = [
        RankMatch(one.dp_rank, *map(max, one[1:], other[1:]))
        for one, other in zip(plain.ranks, paired.ranks, strict=True)
    ]
    return InstanceMatch(plain.instance_id, longest, gpu, cpu, disk, ranks)
