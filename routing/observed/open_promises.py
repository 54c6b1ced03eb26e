"""Promises of which more may be told: from a decision until its request has ended."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import msgspec

from routing.bounds import PROMISES_OPEN_MAX
from routing.observed.promises import Promise
from schemas.limits import MIB

PROMISES_OPEN_BYTES_MAX: Final = 128 * MIB  # of them, with their names and prefixes: likewise
PROMISE_OPEN_S: Final = 900.0  # for that to come: such a decision counts as `unreported`


_NONE: Final = (None, 0)


class OpenState(msgspec.Struct, frozen=True, array_like=True):
    """See `OpenPromises.state`; its encoding is canonical."""

    promises: tuple[Promise, ...]
    forgotten: int


class OpenPromises:
    """At most `most`, in `bytes_most`; the oldest goes first. Cost O(1) a promise.

    Attributes:
        forgotten: that were given up for want of room.
    """

    def __init__(
        self, most: int = PROMISES_OPEN_MAX, bytes_most: int = PROMISES_OPEN_BYTES_MAX
    ) -> None:
        self.forgotten = 0
        self._most = most
        self._bytes_most = bytes_most
        self._bytes = 0
        self._open: OrderedDict[tuple[int, int], tuple[Promise, int]] = OrderedDict()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._open)

    def add(self, promise: Promise) -> list[Promise]:
        """Keeps it; what has to go for it. One that is there already stays as it is."""
        key = (promise.run, promise.number)
        if key in self._open:
            return []
        gone, opened = [], self._open
        self._keep(key, promise)
        while len(opened) > 1 and (len(opened) > self._most or self._bytes > self._bytes_most):
            gone.append(self._pop())
        self.forgotten += len(gone)
        return gone

    def _keep(self, key: tuple[int, int], promise: Promise) -> None:
        size = promise.size_bytes
        self._open[key] = (promise, size)
        self._bytes += size

    def _pop(self) -> Promise:
        _, (promise, size) = self._open.popitem(last=False)
        self._bytes -= size
        return promise

    def find(self, run: int, number: int) -> Promise | None:
        """That of the decision, where it is open."""
        return self._open.get((run, number), _NONE)[0]

    def close(self, promise: Promise) -> None:
        """Nothing comes after this."""
        self._bytes -= self._open.pop((promise.run, promise.number), _NONE)[1]

    def expire(self, now: float, is_under_way: Callable[[int, int], bool]) -> list[Promise]:
        """Takes out those of which nothing has been told for too long. One whose request is still
        booked (as run and number) is looked at again when those that came before it are.
        """
        gone = []
        for _ in range(len(self._open)):
            key, (oldest, _) = next(iter(self._open.items()))
            if oldest.time + PROMISE_OPEN_S > now:
                break
            if is_under_way(*key):
                self._open.move_to_end(key)
            else:
                gone.append(self._pop())
        return gone

    def state(self) -> OpenState:
        """All of it, as it stands: to be encoded before anything else is folded."""
        return OpenState(tuple([promise for promise, _ in self._open.values()]), self.forgotten)

    def restore(self, state: OpenState) -> None:
        """The inverse of `state`, into one that is empty."""
        self.forgotten = state.forgotten
        for one in state.promises:
            self._keep((one.run, one.number), one)
