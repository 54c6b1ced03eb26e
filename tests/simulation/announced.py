"""What an index can know of one cache that has heard all of its events: a model that shares nothing
with the product.
"""

from collections.abc import Iterable, Sequence
from typing import Final

LOST: Final = "lost_batches"
UNKNOWN_PARENT: Final = "unknown_parent"


class Announced:
    """See the module.

    Attributes:
        usable: by the engine's hash, the prefix hash of each block that can be found.
        left_out: of each block that is held and cannot, why.
        is_lost: whether an event was lost since the cache was last cleared.
    """

    def __init__(self) -> None:
        self.usable: dict[int, int] = {}
        self.left_out: dict[int, str] = {}
        self.is_lost = False

    def store(
        self, blocks: Sequence[tuple[int, int]], parent: int | None, reason: str = ""
    ) -> None:
        """Blocks, each with its prefix hash, behind the parent; left out where there is a reason,
        and where nobody knows what the parent is.
        """
        if not reason and parent is not None and parent not in self.usable:
            reason = UNKNOWN_PARENT
        for block, prefix in blocks:
            if not reason:
                self.usable[block] = prefix
                self.left_out.pop(block, None)
            elif block not in self.usable:
                self.left_out.setdefault(block, reason)

    def remove(self, blocks: Iterable[int]) -> None:
        """They are gone, whatever was known of them."""
        for block in blocks:
            self.usable.pop(block, None)
            self.left_out.pop(block, None)

    def clear(self) -> None:
        """All of them are: nothing is left to be in doubt of."""
        self.__init__()  # type: ignore[misc]

    @property
    def held(self) -> frozenset[int]:
        """The prefix hashes that can be found."""
        return frozenset(self.usable.values())

    @property
    def is_sound(self) -> bool:
        """Whether that is all that the engine holds."""
        return not (self.is_lost or self.left_out)

    @property
    def reasons(self) -> set[str]:
        """Why it is not, where that is known."""
        return {LOST} if self.is_lost else set(self.left_out.values())
