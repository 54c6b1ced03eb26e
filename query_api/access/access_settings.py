"""Who may ask, as an operator says it."""

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from query_api.access.guard import Guard
from query_api.access.key_ring import KeyRing
from query_api.bounds import KEY_RATE_MAX
from schemas.errors import ConfigurationError
from schemas.setting import Setting, part, setting

INSECURE: Final = Setting(
    "access.insecure",
    "Listen beyond loopback without keys: all who reach the address may ask, and change what is"
    " followed.",
    flag="--insecure",
    is_usual=True,
)


@part
class AccessSettings:
    """What `--keys` and the settings beside it say."""

    keys: Path | None = setting(
        "access.keys",
        "The file of keys, of which every request must have one; read again when it changes."
        " `reprise keys add` makes it.  [default: none, and loopback only]",
        flag="--keys",
        is_usual=True,
        path="file",
        default=None,
    )
    is_insecure: bool = setting(INSECURE, default=False)
    address_rate: float | None = setting(
        "access.rate_per_address",
        "Requests a second of one address.  [default: as many as there are]",
        flag="--rate-per-address",
        bounds=(0.1, KEY_RATE_MAX),
        default=None,
    )
    opens_probes: bool = setting(
        "access.open_probes",
        "Say at /health and /ready to callers without a key whether the service is up, and"
        " nothing else; to loopback it always does.",
        flag="--open-probes",
        default=False,
    )

    def check_host(self, host: str, option: str) -> None:
        """Raises ConfigurationError where that address would answer strangers.

        Args:
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
