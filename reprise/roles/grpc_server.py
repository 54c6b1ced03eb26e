"""Runs gRPC beside a service."""

import os
from typing import TYPE_CHECKING

from query_api.ports import View
from reprise.http.tls import Tls
from reprise.http.tls_settings import TlsSettings
from reprise.roles.service import Service
from reprise.settings import AnsweringSettings
from schemas.tracing import NO_TRACER, Tracer

if TYPE_CHECKING:
    from query_api.grpc.credentials import GrpcTls
    from query_api.grpc.server import GrpcServer


class WithGrpc:
    """A service, and the gRPC server over its table."""

    def __init__(self, service: Service, server: "GrpcServer") -> None:
        self._service = service
        self._server = server

    def start(self) -> None:
        """See `reprise.roles.service.Service`."""
        self._service.start()
        self._server.start()

    def stop(self) -> None:
        """See `reprise.roles.service.Service`; calls end while there is a table."""
        self._server.stop()
        self._service.stop()


def as_grpc(tls: TlsSettings) -> "GrpcTls":
    """How gRPC is encrypted where HTTP is."""
    from query_api.grpc.credentials import GrpcTls

    files = Tls(tls)  # it knows which fit together

    def has_changed() -> bool:
        before = files.reloads
        files.look()
        return files.reloads != before

    return GrpcTls(tls.certificate, tls.key, tls.client_authority, has_changed)


def beside_grpc(
    service: Service,
    view: View,
    settings: AnsweringSettings,
    tracer: Tracer = NO_TRACER,
) -> Service:
    """The service with its gRPC server, or as it is where none is wanted.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    grpc, access = settings.grpc, settings.access
    if grpc is None:
        return service
    # The library writes to stderr what we say in better words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported here: it takes a tenth of a second that nobody needs who has it off.
    from query_api.grpc.server import GrpcServer

    guard = None
    if access.keys is not None and not grpc.is_insecure:
        guard = access.open_guard()
    server = GrpcServer(
        view,
        grpc,
        only_exact=settings.http.only_exact,
        guard=guard,
        tls=None if settings.tls is None else as_grpc(settings.tls),
        tracer=tracer,
    )
    view.metrics.register(server.counts)
    return WithGrpc(service, server)
