"""The order in which blocks were used last, and where in it one stands.

A Fenwick tree over slots: each use takes the next one, and a block's rank is how many taken slots
are not before its own. Slots that were given up are taken away when none is left, which is after at
least as many uses as there are blocks.
"""

from array import array
from typing import Final

ORDER_SLOTS_MIN: Final = 1024  # of the order of uses; renumbered when all are taken


class RecencyOrder:
    """Blocks by their last use. Cost of a call O(log blocks), and some 150 bytes for each block."""

    def __init__(self) -> None:
        # In the order of their slots, since each use deletes and puts again.
        self._slots: dict[int, int] = {}
        self._size = ORDER_SLOTS_MIN
        self._tree = array("I", bytes(4 * (self._size + 1)))
        self._used = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, block: int) -> bool:
        return block in self._slots

    def rank(self, block: int) -> int:
        """1 of the block that was used last; 0 of one that never was."""
        slot = self._slots.get(block)
        if slot is None:
            return 0
        tree, before = self._tree, 0
        slot -= 1
        while slot:
            before += tree[slot]
            slot &= slot - 1
        return len(self._slots) - before

    def use(self, block: int) -> None:
        """Makes it the one that was used last."""
        slot = self._slots.pop(block, 0)
        tree, size = self._tree, self._size
        while 0 < slot <= size:
            tree[slot] -= 1
            slot += slot & -slot
        if self._used == size:
            self._renumber()
            tree, size = self._tree, self._size
        self._used += 1
        slot = self._slots[block] = self._used
        while slot <= size:
            tree[slot] += 1
            slot += slot & -slot

    def keep(self, threshold: int) -> None:
        """Forgets the blocks whose numbers are not below this one. Cost O(blocks)."""
        self._slots = {block: slot for block, slot in self._slots.items() if block < threshold}
        self._renumber()

    def _renumber(self) -> None:
        count = len(self._slots)
        self._slots = dict(zip(self._slots, range(1, count + 1), strict=True))
        self._used = count
        self._size = max(ORDER_SLOTS_MIN, 2 * count)
        tree = self._tree = array("I", bytes(4 * (self._size + 1)))
        for slot in range(1, self._size + 1):
            tree[slot] += slot <= count
            above = slot + (slot & -slot)
            if above <= self._size:
                tree[above] += tree[slot]
