"""The table of the fold thread, as registrations see it."""

import asyncio
from collections.abc import Mapping

from reprise.embedded.fold_thread import FoldThread
from schemas.identities import PublisherKey
from schemas.positions import PublisherState
from schemas.registration import Registration


class FoldedTable:
    """Implements `bridge.membership.registrar.PublisherTable` over the fold of a thread."""

    def __init__(self, folding: FoldThread) -> None:
        self._folding = folding

    def registrations(self) -> Mapping[PublisherKey, Registration]:
        """See `PublisherTable`."""
        return {
            publisher: registered.registration
            for publisher, registered in self._folding.fold.registrations.items()
        }

    def state(self, publisher: PublisherKey) -> PublisherState | None:
        """See `PublisherTable`."""
        return self._folding.fold.publishers.get(publisher)

    async def folded(self) -> None:
        """See `PublisherTable`."""
        await asyncio.to_thread(self._folding.wait)
