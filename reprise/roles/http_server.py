"""Runs a service: binds the address, starts what is beside it, serves HTTP, stops in order."""

import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from query_api.access.guard import Guard
from query_api.access.settings import AccessSettings
from query_api.grpc.settings import GrpcSettings
from query_api.http.plain_listener import PlainAnswers
from reprise.application import create_app
from reprise.embedded.service import ROLE, EmbeddedService
from reprise.http.connections import Connections
from reprise.http.handover import ConnectionsServer
from reprise.http.listening import bind
from reprise.http.open_files import raise_open_files_limit
from reprise.http.tls import Tls
from reprise.http.tls_settings import TlsSettings
from reprise.metrics.roles import embedded_collector, http_collector, tracing_collector
from reprise.roles.grpc_server import beside_grpc
from reprise.roles.leaving import Leaving
from reprise.roles.service import Service
from reprise.settings import Settings
from reprise.tracing.opening import Tracing, tracing_of
from schemas.errors import ConfigurationError
from schemas.limits import HTTP_BACKLOG, HTTP_GRACE_S, LISTENER_CONNECTIONS_MIN
from schemas.registration import Registration

PID_FILE: Final = "pid"
"""In the data directory: the id of the process that serves it, or that was killed."""

logger = logging.getLogger(__name__)


class _Server(ConnectionsServer):
    """Calls back once it accepts connections, and when a signal asks it to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        connections: Connections,
        plain: PlainAnswers | None,
        tls: Tls | None,
        *,
        when_serving: Callable[[], None],
        when_stopping: Callable[[], None],
        begin: Callable[[], None],
        end_streams: Callable[[], None],
        leaving: Leaving | None,
    ) -> None:
        super().__init__(config, connections, plain, tls)
        self._begin = begin
        self._when_serving = when_serving
        self._when_stopping = when_stopping
        self._end_streams = end_streams
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `uvicorn.Server`."""
        if sig == signal.SIGTERM and self._leaving is not None and not self.should_exit:
            self._leaving.begin(self._end)
            return
        self._when_stopping()
        super().handle_exit(sig, frame)

    def _end(self) -> None:
        self._when_stopping()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        if self.started:
            self._begin()
            self._when_serving()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        self._end_streams()
        await super().shutdown(sockets)


class Server:
    """One HTTP server over one service: binds at once, serves until SIGINT or SIGTERM.

    Attributes:
        connections: its clients'.
        port: that it listens on.
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
        leaving: Leaving | None = None,
    ) -> None:
        """Starts the service, serves the app, stops the service.

        Args:
            app: the HTTP application; what it has as `plain` is answered without Python.
            service: what runs beside it.
            when_serving: called with the base URL once requests are accepted.
            when_stopping: called as soon as a signal comes, before requests are refused.
            leaving: what SIGTERM waits for; None: for nothing.
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
            when_serving=lambda: when_serving(self.base_url),
            when_stopping=when_stopping,
            begin=getattr(app, "begin", lambda: None),
            end_streams=getattr(app, "end_streams", lambda: None),
            leaving=leaving,
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


def guard_of(access: AccessSettings, host: str, grpc: GrpcSettings | None) -> Guard:
    """What stands before the routes of a service that listens there.

    Raises:
        ConfigurationError: strangers would be answered, or the file of keys cannot be read.
    """
    access.check_host(host, "--host")
    if grpc is not None and not grpc.is_insecure:
        access.check_host(grpc.host, "the host of --grpc")
    return access.open_guard()


def serve(
    settings: Settings,
    registrations: Sequence[Registration] = (),
    *,
    when_serving: Callable[[str], None] = lambda base_url: None,
    when_stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serves the embedded service until SIGINT or SIGTERM.

    Args:
        settings: what to run with.
        registrations: publishers to follow beside those in the log.
        when_serving: called with the base URL once requests are accepted.
        when_stopping: called as soon as a signal comes, before requests are refused.

    Raises:
        ConfigurationError: the address cannot be bound, or spans not be sent as is asked for.
        StorageError: the data directory cannot be opened, or its log is damaged.
    """
    with tracing_of(os.environ, ROLE) as tracing:
        _serve(settings, registrations, tracing, when_serving, when_stopping)


def _serve(
    settings: Settings,
    registrations: Sequence[Registration],
    tracing: Tracing,
    when_serving: Callable[[str], None],
    when_stopping: Callable[[], None],
) -> None:
    guard = guard_of(settings.access, settings.host, settings.grpc)
    server = Server(settings.host, settings.port, settings.tls)
    try:
        service = EmbeddedService(settings, on_damage=server.end, tracer=tracing.tracer)
        service.metrics.register(embedded_collector(service))
        service.metrics.register(http_collector(server.connections))
        service.metrics.register(tracing_collector(tracing.counts))
    except BaseException:
        server.close()
        raise
    try:
        beside = beside_grpc(
            service,
            service,
            settings.grpc,
            settings.access,
            settings.tls,
            only_exact=settings.only_exact,
            tracer=tracing.tracer,
        )
    except ConfigurationError:
        service.stop()
        server.close()
        raise
    service.register_configured(registrations)
    pid_file = settings.data / PID_FILE
    _note_pid(pid_file)
    logger.info(
        "Listening on %s, data in %s, %s kernel",
        server.base_url,
        settings.data,
        service.kernel.name,
    )
    lmcache = service.lmcache
    server.run(
        create_app(
            service,
            service,
            default_wire=settings.default_wire,
            only_exact=settings.only_exact,
            history=service.history,
            audit=service.audit_queue,
            workers=lmcache,
            router=service.router,
            commands=None if lmcache is None else lmcache.commands,
            select_service=settings.select_service,
            acting=None if lmcache is None else lmcache.actor,
            guard=guard,
            tracer=tracing.tracer,
        ),
        beside,
        when_serving=when_serving,
        when_stopping=when_stopping,
    )
    with suppress(OSError):
        pid_file.unlink()
    if service.damage is not None:
        raise service.damage


def _note_pid(path: Path) -> None:
    """For people and scripts that end this process and no other."""
    try:
        path.write_text(f"{os.getpid()}\n")
    except OSError as error:
        logger.warning("Cannot write the process id to %s: %s; going on without", path, error)
