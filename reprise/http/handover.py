"""Connections between the listener of plain queries and the server that knows all of HTTP.

Where queries can be answered without Python, the listener (`query_api.http.plain_listener`) has the
address, and gives the server what it does not answer itself. Here such a connection becomes one of
uvicorn's, with what has come of it. One whose last request was a query is given back once it waits
for the next one, within a second or so (`Connections.sweep`); one that came with a report, at once,
where the listener decides (`Connections.reported`).
"""

import asyncio
import logging
import socket
from collections import deque
from typing import Final

import uvicorn

from query_api.http.plain_listener import HandedOver, PlainAnswers
from reprise.http.connection import Connection
from reprise.http.connections import Connections
from reprise.http.tls import Tls
from reprise.http.tls_listener import TlsListener

HTTP_TAKEN_OVER_MAX: Final = 64  # connections that the listener hands over in one turn of the loop

logger = logging.getLogger(__name__)


class ConnectionsServer(uvicorn.Server):
    """uvicorn's, of one set of connections.

    Args:
        config: see `Connections.configure`.
        plain: what a listener without Python answers; None for no such listener.
        tls: of its address; there is no such listener then. None: it is not encrypted.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        plain: PlainAnswers | None,
        tls: Tls | None = None,
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._shaking: TlsListener | None = None
        self._connections = connections
        self._plain = plain
        self._handover: ConnectionHandover | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        if sockets is not None and self._tls is not None:
            await super().startup([])
            [listening] = sockets
            listening.listen(self.config.backlog)
            self._shaking = TlsListener(self._tls, listening, self._connections, self._make)
            return
        if self._plain is None or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        [listening] = sockets
        listening.listen(self.config.backlog)
        self._handover = ConnectionHandover(self._plain, listening, self._connections, self)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        if self._handover is not None:
            await self._handover.stop()
        if self._shaking is not None:
            await self._shaking.stop()
        await super().shutdown(sockets)

    def _make(self) -> Connection:
        return self._connections.make(self.config, self.server_state, self.lifespan.state)


class ConnectionHandover:
    """Of one server, on its loop."""

    def __init__(
        self,
        plain: PlainAnswers,
        listening: socket.socket,
        connections: Connections,
        server: uvicorn.Server,
    ) -> None:
        """Args:
        listening: a socket that listens; it is given up.
        server: which has started, and has no socket of its own.
        """
        self._connections = connections
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[HandedOver] = deque()
        self._taking: asyncio.Task[None] | None = None
        self._listener = plain.listen(
            listening.detach(),
            connections_max=connections.bound,
            descriptor_max=connections.descriptor_max,
        )
        connections.listener = self._listener
        connections.plain_paths = plain.paths
        connections.when_swept = plain.renew
        self._loop.add_reader(self._listener.bell, self._take)

    async def stop(self) -> None:
        """The listener accepts no more; what it has under way is the server's on return."""
        self._connections.listener = None
        self._loop.remove_reader(self._listener.bell)
        await asyncio.to_thread(self._listener.stop)
        self._take()
        if self._taking is not None:
            await self._taking

    def _take(self) -> None:
        self._waiting.extend(map(HandedOver._make, self._listener.take()))
        if self._taking is None:
            self._taking = self._loop.create_task(self._take_all())

    async def _take_all(self) -> None:
        """Some in each turn of the loop, so that what many have sent is not read all at once. In a
        turn each connection of the server may have a request answered: those that wait here for
        theirs must not have fewer turns.
        """
        while self._waiting:
            under_way = []
            for _ in range(min(len(self._waiting), HTTP_TAKEN_OVER_MAX)):
                handed = self._waiting.popleft()
                if handed.is_last or handed.received or handed.unsent:
                    under_way.append(self._take_over(handed))
                elif self._connections.has_room(handed.descriptor):
                    await self._take_over(handed)
                else:
                    self._listener.give(handed.descriptor, False, False)
            await asyncio.gather(*under_way)
        self._taking = None

    async def _take_over(self, handed: HandedOver) -> None:
        server = self._server

        def new() -> Connection:
            return self._connections.make(
                server.config, server.server_state, server.lifespan.state, handed=handed
            )

        stream = socket.socket(fileno=handed.descriptor)
        try:
            stream.setblocking(False)
            await self._loop.connect_accepted_socket(new, stream)
        except Exception as error:
            stream.close()
            if not isinstance(error, OSError):  # the client has gone
                logger.exception("Unexpected error while a connection was taken over; going on")
        except BaseException:
            stream.close()
            raise
