"""JSON over HTTP connections that are kept, many requests at a time, on one thread."""

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

CONNECT_S: Final = 10.0
_HEAD_BYTES_MAX: Final = 64 * 1024
_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Answer(NamedTuple):
    """Status and body."""

    status: int
    body: bytes


class Wire:
    """Requests to one server. Each takes a connection that is idle, or opens another one."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[_Streams] = []

    async def request(self, method: str, path: str, body: object = None) -> Answer:
        """One request, sent once more where the server has closed the connection meanwhile.

        Raises:
            OSError: the server cannot be reached, or what it answers is no HTTP.
        """
        encoded = b"" if body is None else msgspec.json.encode(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address[0]}\r\nAccept: application/json\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(encoded)}\r\n\r\n"
        )
        message = head.encode() + encoded
        while self._idle:
            with suppress(OSError, EOFError):
                return await self._exchange(self._idle.pop(), message)
        async with asyncio.timeout(CONNECT_S):
            streams = await asyncio.open_connection(*self._address, limit=_HEAD_BYTES_MAX)
        try:
            return await self._exchange(streams, message)
        except EOFError as error:
            raise OSError(f"{method} {path}: the server closed the connection") from error

    async def _exchange(self, streams: _Streams, message: bytes) -> Answer:
        reader, writer = streams
        try:
            writer.write(message)
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
            body = await reader.readexactly(int(fields.get("content-length", 0)))
            answer = Answer(int(lines[0].split()[1]), body)
        except BaseException:
            writer.close()
            raise
        self._idle.append(streams)
        return answer

    def close(self) -> None:
        """Closes what is idle."""
        while self._idle:
            self._idle.pop()[1].close()
