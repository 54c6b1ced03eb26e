"""Promises of which more may be told: from a decision until its request has ended."""

from collections import OrderedDict

import msgspec

from schemas.limits import PROMISE_OPEN_S, PROMISES_OPEN_MAX
from streams.routing.observed.promises import Promise


class OpenState(msgspec.Struct, frozen=True, array_like=True):
    """See `OpenPromises.state`; its encoding is canonical."""

    promises: tuple[Promise, ...]
    forgotten: int


class OpenPromises:
    """At most `most`, the oldest goes first. Cost O(1) a promise.

    Attributes:
        forgotten: that were given up for want of room.
    """

    def __init__(self, most: int = PROMISES_OPEN_MAX) -> None:
        self.forgotten = 0
        self._most = most
        self._open: OrderedDict[tuple[int, int], Promise] = OrderedDict()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._open)

    def add(self, promise: Promise) -> Promise | None:
        """Keeps it; what has to go for it. One that is there already stays as it is."""
        key = (promise.run, promise.number)
        if self._open.setdefault(key, promise) is not promise or len(self._open) <= self._most:
            return None
        self.forgotten += 1
        return self._open.popitem(last=False)[1]

    def find(self, run: int, number: int) -> Promise | None:
        """That of the decision, where it is open."""
        return self._open.get((run, number))

    def close(self, promise: Promise) -> None:
        """Nothing comes after this."""
        self._open.pop((promise.run, promise.number), None)

    def expire(self, now: float) -> list[Promise]:
        """Takes out those of which nothing has been told for too long."""
        gone = []
        while self._open:
            oldest = next(iter(self._open.values()))
            if oldest.time + PROMISE_OPEN_S > now:
                break
            gone.append(self._open.popitem(last=False)[1])
        return gone

    def state(self) -> OpenState:
        """All of it, as it stands: to be encoded before anything else is folded."""
        return OpenState(tuple(self._open.values()), self.forgotten)

    def restore(self, state: OpenState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        self._open.update(((one.run, one.number), one) for one in state.promises)
