"""Connections to the engines: aiohttp's, but for what no request has asked for.

aiohttp takes whatever lies on a kept connection for the answer to the next request, which is that
of another client, and reads interim answers without end, and without a pause. It writes headers in
UTF-8, whatever they came in.
"""

import asyncio
import select
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_writer import StreamWriter

GATEWAY_INTERIM_MAX: Final = 10  # answers 1xx before the answer: kind="broken"

_SWITCHES: Final = 101


class SentRequest:
    """How far one request came.

    Attributes:
        is_reused: whether its connection had served another one before.
    """

    __slots__ = ("is_reused",)

    def __init__(self) -> None:
        self.is_reused = False


SENT: Final[ContextVar[SentRequest]] = ContextVar("sent")
"""Of the request that this task sends. aiohttp's own way, its tracing, costs each request more."""


class EngineConnection(ResponseHandler):
    """One connection: each request has one answer.

    Attributes:
        is_awaited: whether a request was sent whose answer has not begun.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.is_awaited = False
        self._interim = 0
        self._is_used = False

    def is_connected(self) -> bool:
        """Whether a request can be sent. What came since the last answer is of no request: the
        socket is looked at, since the loop may not have read it yet.
        """
        if not super().is_connected():
            return False
        return self.is_awaited or not self._has_more()

    def set_response_params(self, **options: Any) -> None:
        """See `ResponseHandler`: a request follows."""
        self.is_awaited = True
        self._interim = 0
        if self._is_used:
            SENT.get().is_reused = True
        self._is_used = True
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if data and not self.is_awaited and (self._payload is None or self._payload.is_eof()):
            self._end()
            return
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """The head of an answer came."""
        if not self.is_awaited:
            self._end()
            return
        status = data[0].code
        if not 100 <= status < 200 or status == _SWITCHES:
            self.is_awaited = False
        else:
            self._interim += 1
            if self._interim > GATEWAY_INTERIM_MAX:
                self.is_awaited = False
                text = f"it answers HTTP {status} more than {GATEWAY_INTERIM_MAX} times"
                self.set_exception(aiohttp.ClientPayloadError(text))
                self._end()
                return
        super().feed_data(data, size)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`. Why it was ended stays the reason."""
        why = self._exception
        super().connection_lost(exc)
        if why is not None:
            self._exception = why

    def _end(self) -> None:
        """It serves no other request."""
        self.force_close()
        if self.transport is not None:
            self.transport.close()

    def _has_more(self) -> bool:
        assert self.transport is not None, "it is connected"
        found = self.transport.get_extra_info("socket")
        if found is None or found.fileno() < 0:
            return True
        looking = select.poll()
        looking.register(found.fileno(), select.POLLIN)
        return bool(looking.poll(0))


class EngineRequest(aiohttp.ClientRequest):
    """One request, whose headers go out as they came: each character stands for one byte, where
    aiohttp would write it in UTF-8.
    """

    async def write_bytes(
        self,
        writer: AbstractStreamWriter,
        conn: aiohttp.connector.Connection,
        content_length: int | None = None,
    ) -> None:
        """See `ClientRequest`: the head is written by now, and waits for the body."""
        if isinstance(writer, StreamWriter):
            # aiohttp has no other way.
            head = writer._headers_buf  # noqa: SLF001
            if head and not head.isascii():
                writer._headers_buf = head.decode().encode("latin-1")  # noqa: SLF001
        await super().write_bytes(writer, conn, content_length)


class EngineConnector(aiohttp.TCPConnector):
    """Makes them. Args: see `TCPConnector`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # aiohttp has no other way.
        self._factory = partial(EngineConnection, loop=self._loop)  # type: ignore[assignment]
