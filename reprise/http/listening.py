"""The socket that a server listens on."""

import socket

from schemas.causes import cause_of
from schemas.errors import ConfigurationError


def bind(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """The listening socket, bound first, so that a port in use is reported at once.

    Args:
        host: the address or name to listen on.
        port: 0 for any.
        option: the flag that chooses the port, named in the error.

    Raises:
        ConfigurationError: the address cannot be bound.
    """
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = infos[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {cause_of(error)}."
            f" Stop what listens there, or choose another port with {option}"
        ) from error
    listening.set_inheritable(True)
    return listening
