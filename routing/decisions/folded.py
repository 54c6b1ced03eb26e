"""The fold of the routing log beside its readers: one thread applies, any thread asks.

A short question holds up whoever applies, and others that ask, for microseconds. One of all of the
state, as a checkpoint or a digest, takes up to some seconds: nothing is applied meanwhile, so that
what it reads cannot change, but short questions are answered, and with them decisions are made.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from routing.fold.fold import RoutingFold
from schemas.routing_records import RoutingRecord

ValueT = TypeVar("ValueT")


class FoldedRouting:
    """See the module."""

    def __init__(self, fold: RoutingFold | None = None) -> None:
        self._fold = fold or RoutingFold()
        self._lock = threading.Lock()  # held while it changes, and by short questions
        self._changing = threading.RLock()  # held by whoever changes it, and by long questions

    @property
    def offset(self) -> int:
        """Of the last record that was applied; -1 for none."""
        return self._fold.offset

    def apply(self, offset: int, record: RoutingRecord) -> None:
        """See `RoutingFold.apply`. Waits for a long question that is being answered."""
        with self._changing, self._lock:
            self._fold.apply(offset, record)

    def begin(self) -> bool:
        """Whether it can be applied to at once; then until `end`, by the same thread. For a loop,
        which may not wait.
        """
        return self._changing.acquire(blocking=False)

    def end(self) -> None:
        """See `begin`."""
        self._changing.release()

    def read(self, question: Callable[[RoutingFold], ValueT]) -> ValueT:
        """What a short question makes of the fold, which it must not change or keep."""
        with self._lock:
            return question(self._fold)

    def read_all(self, question: Callable[[RoutingFold], ValueT]) -> ValueT:
        """The same of a long one, which must read alone: short ones are answered beside it."""
        with self._changing:
            return question(self._fold)

    def replace(self, fold: RoutingFold) -> None:
        """Goes on with another one; a long question still reads the one before."""
        with self._lock:
            self._fold = fold
