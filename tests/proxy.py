"""A TCP proxy that cuts, freezes and slows what goes through it.

A Kafka client goes wherever the broker tells it to: the listener behind a proxy must advertise the
proxy's port (`devtools.broker.Listener.advertised_port`).
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from devtools.broker import HOST

_CHUNK_BYTES: Final = 16 * 1024
_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
_CALL_S: Final = 10.0

T = TypeVar("T")


class _Pair(NamedTuple):
    """The two ends of one connection through the proxy."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter


class Proxy:
    """Between the clients of one role and the broker. Its methods may be called from any thread.

    Attributes:
        port: on which it listens.
        resets: connections that `cut` has reset.
        frozen_bytes: bytes that came while it was frozen, and wait.
        slowed_bytes: bytes that were forwarded late.
    """

    def __init__(self, port: int) -> None:
        """Forwards nothing before `start`."""
        self.port = port
        self.resets = self.frozen_bytes = self.slowed_bytes = 0
        self._target_port = 0
        self._delay_s = 0.0
        self._bytes_per_s = float("inf")
        self._pairs: set[_Pair] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._listening: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._pairs)

    @property
    def address(self) -> str:
        """`host:port`, as a client is told it."""
        return f"{HOST}:{self.port}"

    def start(self, target: str) -> None:
        """Listens, and forwards to the target, a `host:port` on this machine."""
        self._target_port = int(target.rpartition(":")[2])
        self.heal()

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Faults

    def cut(self) -> None:
        """Resets every connection and refuses new ones, until `heal`."""
        self._call(self._cut())

    def freeze(self) -> None:
        """Accepts connections and bytes and forwards none of them, until `heal`: then all."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def slow(self, *, delay_s: float, bytes_per_s: float) -> None:
        """Forwards late and little at a time, each way of each connection, until `heal`."""
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s

    def heal(self) -> None:
        """Forwards everything at once again."""
        self._delay_s, self._bytes_per_s = 0.0, float("inf")
        self._call(self._heal())

    # On the loop

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    async def _heal(self) -> None:
        self._flowing.set()
        if self._listening is None:
            self._listening = socket.create_server((HOST, self.port))
            self._listening.setblocking(False)
            self._loop.add_reader(self._listening, self._accept, self._listening)

    async def _cut(self) -> None:
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None
        for pair in list(self._pairs):
            self.resets += 1
            for end in pair:
                _reset(end)

    async def _close(self) -> None:
        await self._cut()
        await asyncio.sleep(0)  # those that were just accepted begin, and can be ended
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await asyncio.sleep(0)  # transports end one turn after they were closed

    def _accept(self, listening: socket.socket) -> None:
        # No `asyncio.Server` and no `sock_accept`: ended at the wrong moment, they forget the
        # connection of that moment.
        while True:
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            connection.setblocking(False)
            task = asyncio.create_task(self._connect(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        near_reader, near = await asyncio.open_connection(sock=connection)
        try:
            far_reader, far = await asyncio.open_connection(HOST, self._target_port)
        except (OSError, asyncio.CancelledError):  # the broker is away: so are we
            _reset(near)
            return
        pair = _Pair(near, far)
        if self._listening is None:  # cut meanwhile
            for end in pair:
                _reset(end)
            return
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._forward(near_reader, far), self._forward(far_reader, near))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.discard(pair)
            near.close()
            far.close()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Until the source ends; then the sink is told, for it may still have an answer."""
        while data := await source.read(_CHUNK_BYTES):
            if not self._flowing.is_set():
                self.frozen_bytes += len(data)
                await self._flowing.wait()
            if self._delay_s:
                self.slowed_bytes += len(data)
                await asyncio.sleep(self._delay_s + len(data) / self._bytes_per_s)
            sink.write(data)
            await sink.drain()
        # A client that gives up what it sent closes both ways: there is nobody to answer.
        sink.close()


def _reset(end: asyncio.StreamWriter) -> None:
    """Closes with RST instead of FIN, and forgets what was not sent."""
    connection = end.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
    end.transport.abort()
