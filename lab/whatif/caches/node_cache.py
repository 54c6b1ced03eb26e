"""What a node needs of a cache."""

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol


class CacheUse(NamedTuple):
    """What a use has changed.

    Attributes:
        stored: blocks that are new, in the order in which they were given.
        evicted: blocks that have gone, first the one that went first. None of them is in `stored`:
            what came and went at once was never there.
        refused: how many blocks found no room.
    """

    stored: list[int]
    evicted: list[int]
    refused: int = 0


class BlockCache(Protocol):
    """One tier."""

    @property
    def held(self) -> Container[int]:
        """The blocks that it has, now and later: the same object for the cache's whole life."""
        ...

    def use(self, blocks: Sequence[int], now: float, /) -> CacheUse:
        """Reads the blocks that it has and stores those that it has not; none is given twice. The
        first one counts as the most recently used: tails go before the heads they hang on.
        """
        ...
