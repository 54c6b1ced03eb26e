"""One full sync of one worker: which batches came, and what they have. Pure.

Source: lmcache 0.5.6, `lmcache/v1/cache_controller/full_sync_sender.py`: the worker freezes its
cache, announces so many keys in so many batches, pushes these and an end, then asks every 5 s
whether the cache may be used again, for 60 times at most, and sends batches again that are named as
missing, three times at most.
"""

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from lmcache_adapter.wire.messages import key_of
from lmcache_adapter.worker.keys import Budget

LMCACHE_WORKER_KEYS_MAX: Final = 2_097_152  # of one full sync, which is refused above it
LMCACHE_SYNC_BATCHES_MAX: Final = 65_536  # of one full sync, which is refused above it
LMCACHE_MISSING_NAMED_MAX: Final = 1024  # batches that one answer names as missing
LMCACHE_SYNC_IDLE_S: Final = 20.0  # without a batch: the cache is released, whole or not


class FullSync:
    """See the module. Times are monotonic seconds.

    Attributes:
        sync_id, location: as the worker named them.
        total: how many keys it announced.
        is_whole: all batches came, and their keys are those of the worker.
        is_unsound: what came does not add up to what was announced, or operations were lost
            meanwhile: it is to be repeated.
    """

    def __init__(
        self, *, sync_id: str, location: str, total: int, batches: int, budget: Budget, now: float
    ) -> None:
        self.sync_id = sync_id
        self.location = location
        self.is_whole = False
        self.is_unsound = False
        self.total = total
        self._count = batches
        self._budget = budget
        self._batches: dict[int, array[int]] = {}
        self._keys = 0
        self._moved_at = now

    @staticmethod
    def refusal(total: int, batches: int) -> str:
        """Why a sync of so many cannot be taken, or ""."""
        if total > LMCACHE_WORKER_KEYS_MAX:
            return f"Expected at most {LMCACHE_WORKER_KEYS_MAX} keys, got: {total}"
        if not 1 <= batches <= LMCACHE_SYNC_BATCHES_MAX:
            return f"Expected 1 to {LMCACHE_SYNC_BATCHES_MAX} batches, got: {batches}"
        return ""

    def add(self, number: int, keys: Sequence[int], now: float) -> bool:
        """Takes a batch; one that came before is taken in the place of that.

        Returns:
            Whether it was taken: not one that is none of them, nor beyond what was announced, nor
            where there is no room.
        """
        if self.is_whole or number >= self._count:
            return False
        more = len(keys) - len(self._batches.get(number, ()))
        if self._keys + more > self.total or (more > 0 and not self._budget.take(more)):
            return False
        if more < 0:
            self._budget.give_back(-more)
        self._batches[number] = array("Q", map(key_of, keys))
        self._keys += more
        self._moved_at = now
        self.is_whole = len(self._batches) == self._count
        return True

    @property
    def has_all(self) -> bool:
        """Whether the keys that came are as many as were announced."""
        return self._keys == self.total

    @property
    def missing_count(self) -> int:
        """How many batches have not come."""
        return self._count - len(self._batches)

    def missing(self) -> list[int]:
        """The first batches that have not come."""
        if self.is_whole:
            return []
        missing = (number for number in range(self._count) if number not in self._batches)
        return [
            number for number, _ in zip(missing, range(LMCACHE_MISSING_NAMED_MAX), strict=False)
        ]

    def keys(self) -> Iterator[int]:
        """All keys that came."""
        return chain.from_iterable(self._batches.values())

    def release(self) -> None:
        """Drops the keys: they were taken over, or are not wanted."""
        self._budget.give_back(self._keys)
        self._batches.clear()
        self._keys = 0

    def is_idle(self, now: float) -> bool:
        """Whether nothing has come for so long that the cache is better used again."""
        return now - self._moved_at > LMCACHE_SYNC_IDLE_S
