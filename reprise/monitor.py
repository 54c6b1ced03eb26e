"""`GET /health`, `/ready` and `/metrics` of the roles that serve nothing else: bridge and worker.

The documents and the rule of statuses are those of every role (`schemas.conditions`); the query API
serves the same under the same paths.

A bridge is monitored on its own loop, whose turns are short, so that its state is read where it is
written. A worker is monitored from a thread with a loop of its own, because loading a table can
hold the worker's loop for longer than whoever asks for its health waits.

A client can affect its own connection only: each is closed after one answer, or after
`MONITOR_REQUEST_S` without one, and there are at most `MONITOR_CONNECTIONS_MAX` of them; what all
HTTP servers bound is in `reprise.http`.
"""

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from query_api.http.health import package_version
from query_api.http.metrics import Exposition
from reprise.bounds import MONITOR_STOP_S
from reprise.http.connections import Connections
from reprise.http.handover import ConnectionsServer
from reprise.http.listening import bind
from reprise.http.monitor_settings import MonitorSettings
from reprise.http.tls import Tls
from schemas.conditions import Conditions, health_document, ready_document

# No client can hold the monitor up.
MONITOR_REQUEST_S: Final = 5.0  # a connection lasts no longer, answered or not
MONITOR_CONNECTIONS_MAX: Final = 64  # at once; the oldest idle one makes room for the next

logger = logging.getLogger(__name__)

_CLOSE: Final = {"connection": "close"}

Fields = Callable[[], Mapping[str, object]]


def monitor_app(
    role: str, conditions: Conditions, metrics: CollectorRegistry, fields: Fields
) -> Starlette:
    """The three routes.

    Args:
        role: its name, as in `reprise ROLE`.
        fields: what the role adds to `/health`; asked on the loop that serves.
    """
    version = package_version()
    exposition = Exposition(metrics)

    async def health(request: Request) -> Response:
        own = fields()  # first: a role may look at its conditions for it
        return _json(200, health_document(role, conditions.all(), version) | dict(own))

    async def ready(request: Request) -> Response:
        return _json(*ready_document(conditions.all()))

    async def families(request: Request) -> Response:
        content, kind = await exposition.answer(request.headers.get("accept", ""))
        return Response(content, headers=_CLOSE | {"content-type": kind})

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return Response("/health, /ready and /metrics are here\n", error.status_code, _CLOSE)

    return Starlette(
        routes=[Route("/health", health), Route("/ready", ready), Route("/metrics", families)],
        exception_handlers={HTTPException: refuse},
    )


def _json(status: int, document: dict[str, object]) -> Response:
    body = msgspec.json.encode(document)
    return Response(body, status, headers=_CLOSE, media_type="application/json")


def monitor_connections(lifetime_s: float = MONITOR_REQUEST_S) -> Connections:
    """Those of one monitor, each of which lasts so long at most, whatever is sent over it."""
    return Connections(connections_max=MONITOR_CONNECTIONS_MAX, lifetime_s=lifetime_s)


class _Server(ConnectionsServer):
    """A server that leaves signals to the role beside which it runs."""

    def __init__(
        self,
        app: ASGIApp,
        connections: Connections,
        tls: Tls | None,
        name: str = "The monitor",
    ) -> None:
        self._name = name
        connections.count_files()
        config = connections.configure(
            app, backlog=MONITOR_CONNECTIONS_MAX, timeout_graceful_shutdown=1
        )
        super().__init__(config, connections, None, tls)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield

    async def serve_until_exit(self, listening: socket.socket) -> None:
        """Serves until `should_exit`; an error is logged, and stops nothing else."""
        try:
            await self.serve([listening])
        except Exception:
            logger.exception("%s failed; the role continues without it", self._name)


class Listening(NamedTuple):
    """The monitor's socket, and how it is encrypted; None: it is not."""

    socket: socket.socket
    tls: Tls | None


def listening_of(settings: MonitorSettings) -> Listening | None:
    """Where a role is to be monitored; None: nowhere.

    Raises:
        ConfigurationError: the address cannot be bound, or the certificate not be used.
    """
    tls = None if settings.tls is None else Tls(settings.tls)
    if settings.port is None:
        return None
    listening = bind(settings.host, settings.port, option="--metrics-port")
    listening.listen(MONITOR_CONNECTIONS_MAX)  # whoever reads the line below may connect at once
    scheme = "http" if tls is None else "https"
    logger.info("Metrics on %s://%s:%d/metrics", scheme, *listening.getsockname()[:2])
    return Listening(listening, tls)


@contextlib.asynccontextmanager
async def monitored_here(
    app: ASGIApp, listening: Listening, connections: Connections
) -> AsyncIterator[None]:
    """Serves on the running loop for as long as the context is open."""
    server = _Server(app, connections, listening.tls)
    serving = asyncio.create_task(server.serve_until_exit(listening.socket))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait((serving,), timeout=MONITOR_STOP_S)
        listening.socket.close()


@contextlib.contextmanager
def monitored_beside(
    app: ASGIApp, listening: Listening, connections: Connections, *, name: str = "The monitor"
) -> Iterator[None]:
    """Serves on a thread of its own for as long as the context is open."""
    server = _Server(app, connections, listening.tls, name)
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve_until_exit(listening.socket)),
        name=name,
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(MONITOR_STOP_S)
        listening.socket.close()
