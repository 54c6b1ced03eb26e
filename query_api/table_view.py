"""The part of `query_api.ports.View` that every form answers from its table in the same way."""

from collections.abc import Callable, Iterable, Mapping

from query_api.ports import Positions, ServiceView
from schemas.identities import PublisherKey
from schemas.positions import PublisherState
from schemas.registration import Registration
from streams.kernel.interface import ReadOnlyKernel


class TableView:
    """A table as the HTTP API reads it; `state` and `health` are the form's own.

    The arguments are called each time, because recovery and a new snapshot replace the table.

    Args:
        kernel: the index that answers queries.
        publishers: what is folded of each publisher.
        registrations: who is registered, in a collection that is never changed.
        positions: what the table has folded, by rising partition.
        connected: whether the link to a publisher is up; None where this process cannot know.
    """

    def __init__(
        self,
        *,
        kernel: Callable[[], ReadOnlyKernel],
        publishers: Callable[[], Mapping[PublisherKey, PublisherState]],
        registrations: Callable[[], Iterable[Registration]],
        positions: Callable[[], Positions],
        connected: Callable[[PublisherKey], bool | None] = lambda publisher: None,
    ) -> None:
        self._kernel = kernel
        self._publishers = publishers
        self._registrations = registrations
        self._positions = positions
        self._connected = connected

    @property
    def kernel(self) -> ReadOnlyKernel:
        """See `query_api.ports.View`."""
        return self._kernel()

    def positions(self) -> Positions:
        """See `query_api.ports.View`."""
        return self._positions()

    def services(self) -> list[ServiceView]:
        """See `query_api.ports.View`."""
        views = map(self._view, self._registrations())
        return sorted(views, key=lambda view: view.registration.service_key)

    def _view(self, registration: Registration) -> ServiceView:
        publisher = registration.publisher
        state = self._publishers().get(publisher, PublisherState())
        return ServiceView(registration, state, self._connected(publisher))
