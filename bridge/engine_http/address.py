"""Base URLs of engines' HTTP servers, as registrations name them. Pure."""

from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from schemas.errors import EndpointError
from schemas.limits import PORT_MAX, PUBLISHERS_MAX

_PORTS: Final = {"http": 80, "https": 443}


class BaseUrl(NamedTuple):
    """A base URL in its parts.

    Attributes:
        scheme: `http` or `https`.
        host: a name, or an address without brackets.
        path: before what is asked for, without a slash at its end; most often "".
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port, as a request names them and as they stand in an endpoint."""
        return f"{bracketed(self.host)}:{self.port}"


@lru_cache(PUBLISHERS_MAX)
def read_base_url(text: str) -> BaseUrl:
    """The parts of a base URL such as `http://10.0.0.7:8000`.

    Raises:
        EndpointError: it is none; a user, a query and a fragment have no place in it.
    """
    expected = "Expected a URL such as `http://10.0.0.7:8000`"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise EndpointError(f"{expected}, got: {text[:200]}") from error
    is_plain = text.isascii() and text.isprintable() and " " not in text
    is_base = not (parts.query or parts.fragment or parts.username or parts.password)
    if not is_plain or parts.scheme not in _PORTS or not host or not is_base:
        raise EndpointError(f"{expected}, got: {text[:200]}")
    if port is not None and not 0 < port <= PORT_MAX:
        raise EndpointError(f"Expected a port from 1 to {PORT_MAX}, got: {text[:200]}")
    return BaseUrl(parts.scheme, host, port or _PORTS[parts.scheme], parts.path.rstrip("/"))


def bracketed(host: str) -> str:
    """The host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
