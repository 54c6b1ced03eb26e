"""What the registry has changed of publishers and is to be carried out, one for each. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from schemas.identities import PublisherKey
from schemas.registration import Registration


class RegistryChange(NamedTuple):
    """What is to be done for one publisher: at most this, however often the registry changes.

    Attributes:
        home: its partition of the registry.
        registration: to be followed from now on, or None.
        forget: whether to forget all that was known of it first.
    """

    home: int
    registration: Registration | None
    forget: bool


class RegistryChanges:
    """Those that wait, in the order of their turns."""

    def __init__(self) -> None:
        self._waiting: dict[PublisherKey, RegistryChange] = {}

    def add(
        self, partition: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        """One more entry of the registry; None: forgotten."""
        waiting = self._waiting.pop(publisher, None)
        forget = registration is None or (waiting is not None and waiting.forget)
        self._waiting[publisher] = RegistryChange(partition, registration, forget)

    def try_again(self, publisher: PublisherKey, change: RegistryChange) -> None:
        """Carries the change out once it is its turn, unless there is a later one."""
        latest = self._waiting.pop(publisher, change)
        if latest.registration == change.registration:
            latest = change._replace(forget=change.forget or latest.forget)
        self._waiting[publisher] = latest

    def wait_behind(self, publisher: PublisherKey) -> None:
        """Lets the others' changes go first: this one waits until its lane can be written."""
        change = self._waiting.pop(publisher, None)
        if change is not None:
            self._waiting[publisher] = change

    def forgotten(self, publisher: PublisherKey, change: RegistryChange) -> RegistryChange:
        """The change without its first half, of which one that comes now must know."""
        latest = self._waiting.get(publisher, change)
        if latest.registration is not None:
            self._waiting[publisher] = rest = latest._replace(forget=False)
            return rest if latest is change else change
        return change

    def carried_out(self, publisher: PublisherKey, change: RegistryChange) -> None:
        """It is done, unless there is a later one."""
        if self._waiting.get(publisher) is change:
            del self._waiting[publisher]

    def clear(self) -> None:
        """None of them is to be carried out."""
        self._waiting.clear()

    def __iter__(self) -> Iterator[tuple[PublisherKey, RegistryChange]]:
        return iter(self._waiting.items())
