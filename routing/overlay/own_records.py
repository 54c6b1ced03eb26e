"""Which records of this process the log has not brought back yet, in the order of the log."""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator
from typing import Final, Generic, TypeVar

from routing.bounds import ROUTING_QUEUE_ITEMS

KeyT = TypeVar("KeyT", bound=Hashable)

OWN_RECORDS_MAX: Final = ROUTING_QUEUE_ITEMS
"""What is told beyond finds no room in the queue either, and does not come back."""


class OwnRecords:
    """Numbers what this process tells. Cost O(1) each, amortized.

    Attributes:
        last: number of what was told last; 0 before the first.
        back: of the last that has come back; what was told before it has, too, or is lost.
    """

    def __init__(self) -> None:
        self.last = self.back = 0
        self._numbers: OrderedDict[Hashable, int] = OrderedDict()

    def begin(self) -> None:
        """Something is told."""
        self.last += 1

    def expect(self, name: Hashable) -> None:
        """The log will bring what was told last, by that name."""
        if len(self._numbers) < OWN_RECORDS_MAX:
            self._numbers.setdefault(name, self.last)

    def come(self, name: Hashable, *, is_own: bool = True) -> bool:
        """The log has brought what has that name; nothing where another process told it. Says
        whether this one did.

        Args:
            name: of it.
            is_own: whether no other process uses such names: then it says what else is back.
        """
        number = self._numbers.pop(name, 0)
        self.come_back(number if is_own else 0)
        return number > 0

    def come_back(self, number: int) -> None:
        """The log has brought what has that number; 0: another process's."""
        if number > self.back:
            self.back = number
            while self._numbers and next(iter(self._numbers.values())) < number:
                self._numbers.popitem(last=False)
        if not self._numbers:
            self.back = self.last


class Stamps(Collection[KeyT], Generic[KeyT]):
    """Of what an overlay says: the last own record that made it say so, with which it leaves.

    At most `most`. Cost O(1) each, amortized.
    """

    def __init__(self, own: OwnRecords, most: int) -> None:
        """Args:
        own: records of this process.
        most: how many are kept.
        """
        self._own = own
        self._most = most
        self._stamps: OrderedDict[KeyT, int] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        """Whether it has a stamp."""
        return key in self._stamps

    def __len__(self) -> int:
        """How many have one."""
        return len(self._stamps)

    def __iter__(self) -> Iterator[KeyT]:
        """Those that have one."""
        return iter(self._stamps)

    def put(self, key: KeyT) -> list[KeyT]:
        """The record that was told last says something of it; what has to go for that."""
        stamps = self._stamps
        stamps[key] = self._own.last
        stamps.move_to_end(key)
        return [stamps.popitem(last=False)[0]] if len(stamps) > self._most else []

    def discard(self, key: KeyT) -> None:
        """Nothing is said of it any more."""
        self._stamps.pop(key, None)

    def leaving(self) -> list[KeyT]:
        """Takes out those whose record has come back, or is lost."""
        gone: list[KeyT] = []
        stamps, back = self._stamps, self._own.back
        while stamps:
            key = next(iter(stamps))
            if stamps[key] > back:
                break
            del stamps[key]
            gone.append(key)
        return gone

    def leave(self) -> None:
        """Gives up those whose record has come back, or is lost."""
        self.leaving()
