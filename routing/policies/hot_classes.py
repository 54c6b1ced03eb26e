"""Which prompts that begin alike come more often than those who hold their beginning can serve.

A fold of decisions: no clock, no randomness, so that the same decisions give the same state.
"""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Final

CLASS_BLOCKS: Final = 4
"""By so many first blocks a prompt belongs to a class."""

WINDOW_DECISIONS: Final = 1000


class HotClasses:
    """The classes of the last WINDOW_DECISIONS decisions. Cost O(1) a decision."""

    def __init__(self, window: int = WINDOW_DECISIONS) -> None:
        self._window = window
        self._last: deque[Hashable] = deque()
        self._count: Counter[Hashable] = Counter()
        self._alarms: dict[Hashable, int] = {}  # in a row, of classes that have one

    def note(self, name: Hashable, holders: int, instances: int) -> bool:
        """A prompt of this class is to be routed; whether its holders are to be left out.

        They are, once the class has for 2 * holders of its decisions in a row had a share x of all
        with x / (1 - x) above holders / (instances - holders).

        Args:
            holders: how many instances hold its first blocks.
            instances: how many there are.
        """
        self._last.append(name)
        self._count[name] += 1
        if len(self._last) > self._window:
            self._forget(self._last.popleft())
        own, others = self._count[name], len(self._last) - self._count[name]
        if not 0 < holders < instances or own * (instances - holders) <= others * holders:
            self._alarms.pop(name, None)
            return False
        alarms = self._alarms[name] = self._alarms.get(name, 0) + 1
        return alarms > 2 * holders

    def __len__(self) -> int:
        """How many classes are remembered."""
        return len(self._count)

    def _forget(self, name: Hashable) -> None:
        self._count[name] -= 1
        if not self._count[name]:
            del self._count[name]
            self._alarms.pop(name, None)
