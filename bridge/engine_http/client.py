"""The one reader of what others say over HTTP. Asyncio.

Whoever is asked may be hostile, or broken: an answer is read up to a bound in time, for all of it,
and in bytes; nothing is followed to another address, and no proxy is used. What is in a body is the
caller's to judge, who decodes it within a bound in depth and escapes what is shown.

An engine's address comes from a registration, which anybody who reaches `/register` can make. So
`get` connects only where ALLOWED lets it, a request has no more than a path of ours, and no part of
a body is shown or logged, only what is found in it. `ask` goes where the operator says.
"""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Final, NamedTuple

import httptools

from bridge.engine_http.address import BaseUrl, read_base_url
from bridge.engine_http.bounds import HTTP_ENGINE_BYTES_MAX, HTTP_ENGINE_WAIT_S
from bridge.engine_http.keys import ENGINE_KEYS
from bridge.sockets.allowed_engines import ALLOWED
from bridge.sockets.endpoints import names_host, split_endpoint
from bridge.sockets.lookup import LOOKUPS
from schemas.causes import cause_of
from schemas.errors import AddressRefusedError, EndpointError, RepriseError
from schemas.limits import KIB, MIB

HTTP_BODIES_BYTES_MAX: Final = 32 * MIB  # of all answers that have come in part; then as silent
HTTP_ENGINE_READ_BYTES: Final = 64 * KIB  # at once

_NO_BODY: Final = frozenset({204, 304})


class NoAnswerError(RepriseError):
    """No answer came, or none that can be used; the text says why.

    Operator action: of an engine, see whether the registration's `http_endpoint` is its HTTP
    server, and whether the bridge reaches it.
    """


class Reply(NamedTuple):
    """An answer.

    Attributes:
        body: where that was asked for.
        location: where a redirect leads, as it came; "" for none.
        date: by the engine's clock, as it came; "" for none.
    """

    status: int
    body: bytes
    location: str = ""
    date: str = ""


class _Question(NamedTuple):
    """A request, and with what it is asked.

    Attributes:
        path: with a slash before it.
        headers: beside those that every request has.
        content: of a POST; None: it is a GET.
        tls: None for the system's authorities.
        is_engine: whether it may only go where ALLOWED lets it.
        with_body: whether the answer's body is wanted.
    """

    path: str
    headers: Mapping[str, str] = {}
    content: bytes | None = None
    tls: ssl.SSLContext | None = None
    is_engine: bool = True
    with_body: bool = True

    def encoded(self, url: BaseUrl, connection: str) -> bytes:
        """As it goes over the wire.

        Raises:
            ValueError: a header has what no header can have.
        """
        method = "GET" if self.content is None else "POST"
        headers = {
            "Host": url.authority,
            "Accept": "*/*",
            "Accept-Encoding": "identity",
            "Connection": connection,
            **self.headers,
        }
        key = ENGINE_KEYS.of(url) if self.is_engine else ""
        if key:
            headers["Authorization"] = key
        if self.content is not None:
            headers["Content-Length"] = str(len(self.content))
        lines = [f"{method} {url.path}{self.path} HTTP/1.1"]
        lines += (f"{name}: {value}" for name, value in headers.items())
        for line in lines:
            if not (line.isascii() and line.isprintable()):
                raise ValueError("a header has characters that none can have")
        return "\r\n".join([*lines, "", ""]).encode() + (self.content or b"")


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


class KeepAlivePool:
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


class _ResponseParser:
    """What httptools tells of one answer."""

    def __init__(self) -> None:
        self.has_head = self.is_whole = self.has_length = self.is_last = False
        self.answers = 0
        self.body = bytearray()
        self.location = ""
        self.date = ""

    def on_message_begin(self) -> None:
        self.answers += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        # Without either a body ends with its connection (RFC 9112, 6.3), and nothing tells a cut.
        name = name.lower()
        self.has_length |= name in (b"content-length", b"transfer-encoding")
        self.is_last |= name == b"connection" and b"close" in value.lower()
        if name == b"location":
            self.location = value.decode("latin-1")
        elif name == b"date":
            self.date = value.decode("latin-1")

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
    kept: KeepAlivePool | None = None,
) -> Reply:
    """Asks an engine for one path below its base URL. One connection, closed behind it, or kept.

    Args:
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
    bound = _ReadLimits(bytes_max, cut, Room() if room is None else room)
    question = _Question(path, with_body=with_body)
    return await _answered(read_base_url(base_url), question, bound, kept, wait_s)


async def post(
    base_url: str,
    path: str,
    content: bytes,
    *,
    wait_s: float,
    bytes_max: int,
    kept: KeepAlivePool | None = None,
) -> Reply:
    """Asks an engine with a JSON body, for one path below its base URL. Raises as `get`.

    Args:
        path: with a slash before it.
        wait_s: for all of it.
        bytes_max: of the head of the answer with its body.
        kept: where a connection may be, and stays.
    """
    question = _Question(path, {"Content-Type": "application/json"}, content)
    bound = _ReadLimits(bytes_max, False, Room(bytes_max + HTTP_ENGINE_READ_BYTES))
    return await _answered(read_base_url(base_url), question, bound, kept, wait_s)


async def ask(
    base_url: str,
    path: str,
    *,
    headers: Mapping[str, str],
    content: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    wait_s: float,
    bytes_max: int,
) -> Reply:
    """Asks a server that the operator has named, wherever it is.

    Args:
        path: with a slash before it, and parameters behind it.
        headers: beside those that every request has.
        content: of a POST; None: it is a GET.
        tls: None for the system's authorities.
        wait_s: for all of the answer.
        bytes_max: of the head with the body.

    Raises:
        NoAnswerError: see there.
        EndpointError: it is no such URL.
    """
    question = _Question(path, headers, content, tls, is_engine=False)
    bound = _ReadLimits(bytes_max, False, Room(bytes_max + HTTP_ENGINE_READ_BYTES))
    return await _answered(read_base_url(base_url), question, bound, None, wait_s)


async def _answered(
    url: BaseUrl,
    question: _Question,
    bound: "_ReadLimits",
    kept: KeepAlivePool | None,
    wait_s: float,
) -> Reply:
    try:
        async with asyncio.timeout(wait_s):
            return await _exchanged(url, question, bound, kept)
    except TimeoutError as error:
        raise NoAnswerError(f"{url.authority} did not answer within {wait_s:g} s") from error
    except (OSError, ssl.SSLError, ValueError) as error:
        detail = cause_of(error)
        if url.scheme == "https" and "without TLS" in detail:
            detail += f": ask it as http://{url.authority}"
        raise NoAnswerError(f"cannot reach {url.authority}: {detail}") from error


class _ReadLimits(NamedTuple):
    """Of one answer; see `get`."""

    bytes_max: int
    cut: bool
    room: Room


@cache
def _tls() -> ssl.SSLContext:
    """With the system's authorities; to read these takes milliseconds."""
    return ssl.create_default_context()


