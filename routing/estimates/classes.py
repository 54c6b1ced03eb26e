"""Of whom something is learnt: a tenant's model on a class of instances. Bounded, in the order of
use. What one tenant reports teaches nothing of another's: a name may mean something else there, and
a report may be false.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, NamedTuple, TypeVar

from schemas.identities import Text

CLASS_LABEL: Final = "class"

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class ClassKey(NamedTuple):
    """What takes the same time for the same work.

    Attributes:
        tenant_id: whose it is.
        model_name: that is served.
        class_name: of the instances, which are alike.
    """

    tenant_id: Text
    model_name: Text
    class_name: Text


class ModelKey(NamedTuple):
    """A tenant's model."""

    tenant_id: Text
    model_name: Text


class RecentValues(Generic[KeyT, ValueT]):
    """The values that were used last. Reading one is no use of it: reads are in no log.

    Attributes:
        forgotten: how many had to go for others.
    """

    def __init__(
        self, most: int, items: Iterable[tuple[KeyT, ValueT]] = (), forgotten: int = 0
    ) -> None:
        self.forgotten = forgotten
        self._most = most
        self._values = dict(items)

    def get(self, key: KeyT) -> ValueT | None:
        """The value, or None."""
        return self._values.get(key)

    def use(self, key: KeyT, first: Callable[[], ValueT]) -> ValueT:
        """The value, which is now the last to go; a new one where there is none."""
        value = self._values.pop(key, None)
        if value is None:
            value = first()
            if len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
                self.forgotten += 1
        self._values[key] = value
        return value

    def items(self) -> list[tuple[KeyT, ValueT]]:
        """All of them, the first to go first."""
        return list(self._values.items())

    def __len__(self) -> int:
        return len(self._values)
