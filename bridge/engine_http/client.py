"""One bounded GET of an engine's HTTP server. Asyncio.

The address comes from a registration, which anybody who reaches `/register` can make. So a request
has no more than a path of ours; the answer is read up to a bound in time and in bytes; nothing is
followed to another address; no part of a body is shown or logged, only what is found in it.
"""

import asyncio
import ssl
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import httptools

from bridge.engine_http.address import BaseUrl, read_base_url
from bridge.sockets.allowed import ALLOWED
from bridge.sockets.endpoints import names_host, split_endpoint
from bridge.sockets.lookup import LOOKUPS
from schemas.errors import AddressRefusedError, EndpointError, RepriseError
from schemas.limits import (
    ERROR_DETAIL_CHARS_MAX,
    HTTP_BODIES_BYTES_MAX,
    HTTP_ENGINE_BYTES_MAX,
    HTTP_ENGINE_READ_BYTES,
    HTTP_ENGINE_WAIT_S,
)

_NO_BODY: Final = frozenset({204, 304})


class NoAnswerError(RepriseError):
    """No answer came, or none that can be used; the text says why.

    Operator action: see whether the registration's `http_endpoint` is the engine's HTTP server, and
    whether the bridge reaches it.
    """


class Reply(NamedTuple):
    """An answer: its status, and its body where that was asked for."""

    status: int
    body: bytes


class Room:
    """What all answers may take together that have come in part; one loop."""

    def __init__(self, bytes_max: int = HTTP_BODIES_BYTES_MAX) -> None:
        self._left = bytes_max

    def take(self, size_bytes: int) -> bool:
        """Whether there is room for so much more; it is taken, whatever the answer."""
        self._left -= size_bytes
        return self._left >= 0

    def give_back(self, size_bytes: int) -> None:
        """An answer that took so much has been read, or given up."""
        self._left += size_bytes


class _Connection(NamedTuple):
    """To a server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def end(self) -> None:
        """Closes it at once."""
        self.writer.transport.abort()


class Kept:
    """Connections that stay open from one question to the next, one of a server. One loop.

    Args:
        count_max: of them; a further one is closed.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._open: dict[BaseUrl, _Connection] = {}

    def take(self, url: BaseUrl) -> _Connection | None:
        """The connection, where there is one that nobody has closed as far as is known."""
        connection = self._open.pop(url, None)
        if connection is not None and connection.reader.at_eof():
            connection.end()
            return None
        return connection

    def keep(self, url: BaseUrl, connection: _Connection) -> None:
        """Leaves it open for the next question, where there is room."""
        self._end(url)
        if len(self._open) < self._count_max:
            self._open[url] = connection
        else:
            connection.end()

    def forget(self, base_url: str) -> None:
        """No further question is to come."""
        with suppress(EndpointError):
            self._end(read_base_url(base_url))

    def close(self) -> None:
        """Ends all of them."""
        for url in list(self._open):
            self._end(url)

    def _end(self, url: BaseUrl) -> None:
        connection = self._open.pop(url, None)
        if connection is not None:
            connection.end()


class _ClosedError(NoAnswerError):
    """The connection was closed before anything of an answer came."""


class _Parsed:
    """What httptools tells of one answer."""

    def __init__(self) -> None:
        self.has_head = self.is_whole = self.has_length = self.is_last = False
        self.answers = 0
        self.body = bytearray()

    def on_message_begin(self) -> None:
        self.answers += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        # Without either a body ends with its connection (RFC 9112, 6.3), and nothing tells a cut.
        name = name.lower()
        self.has_length |= name in (b"content-length", b"transfer-encoding")
        self.is_last |= name == b"connection" and b"close" in value.lower()

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True


async def get(
    base_url: str,
    path: str,
    *,
    with_body: bool,
    wait_s: float = HTTP_ENGINE_WAIT_S,
    bytes_max: int = HTTP_ENGINE_BYTES_MAX,
    cut: bool = False,
    room: Room | None = None,
    kept: Kept | None = None,
) -> Reply:
    """Asks for one path below the base URL. One connection, closed behind it, or kept.

    Args:
        base_url: of the engine.
        path: with a slash before it.
        with_body: whether its body is wanted; else it is not read.
        wait_s: for all of it.
        bytes_max: of the head with the body.
        cut: whether no more than that is wanted of a larger one; else it is no answer.
        room: that it shares with others.
        kept: where a connection may be, and stays.

    Raises:
        NoAnswerError: see there.
        EndpointError: it is no such URL.
    """
    url = read_base_url(base_url)
    try:
        async with asyncio.timeout(wait_s):
            bound = _Bound(bytes_max, cut, Room() if room is None else room)
            return await _get(url, path, bound, kept, with_body=with_body)
    except TimeoutError as error:
        raise NoAnswerError(f"{url.authority} did not answer within {wait_s:g} s") from error
    except (OSError, ssl.SSLError, ValueError) as error:
        detail = str(error)[:ERROR_DETAIL_CHARS_MAX]
        raise NoAnswerError(f"cannot reach {url.authority}: {detail}") from error


