"""The chunk hashes that one worker holds, by location, and the bound on those of all workers. Pure.

A set, not a count: a worker that announces a chunk again holds it once, and the journal is told of
what changes alone. So whatever is sent twice, as around a full sync, is in the index once.
"""

from collections.abc import Iterable, Iterator
from typing import Final

LMCACHE_LOCATIONS_MAX: Final = 16  # of a worker: reason="too_many_locations"
LMCACHE_KEYS_MAX: Final = 4_194_304  # of all workers, some 80 bytes each: reason="too_many_keys"
LMCACHE_FULL_RATIO: Final = 0.9  # of them: then nobody is asked for a full sync


class Budget:
    """How many keys, and operations that wait, all workers may have. One owner."""

    def __init__(self, most: int = LMCACHE_KEYS_MAX) -> None:
        self.used = 0
        self._most = most

    def take(self, count: int = 1) -> bool:
        """Takes so many, or none."""
        if self.used + count > self._most:
            return False
        self.used += count
        return True

    @property
    def left(self) -> int:
        """How many more may be taken."""
        return self._most - self.used

    @property
    def is_full(self) -> bool:
        """Whether there is no room for much more: a full sync would not find it."""
        return self.used >= LMCACHE_FULL_RATIO * self._most

    def give_back(self, count: int = 1) -> None:
        """Takes so many no longer."""
        self.used -= count
        assert self.used >= 0, "what is given back was taken"


class Keys:
    """The keys of one worker. Cost O(1) each, but for `replace` and `clear`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._by_location: dict[str, set[int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_location.values()))

    def __iter__(self) -> Iterator[tuple[str, set[int]]]:
        return iter(self._by_location.items())

    def at(self, location: str) -> set[int] | None:
        """The keys at a location, to be looked at only; None where there is no room for one more
        location.
        """
        held = self._by_location.get(location)
        if held is None and len(self._by_location) < LMCACHE_LOCATIONS_MAX:
            held = self._by_location[location] = set()
        return held

    def add(self, held: set[int], key: int) -> bool:
        """Adds a key to what `at` gave; False where there is no room."""
        if not self._budget.take():
            return False
        held.add(key)
        return True

    def remove(self, held: set[int], key: int) -> None:
        """Removes a key that is held."""
        held.remove(key)
        self._budget.give_back()

    def replace(self, location: str, keys: Iterable[int]) -> bool:
        """Puts these in the place of what the location has; False where there is no room for all,
        and then it has none.
        """
        held = self.at(location)
        if held is None:
            return False
        self._budget.give_back(len(held))
        held.clear()
        new = set(keys)
        if not self._budget.take(len(new)):
            return False
        held |= new
        return True

    def clear(self) -> None:
        """Drops all."""
        self._budget.give_back(len(self))
        self._by_location.clear()
