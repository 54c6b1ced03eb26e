"""HTTP to the engines: one pool of connections, whose addresses are those that may be asked."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from bridge.sockets.allowed_engines import ALLOWED
from gateway.bounds import (
    GATEWAY_BUFFER_BYTES,
    GATEWAY_CONNECT_S,
    GATEWAY_FIELDS_MAX,
    GATEWAY_LINE_BYTES_MAX,
    GATEWAY_SILENCE_S,
)
from gateway.connections import SENT, EngineConnector, EngineRequest, SentRequest
from schemas.errors import AddressRefusedError
from schemas.limits import MIB

GATEWAY_IDLE_S: Final = 4.0  # of a connection; vLLM and SGLang close theirs after 5 s
GATEWAY_NAMES_KEPT_S: Final = 5  # what the name of an engine stands for
GATEWAY_PIECE_BYTES: Final = 256 * 1024  # of a large body, written at once
GATEWAY_BODY_AT_ONCE_BYTES_MAX: Final = 1 * MIB  # a larger body is written piece by piece

_NO_AUTOMATIC: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class _AllowedAddresses(AbstractResolver):
    """The addresses of a name, of which each may be connected to."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for one in found:
            try:
                ALLOWED.check(one["host"], host)
            except AddressRefusedError as error:
                raise OSError(str(error)) from error
        return found

    async def close(self) -> None:
        await self._inner.close()


class Upstream:
    """See the module. One loop.

    Args:
        silence_s: how long an engine may say nothing.
    """

    def __init__(self, *, silence_s: float = GATEWAY_SILENCE_S) -> None:
        self._silence_s = silence_s
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """On the loop; `close` follows."""
        self._session = aiohttp.ClientSession(
            connector=EngineConnector(
                limit=0,
                keepalive_timeout=GATEWAY_IDLE_S,
                resolver=_AllowedAddresses(),
                ttl_dns_cache=GATEWAY_NAMES_KEPT_S,
            ),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=GATEWAY_CONNECT_S, sock_read=self._silence_s
            ),
            request_class=EngineRequest,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NO_AUTOMATIC,
            read_bufsize=GATEWAY_BUFFER_BYTES,
            max_line_size=GATEWAY_LINE_BYTES_MAX,
            max_field_size=GATEWAY_LINE_BYTES_MAX,
            max_headers=GATEWAY_FIELDS_MAX,
        )

    def ask(
        self,
        method: str,
        base_url: str,
        path: str,
        *,
        headers: list[tuple[str, str]],
        body: bytes,
        sent: SentRequest,
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Sends a request: `async with` of it gives the answer, and ends it.

        Args:
            base_url: of the engine, without a slash at its end.
            path: with a slash before it, and with what stands behind a `?`.
            headers: as they are sent; a character is a byte.
            sent: what is noted of it.
        """
        assert self._session is not None, "it was opened"
        SENT.set(sent)
        data: bytes | AsyncIterator[bytes] = body
        if len(body) > GATEWAY_BODY_AT_ONCE_BYTES_MAX:
            headers = [*headers, ("Content-Length", str(len(body)))]
            data = _pieces(body)
        return self._session.request(
            method,
            URL(base_url + path, encoded=True),
            headers=headers,
            data=data,
            allow_redirects=False,
        )

    async def close(self) -> None:
        """Ends all connections."""
        if self._session is not None:
            await self._session.close()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    view = memoryview(body)
    for start in range(0, len(view), GATEWAY_PIECE_BYTES):
        yield bytes(view[start : start + GATEWAY_PIECE_BYTES])


NOT_REACHED: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Of a request that no engine has got."""

CLOSED_MEANWHILE: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError)
"""Of one that the engine has not got where its connection had served another one before."""

BROKEN: Final = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)
"""Of one that an engine may have got, and did not answer whole."""
