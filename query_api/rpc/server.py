"""The server of Conductor's RPC: connections, their bounds, and a request at a time of each."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from query_api.rpc.bounds import (
    RPC_CONNECTIONS_MAX,
    RPC_GRACE_S,
    RPC_IDLE_S,
    RPC_LARGE_BYTES_MAX,
    RPC_READ_S,
    RPC_SMALL_BYTES,
    RPC_WRITE_S,
)
from query_api.rpc.conductor import Conductor, Method
from query_api.rpc.counts import RpcCounts
from query_api.rpc.frames import (
    MAGIC,
    REQUEST_HEAD_BYTES,
    RequestHead,
    RpcErrc,
    answer_frame,
    error_frame,
    read_head,
)
from query_api.rpc.struct_pack import StructPackError
from schemas.limits import KIB

RPC_BACKLOG: Final = 128  # connections that are not accepted yet; the system refuses more
RPC_READ_AHEAD_BYTES: Final = 16 * KIB  # of a connection, while a request of it is answered

logger = logging.getLogger(__name__)

_UNKNOWN: Final = "unknown"


class _Ended(Exception):
    """A connection that Reprise ends.

    Attributes:
        reason: under which it is counted.
        answer: what its client is told before; b"" for nothing.
    """

    def __init__(self, reason: str, answer: bytes = b"") -> None:
        self.reason = reason
        self.answer = answer
        super().__init__(reason)


class _Connection:
    """One client.

    Attributes:
        is_busy: whether a request of it is under way.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.is_busy = False
        self.reader = reader
        self.writer = writer


