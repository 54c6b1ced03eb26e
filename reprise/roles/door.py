"""The gateway's addresses, served on the loop of the HTTP server beside it."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from query_api.access.guard import Guard
from query_api.ports import PublisherRegistry, View
from reprise import rooms
from reprise.bounds import HTTP_GRACE_S
from reprise.http.connections import Connections
from reprise.http.handover import ConnectionsServer
from reprise.http.listening import bind
from reprise.http.tls import Tls
from reprise.http.tls_settings import TlsSettings
from reprise.roles.grpc_server import as_grpc
from reprise.settings import AnsweringSettings
from routing.decisions.router import Router
from schemas.limits import SHUTDOWN_S
from tokens.interface import PromptTokenizer

if TYPE_CHECKING:
    from reprise.rooms import Gateway

GATEWAY_GRACE_S: Final = 4  # for the answers under way, at the end; whole seconds
GATEWAY_BACKLOG: Final = 2048  # connections that are not accepted yet; the system refuses more

assert GATEWAY_GRACE_S + HTTP_GRACE_S < SHUTDOWN_S, "both servers end before the process is killed"

logger = logging.getLogger(__name__)


class _Server(ConnectionsServer):
    """A server that leaves signals to the one beside it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield


class Door:
    """See the module.

    Args:
        listening: a bound socket; None: it answers nowhere, and registers engines alone.
        tls: how it is encrypted; None: it is not.
        picking: a socket bound for the endpoint picker; None: it picks for nobody.
    """

    def __init__(
        self,
        gateway: "Gateway",
        listening: socket.socket | None,
        tls: TlsSettings | None,
        picking: socket.socket | None = None,
    ) -> None:
        self.gateway = gateway
        self.connections = Connections(ends_at_eof=True)
        gateway.refused = self.connections.refused
        self._listening = listening
        self._picking = picking
        self._picker_tls = None if tls is None or picking is None else as_grpc(tls)
        self._tls = None if tls is None or listening is None else Tls(tls)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        if listening is not None:
            host, port = listening.getsockname()[:2]
            authority = f"[{host}]" if ":" in host else host
            gateway.address = f"{'http' if tls is None else 'https'}://{authority}:{port}"

    async def open(self) -> None:
        """Begins to answer; on the loop."""
        await self.gateway.open()
        if self._picking is not None:
            await self.gateway.open_picker(self._picking, self._picker_tls)
        if self._listening is None:
            return
        self._listening.listen(GATEWAY_BACKLOG)  # whoever reads that it serves, may connect at once
        self.connections.count_files()
        self.connections.bound = max(self.connections.bound // 2, 1)  # each has one to an engine
        config = self.connections.configure(
            self.gateway.endpoint,
            backlog=GATEWAY_BACKLOG,
            timeout_graceful_shutdown=GATEWAY_GRACE_S,
            date_header=False,  # the engine's is passed on
        )
        self._server = _Server(config, self.connections, None, self._tls)
        self._serving = asyncio.create_task(self._server.serve([self._listening]))
        logger.info("The gateway listens on %s", self.gateway.address)

    async def close(self, *, is_forced: Callable[[], bool]) -> None:
        """Accepts no more, and ends once what is under way is answered, or GATEWAY_GRACE_S are
        over; at once, where it is forced.
        """
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            while not self._serving.done():
                self._server.force_exit = is_forced()
                await asyncio.wait([self._serving], timeout=0.1)
        await self.gateway.close(is_forced=is_forced())


def open_door(
    settings: AnsweringSettings,
    view: View,
    registry: PublisherRegistry,
    router: Router,
    tokenizer: PromptTokenizer,
    guard: Guard,
) -> Door | None:
    """The gateway of a service, with its address bound; None where there is to be none.

    Raises:
        ConfigurationError: the address cannot be bound, or strangers would be answered.
    """
    room, wanted, access = rooms.gateway(), settings.gateway, settings.access
    if room is None or not wanted.is_on:
        return None
    with contextlib.ExitStack() as closing:
        listening = picking = picker_guard = None
        if wanted.listen is not None:
            if not wanted.is_insecure:
                access.check_host(wanted.listen.host, f"the host of {wanted.option}")
            listening = bind(*wanted.listen, option=wanted.option)
            closing.callback(listening.close)
        if wanted.picker is not None:
            if not wanted.is_picker_insecure:
                access.check_host(wanted.picker.host, "the host of --ext-proc")
                picker_guard = guard
            picking = bind(*wanted.picker, option="--ext-proc")
            closing.callback(picking.close)
        gateway = room.gateway(wanted, view, registry, router, tokenizer, guard, picker_guard)
        door = Door(gateway, listening, settings.tls, picking)
        closing.pop_all()
    return door
