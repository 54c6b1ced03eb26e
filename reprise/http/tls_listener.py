"""Accepts connections and shakes hands, so many at once and so long at the most.

uvicorn would let any number of clients begin a handshake, for a minute each, before anything of
ours sees them.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from bridge.supervision import cancel
from query_api.http.errors import ErrorEnvelope
from query_api.http.wire import Wire, encode
from reprise.bounds import HTTP_HEAD_BYTES_MAX
from reprise.http.connection import Connection
from reprise.http.connections import Connections
from reprise.http.tls import Tls

TLS_HANDSHAKE_S: Final = 10.0  # for a client to end its handshake
TLS_HANDSHAKES_MAX: Final = 256  # at once; each holds some 40 KiB
TLS_PEEKED_BYTES: Final = 8  # looked at, to tell plain HTTP from a handshake
TLS_ACCEPTS_AT_ONCE_MAX: Final = 64  # in one turn of the loop

_PLAIN_BODY: Final = encode(
    ErrorEnvelope("Expected TLS, got plain HTTP: ask this address by https://", "malformed"),
    Wire.JSON,
)
_PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_PLAIN_BODY), _PLAIN_BODY)
)

logger = logging.getLogger(__name__)


class TlsListener:
    """Of one server, on its loop. What is refused is counted by `Connections`: `tls_handshake` (it
    failed, or took too long) and `too_many_handshakes`.
    """

    def __init__(
        self,
        tls: Tls,
        listening: socket.socket,
        connections: Connections,
        make: Callable[[], Connection],
    ) -> None:
        """Args:
        listening: a socket that listens.
        make: a new connection of uvicorn's.
        """
        self._tls = tls
        self._listening = listening
        self._connections = connections
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._shaking: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._loop.add_reader(listening.fileno(), self._accept)
        connections.when_swept = tls.look

    async def stop(self) -> None:
        """Accepts no more; handshakes under way end."""
        self._loop.remove_reader(self._listening.fileno())
        await cancel(*self._shaking)

    def _accept(self) -> None:
        for _ in range(TLS_ACCEPTS_AT_ONCE_MAX):
            try:
                stream, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor is left: what waits is accepted once there is.
                self._connections.count("open_files")
                logger.debug("Cannot accept: %s", error)
                return
            if len(self._shaking) >= TLS_HANDSHAKES_MAX:
                self._connections.count("too_many_handshakes")
                stream.close()
                continue
            if not self._connections.has_room(stream.fileno()):
                self._connections.count("too_many")
                stream.close()
                continue
            task = self._loop.create_task(self._shake(stream))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(TLS_HANDSHAKE_S):
                is_plain = _is_http(await self._first_bytes(stream))
            if is_plain:
                self._connections.count("tls_handshake")
                _answer_plain(stream)
                return
            await self._loop.connect_accepted_socket(
                self._make,
                stream,
                ssl=self._tls.context,
                ssl_handshake_timeout=TLS_HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_HANDSHAKE_S,
            )
        except (OSError, ssl.SSLError, TimeoutError):
            self._connections.count("tls_handshake")
            stream.close()
        except asyncio.CancelledError:
            stream.close()
            raise
        except Exception:
            logger.exception("Unexpected error in a handshake; going on")
            stream.close()

    async def _first_bytes(self, stream: socket.socket) -> bytes:
        """What a client sends first, which stays to be read."""
        arrived = asyncio.Event()
        self._loop.add_reader(stream.fileno(), arrived.set)
        try:
            await arrived.wait()
        finally:
            self._loop.remove_reader(stream.fileno())
        return stream.recv(TLS_PEEKED_BYTES, socket.MSG_PEEK)


def _is_http(first: bytes) -> bool:
    """Whether a request without TLS begins so: by a method; a handshake begins with byte 22."""
    return first[:1].isalpha() and first[:1].isupper()


def _answer_plain(stream: socket.socket) -> None:
    """Says by plain HTTP that TLS is spoken here, and closes."""
    with stream, contextlib.suppress(OSError):
        stream.recv(HTTP_HEAD_BYTES_MAX)  # or closing it would reset it, and the answer be lost
        stream.send(_PLAIN_ANSWER)
        stream.shutdown(socket.SHUT_WR)
