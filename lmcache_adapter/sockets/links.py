"""The links of one bound socket, told apart by their descriptors; for one thread.

libzmq says of each message by which descriptor it came, and its monitor says which descriptor's
link has ended. So of a worker that says nothing it is known whether what it sends would come; ZMTP
heartbeats end a link that is dead.

A message that never ends is kept by libzmq until it does: a link that has brought far more than was
taken of it is closed. So is one too many, and one for which there is hardly a file left.
"""

import itertools
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from bridge.sockets.received_bytes import ReceivedBytes
from lmcache_adapter.controller.member import ENDED, LinkId
from schemas.limits import MIB, OPEN_FILES_MAX, PUBLISHER_FILES_LEFT_MAX, PUBLISHER_FILES_SHARE

LMCACHE_LINKS_MAX: Final = 2048  # of each socket: the newest is closed, reason="too_many_links"
LMCACHE_LINK_BYTES: Final = 32 * MIB  # of a link in libzmq: it is closed, "endless_message"

_logger = logging.getLogger(__name__)

_EVENTS: Final = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
_TELLS: Final = sys.platform == "linux"  # what a link has received
_GREETING_HEADER_BYTES: Final = 64  # of ZMTP
_numbers = itertools.count(1)
_monitor_numbers = itertools.count(1)


class _Link:
    def __init__(self, descriptor: int) -> None:
        self.number = next(_numbers)
        self.taken_bytes = 0
        self.is_shut = False
        self.received = ReceivedBytes()
        self.received.follow(descriptor)

    @property
    def is_peer(self) -> bool:
        """Whether it has brought more than one that only looks whether the port is open."""
        return not _TELLS or self.received.total_bytes() >= _GREETING_HEADER_BYTES


class WorkerLinks:
    """See the module.

    Args:
        socket: bound afterwards.

    Attributes:
        refused: links that were closed, as there were too many.
        broken: links that were closed for what they sent.
        monitor: to be polled beside the socket.
    """

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]"
    ) -> None:
        self.refused = self.broken = 0
        self._descriptor_max = _descriptor_max()
        self._socket = socket
        address = f"inproc://lmcache-links-{next(_monitor_numbers)}"
        socket.monitor(address, _EVENTS)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.connect(address)
        self._links: dict[int, _Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def read_events(self) -> Iterator[LinkId]:
        """The links that have ended since the last call.

        Who reads this after it has taken a message, and before it asks `note` for its link, knows
        that link: libzmq tells of a link before it hands out what came by it. Descriptors are used
        again, so in another order a link might be taken for the one before it.
        """
        while True:
            try:
                message = parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            descriptor = message["value"]
            ended = self._links.pop(descriptor, None)
            if ended is not None:
                is_peer = ended.is_peer
                ended.received.close()
                if is_peer:
                    yield ended.number
            if message["event"] == zmq.EVENT_ACCEPTED:
                self._links[descriptor] = _Link(descriptor)
                if len(self._links) > LMCACHE_LINKS_MAX or descriptor > self._descriptor_max:
                    self.refused += 1
                    shut(descriptor)

    def note(self, descriptor: int, size_bytes: int) -> LinkId:
        """So much was taken that came by this descriptor; returns its link, or `ENDED`."""
        link = self._links.get(descriptor)
        if link is None:
            return ENDED
        link.taken_bytes += size_bytes
        return link.number

    def look(self) -> None:
        """Closes the links that bring what has no end. Cost O(links), 1 us each."""
        for descriptor, link in self._links.items():
            if link.is_shut:  # what it brings until libzmq has found out does not count
                continue
            if link.received.taken_bytes() - link.taken_bytes > LMCACHE_LINK_BYTES:
                self.broken += 1
                _logger.warning(
                    "A worker of LMCache sent a message longer than %d bytes; closing its link",
                    LMCACHE_LINK_BYTES,
                )
                link.is_shut = True
                shut(descriptor)

    def close(self) -> None:
        """Ends."""
        self._socket.disable_monitor()
        self.monitor.close()
        for link in self._links.values():
            link.received.close()
        self._links.clear()


def _descriptor_max() -> int:
    """Descriptors are numbered from below: one above shows that few files are left."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = OPEN_FILES_MAX
    return limit - min(limit // PUBLISHER_FILES_SHARE, PUBLISHER_FILES_LEFT_MAX)


def shut(descriptor: int) -> None:
    """Ends the link; libzmq finds out, and closes it.

    What it has brought and libzmq does not take is thrown away first. A window that stays closed
    would have the other side learn of the end by a probe, up to two minutes later.
    """
    try:
        with socket.socket(fileno=os.dup(descriptor)) as link:
            discarded = bytearray(65_536)
            with suppress(BlockingIOError):
                for _ in range(256):  # more than a window has; a sender may be faster than this
                    if not link.recv_into(discarded, flags=socket.MSG_DONTWAIT):
                        break
            link.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        return


def local_host(descriptor: int) -> str:
    """The address of ours that the other side has connected to; "" where the link has ended."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as link:
            host = str(link.getsockname()[0])
    except OSError:
        return ""
    host = host.removeprefix("::ffff:")
    return f"[{host}]" if ":" in host else host
