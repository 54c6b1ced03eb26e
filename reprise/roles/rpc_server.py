"""Runs Conductor's RPC beside a service."""

import socket
from typing import Final

from starlette.types import ASGIApp

from query_api.access.rights import OPEN, Access, Right
from query_api.ports import View
from query_api.rpc.conductor import Conductor
from query_api.rpc.counts import RpcCounts
from query_api.rpc.in_process import InProcess
from query_api.rpc.server import RpcServer
from reprise.http.listening import bind
from reprise.settings import AnsweringSettings
from schemas.errors import ConfigurationError

OPTION: Final = "--conductor-rpc"

KEYLESS: Final = Access(rights=frozenset({Right.QUERY, Right.READ, Right.REGISTER}))
"""Of clients without a key, where others need one: what the five methods do, of all tenants."""


def check_rpc(settings: AnsweringSettings) -> None:
    """Raises ConfigurationError where it would answer strangers."""
    rpc = settings.conductor_rpc
    if rpc is None or rpc.is_insecure:
        return
    has = "keys" if settings.access.keys is not None else "TLS" if settings.tls is not None else ""
    if has:
        raise ConfigurationError(
            f"Expected conductor_rpc.insecure beside {OPTION} where the service has {has}, got:"
            " false. Clients of Conductor's RPC have no place for keys or TLS: set"
            " conductor_rpc.insecure where only its users reach the address"
        )
    settings.access.check_host(rpc.listen.host, f"the host of {OPTION}")


def bind_rpc(settings: AnsweringSettings) -> socket.socket | None:
    """Its address, bound; None where none is wanted.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    rpc = settings.conductor_rpc
    return None if rpc is None else bind(*rpc.listen, option=OPTION)


def rpc_doors(
    listening: socket.socket | None, app: ASGIApp, view: View, settings: AnsweringSettings
) -> tuple[RpcServer, ...]:
    """The server at that address, over the application and its table; none without an address."""
    if listening is None:
        return ()
    counts = RpcCounts()
    view.metrics.register(counts)
    access = OPEN if settings.access.keys is None else KEYLESS
    return (RpcServer(listening, Conductor(InProcess(app, access), view), counts),)