class RpcServer:
    """Serves one bound socket, on the loop of the application that answers.

    Args:
        listening: bound; this server closes it.
        counts: what happens, for the metrics.
    """

    def __init__(self, listening: socket.socket, conductor: Conductor, counts: RpcCounts) -> None:
        self._listening = listening
        self._conductor = conductor
        self._counts = counts
        self._server: asyncio.Server | None = None
        self._is_ending = False
        self._connections: dict[_Connection, asyncio.Task[None]] = {}
        self._large_bytes = 0

    async def open(self) -> None:
        """Begins to answer."""
        self._server = await asyncio.start_server(
            self._begin, sock=self._listening, backlog=RPC_BACKLOG, limit=RPC_READ_AHEAD_BYTES
        )
        host, port = self._listening.getsockname()[:2]
        logger.info(
            "Answering Conductor's RPC on %s:%s", f"[{host}]" if ":" in host else host, port
        )

    async def close(self, *, is_forced: Callable[[], bool]) -> None:
        """Accepts no more, and ends once what is under way is answered, or RPC_GRACE_S are over; at
        once, where it is forced.
        """
        if self._server is None:
            return
        self._is_ending = True
        self._server.close()
        busy = [task for one, task in self._connections.items() if one.is_busy]
        for one, task in self._connections.items():
            if not one.is_busy or is_forced():
                task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=RPC_GRACE_S)
        left = list(self._connections.values())
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_ending:
            writer.transport.abort()
            return
        if len(self._connections) >= RPC_CONNECTIONS_MAX:
            self._counts.refused["too_many_connections"] += 1
            writer.transport.abort()
            return
        peer = writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a client that is gone
        connection = _Connection(reader, writer)
        task = asyncio.get_running_loop().create_task(self._serve(connection))
        task.add_done_callback(partial(self._end, connection))
        self._connections[connection] = task
        self._counts.connections = len(self._connections)

    def _end(self, connection: _Connection, _: "asyncio.Task[None]") -> None:
        connection.writer.transport.abort()  # of a task that has not even begun, too
        del self._connections[connection]
        self._counts.connections = len(self._connections)

    async def _serve(self, connection: _Connection) -> None:
        try:
            while not self._is_ending and await self._turn(connection):
                pass
        except _Ended as ended:
            self._counts.refused[ended.reason] += 1
            connection.writer.write(ended.answer)
            await _close(connection.writer)
        except (asyncio.IncompleteReadError, OSError):
            pass  # the client is gone
        else:
            await _close(connection.writer)

    async def _turn(self, connection: _Connection) -> bool:
        """One request and its answer; False where the client has ended the connection.

        Raises:
            _Ended: Reprise ends the connection.
        """
        reader = connection.reader
        try:
            async with asyncio.timeout(RPC_IDLE_S):
                first = await reader.read(1)
        except TimeoutError as error:
            raise _Ended("idle") from error
        if not first:
            return False
        if first[0] != MAGIC:
            raise _Ended("no_rpc")
        connection.is_busy = True
        try:
            await self._answer_one(connection, first)
        finally:
            connection.is_busy = False
        return True

    async def _answer_one(self, connection: _Connection, first: bytes) -> None:
        reserved = 0
        try:
            try:
                async with asyncio.timeout(RPC_READ_S):
                    rest = await connection.reader.readexactly(REQUEST_HEAD_BYTES - len(first))
                    head = read_head(first + rest)
                    method = self._conductor.methods.get(head.function)
                    self._check(head, method)
                    if head.body_bytes + head.attachment_bytes > RPC_SMALL_BYTES:
                        reserved = self._reserve(head)
                    body = await connection.reader.readexactly(head.body_bytes)
                    await _skip(connection.reader, head.attachment_bytes)
            except TimeoutError as error:
                raise _Ended("too_slow") from error
            answer = await self._answered(head, method, body)
        finally:
            self._large_bytes -= reserved
        connection.writer.write(answer)
        try:
            async with asyncio.timeout(RPC_WRITE_S):
                await connection.writer.drain()
        except TimeoutError as error:
            connection.writer.transport.abort()
            raise _Ended("answer_not_read") from error

    @staticmethod
    def _check(head: RequestHead, method: Method | None) -> None:
        """Whether the rest may be read."""
        if not head.is_understood:
            raise _Ended("no_rpc")
        most = RPC_SMALL_BYTES if method is None else method.body_bytes_max
        given = head.body_bytes + head.attachment_bytes
        if given > most:
            text = f"Expected a request of at most {most} bytes, got {given}"
            raise _Ended("too_large", error_frame(head.number, RpcErrc.MESSAGE_TOO_LARGE, text))

    def _reserve(self, head: RequestHead) -> int:
        """Room for a large request, before a byte of it is kept."""
        wanted = head.body_bytes + head.attachment_bytes
        if self._large_bytes + wanted > RPC_LARGE_BYTES_MAX:
            text = "Too many large requests at once; try again"
            raise _Ended("no_room", error_frame(head.number, RpcErrc.MESSAGE_TOO_LARGE, text))
        self._large_bytes += wanted
        return wanted

    async def _answered(self, head: RequestHead, method: Method | None, body: bytes) -> bytes:
        name = _UNKNOWN if method is None else method.name
        try:
            if method is None:
                text = "the rpc function not registered"
                return self._error(head, name, RpcErrc.FUNCTION_NOT_REGISTERED, text)
            code, value = await method.answer(body)
        except StructPackError as error:
            text = f"invalid rpc arg: {error}"
            return self._error(head, name, RpcErrc.INVALID_RPC_ARGUMENTS, text)
        except Exception:
            logger.exception("Unexpected error in Conductor's RPC; its client is told of a failure")
            text = "Reprise has failed to answer; its log says why"
            return self._error(head, name, RpcErrc.RPC_THROW_EXCEPTION, text)
        self._counts.calls[name, code] += 1
        return answer_frame(head.number, value)

    def _error(self, head: RequestHead, name: str, errc: RpcErrc, text: str) -> bytes:
        self._counts.calls[name, errc.name] += 1
        return error_frame(head.number, errc, text)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Ends a connection once all is sent, within a bound."""
    writer.close()
    with suppress(OSError):  # TimeoutError, too
        async with asyncio.timeout(RPC_WRITE_S):
            await writer.wait_closed()


async def _skip(reader: asyncio.StreamReader, size: int) -> None:
    """Reads so many bytes, and keeps none of them.

    Raises:
        IncompleteReadError: there are fewer.
    """
    while size:
        piece = await reader.read(min(size, RPC_READ_AHEAD_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
