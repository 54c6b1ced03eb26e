"""Who may ask, as an operator says it."""

import socket
from ipaddress import ip_address
from pathlib import Path

import msgspec

from query_api.access.guard import Guard
from query_api.access.key_ring import KeyRing
from schemas.errors import ConfigurationError


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `--keys` and the options beside it say.

    Attributes:
        keys: the file of keys; None: whoever reaches the address may ask.
        address_rate: requests a second of one address; None: as many as there are.
        opens_probes: whether anybody may ask `/health` and `/ready` whether the service is up.
        is_insecure: whether it may listen beyond loopback without keys.
    """

    keys: Path | None = None
    address_rate: float | None = None
    opens_probes: bool = False
    is_insecure: bool = False

    def check_host(self, host: str, option: str) -> None:
        """Raises ConfigurationError where that address would answer strangers.

        Args:
            host: to listen on.
            option: that names it, for the error.
        """
        if self.keys is None:
            remedy = "give --keys FILE (`reprise keys add` makes one), or --insecure"
            check_loopback(host, option, self.is_insecure, remedy)

    def open_guard(self) -> Guard:
        """What stands before the routes.

        Raises:
            ConfigurationError: the file of keys cannot be read, or is wrong.
        """
        ring = None if self.keys is None else KeyRing(self.keys)
        return Guard(ring, address_rate=self.address_rate, opens_probes=self.opens_probes)


def check_loopback(
    host: str, option: str, is_insecure: bool, remedy: str = "give --insecure"
) -> None:
    """Raises ConfigurationError where the address is reached from elsewhere, and nobody said that
    it may be.

    Args:
        host: to listen on.
        option: that names it.
        is_insecure: whether somebody said so.
        remedy: what to do, for the error.
    """
    if is_insecure or _is_loopback(host):
        return
    raise ConfigurationError(
        f"Expected a loopback address as {option}, got: {host}. To listen beyond loopback,"
        f" {remedy} where only its users reach it"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False  # what listens there says what is wrong with it
    return bool(host) and all(ip_address(str(one[4][0])).is_loopback for one in found)
