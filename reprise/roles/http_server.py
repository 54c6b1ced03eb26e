"""Runs a service: binds the address, starts what is beside it, serves HTTP, stops in order."""

import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Final, NamedTuple, Protocol

import uvicorn
from starlette.types import ASGIApp

from query_api.access.guard import Guard
from query_api.http.plain_listener import PlainAnswers
from reprise.bounds import HTTP_GRACE_S
from reprise.http.connections import Connections
from reprise.http.handover import ConnectionsServer
from reprise.http.listening import bind
from reprise.http.open_files import raise_open_files_limit
from reprise.http.tls import Tls
from reprise.http.tls_settings import TlsSettings
from reprise.roles.leaving import ReplicaLeave
from reprise.roles.rpc_server import check_rpc
from reprise.roles.service import Service
from reprise.settings import AnsweringSettings
from schemas.limits import OPEN_FILES_MAX

LISTENER_CONNECTIONS_MIN: Final = 256  # where fewer may be open, there is no listener
HTTP_BACKLOG: Final = 2048  # connections that are not accepted yet; the system refuses more

assert HTTP_BACKLOG < OPEN_FILES_MAX, "every connection that waits takes a descriptor"


def _tell_nothing() -> None:
    """What is told where an app has nothing to begin or to end."""


class Door(Protocol):
    """Another address on the loop of the HTTP server."""

    async def open(self) -> None:
        """Begins to answer, before the HTTP server says that it serves."""
        ...

    async def close(self, *, is_forced: Callable[[], bool]) -> None:
        """Ends within a bound, before the HTTP server does; at once, where it is forced."""
        ...


class _Moments(NamedTuple):
    """What is called in the life of a server.

    Attributes:
        serving: once it accepts connections, in this order.
        stopping: when a signal comes, before requests are refused.
        shutdown: when it begins to end, on its loop.
    """

    serving: Sequence[Callable[[], None]]
    stopping: Callable[[], None]
    shutdown: Callable[[], None]


class _Server(ConnectionsServer):
    """Calls back once it accepts connections, and when a signal asks it to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        plain: PlainAnswers | None,
        tls: Tls | None,
        told: _Moments,
        leaving: ReplicaLeave | None,
        doors: Sequence[Door],
    ) -> None:
        super().__init__(config, connections, plain, tls)
        self._doors = doors
        self._told = told
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        if sig == signal.SIGTERM and self._leaving is not None and not self.should_exit:
            self._leaving.begin(self._end)
            return
        self._told.stopping()
        super().handle_exit(sig, frame)

    def _end(self) -> None:
        self._told.stopping()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        for door in self._doors:
            await door.open()
        if self.started:
            for tell in self._told.serving:
                tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        for door in self._doors:
            await door.close(is_forced=lambda: self.force_exit)
        self._told.shutdown()
        await super().shutdown(sockets)


class Server:
    """One HTTP server over one service: binds at once, serves until SIGINT or SIGTERM.

    Attributes:
        base_url: where it answers.
    """

    def __init__(self, host: str, port: int, tls: TlsSettings | None = None) -> None:
        """Args:
        host: the address or name to listen on.
        port: 0 for any.
        tls: None: it is not encrypted.

        Raises:
            ConfigurationError: the address cannot be bound, or the certificate not be used.
        """
        raise_open_files_limit()
        self._tls = None if tls is None else Tls(tls)
        self.connections = Connections()
        self._listening = bind(host, port)
        self._server: _Server | None = None
        bound_host, self.port = self._listening.getsockname()[:2]
        authority = f"[{bound_host}]" if ":" in bound_host else bound_host
        scheme = "http" if tls is None else "https"
        self.base_url = f"{scheme}://{authority}:{self.port}"

    def close(self) -> None:
        """Gives the address up; for a service that could not be made."""
        self._listening.close()

    def run(
        self,
        app: ASGIApp,
        service: Service,
        *,
        when_serving: Callable[[str], None] = lambda base_url: None,
        when_stopping: Callable[[], None] = lambda: None,
        leaving: ReplicaLeave | None = None,
        doors: Sequence[Door] = (),
    ) -> None:
        """Starts the service, serves the app, stops the service.

        Args:
            app: the HTTP application; what it has as `plain` is answered without Python.
            when_serving: called with the base URL once requests are accepted.
            when_stopping: called as soon as a signal comes, before requests are refused.
            leaving: what SIGTERM waits for; None: for nothing.
            doors: other addresses on the same loop, whose answers end first, in this order.
        """
        self.connections.count_files()
        config = self.connections.configure(
            app, backlog=HTTP_BACKLOG, timeout_graceful_shutdown=HTTP_GRACE_S
        )
        # Connections that are handed over, and those let in meanwhile, need some room.
        has_room = self.connections.bound >= LISTENER_CONNECTIONS_MIN
        self._server = _Server(
            config,
            self.connections,
            getattr(app, "plain", None) if has_room and self._tls is None else None,
            self._tls,
            _Moments(
                serving=(
                    getattr(app, "begin", _tell_nothing),
                    partial(when_serving, self.base_url),
                ),
                stopping=when_stopping,
                shutdown=getattr(app, "end_streams", _tell_nothing),
            ),
            leaving,
            doors,
        )
        service.start()
        # uvicorn re-raises a signal once it has stopped: by then these are the handlers.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._server.handle_exit)
        if self._tls is not None:
            signal.signal(signal.SIGHUP, self._reload)
        try:
            self._server.run(sockets=[self._listening])
        finally:
            service.stop()
            self._listening.close()

    def _reload(self, _signal: int, _frame: FrameType | None) -> None:
        if self._tls is not None:
            self._tls.reload()

    def end(self) -> None:
        """Has `run` stop and return, as a signal would; may be called from any thread."""
        if self._server is not None:
            self._server.should_exit = True


def guard_of(settings: AnsweringSettings) -> Guard:
    """What stands before the routes of a service that listens at its host.

    Raises:
        ConfigurationError: strangers would be answered, or the file of keys cannot be read.
    """
    access, grpc = settings.access, settings.grpc
    access.check_host(settings.host, "--host")
    if grpc is not None and not grpc.is_insecure:
        access.check_host(grpc.listen.host, "the host of --grpc")
    check_rpc(settings)
    return access.open_guard()
