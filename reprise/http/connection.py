"""One connection of an HTTP client: uvicorn's protocol, with bounds on what it may cost.

uvicorn bounds neither the head of a request nor the time that it takes, and logs a line for each
bad one. Here each bound has a reason, under which it is counted, and most have an answer:

    head_too_large, too_many_fields   431   the head of a request, or its trailers
    url_too_long                      414
    malformed                         400   what is not HTTP
    head_too_slow                     408   not complete in time
    too_many                          503   no other connection could be closed for a new one
    stopping                          503   not complete when the service stopped
    no_request                        -     connected, and silent
    pipelined                         -     too many requests at once: the ones above are not read
    body_too_slow                     -     what follows a request that is answered already
    answer_not_read                   -
    closed_for_another                -     idle, when a new one came that had no room
    too_long                          -     it has lasted as long as any may (a monitor's)
    upgrade                           -     asked for another protocol: answered in HTTP/1.1

Bodies are the app's to bound (`query_api.http.requests.bodies`).
"""

import asyncio
import os
from collections.abc import Container
from typing import Any, Final, Protocol

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from query_api.http.caller import BREAK_OFF, CERTIFICATE_NAMES, IS_PLAIN
from query_api.http.errors import RequestError
from query_api.http.plain_listener import HandedOver
from query_api.http.wire import Wire, content_type_of, encode_error, reply_wire
from reprise.bounds import HTTP_HEAD_BYTES_MAX, HTTP_URL_BYTES_MAX
from reprise.http.tls import names_of
from schemas.limits import BODY_READ_S, HTTP_IDLE_S, MIB

HTTP_STOP_S: Final = 0.4  # for the rest of a request in part; then for its refusal to be read

HTTP_HEAD_FIELDS_MAX: Final = 128  # reason="too_many_fields", trailers included
HTTP_HEAD_S: Final = 10.0  # from the connection or the first byte: reason="head_too_slow"
HTTP_PIPELINED_MAX: Final = 16  # requests behind one that is not answered: reason="pipelined"
HTTP_ANSWER_S: Final = 30.0  # an answer that nobody reads: reason="answer_not_read"
HTTP_LINGER_S: Final = 2.0  # after a refusal, so that a client that still writes can read it
HTTP_LINGER_BYTES_MAX: Final = 1 * MIB  # of what it still writes

assert 2 * HTTP_STOP_S < 1, "what came in part is refused within the shortest grace, a monitor's"

HEAD_TOO_LARGE: Final = RequestError(
    "head_too_large",
    f"Expected a head of at most `{HTTP_HEAD_BYTES_MAX}` bytes, got more",
    status=431,
)
TOO_MANY_FIELDS: Final = RequestError(
    "too_many_fields",
    f"Expected at most `{HTTP_HEAD_FIELDS_MAX}` header fields, got more",
    status=431,
)
URL_TOO_LONG: Final = RequestError(
    "url_too_long", f"Expected a URL of at most `{HTTP_URL_BYTES_MAX}` bytes, got more", status=414
)
HEAD_TOO_SLOW: Final = RequestError(
    "head_too_slow", f"Expected a complete head within {HTTP_HEAD_S:.0f} s, got less", status=408
)
MALFORMED: Final = RequestError("malformed", "Expected a request of HTTP/1.1, got other bytes")
STOPPING: Final = RequestError(
    "stopping", "The service stops, and the request was not complete; try again", status=503
)
TOO_MANY: Final = RequestError(
    "too_many", "Too many connections are open; try again, or close some", status=503
)


REPORT_PATHS: Final = frozenset({b"/feedback", b"/load"})
_REPORTS: Final = tuple(b"POST " + path for path in sorted(REPORT_PATHS))


class _EndedError(Exception):
    """Ends the parsing of what came."""

    def __init__(self, reason: str, error: RequestError | None = None) -> None:
        self.reason = reason
        self.error = error


