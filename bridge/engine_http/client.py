"""One bounded GET of an engine's HTTP server. Asyncio.

The address comes from a registration, which anybody who reaches `/register` can make. So a request
has no more than a path of ours; the answer is read up to a bound in time and in bytes; nothing is
followed to another address; no part of a body is shown or logged, only what is found in it.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Final, NamedTuple

import httptools

from bridge.engine_http.address import BaseUrl, read_base_url
from bridge.sockets.endpoints import names_host, split_endpoint
from bridge.sockets.lookup import LOOKUPS
from schemas.errors import RepriseError
from schemas.limits import (
    ERROR_DETAIL_CHARS_MAX,
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


class _Parsed:
    """What httptools tells of one answer."""

    def __init__(self) -> None:
        self.has_head = self.is_whole = self.has_length = False
        self.body = bytearray()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Without either a body ends with its connection (RFC 9112, 6.3), and nothing tells a cut.
        self.has_length |= name.lower() in (b"content-length", b"transfer-encoding")

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
) -> Reply:
    """Asks for one path below the base URL. One connection, closed behind it.

    Args:
        base_url: of the engine.
        path: with a slash before it.
        with_body: whether its body is wanted; else it is not read.
        wait_s: for all of it.
        bytes_max: of the head with the body.

    Raises:
        NoAnswerError: see there.
        EndpointError: it is no such URL.
    """
    url = read_base_url(base_url)
    try:
        async with asyncio.timeout(wait_s):
            return await _get(url, path, with_body=with_body, bytes_max=bytes_max)
    except TimeoutError as error:
        raise NoAnswerError(f"{url.authority} did not answer within {wait_s:g} s") from error
    except (OSError, ssl.SSLError, ValueError) as error:
        detail = str(error)[:ERROR_DETAIL_CHARS_MAX]
        raise NoAnswerError(f"cannot reach {url.authority}: {detail}") from error


async def _get(url: BaseUrl, path: str, *, with_body: bool, bytes_max: int) -> Reply:
    host = await _address_of(url)
    tls = ssl.create_default_context() if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(
        host, url.port, ssl=tls, server_hostname=url.host if tls else None
    )
    try:
        writer.write(
            f"GET {url.path}{path} HTTP/1.1\r\nHost: {url.authority}\r\nAccept: */*\r\n"
            "Accept-Encoding: identity\r\nConnection: close\r\n\r\n".encode()
        )
        return await _read(reader, url, with_body=with_body, bytes_max=bytes_max)
    finally:
        writer.transport.abort()


async def _address_of(url: BaseUrl) -> str:
    """The first address of its host; looked up in threads of ours, which no name server can fill.

    Raises:
        OSError: it has none.
    """
    endpoint = f"tcp://{url.authority}"
    if not names_host(endpoint):
        return url.host
    looking_up = asyncio.wrap_future(LOOKUPS.look_up(endpoint))
    # Others may wait for the same name; asyncio logs an error of which nobody ever asked.
    looking_up.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    addresses = await asyncio.shield(looking_up)
    if not addresses:
        raise OSError(f"`{url.host[:80]}` has no address")
    return split_endpoint(addresses[0])[0].strip("[]")


async def _read(
    reader: asyncio.StreamReader, url: BaseUrl, *, with_body: bool, bytes_max: int
) -> Reply:
    parsed = _Parsed()
    parser = httptools.HttpResponseParser(parsed)
    read_bytes = 0
    while not parsed.is_whole:
        data = await reader.read(HTTP_ENGINE_READ_BYTES)
        if not data:
            break
        read_bytes += len(data)
        if read_bytes > bytes_max:
            text = f"{url.authority} answers with more than {bytes_max} bytes"
            raise NoAnswerError(text)
        try:
            with suppress(httptools.HttpParserUpgrade):
                parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise NoAnswerError(f"{url.authority} answers with what is not HTTP") from error
        if parsed.has_head and (not with_body or parser.get_status_code() in _NO_BODY):
            break
    if not parsed.has_head:
        raise NoAnswerError(f"{url.authority} closed the connection without an answer")
    has_body = with_body and parser.get_status_code() not in _NO_BODY
    if has_body and parsed.has_length and not parsed.is_whole:
        raise NoAnswerError(f"{url.authority} broke its answer off")
    return Reply(parser.get_status_code(), bytes(parsed.body) if with_body else b"")
