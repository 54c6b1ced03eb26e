"""The table of the write thread, as registrations see it."""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from reprise.embedded.fold_thread import FoldThread
from schemas.identities import PublisherKey
from schemas.positions import PublisherState
from schemas.registration import Registration
from streams.table.fold import Fold


class Folded(Protocol):
    """Where the fold is: both are others once recovery is done."""

    @property
    def fold(self) -> Fold:
        """The table's state."""
        ...

    @property
    def folding(self) -> FoldThread:
        """The thread that folds."""
        ...


class FoldedTable:
    """Implements `bridge.membership.registrar.PublisherTable` over the fold of a thread."""

    def __init__(self, thread: Folded) -> None:
        self._thread = thread

    def registrations(self) -> Mapping[PublisherKey, Registration]:
        """See `PublisherTable`."""
        return {
            publisher: registered.registration
            for publisher, registered in self._thread.fold.registrations.items()
        }

    def state(self, publisher: PublisherKey) -> PublisherState | None:
        """See `PublisherTable`."""
        return self._thread.fold.publishers.get(publisher)

    async def folded(self) -> None:
        """See `PublisherTable`."""
        await asyncio.to_thread(self._thread.folding.wait)