class _Bound(NamedTuple):
    """Of one answer; see `get`."""

    bytes_max: int
    cut: bool
    room: Room


@cache
def _tls() -> ssl.SSLContext:
    """With the system's authorities; to read these takes milliseconds."""
    return ssl.create_default_context()


async def _get(
    url: BaseUrl, path: str, bound: _Bound, kept: Kept | None, *, with_body: bool
) -> Reply:
    connection = None if kept is None else kept.take(url)
    if connection is not None:
        with suppress(_ClosedError, ConnectionError):  # its server has closed it meanwhile
            return await _ask(connection, url, path, bound, kept, with_body=with_body)
    connection = await _connected(url)
    return await _ask(connection, url, path, bound, kept, with_body=with_body)


async def _connected(url: BaseUrl) -> _Connection:
    host = await _address_of(url)
    tls = _tls() if url.scheme == "https" else None
    return _Connection(
        *await asyncio.open_connection(
            host, url.port, ssl=tls, server_hostname=url.host if tls else None
        )
    )


async def _ask(
    connection: _Connection,
    url: BaseUrl,
    path: str,
    bound: _Bound,
    kept: Kept | None,
    *,
    with_body: bool,
) -> Reply:
    stays = False
    try:
        connection.writer.write(
            f"GET {url.path}{path} HTTP/1.1\r\nHost: {url.authority}\r\nAccept: */*\r\n"
            "Accept-Encoding: identity\r\n"
            f"Connection: {'close' if kept is None else 'keep-alive'}\r\n\r\n".encode()
        )
        reply, stays = await _read(connection.reader, url, bound, with_body=with_body)
        if stays and kept is not None:
            kept.keep(url, connection)
        return reply
    finally:
        if not stays or kept is None:
            connection.end()


async def _address_of(url: BaseUrl) -> str:
    """The first address of its host; looked up in threads of ours, which no name server can fill.

    Raises:
        OSError: it has none.
    """
    endpoint = f"tcp://{url.authority}"
    if not names_host(endpoint):
        try:
            ALLOWED.check(url.host)
        except AddressRefusedError as error:
            raise OSError(str(error)) from error
        return url.host
    looking_up = asyncio.wrap_future(LOOKUPS.look_up(endpoint))
    # Others may wait for the same name; asyncio logs an error of which nobody ever asked.
    looking_up.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    addresses = await asyncio.shield(looking_up)
    if not addresses:
        raise OSError(f"`{url.host[:80]}` has no address")
    return split_endpoint(addresses[0])[0].strip("[]")


async def _read(
    reader: asyncio.StreamReader, url: BaseUrl, bound: _Bound, *, with_body: bool
) -> tuple[Reply, bool]:
    """The answer, and whether its connection can bring another one."""
    parsed = _Parsed()
    parser = httptools.HttpResponseParser(parsed)
    read_bytes = 0
    is_cut = False
    try:
        while not parsed.is_whole and not is_cut:
            data = await reader.read(HTTP_ENGINE_READ_BYTES)
            if not data:
                break
            read_bytes += len(data)
            if not bound.room.take(len(data)):
                raise NoAnswerError(f"others answer with so much that {url.authority} has to wait")
            is_cut = read_bytes > bound.bytes_max
            if is_cut and not bound.cut:
                raise _too_large(url, bound)
            try:
                with suppress(httptools.HttpParserUpgrade):
                    parser.feed_data(data)
            except httptools.HttpParserError as error:
                raise NoAnswerError(f"{url.authority} answers with what is not HTTP") from error
            if parsed.has_head and (not with_body or parser.get_status_code() in _NO_BODY):
                break
        if is_cut and not parsed.has_head:
            raise _too_large(url, bound)
    finally:
        bound.room.give_back(read_bytes)
    if not parsed.has_head:
        kind = NoAnswerError if read_bytes else _ClosedError
        raise kind(f"{url.authority} closed the connection without an answer")
    if parsed.answers > 1:
        raise NoAnswerError(f"{url.authority} answers with more than it was asked for")
    has_body = with_body and parser.get_status_code() not in _NO_BODY
    if has_body and parsed.has_length and not (parsed.is_whole or is_cut):
        raise NoAnswerError(f"{url.authority} broke its answer off")
    reply = Reply(parser.get_status_code(), bytes(parsed.body) if with_body else b"")
    is_open = parsed.is_whole and not (is_cut or parsed.is_last)
    return reply, is_open and parser.get_http_version() == "1.1"


def _too_large(url: BaseUrl, bound: _Bound) -> NoAnswerError:
    return NoAnswerError(f"{url.authority} answers with more than {bound.bytes_max} bytes")
