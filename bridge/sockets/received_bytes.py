"""How much a link has received, and when, message boundaries or not; libzmq tells only of whole
messages.
"""

import fcntl
import os
import socket
import struct
import termios
from array import array
from contextlib import suppress
from typing import Final, NamedTuple

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
TELLS_PROGRESS: Final = _TCP_INFO is not None
"""Whether the system tells when something came of a link of TCP: Linux does."""
# Of `struct tcp_info`: `tcpi_last_data_sent`, `tcpi_last_data_recv`, in ms, `tcpi_bytes_received`.
_PROGRESS: Final = struct.Struct("=44xI4xI72xQ")
_new_progress: Final = tuple.__new__


class LinkProgress(NamedTuple):
    """What the system says of a link.

    Attributes:
        total_bytes: that have come since it was made, taken or not.
        sent_ago_s: since something was last sent over it.
        received_ago_s: since something last came.
    """

    total_bytes: int
    sent_ago_s: float
    received_ago_s: float


class ReceivedBytes:
    """Follows one link after another; where the system does not tell, nothing is known: 0."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._waiting = array("i", [0])  # where the system writes how much that is

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

    def progress(self) -> LinkProgress | None:
        """What has come of it, taken or not; 1 us. None where the system does not tell."""
        if self._socket is None or _TCP_INFO is None:
            return None
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _PROGRESS.size)
        except OSError:  # no link of TCP, or closed
            return None
        if len(info) != _PROGRESS.size:
            return None
        sent_ms, received_ms, total = _PROGRESS.unpack(info)
        # Not by the named tuple's own constructor, which takes twice as long.
        return _new_progress(LinkProgress, (total, sent_ms / 1000, received_ms / 1000))

    def total_bytes(self) -> int:
        """What has come of it since it was made, taken or not; 1 us."""
        seen = self.progress()
        return 0 if seen is None else seen.total_bytes

    def taken_bytes(self) -> int:
        """What libzmq has taken of it since it was made, ZMTP's own included."""
        waiting = self.waiting_bytes()  # before: what comes meanwhile counts as taken
        total = self.total_bytes()
        return total - waiting if total else 0

    def waiting_bytes(self) -> int:
        """What has come of it and libzmq has not taken; 1 us."""
        if self._socket is None:
            return 0
        waiting = self._waiting
        try:
            fcntl.ioctl(self._socket, termios.FIONREAD, waiting)
        except OSError:  # closed
            return 0
        return waiting[0]

    def end(self) -> None:
        """Ends the link itself, as if the peer had closed it: libzmq finds that, and goes on as it
        does after any.
        """
        if self._socket is not None:
            with suppress(OSError):  # it has ended
                self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Forgets the link."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
