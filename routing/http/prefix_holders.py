"""Who holds a prefix of which only the hash is known, as a table says."""

from collections.abc import Sequence

from routing.http.models import PrefixHolder
from routing.http.views_documents import HoldersOf
from schemas.identities import Medium, PrefixScope
from schemas.routing_records import DecidedScope
from streams.kernel.interface import RankMatch, ReadOnlyKernel


def holders_in(kernel: ReadOnlyKernel) -> HoldersOf:
    """Asks the table for the prefix's last block: engines drop tails before heads, so who has that
    has the prefix. What only a shared pool has is nobody's.

    Cost O(instances of the scope) a prefix.
    """

    def holders_of(scope: DecidedScope, prefix: int) -> Sequence[PrefixHolder]:
        found = kernel.query_by_hash(PrefixScope(*scope), prefix.to_bytes(8, "little"), None)
        return [
            PrefixHolder(
                instance_id=one.instance_id, dp_rank=rank.dp_rank, medium=_fastest(rank).value
            )
            for one in found
            for rank in one.ranks
            if rank.matched
        ]

    return holders_of


def _fastest(rank: RankMatch) -> Medium:
    if rank.gpu_walk:
        return Medium.GPU
    return Medium.CPU if rank.cpu_walk else Medium.DISK
