"""What a writer of a log takes from."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from schemas.identities import Offset

ItemT = TypeVar("ItemT")


class WindowEntry(NamedTuple):
    """A record as it is written; a log of the embedded form has no keys."""

    key: bytes
    value: bytes


class RecordSource(ABC, Generic[ItemT]):
    """A queue whose items become records, and what became of them. The queue bounds what waits, and
    drops and counts what comes beyond that.

    Args:
        name: of what it has, of several, as "answers".

    Attributes:
        written_items: how much is in the log, of this run.
        unwritten: of what was taken, how much could not be written.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.written_items = self.unwritten = 0

    @abstractmethod
    def take(self) -> Iterable[tuple[int, ItemT]]:
        """What has come since the last call, and how much each of it is."""

    @property
    def has_much(self) -> bool:
        """Whether who wrote lately should write again, before a window is over."""
        return False

    @abstractmethod
    def encode(self, item: ItemT) -> WindowEntry:
        """As it is written now. What it raises costs this item alone."""

    def appended(self, items: Sequence[ItemT], first: Offset) -> None:
        """These are in a log of the embedded form, one record each, from that offset on."""
