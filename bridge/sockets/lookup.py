"""Looks host names up, in threads of its own.

libzmq would do it on the one thread that serves all sockets of a context: a name whose server does
not answer would hold up every link for as long as the system waits, some ten seconds each time. So
sockets are given addresses. The threads are daemons, since nothing can end a lookup.
"""

import asyncio
import socket
import threading
from collections import deque
from concurrent.futures import Future
from typing import Final

from bridge.sockets.allowed_engines import ALLOWED
from bridge.sockets.endpoints import split_endpoint
from bridge.supervision import outlasting
from schemas.errors import AddressRefusedError

LOOKUPS_AT_ONCE_MAX: Final = 8  # of host names; a silent name server holds a place each

Addresses = list[str]
"""Endpoints with an address in place of the name, IPv4 first."""


class Lookups:
    """Looks names up, LOOKUPS_AT_ONCE_MAX at a time; the others wait. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads = 0
        self._waiting: deque[tuple[str, Future[Addresses]]] = deque()
        self._under_way: dict[str, Future[Addresses]] = {}

    def look_up(self, endpoint: str) -> "Future[Addresses]":
        """The endpoints that `tcp://name:port` stands for.

        Raises, by the future:
            OSError: there are none, the name servers do not know now, or one of them may not be
            connected to.
        """
        with self._lock:
            found = self._under_way.get(endpoint)
            if found is not None:
                return found
            looked_up = self._under_way[endpoint] = Future()
            self._waiting.append((endpoint, looked_up))
            if self._threads < LOOKUPS_AT_ONCE_MAX:
                self._threads += 1
                threading.Thread(target=self._run, name="reprise-names", daemon=True).start()
        return looked_up

    async def addresses(self, endpoint: str) -> Addresses:
        """The same, for a coroutine; the lookup goes on where it is cancelled, for others may wait
        for that name.

        Raises:
            OSError: see there.
        """
        return await outlasting(asyncio.wrap_future(self.look_up(endpoint)))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                endpoint, looked_up = self._waiting.popleft()
            try:
                addresses = addresses_of(endpoint)
            except Exception as error:  # noqa: BLE001 -- whoever waits gets it, whatever it is
                self._forget(endpoint)
                looked_up.set_exception(error)
            else:
                self._forget(endpoint)
                looked_up.set_result(addresses)

    def _forget(self, endpoint: str) -> None:
        with self._lock:
            del self._under_way[endpoint]


LOOKUPS = Lookups()
"""Those of this process."""


def addresses_of(endpoint: str) -> Addresses:
    """See `Lookups.look_up`; waits.

    Raises:
        OSError: see there.
    """
    host, port = split_endpoint(endpoint)
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"`{host[:80]}` is no host name") from error
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    named = [str(address[0]) for *_, address in found]
    try:
        for address in named:
            ALLOWED.check(address, host)
    except AddressRefusedError as error:
        raise OSError(str(error)) from error
    hosts = [f"[{host}]" if ":" in host else host for host in dict.fromkeys(named)]
    return [f"tcp://{host}:{port}" for host in hosts]
