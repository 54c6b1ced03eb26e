"""Which addresses may be connected to: registrations come from whoever has the right to register.

By default those of this machine and of private networks. Never: link-local addresses and those
where clouds answer with a machine's secrets, multicast, and none at all. A name is judged when it
is looked up, by each address that it stands for then, and connected to by that address: what it
stands for a moment later changes nothing.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from socket import inet_aton
from typing import Final

from schemas.errors import AddressRefusedError, ConfigurationError
from schemas.limits import SETTING_SHOWN_CHARS_MAX

ALLOWED_ENGINES_MAX: Final = 1_000  # networks and names that may be registered

Address = IPv4Address | IPv6Address

METADATA: Final = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # most clouds
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google
        ),
    )
)


class AllowedEngines:
    """See the module. Set once, at the start; read by any thread.

    Attributes:
        refused: addresses, and names that stood for one, that were not connected to.
    """

    def __init__(self) -> None:
        self.refused = 0
        self._networks: tuple[IPv4Network | IPv6Network, ...] = ()
        self._names: tuple[str, ...] = ()

    def allow(self, patterns: Sequence[str]) -> None:
        """Allows these and no others; none: the default.

        Args:
            patterns: networks (`10.0.0.0/8`), addresses, and names of which `*` is any part
                (`*.engines.svc`).

        Raises:
            ConfigurationError: one of them is none of these.
        """
        if len(patterns) > ALLOWED_ENGINES_MAX:
            raise ConfigurationError(
                f"Expected at most {ALLOWED_ENGINES_MAX} networks and names in engines.allow, got"
                f" {len(patterns)}"
            )
        networks, names = [], []
        for pattern in patterns:
            try:
                networks.append(ip_network(pattern, strict=False))
            except ValueError as error:
                is_name = pattern.isascii() and pattern.isprintable() and "/" not in pattern
                if not is_name or ":" in pattern or " " in pattern or not pattern:
                    shown = pattern[:SETTING_SHOWN_CHARS_MAX]
                    raise ConfigurationError(
                        "Expected networks as `10.0.0.0/8` and names as `*.engines.svc` in"
                        f" engines.allow, got: {shown!r}"
                    ) from error
                names.append(pattern.lower())
        self._networks, self._names = tuple(networks), tuple(names)

    def check(self, host: str, name: str = "") -> None:
        """Accepts a host that is a name, which is judged when it is looked up, and an address that
        may be connected to.

        Args:
            host: a name or an address, of IPv6 with brackets or without.
            name: that stands for the address; "" where it was named itself.

        Raises:
            AddressRefusedError: it may not.
        """
        address = _read(host)
        if address is None:
            if is_short(host):
                self.refused += 1
                raise AddressRefusedError(
                    f"Expected an address in full, as 127.0.0.1, or a name, got: {host[:80]}"
                )
            return
        shown = f"{name[:80]}, which is {address}" if name else str(address)
        if address in METADATA or address.is_link_local:
            self.refused += 1
            raise AddressRefusedError(
                f"Expected the address of an engine, got {shown}: link-local addresses and those of"
                " metadata services are never connected to"
            )
        if address.is_unspecified or address.is_multicast:
            self.refused += 1
            raise AddressRefusedError(
                f"Expected the address of an engine, got {shown}, which is no single machine's"
            )
        if not self._admits(address, name):
            self.refused += 1
            raise AddressRefusedError(
                f"Expected an engine in the networks that are allowed, got {shown}: engines.allow"
                " names them; without it they are this machine and private networks"
            )

    def _admits(self, address: Address, name: str) -> bool:
        if not self._networks and not self._names:
            return not address.is_global
        if any(address in network for network in self._networks):
            return True
        name = name.lower().rstrip(".")
        return bool(name) and any(fnmatchcase(name, pattern) for pattern in self._names)


def is_short(host: str) -> bool:
    """Whether the system takes it for an address of IPv4 though it is none as others write it:
    `127.1`, `0x7f000001`, `2130706433`. One address would have many names.
    """
    try:
        inet_aton(host)
    except (OSError, ValueError):
        return False
    return " " not in host


def _read(host: str) -> Address | None:
    """The address; that of IPv4 which one of IPv6 only wraps. None for a name."""
    try:
        found = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


ALLOWED: Final = AllowedEngines()
"""Those of this process."""
