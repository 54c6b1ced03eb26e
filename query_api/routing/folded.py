"""The fold of the routing log beside its readers: one thread applies, any thread asks."""

import threading
from collections.abc import Callable
from typing import TypeVar

from schemas.routing_records import RoutingRecord
from streams.routing.fold import RoutingFold

ValueT = TypeVar("ValueT")


class FoldedRouting:
    """A fold behind a lock: whoever asks waits for the record under way."""

    def __init__(self, fold: RoutingFold | None = None) -> None:
        self._fold = fold or RoutingFold()
        self._lock = threading.Lock()

    @property
    def offset(self) -> int:
        """Of the last record that was applied; -1 for none."""
        return self._fold.offset

    def apply(self, offset: int, record: RoutingRecord) -> None:
        """See `RoutingFold.apply`."""
        with self._lock:
            self._fold.apply(offset, record)

    def read(self, question: Callable[[RoutingFold], ValueT]) -> ValueT:
        """What the question makes of the fold, which it must not change or keep."""
        with self._lock:
            return question(self._fold)

    def replace(self, fold: RoutingFold) -> None:
        """Goes on with another one."""
        with self._lock:
            self._fold = fold
