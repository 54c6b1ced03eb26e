"""The gRPC server: on a thread and a loop of its own, so that neither waits for the other's
requests: gRPC's for HTTP's, or HTTP's for gRPC's.
"""

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Final

import grpc.aio

from query_api.access.guard import Guard
from query_api.grpc.bounds import (
    GRPC_CALLS_MAX,
    GRPC_CONNECTION_CALLS_MAX,
    GRPC_MESSAGE_BYTES_MAX,
    GRPC_WRITE_S,
)
from query_api.grpc.calls import Calls
from query_api.grpc.counts import GrpcCounts
from query_api.grpc.credentials import GrpcTls, server_credentials
from query_api.grpc.grpc_settings import GrpcSettings
from query_api.grpc.key_check import KeyCheck
from query_api.ports import View
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.tracing import NO_TRACER, Tracer

GRPC_CONNECTIONS_MAX: Final = 256  # that are open
GRPC_KEEPALIVE_S: Final = 60.0  # without a message; a peer that answers no ping is gone
GRPC_IDLE_S: Final = 600.0  # a connection without a call is closed
GRPC_GRACE_S: Final = 1.0  # for the calls under way, at the end
GRPC_START_S: Final = 10.0  # for the thread to bind, and to end

logger = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # else two servers could have one port
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", GRPC_CONNECTION_CALLS_MAX),
    ("grpc.max_allowed_incoming_connections", GRPC_CONNECTIONS_MAX),
    ("grpc.max_connection_idle_ms", int(1000 * GRPC_IDLE_S)),
    ("grpc.keepalive_time_ms", int(1000 * GRPC_KEEPALIVE_S)),
    ("grpc.keepalive_timeout_ms", int(1000 * GRPC_WRITE_S)),
)


class GrpcServer:
    """One server over one table; binds at once, answers from `start` on.

    Attributes:
        address: that it listens on, HOST:PORT.
        counts: of its calls, for the metrics.
    """

    def __init__(
        self,
        view: View,
        settings: GrpcSettings,
        *,
        only_exact: bool = False,
        guard: Guard | None = None,
        tls: GrpcTls | None = None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Args:
        only_exact: whether publishers are left out that are not `exact`.
        guard: who may ask; this server's alone. None: everybody.
        tls: how it is encrypted; None: it is not.

        Raises:
            ConfigurationError: the address cannot be bound.
        """
        self._credentials = None if tls is None else server_credentials(tls)
        self._checks = () if guard is None else (KeyCheck(guard, settings.tenant_id),)
        self.counts = GrpcCounts()
        self._calls = Calls(view, self.counts, settings, only_exact=only_exact, tracer=tracer)
        self._begun = asyncio.Event()
        self._stopping = asyncio.Event()
        bound: Future[tuple[asyncio.AbstractEventLoop, str]] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(settings, bound)),
            name="reprise-grpc",
            daemon=True,
        )
        self._thread.start()
        self._loop, self.address = bound.result(GRPC_START_S)

    def start(self) -> None:
        """Begins to answer; returns at once."""
        self._loop.call_soon_threadsafe(self._begun.set)
        logger.info("Answering gRPC on %s", self.address)

    def stop(self) -> None:
        """Ends the calls under way within a bound, and gives the address up."""
        self._loop.call_soon_threadsafe(self._end)
        self._thread.join(GRPC_START_S)

    def _end(self) -> None:
        self._stopping.set()
        self._begun.set()

    async def _serve(
        self, settings: GrpcSettings, bound: "Future[tuple[asyncio.AbstractEventLoop, str]]"
    ) -> None:
        server = grpc.aio.server(
            options=_OPTIONS, interceptors=self._checks, maximum_concurrent_rpcs=GRPC_CALLS_MAX
        )
        server.add_generic_rpc_handlers(self._calls.handlers())
        host, port = settings.listen
        host = f"[{host}]" if ":" in host else host
        try:
            address = f"{host}:{port}"
            if self._credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            bound.set_exception(
                ConfigurationError(
                    f"Cannot listen on {host}:{port}. Stop what listens there, or"
                    f" choose another address with --grpc: {cause_of(error)}"
                )
            )
            return
        bound.set_result((asyncio.get_running_loop(), f"{host}:{port}"))
        await self._begun.wait()
        await server.start()
        await self._stopping.wait()
        await server.stop(GRPC_GRACE_S)
