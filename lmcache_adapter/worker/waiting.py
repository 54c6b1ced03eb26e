"""Operations that wait for a full sync, and what happens until it comes. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from lmcache_adapter.wire.messages import Operation
from lmcache_adapter.worker.keys import Budget

LMCACHE_HELD_S: Final = 60.0  # what a worker sends waits so long for its full sync


class HeldOperations(NamedTuple):
    """Operations that came together."""

    location: str
    operations: Sequence[Operation]


class SyncWindow:
    """What happens from when a full sync is asked for until its last batch.

    Attributes:
        first: of what waits: the keys were gathered when what is before it had happened.
        strays: links that had ended before, whose they were being unknown.
        numbered: locations of which the next number was known: there a loss shows.
        lost: locations at which operations are missing since.
        is_broken: not all operations since then have waited.
        was_cut: the link was down since then.
    """

    def __init__(
        self, first: int, strays: int, numbered: Iterable[str], *, is_broken: bool = False
    ) -> None:
        self.first = first
        self.strays = strays
        self.numbered = frozenset(numbered)
        self.lost: set[str] = set()
        self.is_broken = is_broken
        self.was_cut = False


class WaitingOperations:
    """Operations in order, or none at all; see the module. Times are monotonic seconds."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held: list[HeldOperations] = []
        self._count = 0
        self._until: float | None = None
        self.is_open = True

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldOperations]:
        return iter(self._held)

    def open(self) -> None:
        """From now on operations wait."""
        self.is_open = True

    def add(self, held: HeldOperations, now: float) -> bool:
        """Has these wait; False where there is no room."""
        if not self._budget.take(len(held.operations)):
            return False
        self._held.append(held)
        self._count += len(held.operations)
        if self._until is None:
            self._until = now + LMCACHE_HELD_S
        return True

    def is_over(self, now: float) -> bool:
        """Whether the first ones have waited for LMCACHE_HELD_S."""
        return self._until is not None and now >= self._until

    def close(self) -> list[HeldOperations]:
        """Returns all; from now on none wait."""
        held, self._held = self._held, []
        self._budget.give_back(self._count)
        self._count, self._until, self.is_open = 0, None, False
        return held
