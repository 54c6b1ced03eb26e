"""What a router knows of nodes that publish no events: its own decisions.

The service's own rules: a decision marks prefixes of its prompt at its node
(`routing.observed.predicted_blocks`), for a time, or as long as the node's capacity has room for
them where that is known.
"""

from collections.abc import Sequence
from typing import Final

from routing.observed.predicted_blocks import PredictedHolders
from schemas.identities import DEFAULT_TENANT
from schemas.routing_records import DecidedScope, PrefixMark, Target, marks_at
from streams.kernel.interface import InstanceMatch, RankMatch

_SCOPE: Final = DecidedScope(DEFAULT_TENANT, "trace", "", 1, "")


class DecidedIndex:
    """See the module. The number of a block stands for the hash of the prefix that ends with it.

    Args:
        names: of the nodes, sorted.
        lasts_s: how long a node is taken to hold what it was given.
        capacity_blocks: of each node, in place of that; 0 where the router does not know it.
    """

    def __init__(self, names: Sequence[str], *, lasts_s: float, capacity_blocks: int) -> None:
        self._targets = [Target(DEFAULT_TENANT, name, 0) for name in names]
        self._holders = PredictedHolders()
        self._lasts_s = lasts_s
        self._capacity_blocks = capacity_blocks
        self._longest = 0

    def ask(self, chain: Sequence[int], now: float) -> list[InstanceMatch]:
        """What each node is taken to hold of a prompt, sorted by its name; in blocks.

        Args:
            chain: its whole blocks.
            now: seconds.
        """
        found = self._holders.longest(_SCOPE, chain, now)
        self._longest = max(found.values(), default=0)
        return [_match(target.instance_id, found.get(target, 0)) for target in self._targets]

    def decided(self, chain: Sequence[int], place: int, now: float) -> None:
        """The prompt that was asked about last was given to the node of that place."""
        marks = [
            PrefixMark(blocks, chain[blocks - 1]) for blocks in marks_at(len(chain), self._longest)
        ]
        self._holders.decided(
            now,
            self._targets[place],
            _SCOPE,
            marks,
            lasts_s=self._lasts_s,
            capacity_blocks=self._capacity_blocks,
        )


def _match(name: str, blocks: int) -> InstanceMatch:
    return InstanceMatch(name, blocks, blocks, 0, 0, [RankMatch(0, blocks, blocks, blocks, blocks)])