class ConnectionOwner(Protocol):
    """Who keeps all connections of a server; see `reprise.http.connections`."""

    @property
    def ends_at_eof(self) -> bool:
        """Whether a client that sends no more has gone."""
        ...

    def admit(self, connection: "Connection") -> bool:
        """Takes a new one in; False where it has no room."""
        ...

    def leave(self, connection: "Connection") -> None:
        """Forgets one that is closed."""
        ...

    def count(self, reason: str) -> None:
        """Counts something that was refused or ended."""
        ...

    def answered(self, connection: "Connection") -> None:
        """One has its answer whose next request is likely the listener's."""
        ...


class _UnframedCycle(RequestResponseCycle):
    """An answer to a client of HTTP/1.0, which knows no chunks: where it has no length, the end of
    the connection is its end.
    """

    has_no_length = False

    async def send(self, message: Any) -> None:
        """See uvicorn, which checks bodies against a length."""
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                self.has_no_length = True
                self.chunked_encoding = False
        elif self.has_no_length:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class _JoinedWrites:
    """What goes out of an answer in one turn of the loop, in one piece: its head with the first of
    its body, which uvicorn writes apart. Each write costs a call of the system, in which another
    thread takes the interpreter.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """See `asyncio.Transport`; so for all below."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)

    def flush(self) -> None:
        """Writes what waits."""
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """See the module. Costs a request no more than uvicorn's own.

    Args:
        owner: of all connections of the server; told what is refused.
        handed: what has come of it where the listener of plain queries had it; see
            `reprise.http.handover`.
        of_server: as uvicorn gives it.

    Attributes:
        served: whether a request of it was answered.
        since: when it was made, last began a request, or was last answered; time of the loop.
        made_at: when it was made.
    """

    def __init__(
        self, owner: ConnectionOwner, handed: HandedOver | None = None, **of_server: Any
    ) -> None:
        super().__init__(**of_server)
        self._handed = handed
        # The next request is likely a decision, which is not to wait for the interpreter.
        self._reports = handed is not None and handed.received.startswith(_REPORTS)
        self.served = False
        self.since = self.made_at = self.loop.time()
        self.headers = []
        self._owner = owner
        self._in_message = False  # between its first byte and its last
        self._in_head = False
        self._trailers = 0  # of the message under way
        self._unframed_bytes = 0  # received since the last piece of a body or the end of a head
        self._ended = False  # what still comes is not looked at
        self._discarded_bytes = 0
        self._answering: RequestResponseCycle | None = None  # `cycle`, unless others wait behind it
        self._unread_since: float | None = None  # an answer waits for the client to read it

    # Start and end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._joined = _JoinedWrites(transport, self.loop)
        names = names_of(transport.get_extra_info("peercert"))
        if names:
            self.app_state = {**self.app_state, CERTIFICATE_NAMES: names}
        if not self._owner.admit(self):
            self._owner.count(TOO_MANY.reason)
            self._ended = True
            self._write(TOO_MANY)
            transport.close()
        elif self._handed is not None:
            self._take_over(self._handed)

    def _take_over(self, handed: HandedOver) -> None:
        self._handed = None
        self.since -= handed.age_s
        if handed.unsent:
            self.served = True
            self.transport.write(handed.unsent)
        if handed.received:
            self.data_received(handed.received)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._owner.leave(self)
        # uvicorn tells only the last request of a pipeline, and the others are answered to nobody.
        self.pipeline.clear()
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        # The last request holds the connection, which holds it. Thousands of such pairs a second
        # would wait for the garbage collector, and all threads for that: 100 ms and more.
        if self.is_idle:
            self.cycle = self.scope = self._answering = None  # type: ignore[assignment]

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    @property
    def is_handed_over(self) -> bool:
        """Whether it comes with a part of a request, or of an answer."""
        handed = self._handed
        return handed is not None and bool(handed.received or handed.unsent)

    def is_for_listener(self, paths: Container[bytes]) -> bool:
        """Whether it waits for the next request, and nothing else, and the last one was for one of
        the listener's paths: one that asks for something else would come back with each request.
        """
        return (
            self.served
            and self.url.partition(b"?")[0] in paths
            and self.is_idle
            and not self._in_message
            and not self._ended
            and self._unread_since is None
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def release(self) -> int:
        """Gives up the connection, which stays open: a descriptor of it, which is the caller's."""
        descriptor = os.dup(self.transport.get_extra_info("socket").fileno())
        self._ended = True
        self.transport.abort()
        return descriptor

    def abort(self, reason: str) -> None:
        """Closes it at once, counted under the reason."""
        self._owner.count(reason)
        self._ended = True
        self.transport.abort()

    def break_off(self) -> None:
        """Ends the connection behind what was written of an answer that will not be whole: its
        client sees that the end is missing.
        """
        self._ended = True
        if self._answering is not None:
            self._answering.disconnected = True
        self._joined.close()

    # What comes in

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._ended:
            self._discard(data)
            return
        self._unframed_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, _EndedError):
                self._end(cause)
            else:
                self._refuse(MALFORMED)
            return
        if self._unframed_bytes > HTTP_HEAD_BYTES_MAX:
            is_url = self._in_head and not self.headers and len(self.url) > HTTP_URL_BYTES_MAX
            self._refuse(URL_TOO_LONG if is_url else HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """A request that asks for another protocol is answered as if it had not: what follows its
        head is its body, and the next request, though the parser takes it for the other protocol.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                self._owner.count("upgrade")
                if self._is_tunnel:  # what follows is for a server that is not there
                    self._close_after_answers()
                    return
                data = data[upgrade.args[0] :]
            head = self._head_without_upgrade()
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self.parser.feed_data(head)

    @property
    def _is_tunnel(self) -> bool:
        return self.parser.get_method() == b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        fields = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([method + b" " + self.url + b" HTTP/" + version, *fields, b"", b""])

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more, and may still read: what came whole is answered. True keeps the
        connection open for that. Where answers take long, nearly all that send no more have gone.
        """
        if self.is_idle or self._owner.ends_at_eof:
            return None
        if not self._ended:
            if self._in_message and not self._in_head:  # it never becomes whole
                if not self.pipeline:
                    return None
                self.pipeline.popleft()
            self._close_after_answers()
        return True

    def shutdown(self) -> None:
        """See uvicorn: what is under way is answered. What has come in part is soon refused."""
        super().shutdown()
        if self._in_message and not self._ended:
            self.loop.call_later(HTTP_STOP_S, self._refuse_rest)

    def _refuse_rest(self) -> None:
        if self._in_message and not self._ended and not self.transport.is_closing():
            self._refuse(STOPPING, linger_s=HTTP_STOP_S)

    # What uvicorn's parser calls

    def on_message_begin(self) -> None:
        """See `httptools`; so for all below."""
        if len(self.pipeline) >= HTTP_PIPELINED_MAX:
            raise _EndedError("pipelined")
        super().on_message_begin()
        self._in_message = self._in_head = True
        self._trailers = 0
        self.since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A trailer is no header, and passed over (RFC 9110, 6.5.1)."""
        if self._in_head:
            super().on_header(name, value)
        else:
            self._trailers += 1

    def on_headers_complete(self) -> None:
        """The bytes are counted one by one only where so many came."""
        if len(self.headers) > HTTP_HEAD_FIELDS_MAX:
            raise _EndedError("too_many_fields", TOO_MANY_FIELDS)
        if len(self.url) > HTTP_URL_BYTES_MAX:
            raise _EndedError("url_too_long", URL_TOO_LONG)
        if self._unframed_bytes > HTTP_HEAD_BYTES_MAX:
            size_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if size_bytes > HTTP_HEAD_BYTES_MAX:
                raise _EndedError("head_too_large", HEAD_TOO_LARGE)
        self._unframed_bytes = 0
        if self.parser.should_upgrade() and not self._is_tunnel:
            return  # the same head comes again; see `_parse`
        super().on_headers_complete()
        self.cycle.transport = self._joined  # type: ignore[assignment]  # the app has not begun yet
        self.scope["state"][BREAK_OFF] = self.break_off
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = _UnframedCycle  # uvicorn makes it
        self._in_head = False  # whatever was wrong with it until here concerns no other request
        if not self.pipeline:
            self._answering = self.cycle

    def on_body(self, body: bytes) -> None:
        """See `httptools`."""
        self._unframed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Trailers are bounded as headers are, and with them."""
        if self._in_head:
            return  # it is not complete, but asks for another protocol; see `_parse`
        if len(self.headers) + self._trailers > HTTP_HEAD_FIELDS_MAX:
            raise _EndedError("too_many_fields", TOO_MANY_FIELDS)
        self._in_message = False
        self._unframed_bytes = 0
        super().on_message_complete()

    # What goes out

    def on_response_complete(self) -> None:
        """As uvicorn has it, but for a timer for each request: `check` ends what is idle."""
        self._joined.flush()
        self.served = True
        self.since = self.loop.time()
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
            super().on_response_complete()
        elif self._ended:
            self.transport.close()
        else:
            self.server_state.total_requests += 1
            reports = self._reports and self.url.partition(b"?")[0] in REPORT_PATHS
            if reports or IS_PLAIN in self.scope["state"]:
                self.loop.call_soon(self._owner.answered, self)
            if self.flow.read_paused and not self.transport.is_closing():
                self.flow.resume_reading()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._unread_since = None
        super().resume_writing()

    @property
    def unread_bytes(self) -> int:
        """Of answers that wait for the client to read them; small ones are not counted."""
        return 0 if self._unread_since is None else self.transport.get_write_buffer_size()

    # Bounds

    def check(self, now: float) -> None:
        """Ends it where it has taken too long. Cost O(1).

        Args:
            now: time of the loop.
        """
        waited_s = now - self.since
        if self.transport.is_closing() and self._unread_since is None:
            self._unread_since = now
        if self._unread_since is not None:
            if now - self._unread_since > HTTP_ANSWER_S:
                self.abort("answer_not_read")
        elif self._ended or not self.is_idle:
            return
        elif self._in_head:
            if waited_s > HTTP_HEAD_S:
                self._refuse(HEAD_TOO_SLOW)
        elif self._in_message:
            if waited_s > BODY_READ_S:
                self.abort("body_too_slow")
        elif not self.served:
            if waited_s > HTTP_HEAD_S:
                self.abort("no_request")
        elif waited_s > HTTP_IDLE_S:
            self.transport.close()

    def _end(self, ended: _EndedError) -> None:
        if ended.error is None:
            self._owner.count(ended.reason)
            self._close_after_answers()
        else:
            self._refuse(ended.error)

    def _refuse(self, error: RequestError, *, linger_s: float = HTTP_LINGER_S) -> None:
        """Answers, as far as an answer can be told from those before it, and closes.

        The connection is read on for a while, and what comes discarded: most clients write all of
        their request before they look for an answer, and closing under them would hide it.
        """
        self._owner.count(error.reason)
        self._joined.flush()
        if self.is_idle:
            self._write(error)
        elif self._in_message and not self._in_head and not self.pipeline:
            # The rest of the request that is being answered.
            if not self.cycle.response_started:
                self._write(error)
            self.cycle.disconnected = True
            self.cycle.waiting_for_100_continue = False  # it is not told to go on any more
            self.cycle.message_event.set()
        else:
            if self._in_message and not self._in_head:  # the rest of the last one that waits
                self.pipeline.popleft()
            self._close_after_answers()
            return
        self._ended = True
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self.transport.write_eof()
            self.loop.call_later(linger_s, self.transport.abort)

    def _close_after_answers(self) -> None:
        """The requests that came whole are answered; a client sends the others again."""
        self._ended = True
        self.flow.pause_reading()
        if self.is_idle:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _write(self, error: RequestError) -> None:
        if self.transport.is_closing():
            return
        wire = reply_wire(self.headers, Wire.JSON)
        status, body = encode_error(error, wire)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", content_type_of(wire)),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = [name + b": " + value + b"\r\n" for name, value in headers]
        self.transport.write(b"".join([STATUS_LINE[status], *lines, b"\r\n", body]))

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes > HTTP_LINGER_BYTES_MAX:
            self.transport.abort()
