"""The fold of the routing log beside its readers: one thread applies, any thread asks.

A short question holds up whoever applies, and others that ask, for microseconds. One of all of the
state, as a checkpoint or a digest, takes up to some seconds: nothing is applied meanwhile, so that
what it reads cannot change, but short questions are answered, and with them decisions are made.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from routing.fold.fold import RoutingFold

ValueT = TypeVar("ValueT")


class FoldedRouting:
    """See the module.

    Attributes:
        changing: held by whoever changes the fold, and by long questions; taken before the lock.
        lock: held while the fold changes, and by short questions.
        fold: to be read with the lock.
    """

    def __init__(self, fold: RoutingFold | None = None) -> None:
        self.fold = fold or RoutingFold()
        self.lock = threading.RLock()
        self.changing = threading.RLock()

    @property
    def offset(self) -> int:
        """Of the last record that was applied; -1 for none."""
        return self.fold.offset

    def begin(self) -> bool:
        """Whether it can be applied to at once; then until `end`, by the same thread. For a loop,
        which may not wait.
        """
        return self.changing.acquire(blocking=False)

    def end(self) -> None:
        """See `begin`."""
        self.changing.release()

    def read(self, question: Callable[[RoutingFold], ValueT]) -> ValueT:
        """What a short question makes of the fold, which it must not change or keep."""
        with self.lock:
            return question(self.fold)

    def read_all(self, question: Callable[[RoutingFold], ValueT]) -> ValueT:
        """The same of a long one, which must read alone: short ones are answered beside it."""
        with self.changing:
            return question(self.fold)
