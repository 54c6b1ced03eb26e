"""A cache that evicts as Mooncake's store does (`MasterService::BatchEvict`, with one shard).

- Reading a block leases it until `lease_s` from now; writing one leaves it with a lease that ends
  at once. A block is never evicted within its lease.
- Above `watermark` of the capacity, or where something finds no room, an eviction removes `share`
  of the blocks, more where the watermark is exceeded by more: those whose leases ended first, and
  that are not softly pinned.
- If that is less than half of `share`, softly pinned ones go as well, up to that half.
- What finds no room then is not stored, nor is what hangs on it.

Leases of blocks that were read, and those of blocks that were only written, each end in the order
in which they began; so two queues have all of them in order.
"""

import math
from array import array
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from heapq import merge
from itertools import islice

from lab.whatif.caches.node_cache import CacheUse
from lab.whatif.setup import Leases


class StoreCache:
    """See `interface.BlockCache`. Cost O(blocks used), and O(blocks leased or pinned) for each
    eviction.
    """

    def __init__(self, capacity: int, leases: Leases, depths: "array[int]") -> None:
        """Args:
        capacity: in blocks.
        leases: its rules.
        depths: of each block, how many stand before it in a prompt.
        """
        self._capacity = capacity
        self._leases = leases
        self._depths = depths
        # When the lease of each block ends, in that order.
        self._written: OrderedDict[int, float] = OrderedDict()
        self._read: OrderedDict[int, float] = OrderedDict()
        self._pinned: dict[int, float] = {}

    def __contains__(self, block: object, /) -> bool:
        return block in self._read or block in self._written

    def __len__(self) -> int:
        return len(self._read) + len(self._written)

    @property
    def held(self) -> Container[int]:
        """See `interface.BlockCache`."""
        return self

    def use(self, blocks: Sequence[int], now: float, /) -> CacheUse:
        """See `interface.BlockCache`."""
        missing = [block for block in blocks if block not in self]
        self._lease(blocks, now)
        evicted: list[int] = []
        if len(self) + len(missing) > self._capacity:
            evicted = self._evict(now)
        stored = missing[: max(self._capacity - len(self), 0)]
        for block in reversed(stored):
            self._written[block] = now
            self._pin(block, now)
        if len(self) > self._leases.watermark * self._capacity:
            evicted += self._evict(now)
        gone, new = set(evicted), set(stored)
        return CacheUse(
            [block for block in stored if block not in gone],
            [block for block in evicted if block not in new],
            len(missing) - len(stored),
        )

    def _lease(self, blocks: Sequence[int], now: float) -> None:
        end = now + self._leases.lease_s
        for block in reversed(blocks):
            if block in self:
                self._written.pop(block, None)
                self._read[block] = end
                self._read.move_to_end(block)
                self._pin(block, now)

    def _pin(self, block: int, now: float) -> None:
        if self._depths[block] < self._leases.soft_pin_blocks:
            self._pinned[block] = now + self._leases.soft_pin_s

    def _evict(self, now: float) -> list[int]:
        if not len(self):
            return []
        used = len(self) / self._capacity
        over = used - self._leases.watermark
        most = math.ceil(len(self) * max(self._leases.share, over + self._leases.share))
        least = math.ceil(len(self) * max(self._leases.share / 2, over))
        unpinned = (block for block in self._expired(now) if not self._is_pinned(block, now))
        evicted = list(islice(unpinned, most))
        self._drop(evicted)
        if len(evicted) < least:  # all that is left of the expired ones is pinned
            pinned = list(islice(self._expired(now), least - len(evicted)))
            self._drop(pinned)
            evicted += pinned
        return evicted

    def _expired(self, now: float) -> Iterator[int]:
        """Blocks whose leases have ended, the one that ended first comes first."""
        ends = merge(self._written.items(), self._read.items(), key=lambda item: item[1])
        for block, end in ends:
            if end > now:
                return
            yield block

    def _is_pinned(self, block: int, now: float) -> bool:
        return self._pinned.get(block, now) > now

    def _drop(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self._written:
                del self._written[block]
            else:
                del self._read[block]
            self._pinned.pop(block, None)
