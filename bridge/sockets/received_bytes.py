"""How much a link has received, message boundaries or not; libzmq tells only of whole messages."""

import fcntl
import os
import socket
import struct
import termios
from array import array
from contextlib import suppress
from typing import Final

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)  # Linux
_RECEIVED: Final = struct.Struct("=128xQ")  # `tcpi_bytes_received` of `struct tcp_info`


class ReceivedBytes:
    """Follows one link after another; where the system does not tell, nothing is known: 0."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def follow(self, descriptor: int) -> None:
        """The link is another one now, of which libzmq has the descriptor.

        A copy is kept, so that it means the same link whatever libzmq closes meanwhile; `close` it
        once the link is down.
        """
        self.close()
        if _TCP_INFO is None:
            return
        with suppress(OSError):  # it is closed already
            self._socket = socket.socket(fileno=os.dup(descriptor))

    def total_bytes(self) -> int:
        """What has come of it since it was made, taken or not; 1 us."""
        if self._socket is None or _TCP_INFO is None:
            return 0
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED.size)
        except OSError:  # no link of TCP, or closed
            return 0
        return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else 0

    def taken_bytes(self) -> int:
        """What libzmq has taken of it since it was made, ZMTP's own included."""
        if self._socket is None:
            return 0
        waiting = array("i", [0])
        try:
            fcntl.ioctl(self._socket, termios.FIONREAD, waiting)  # still the system's
        except OSError:  # closed
            return 0
        total = self.total_bytes()
        return total - waiting[0] if total else 0

    def close(self) -> None:
        """Forgets the link."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
