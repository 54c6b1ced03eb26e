"""Asks addresses at which nobody has answered for a while whether somebody listens there now.

An attempt of libzmq at an address where nobody listens costs some 65 us with what its monitor tells
of it; the system's own connection, without waiting for it, costs 20. So a publisher that is away is
asked for in this way, and its socket is connected once somebody answers. What answers need not be
an engine: that is for ZMTP to find out.

One thread; nothing here waits.
"""

import errno
import select
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, NamedTuple, TypeVar

from bridge.sockets.bounds import LINK_PROBE_WAIT_S
from bridge.sockets.endpoints import path_of, split_endpoint
from schemas.clock import CHANCE, REAL_CLOCK

_KIND: Final = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_FAILED: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
_UNDER_WAY: Final = (errno.EINPROGRESS, errno.EINTR)

Owner = TypeVar("Owner")


class Address(NamedTuple):
    """An endpoint as the system wants it."""

    family: int
    place: "str | tuple[str, int] | tuple[str, int, int, int]"


def address_of(endpoint: str) -> Address | None:
    """`ipc://path` or `tcp://address:port`, whose address is no name.

    Returns:
        None where the system knows no such address.
    """
    path = path_of(endpoint)
    if path:
        return Address(socket.AF_UNIX, "\0" + path[1:] if path.startswith("@") else path)
    host, port = split_endpoint(endpoint)
    with suppress(OSError, UnicodeError, ValueError):
        found = socket.getaddrinfo(
            host.strip("[]"),
            int(port),
            type=socket.SOCK_STREAM,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        family, *_, place = found[0]
        return Address(family, place)  # type: ignore[arg-type]  # of these families it is one
    return None


class _Probe(NamedTuple, Generic[Owner]):
    socket: socket.socket
    owner: Owner
    until: float


class LinkProbes(Generic[Owner]):
    """The probes under way: one for each owner at the most.

    Args:
        clock: monotonic seconds; of the thread's connections, too.
        chance: a number from 0 to 1, likewise.
    """

    def __init__(
        self,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        chance: Callable[[], float] = CHANCE,
    ) -> None:
        self.clock, self.chance = clock, chance
        self._poll = select.poll()
        self._under_way: dict[int, _Probe[Owner]] = {}  # by descriptor
        self._by_owner: dict[Owner, int] = {}
        self._oldest: deque[tuple[int, _Probe[Owner]]] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, owner: Owner, address: Address) -> bool | None:
        """Asks for the owner whether somebody listens there.

        Returns:
            None where `ended` will tell.
        """
        try:
            probe = socket.socket(address.family, _KIND)
        except OSError:  # no file is left: for libzmq there is none either
            return False
        told = self._connect(probe, address)
        if told is not None:
            probe.close()
            return told
        descriptor = probe.fileno()
        begun = _Probe(probe, owner, self.clock() + LINK_PROBE_WAIT_S)
        self._under_way[descriptor] = begun
        self._by_owner[owner] = descriptor
        self._oldest.append((descriptor, begun))
        self._poll.register(descriptor, select.POLLOUT)
        return None

    @staticmethod
    def _connect(probe: socket.socket, address: Address) -> bool | None:
        try:
            error = probe.connect_ex(address.place)
        except OSError:  # the system takes no such address
            return False
        if error in _UNDER_WAY:
            return None
        # EAGAIN of a path: somebody listens, and has not accepted others yet.
        return not error or (error == errno.EAGAIN and address.family == socket.AF_UNIX)

    def ended(self) -> list[tuple[Owner, bool]]:
        """Whose probes have ended since the last call, and whether somebody answered; nobody does
        who has not within LINK_PROBE_WAIT_S.
        """
        told: list[tuple[Owner, bool]] = []
        if not self._under_way:
            self._oldest.clear()
            return told
        for descriptor, events in self._poll.poll(0):
            told.append((self._end(descriptor), not events & _FAILED))
        now = self.clock()
        while self._oldest:
            descriptor, probe = self._oldest[0]
            if self._under_way.get(descriptor) is probe:
                if now < probe.until:
                    break
                told.append((self._end(descriptor), False))
            self._oldest.popleft()
        return told

    def give_up(self, owner: Owner) -> None:
        """Ends the owner's probe, if there is one."""
        descriptor = self._by_owner.get(owner)
        if descriptor is not None:
            self._end(descriptor)

    def close(self) -> None:
        """Ends all of them."""
        for descriptor in list(self._under_way):
            self._end(descriptor)

    def _end(self, descriptor: int) -> Owner:
        probe = self._under_way.pop(descriptor)
        del self._by_owner[probe.owner]
        self._poll.unregister(descriptor)
        probe.socket.close()
        return probe.owner
