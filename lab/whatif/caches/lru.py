"""A cache that evicts the least recently used block."""

from collections import OrderedDict
from collections.abc import Sequence

from lab.whatif.caches.node_cache import CacheUse


class LruCache:
    """See `interface.BlockCache`. Cost O(blocks used)."""

    def __init__(self, capacity: int | None) -> None:
        """Args:
        capacity: in blocks; None for one that never evicts.
        """
        self._capacity = capacity
        self.held: OrderedDict[int, None] = OrderedDict()

    def use(self, blocks: Sequence[int], now: float, /) -> CacheUse:
        """See `interface.BlockCache`."""
        held = self.held
        stored = [block for block in blocks if block not in held]
        most_recent = held.move_to_end
        for block in reversed(blocks):
            held[block] = None
            most_recent(block)
        evicted: list[int] = []
        if self._capacity is not None and len(held) > self._capacity:
            evicted = [held.popitem(last=False)[0] for _ in range(len(held) - self._capacity)]
            if len(blocks) > self._capacity:  # only then may it evict what it has just stored
                gone, new = set(evicted), set(stored)
                stored = [block for block in stored if block not in gone]
                evicted = [block for block in evicted if block not in new]
        return CacheUse(stored, evicted)
