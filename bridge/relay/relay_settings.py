"""What a relay is started with."""

from pathlib import Path
from typing import Final

import msgspec

from bridge.sockets.endpoints import check_endpoint, split_endpoint
from schemas.errors import ConfigurationError, EndpointError
from schemas.limits import PORT_MAX

RELAY_ENGINES_MAX: Final = 64  # of one relay: the ranks of the engines on its host


class RelayedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher, and where bridges find it.

    Attributes:
        endpoint: ZMQ address of its PUB socket.
        listen: where the relay binds a PUB socket in its place.
        replay_endpoint: of its ROUTER socket, or "".
        listen_replay: where the relay binds one in its place, or "".
    """

    endpoint: str
    listen: str
    replay_endpoint: str = ""
    listen_replay: str = ""

    def __post_init__(self) -> None:
        """Raises ConfigurationError where no such relay can be."""
        try:
            check_endpoint(self.endpoint)
            if self.replay_endpoint:
                check_endpoint(self.replay_endpoint)
        except EndpointError as error:
            raise ConfigurationError(f"--engine and --replay: {error}") from error
        if bool(self.replay_endpoint) != bool(self.listen_replay):
            raise ConfigurationError(
                "Expected one --listen-replay for each --replay, got one of them alone"
            )
        _check_listen(self.listen, "--listen")
        if self.listen_replay:
            _check_listen(self.listen_replay, "--listen-replay")


class RelaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a relay runs with.

    Attributes:
        key: file of its key pair.
        bridge_keys: file that lists the public keys of bridges; read again when it changes.
    """

    engines: tuple[RelayedEngine, ...]
    key: Path
    bridge_keys: Path

    def __post_init__(self) -> None:
        """Raises ConfigurationError where two of them cannot be at once."""
        if not 0 < len(self.engines) <= RELAY_ENGINES_MAX:
            raise ConfigurationError(
                f"Expected 1 to {RELAY_ENGINES_MAX} engines, got {len(self.engines)}"
            )
        bound = [one.listen for one in self.engines]
        bound += [one.listen_replay for one in self.engines if one.listen_replay]
        for address in bound:
            if bound.count(address) > 1:
                raise ConfigurationError(f"Expected another address for each, got {address} twice")


def _check_listen(address: str, option: str) -> None:
    host, port = split_endpoint(address)
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise ConfigurationError(
            f"Expected an address such as tcp://10.0.0.7:6557, or tcp://*:6557 for all of this"
            f" machine's, as {option}, got: {address[:200]}"
        )
