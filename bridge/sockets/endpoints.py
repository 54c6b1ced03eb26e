"""ZMQ addresses: which of them a publisher in another process can have."""

from ipaddress import ip_address
from typing import Final

from bridge.sockets.allowed_engines import ALLOWED
from schemas.errors import AddressRefusedError, EndpointError
from schemas.limits import PORT_MAX
from schemas.registration import GRPC_SCHEME

_TCP: Final = "tcp://"
_IPC: Final = "ipc://"
_NO_HOST: Final = frozenset(" ;/")


def check_endpoint(endpoint: str) -> None:
    """Accepts `tcp://host:port` and `ipc://path`; does not check whether anything listens there.

    Raises:
        EndpointError: no connection to such an address can ever be made, or none may be.
    """
    if endpoint.startswith(_IPC) and len(endpoint) > len(_IPC):
        return
    host, port = split_endpoint(endpoint)
    # With `;` libzmq takes what is before it for the address to connect from.
    is_host = host not in ("", "*") and host.isprintable() and not _NO_HOST.intersection(host)
    if not is_host or not (port.isascii() and port.isdigit()):
        raise EndpointError(
            f"Expected an address such as `tcp://10.0.0.7:5557` or `ipc:///run/engine`, "
            f"got: {endpoint[:200]}"
        )
    if not 0 < int(port) <= PORT_MAX:
        raise EndpointError(f"Expected a port from 1 to {PORT_MAX}, got: {endpoint[:200]}")
    ALLOWED.check(host)


def check_publisher_endpoint(endpoint: str) -> None:
    """Accepts what `check_endpoint` does, and `grpc://host:port` of a server that streams.

    Raises:
        EndpointError: as there.
    """
    if not endpoint.startswith(GRPC_SCHEME):
        check_endpoint(endpoint)
        return
    try:
        check_endpoint(_TCP + endpoint.removeprefix(GRPC_SCHEME))
    except AddressRefusedError:
        raise
    except EndpointError as error:
        detail = "Expected an address such as `grpc://10.0.0.7:50051`"
        raise EndpointError(f"{detail}, got: {endpoint[:200]}") from error


def check_replay_endpoint(endpoint: str) -> None:
    """Accepts "" and whatever may be asked for a replay; whether it ever answers is seen then.

    Raises:
        AddressRefusedError: it may not be connected to.
    """
    ALLOWED.check(split_endpoint(endpoint)[0])


def names_host(endpoint: str) -> bool:
    """Whether the address has a host name, which may stand for addresses of either IP version."""
    host, _ = split_endpoint(endpoint)
    if not host:
        return False
    try:
        ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return True
    return False


def split_endpoint(endpoint: str) -> tuple[str, str]:
    """Host and port of a TCP address, "" for every other one."""
    if not endpoint.startswith(_TCP):
        return "", ""
    host, _, port = endpoint[len(_TCP) :].rpartition(":")
    return host, port


def path_of(endpoint: str) -> str:
    """The path of an `ipc://` address, "" for every other one; one with `@` is in no directory."""
    return endpoint[len(_IPC) :] if endpoint.startswith(_IPC) else ""
