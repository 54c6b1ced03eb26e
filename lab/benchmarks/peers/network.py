"""A network of the measurement's own: loopback, and nothing else.

A peer that binds all addresses is then reached by nobody but the processes of the measurement.
Linux gives such a network to root, and to others where they may have user namespaces.
"""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path
from typing import Final

_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_LOOPBACK: Final = b"lo"
_REQUEST: Final = "16sh14x"


def enter_own_network() -> str:
    """Puts this process, and those that it starts from here on, into a network of its own.

    Sockets that are open stay where they are. To be called while the process has one thread.

    Returns:
        Why it could not be, or "".
    """
    if is_own():
        return ""
    user, group = os.getuid(), os.getgid()
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
        if unshare(_NEW_NETWORK) != 0:
            if unshare(_NEW_USER | _NEW_NETWORK) != 0:
                return os.strerror(ctypes.get_errno())
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _raise_loopback()
    except (AttributeError, OSError) as error:  # another system than Linux
        return str(error)
    return ""


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        said = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack(_REQUEST, _LOOPBACK, 0))
        _, flags = struct.unpack(_REQUEST, said)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack(_REQUEST, _LOOPBACK, flags | _UP))


def is_own() -> bool:
    """Whether this process sees loopback alone."""
    try:
        lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    except OSError:
        return False
    return [line.partition(":")[0].strip() for line in lines] == [_LOOPBACK.decode()]


def exposure() -> str:
    """What a report says of a peer that binds all addresses."""
    return "in a network of its own" if is_own() else "its port was open on all addresses"
