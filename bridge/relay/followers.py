"""The bridges that a PUB socket sends to, and what libzmq has for each and it has not taken.

A queue of libzmq's is bounded in messages, and tells nothing of itself. What it holds is what was
sent less what the bridge's host has acknowledged (`tcp_info`), and nothing where the system has
nothing left to send: then both are counted anew. A bridge for which too much waits loses its link,
and with it the queue; it connects again, and asks for what it missed.
"""

import fcntl
import logging
import os
import socket
import struct
import termios
from array import array
from contextlib import suppress
from itertools import count
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from schemas.limits import MIB

RELAY_WAITING_BYTES_MAX: Final = 256 * MIB  # that wait for one bridge; beyond, it loses its link

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)  # Linux
_ACKED: Final = struct.Struct("=120xQ")  # `tcpi_bytes_acked` of `struct tcp_info`
_monitors: Final = count()
_logger = logging.getLogger(__name__)


class _Follower:
    """A link, by a copy of its descriptor; see `ReceivedBytes.follow`."""

    __slots__ = ("acked_before", "link", "sent_before")

    def __init__(self, link: socket.socket, sent_bytes: int) -> None:
        self.link = link
        self.sent_before = sent_bytes
        self.acked_before = _acked_bytes(link)

    def waiting_bytes(self, sent_bytes: int) -> int:
        """What was sent over the link and is still here, about."""
        unsent = array("i", [0])
        fcntl.ioctl(self.link, termios.TIOCOUTQ, unsent)
        acked = _acked_bytes(self.link)
        if not unsent[0]:
            self.sent_before, self.acked_before = sent_bytes, acked
            return 0
        return (sent_bytes - self.sent_before) - (acked - self.acked_before)


def _acked_bytes(link: socket.socket) -> int:
    """What the other host has acknowledged; 0 where the system does not tell."""
    if _TCP_INFO is None:
        return 0
    info = link.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _ACKED.size)
    return int(_ACKED.unpack(info)[0]) if len(info) == _ACKED.size else 0


class Followers:
    """Of one PUB socket, before it is bound; for its thread only.

    Raises:
        zmq.ZMQError: no socket is left for the monitor.
    """

    def __init__(self, bound: "zmq.Socket[bytes]") -> None:
        self._bound = bound
        self._monitor = bound.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED,
            f"inproc://followers-{next(_monitors)}",
        )
        self._links: dict[int, _Follower] = {}

    def look(self, sent_bytes: int) -> int:
        """Ends links for which more than RELAY_WAITING_BYTES_MAX waits. 5 us for each link.

        Args:
            sent_bytes: that were sent over the socket so far.

        Returns:
            How many it has ended.
        """
        if _TCP_INFO is None:
            return 0
        self._read_events(sent_bytes)
        dropped = 0
        for descriptor, follower in list(self._links.items()):
            try:
                waiting = follower.waiting_bytes(sent_bytes)
                if waiting <= RELAY_WAITING_BYTES_MAX:
                    continue
                peer = follower.link.getpeername()[0]
                follower.link.shutdown(socket.SHUT_RDWR)
            except OSError:  # it has ended
                self._forget(descriptor)
                continue
            dropped += 1
            _logger.warning(
                "Dropping the link of the bridge at %s: it takes too little, %d bytes wait for it",
                peer,
                waiting,
            )
            self._forget(descriptor)
        return dropped

    def _read_events(self, sent_bytes: int) -> None:
        with suppress(zmq.Again):
            while True:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                descriptor = event["value"]
                self._forget(descriptor)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    with suppress(OSError):  # it has ended already
                        link = socket.socket(fileno=os.dup(descriptor))
                        self._links[descriptor] = _Follower(link, sent_bytes)

    def _forget(self, descriptor: int) -> None:
        follower = self._links.pop(descriptor, None)
        if follower is not None:
            follower.link.close()

    def close(self) -> None:
        """Before the socket is closed."""
        self._bound.disable_monitor()
        self._monitor.close(linger=0)
        for descriptor in list(self._links):
            self._forget(descriptor)
