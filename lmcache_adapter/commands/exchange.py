"""One request to a worker and its answer, over a REQ socket of ours to its REP socket. One loop.

A worker answers one request after the other, so they wait for their turn here: what was never sent
is known not to have been executed. A socket that has given no answer in time is closed, and its
worker gets another one with the next request; a late answer to the old one goes with it, and one
that comes to a newer request is told by its number (`REQ_CORRELATE`).
"""

import asyncio
from collections import OrderedDict
from typing import Final

import zmq
import zmq.asyncio

from bridge.sockets.endpoints import check_endpoint
from lmcache_adapter.bounds import LMCACHE_HANDSHAKE_MS
from schemas.errors import EndpointError, RepriseError
from schemas.limits import KIB, LINK_HEARTBEAT_MS, LINK_HEARTBEAT_WAIT_MS

# What is above a bound is `refused`; reprise_lmcache_commands_refused_total by reason.
LMCACHE_WORKER_WAITING_MAX: Final = 64  # for one worker's turn: reason="worker_busy"
LMCACHE_LINKS_USED_MAX: Final = 1024  # workers that are being asked: reason="too_many_asked"
LMCACHE_LINKS_KEPT_MAX: Final = 128  # to workers, between commands; the oldest is closed
LMCACHE_REPLY_BYTES_MAX: Final = 64 * KIB  # of a worker's answer; libzmq drops the link


class NotAskedError(RepriseError):
    """The request was never sent. Operator action: see the text."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class NoAnswerError(RepriseError):
    """No answer came in time. Operator action: see whether the worker runs.

    Attributes:
        is_sent: whether it may have been executed, or be executed later.
    """

    def __init__(self, message: str, *, is_sent: bool) -> None:
        self.is_sent = is_sent
        super().__init__(message)


class _Turn:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Exchanges:
    """See the module.

    Attributes:
        replaced: sockets that were closed since no answer came.
    """

    def __init__(self) -> None:
        self.replaced = 0
        self._in_use = 0
        self._context: zmq.asyncio.Context | None = None
        self._links: OrderedDict[str, zmq.asyncio.Socket] = OrderedDict()
        self._turns: dict[str, _Turn] = {}

    async def ask(self, endpoint: str, request: bytes, until: float) -> bytes:
        """The answer of the worker at a `tcp://HOST:PORT`; b"" for one of several frames.

        Args:
            endpoint: where its REP socket is.
            request: one frame.
            until: when it is given up; of the loop's clock.

        Raises:
            NotAskedError: too many wait for this worker, or the address is none.
            NoAnswerError: none came in time.
        """
        turn = self._turns.setdefault(endpoint, _Turn())
        if turn.users >= LMCACHE_WORKER_WAITING_MAX:
            text = f"{LMCACHE_WORKER_WAITING_MAX} commands wait for this worker already"
            raise NotAskedError("worker_busy", text)
        turn.users += 1
        is_sent = False
        try:
            async with asyncio.timeout_at(until), turn.lock:
                is_sent = True
                return await self._exchange(endpoint, request)
        except TimeoutError as error:
            text = "No answer came in time; it may be executed yet"
            if not is_sent:
                text = "Earlier commands took all of the time; it was not sent"
            raise NoAnswerError(text, is_sent=is_sent) from error
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[endpoint]

    async def _exchange(self, endpoint: str, request: bytes) -> bytes:
        link = self._links.pop(endpoint, None) or self._connect(endpoint)
        is_answered = False
        self._in_use += 1
        try:
            await link.send(request)
            frames = await link.recv_multipart()
            is_answered = True
            return bytes(frames[0]) if len(frames) == 1 else b""
        except zmq.ZMQError as error:
            text = f"The link to the worker has failed, it may be executed yet: {error}"
            raise NoAnswerError(text, is_sent=True) from error
        finally:
            self._in_use -= 1
            if is_answered:
                self._keep(endpoint, link)
            else:
                self.replaced += 1
                link.close(linger=0)

    def _connect(self, endpoint: str) -> zmq.asyncio.Socket:
        try:
            check_endpoint(endpoint)
        except EndpointError as error:
            raise NotAskedError("address", str(error)) from error
        if self._in_use >= LMCACHE_LINKS_USED_MAX:
            text = f"{LMCACHE_LINKS_USED_MAX} workers are being asked already"
            raise NotAskedError("too_many_asked", text)
        if self._context is None:
            self._context = zmq.asyncio.Context()
            self._context.set(zmq.MAX_SOCKETS, LMCACHE_LINKS_USED_MAX + LMCACHE_LINKS_KEPT_MAX + 1)
        link = self._context.socket(zmq.REQ)
        link.setsockopt(zmq.LINGER, 0)
        link.setsockopt(zmq.REQ_RELAXED, 1)
        link.setsockopt(zmq.REQ_CORRELATE, 1)
        link.setsockopt(zmq.IPV6, 1)
        link.setsockopt(zmq.MAXMSGSIZE, LMCACHE_REPLY_BYTES_MAX)
        link.setsockopt(zmq.HANDSHAKE_IVL, LMCACHE_HANDSHAKE_MS)
        link.setsockopt(zmq.HEARTBEAT_IVL, LINK_HEARTBEAT_MS)
        link.setsockopt(zmq.HEARTBEAT_TIMEOUT, LINK_HEARTBEAT_WAIT_MS)
        try:
            link.connect(endpoint)
        except zmq.ZMQError as error:
            link.close(linger=0)
            text = f"The worker's address `{endpoint}` cannot be used: {error}"
            raise NotAskedError("address", text) from error
        return link

    def _keep(self, endpoint: str, link: zmq.asyncio.Socket) -> None:
        self._links[endpoint] = link
        while len(self._links) > LMCACHE_LINKS_KEPT_MAX:
            _, oldest = self._links.popitem(last=False)
            oldest.close(linger=0)

    def close(self) -> None:
        """Closes all links; nobody waits for an answer any more."""
        for link in self._links.values():
            link.close(linger=0)
        self._links.clear()
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None
