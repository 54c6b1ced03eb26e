"""LMCache's coordinator, served at an address of its own, on a thread and a loop of its own."""

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from reprise.http.connections import Connections
from reprise.http.listening import bind
from reprise.monitor import Listening, monitored_beside
from reprise.roles.service import Service

if TYPE_CHECKING:
    from reprise.rooms import LmcacheParts

COORDINATOR_CONNECTIONS_MAX: Final = 2048  # at once; the oldest idle one makes room for the next
"""A server has two or three of them: events, heartbeats, and the list of its peers."""

logger = logging.getLogger(__name__)


class CoordinatorServer:
    """Binds at once.

    Raises:
        ConfigurationError: the address cannot be bound.
    """

    def __init__(self, parts: "LmcacheParts") -> None:
        assert parts.coordinator is not None, "there is one"
        wanted = parts.coordinator.settings
        self._app = parts.coordinator_app()
        self._listening = bind(wanted.host, wanted.port, option="lmcache.coordinator")

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Answers for as long as the context is open."""
        connections = Connections(connections_max=COORDINATOR_CONNECTIONS_MAX)
        listening = Listening(self._listening, None)
        listening.socket.listen(COORDINATOR_CONNECTIONS_MAX)
        name = "LMCache's coordinator"
        host, port = self._listening.getsockname()[:2]
        with monitored_beside(self._app, listening, connections, name=name):
            logger.info("%s listens on http://%s:%d", name, host, port)
            yield

    def close(self) -> None:
        """Gives the address up; for a service that could not be made."""
        self._listening.close()


def coordinator_of(parts: "LmcacheParts | None") -> CoordinatorServer | None:
    """That of a role; None where it is no coordinator. Raises as the server does."""
    if parts is None or parts.coordinator is None:
        return None
    return CoordinatorServer(parts)


class WithCoordinator:
    """A service, and what is served of LMCache's coordinator while it runs."""

    def __init__(self, service: Service, server: CoordinatorServer) -> None:
        self._service = service
        self._server = server
        self._open = contextlib.ExitStack()

    def start(self) -> None:
        """See `reprise.roles.service.Service`."""
        self._service.start()
        self._open.enter_context(self._server.serving())

    def stop(self) -> None:
        """See `reprise.roles.service.Service`; requests end while there is a loop to ask."""
        self._open.close()
        self._service.stop()
