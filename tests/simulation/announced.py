"""What an index can know of one cache that has heard all of its events: a model that shares nothing
with the product.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

PrefixT = TypeVar("PrefixT", bound=Hashable)
"""What a block is: with all that is before it."""

LOST: Final = "lost_batches"
UNKNOWN_PARENT: Final = "unknown_parent"
HASH_CONFLICT: Final = "hash_conflict"
COPIES_UNKNOWN: Final = "copies_unknown"


class Announced(Generic[PrefixT]):
    """See the module.

    Attributes:
        usable: by the engine's hash, the prefix of each block that can be found.
        left_out: of each block that is held and cannot, why.
        is_lost: whether an event was lost since the cache was last cleared.
        is_hybrid: whether blocks came since then which are in no table, and the engine needs.
    """

    def __init__(self) -> None:
        self.usable: dict[int, PrefixT] = {}
        self.left_out: dict[int, str] = {}
        self.is_lost = False
        self.is_hybrid = False
        self._copies: Counter[int] = Counter()
        self._possible: Counter[int] = Counter()  # left out before the block was found
        self._copies_left_out: Counter[int] = Counter()

    def store(
        self,
        blocks: Sequence[tuple[int, PrefixT]],
        parent: int | None,
        reason: str = "",
        *,
        reported: bool = False,
    ) -> None:
        """Blocks behind the parent. They are left out where there is a reason, where nobody knows
        what the parent is, and where the hash is that of another block.

        Args:
            blocks: each with its prefix.
            parent: the engine's hash of the block before, or None.
            reason: why they cannot be used, or "".
            reported: no copy is stored where there is one.
        """
        if not reason and parent is not None and parent not in self.usable:
            reason = UNKNOWN_PARENT
        for block, prefix in blocks:
            why = reason or (HASH_CONFLICT if self.usable.get(block, prefix) != prefix else "")
            copies = self._copies_left_out if why else self._copies
            is_new = not copies[block]
            copies[block] += is_new or not reported
            if why:
                self.left_out.setdefault(block, why)
            elif block not in self.usable:
                self.usable[block] = prefix
                # A conflict is another block of the name.
                if self.left_out.get(block, HASH_CONFLICT) != HASH_CONFLICT:
                    del self.left_out[block]
                    self._possible[block] = self._copies_left_out.pop(block) - reported

    def remove(self, blocks: Iterable[int]) -> None:
        """A copy of each is gone; one that can be found, where there is one."""
        for block in blocks:
            is_usable = block in self.usable
            copies = self._copies if is_usable else self._copies_left_out
            if is_usable and not copies[block]:
                copies = self._possible
            copies[block] -= 1
            if copies is self._copies and not copies[block] and self._possible[block]:
                continue  # it may be held still
            if copies[block] <= 0:
                del copies[block]
                (self.usable if is_usable else self.left_out).pop(block, None)

    def clear(self) -> None:
        """All of them are: nothing is left to be in doubt of."""
        self.__init__()  # type: ignore[misc]

    @property
    def held(self) -> frozenset[PrefixT]:
        """The prefixes that can be found."""
        return frozenset(self.usable.values())

    @property
    def is_sound(self) -> bool:
        """Whether that is all that the engine holds, and what it can use of it."""
        return not (self.is_lost or self.left_out or self.is_unsure or self.is_hybrid)

    @property
    def is_unsure(self) -> bool:
        """Whether a block may be held or not."""
        return any(not self._copies[block] for block in self.usable)

    @property
    def reasons(self) -> set[str]:
        """Why it is not, where that is known."""
        if self.is_lost:
            return {LOST}
        return {*self.left_out.values(), *([COPIES_UNKNOWN] if self.is_unsure else [])}
