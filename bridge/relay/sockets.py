"""The sockets that a relay binds, which encrypt."""

from typing import Final

import zmq

from bridge.bounds import LINK_CONNECT_MS, LINK_DEAD_MS, LINK_UNANSWERED_MS
from bridge.sockets.curve import KeyPair
from bridge.sockets.endpoints import split_endpoint
from schemas.errors import ConfigurationError
from schemas.limits import KIB, LINK_HEARTBEAT_MS

RELAY_REQUEST_BYTES_MAX: Final = 1 * KIB  # of a frame of a bridge: a request has 8

ZAP_DOMAIN = "reprise"
"""Under which the relay's sockets ask ZAP (RFC 27) who may connect; without one libzmq asks
nobody.
"""


def open_bound(
    context: "zmq.Context[zmq.Socket[bytes]]", kind: int, pair: KeyPair
) -> "zmq.Socket[bytes]":
    """A socket of the relay's, not bound yet.

    Raises:
        zmq.ZMQError: no socket is left.
    """
    socket = context.socket(kind)
    socket.curve_server = True
    socket.curve_secretkey = pair.secret
    socket.zap_domain = ZAP_DOMAIN.encode()
    socket.linger = 0
    socket.maxmsgsize = RELAY_REQUEST_BYTES_MAX  # bridges subscribe and ask, and say no more
    socket.ipv6 = True
    # Whoever has connected and says nothing, or no more, is dropped with what waits for it.
    socket.handshake_ivl = LINK_CONNECT_MS
    socket.heartbeat_ivl = LINK_HEARTBEAT_MS
    socket.heartbeat_timeout = LINK_UNANSWERED_MS
    socket.tcp_maxrt = LINK_DEAD_MS
    return socket


def check_bindable(context: "zmq.Context[zmq.Socket[bytes]]", address: str, pair: KeyPair) -> None:
    """Binds the address once, and lets it go.

    Raises:
        ConfigurationError: it cannot be bound.
    """
    with open_bound(context, zmq.PUB, pair) as socket:
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            host, port = split_endpoint(address)
            raise ConfigurationError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Stop what listens there,"
                " or choose another address with --listen"
            ) from error