async def _exchanged(
    url: BaseUrl, question: _Question, bound: _ReadLimits, kept: KeepAlivePool | None
) -> Reply:
    connection = None if kept is None else kept.take(url)
    if connection is not None:
        with suppress(_ClosedError, ConnectionError):  # its server has closed it meanwhile
            return await _ask(connection, url, question, bound, kept)
    connection = await _connected(url, question)
    return await _ask(connection, url, question, bound, kept)


async def _connected(url: BaseUrl, question: _Question) -> _Connection:
    host = await _address_of(url) if question.is_engine else url.host
    tls = (question.tls or _tls()) if url.scheme == "https" else None
    return _Connection(
        *await asyncio.open_connection(
            host, url.port, ssl=tls, server_hostname=url.host if tls else None
        )
    )


async def _ask(
    connection: _Connection,
    url: BaseUrl,
    question: _Question,
    bound: _ReadLimits,
    kept: KeepAlivePool | None,
) -> Reply:
    stays = False
    try:
        stay = "close" if kept is None else "keep-alive"
        connection.writer.write(question.encoded(url, stay))
        reply, stays = await _read(connection.reader, url, bound, with_body=question.with_body)
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
    addresses = await LOOKUPS.addresses(endpoint)
    if not addresses:
        raise OSError(f"`{url.host[:80]}` has no address")
    return split_endpoint(addresses[0])[0].strip("[]")


async def _read(
    reader: asyncio.StreamReader, url: BaseUrl, bound: _ReadLimits, *, with_body: bool
) -> tuple[Reply, bool]:
    """The answer, and whether its connection can bring another one."""
    parsed = _ResponseParser()
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
                raise NoAnswerError(
                    f"the answers of other engines fill the room that {url.authority} needs"
                )
            is_cut = read_bytes > bound.bytes_max
            if is_cut and not bound.cut:
                raise _too_large(url, bound)
            try:
                with suppress(httptools.HttpParserUpgrade):
                    parser.feed_data(data)
            except httptools.HttpParserError as error:
                hint = "" if url.scheme == "https" else f": if it has TLS, https://{url.authority}"
                text = f"{url.authority} answers with what is not HTTP{hint}"
                raise NoAnswerError(text) from error
            if parsed.has_head and (not with_body or parser.get_status_code() in _NO_BODY):
                break
        if is_cut and not parsed.has_head:
            raise _too_large(url, bound)
    finally:
        bound.room.give_back(read_bytes)
    if not parsed.has_head:
        kind = NoAnswerError if read_bytes else _ClosedError
        hint = "" if url.scheme == "https" else f": if it has TLS, https://{url.authority}"
        raise kind(f"{url.authority} closed the connection without an answer{hint}")
    if parsed.answers > 1:
        raise NoAnswerError(f"{url.authority} answers with more than it was asked for")
    has_body = with_body and parser.get_status_code() not in _NO_BODY
    if has_body and parsed.has_length and not (parsed.is_whole or is_cut):
        raise NoAnswerError(f"{url.authority} broke its answer off")
    body = bytes(parsed.body) if with_body else b""
    reply = Reply(parser.get_status_code(), body, parsed.location, parsed.date)
    is_open = parsed.is_whole and not (is_cut or parsed.is_last)
    return reply, is_open and parser.get_http_version() == "1.1"


def _too_large(url: BaseUrl, bound: _ReadLimits) -> NoAnswerError:
    return NoAnswerError(f"{url.authority} answers with more than {bound.bytes_max} bytes")
