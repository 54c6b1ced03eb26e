"""What one HTTP connection may do: each bound, its reason, and its answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from query_api.http.caller import BREAK_OFF
from reprise.bounds import HTTP_HEAD_BYTES_MAX, HTTP_URL_BYTES_MAX
from reprise.http.connection import (
    HTTP_ANSWER_S,
    HTTP_HEAD_FIELDS_MAX,
    HTTP_HEAD_S,
    HTTP_LINGER_BYTES_MAX,
    HTTP_PIPELINED_MAX,
    Connection,
)
from reprise.http.connections import HTTP_ANSWERS_BYTES_MAX, Connections
from schemas.limits import BODY_READ_S, HTTP_IDLE_S, REFUSALS_LOG_S

OK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class FakeSocket:
    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    getpeername = getsockname


class FakeTransport(asyncio.Transport):
    """Keeps what is written; nothing is ever read by a client unless the test says."""

    def __init__(self, descriptor: int = 3) -> None:
        super().__init__({"socket": FakeSocket(descriptor)})
        self.written = b""
        self.writes = 0
        self.unread_bytes = 0
        self.closed = False
        self.aborted = False
        self.half_closed = False
        self.lost = False
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.half_closed, "uvloop raises here"
        assert not self.lost, "and here"
        self.written += bytes(data)
        self.writes += 1

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def write_eof(self) -> None:
        self.half_closed = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    @property
    def ended(self) -> bool:
        return self.closed or self.half_closed

    @property
    def statuses(self) -> list[int]:
        """Of the answers."""
        return [int(part[:3]) for part in self.written.split(b"HTTP/1.1 ")[1:]]

    @property
    def reason(self) -> str:
        """Of the last answer."""
        found: str = msgspec.json.decode(self.written.rpartition(b"\r\n\r\n")[2])["reason"]
        return found


class Server:
    """A server without a socket, whose app answers what the test lets it."""

    def __init__(self, **bounds: Any) -> None:
        self.connections = Connections(**bounds)
        self.state = ServerState()
        self.config = self.connections.configure(self.app)
        self.config.load()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.bodies: list[bytes | None] = []  # None: the client left
        self.came: list[list[tuple[bytes, bytes]]] = []  # headers of each request, at its end
        self.headers = [(b"content-length", b"2")]
        self.answer = [b"{}"]

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                self.bodies.append(None)
                return
            body += message["body"]
            more = message["more_body"]
        self.bodies.append(body)
        self.came.append(list(scope["headers"]))
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": self.headers})
        for piece in self.answer:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def connect(self, descriptor: int = 3) -> tuple[Connection, FakeTransport]:
        connection = self.connections.make(self.config, self.state, {})
        transport = FakeTransport(descriptor)
        connection.connection_made(transport)
        return connection, transport

    def count(self, reason: str) -> int:
        return self.connections.refused[reason]


Case = Callable[[Server], Awaitable[None]]


def run(case: Case, **bounds: Any) -> None:
    async def go() -> None:
        await case(Server(**bounds))

    asyncio.run(go())


async def turns() -> None:
    """Lets the app have its turns."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_an_answer_goes_out_at_once_in_one_piece() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        for count in (1, 2):
            connection.data_received(OK)
            await turns()
            assert (transport.statuses, transport.writes) == ([200] * count, count)

    run(case)


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
        )
        await may_go_on.wait()
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        await send({"type": "http.response.body", "body": b"}"})

    may_go_on = asyncio.Event()

    async def case(server: Server) -> None:
        server.config.loaded_app = app
        connection, transport = server.connect()
        connection.data_received(OK)
        await turns()
        assert transport.written.endswith(b"\r\n\r\n")
        may_go_on.set()
        await turns()
        assert transport.written.endswith(b"\r\n\r\n{}")
        assert transport.writes == 2

    run(case)


def test_what_was_sent_of_an_answer_that_breaks_off_goes_out() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        scope["state"][BREAK_OFF]()

    async def case(server: Server) -> None:
        server.config.loaded_app = app
        connection, transport = server.connect()
        connection.data_received(OK)
        await turns()
        assert transport.written.endswith(b"\r\n\r\n4\r\npart\r\n")
        assert transport.closed

    run(case)


def test_requests_are_answered_one_after_the_other() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        for _ in range(3):
            connection.data_received(OK)
            await turns()
        connection.data_received(OK * 3)
        for _ in range(3):
            await turns()
        assert transport.statuses == [200] * 6
        assert not transport.closed
        assert not server.connections.refused

    run(case)


@pytest.mark.parametrize(
    ("version", "body"),
    [(b"1.0", b"word, word"), (b"1.1", b"6\r\nword, \r\n4\r\nword\r\n0\r\n\r\n")],
)
def test_an_answer_without_a_length_has_no_chunks_for_a_client_of_http_1_0(
    version: bytes, body: bytes
) -> None:
    async def case(server: Server) -> None:
        server.headers, server.answer = [], [b"word, ", b"word"]
        connection, transport = server.connect()
        connection.data_received(OK.replace(b"1.1", version))
        await turns()
        head, _, written = transport.written.partition(b"\r\n\r\n")
        assert written == body
        assert (b"chunked" in head) == (version == b"1.1")
        assert transport.closed == (version == b"1.0")

    run(case)


def test_an_answer_with_a_length_is_framed_for_a_client_of_http_1_0() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(OK.replace(b"1.1", b"1.0"))
        await turns()
        assert b"content-length: 2" in transport.written
        assert transport.written.endswith(b"\r\n\r\n{}")
        assert transport.closed

    run(case)


def fields(count: int, size: int = 1) -> bytes:
    return b"".join(b"x%d: %s\r\n" % (number, b"v" * size) for number in range(count))


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (
            b"GET / HTTP/1.1\r\n" + fields(HTTP_HEAD_FIELDS_MAX + 1) + b"\r\n",
            431,
            "too_many_fields",
        ),
        (b"GET / HTTP/1.1\r\n" + fields(70, 1000) + b"\r\n", 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\nx: " + b"v" * (HTTP_HEAD_BYTES_MAX + 1), 431, "head_too_large"),
        (b"GET / HTTP/1.1\r\n" + b"x" * (HTTP_HEAD_BYTES_MAX + 1), 431, "head_too_large"),
        (b"GET /" + b"u" * HTTP_URL_BYTES_MAX + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (b"GET /" + b"u" * HTTP_HEAD_BYTES_MAX, 414, "url_too_long"),
        (b"\r\n" * HTTP_HEAD_BYTES_MAX, 431, "head_too_large"),
        (b"NONSENSE\r\n\r\n", 400, "malformed"),
        (b"\x00\xff" * 10, 400, "malformed"),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "malformed"),
        (b"GET http:// HTTP/1.1\r\n\r\n", 400, "malformed"),
    ],
)
@pytest.mark.parametrize(("piece", "before"), [(1 << 30, 0), (1000, 1)])
def test_a_head_beyond_a_bound_is_answered_and_its_connection_closed(
    request_: bytes, status: int, reason: str, piece: int, before: int
) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        for _ in range(before):
            connection.data_received(OK)
            await turns()
        for start in range(0, len(request_), piece):
            connection.data_received(request_[start : start + piece])
        await turns()
        assert transport.statuses == [200] * before + [status]
        assert transport.reason == reason
        assert b"connection: close" in transport.written
        assert transport.half_closed
        assert len(server.bodies) == before
        assert server.count(reason) == 1
        connection.data_received(OK)  # not looked at
        await turns()
        assert len(transport.statuses) == before + 1

    run(case)


def test_a_head_just_within_the_bounds_is_answered() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        url = b"/" + b"u" * (HTTP_URL_BYTES_MAX - 1)
        head = b"GET " + url + b" HTTP/1.1\r\n" + fields(HTTP_HEAD_FIELDS_MAX, 400) + b"\r\n"
        for _ in range(2):
            connection.data_received(head)
            await turns()
        assert transport.statuses == [200, 200]

    run(case)


CHUNKED = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("trailers", "reason"),
    [
        (fields(HTTP_HEAD_FIELDS_MAX + 1) + b"\r\n", "too_many_fields"),
        (b"x: " + b"v" * 200_000, "head_too_large"),
    ],
)
def test_trailers_are_bounded_as_a_head_is(trailers: bytes, reason: str) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(CHUNKED + b"3\r\nabc\r\n")
        await turns()
        connection.data_received(b"0\r\n")
        for start in range(0, len(trailers), 10_000):
            connection.data_received(trailers[start : start + 10_000])
        await turns()
        assert transport.statuses == [431]
        assert server.count(reason) == 1
        assert server.bodies == [None]

    run(case)


def test_trailers_are_no_headers() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(CHUNKED + b"3\r\nabc\r\n0\r\nX-Session-ID: forged\r\n\r\n")
        await turns()
        assert (transport.statuses, server.bodies) == ([200], [b"abc"])
        assert server.came == [[(b"transfer-encoding", b"chunked")]]

    run(case)


def test_a_large_body_in_many_pieces_is_not_taken_for_a_head() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        piece = b"%x\r\n" % 50_000 + b"v" * 50_000 + b"\r\n"
        connection.data_received(CHUNKED)
        for _ in range(10):
            connection.data_received(piece)
            await turns()
        connection.data_received(b"0\r\n\r\n")
        await turns()
        assert transport.statuses == [200]
        assert [len(body or b"") for body in server.bodies] == [500_000]

    run(case)


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize(
    "bad",
    [
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + fields(HTTP_HEAD_FIELDS_MAX + 1) + b"\r\n",
        b"GET /" + b"u" * HTTP_URL_BYTES_MAX + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{?\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        + fields(HTTP_HEAD_FIELDS_MAX + 1)
        + b"\r\n",
    ],
)
def test_a_bad_request_behind_others_does_not_disturb_their_answers(
    bad: bytes, before: int
) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        server.may_answer.clear()
        connection.data_received(OK * before)
        await turns()
        connection.data_received(bad)
        await turns()
        assert transport.written == b""
        server.may_answer.set()
        for _ in range(before + 1):
            await turns()
        assert transport.statuses == [200] * before
        assert server.bodies == [b""] * before
        assert transport.closed
        assert not transport.aborted

    run(case)


def test_nothing_is_written_behind_the_answer_to_a_bad_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        head = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.data_received(head + b"no size\r\n")
        await turns()
        assert transport.statuses == [400]
        assert server.bodies == [None]

    run(case)
    assert not caplog.records


def test_requests_of_a_client_that_has_left_are_answered_to_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        server.may_answer.clear()
        connection.data_received(OK * 3)
        await turns()
        transport.lost = True
        connection.connection_lost(ConnectionResetError())
        server.may_answer.set()
        await turns()
        assert server.bodies == [b""]
        assert transport.written == b""

    run(case)
    assert not caplog.records


@pytest.mark.parametrize("requests", [1, 2, 5])
def test_a_client_that_sends_no_more_is_answered_what_it_sent(requests: int) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        server.may_answer.clear()
        connection.data_received(OK * requests)
        await turns()
        assert connection.eof_received() is True
        assert connection.eof_received() is True, "it is told again where reading was resumed"
        server.may_answer.set()
        for _ in range(requests):
            await turns()
        assert transport.statuses == [200] * requests
        assert transport.closed
        assert not transport.aborted

    run(case)


def test_what_is_not_whole_when_a_client_sends_no_more_is_left_out() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        server.may_answer.clear()
        connection.data_received(OK * 2 + b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx")
        await turns()
        assert connection.eof_received() is True
        server.may_answer.set()
        for _ in range(3):
            await turns()
        assert transport.statuses == [200, 200]
        assert transport.closed

    run(case)


@pytest.mark.parametrize("sent", [b"", OK[:-1], b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"])
def test_a_client_that_leaves_before_its_request_is_whole_gets_none(sent: bytes) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        if sent:
            connection.data_received(sent)
        await turns()
        assert not connection.eof_received(), "the transport closes then"
        connection.connection_lost(None)
        await turns()
        assert transport.statuses == []

    run(case)


def test_requests_above_the_bound_of_a_pipeline_are_not_read() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(OK * 10_000)
        for _ in range(HTTP_PIPELINED_MAX):
            await turns()
        assert transport.statuses == [200] * (HTTP_PIPELINED_MAX + 1)
        assert transport.closed
        assert not transport.aborted
        assert server.count("pipelined") == 1

    run(case)


# As Java's HttpClient sends it first, with the body behind it; a browser; and in lower case.
ASKS_FOR_H2C = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
)
ASKS_FOR_WEBSOCKET = b"Connection: upgrade\r\nUpgrade: websocket\r\n"


@pytest.mark.parametrize("asks", [ASKS_FOR_H2C, ASKS_FOR_WEBSOCKET, ASKS_FOR_H2C.lower() * 2])
@pytest.mark.parametrize("piece_bytes", [1, 7, 50, 10_000])
def test_a_request_that_asks_for_another_protocol_is_answered_with_its_body(
    asks: bytes, piece_bytes: int
) -> None:
    body = b"GET / HTTP/1.1\r\nbody:x\r\n\r"
    whole = b"POST / HTTP/1.1\r\n" + asks + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunked = (
        b"POST / HTTP/1.1\r\n" + asks + b"Transfer-Encoding: chunked\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    without_body = b"GET / HTTP/1.1\r\n" + asks + b"\r\n"
    requests = whole + chunked + without_body + OK

    async def case(server: Server) -> None:
        connection, transport = server.connect()
        for at in range(0, len(requests), piece_bytes):
            connection.data_received(requests[at : at + piece_bytes])
        await turns()
        assert transport.statuses == [200, 200, 200, 200]
        assert server.bodies == [body, b"abcde", b"", b""]
        assert server.count("upgrade") == 3
        assert not transport.closed

    run(case)


def test_a_head_that_asks_for_another_protocol_is_bounded_as_any() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        head = b"GET / HTTP/1.1\r\n" + ASKS_FOR_H2C + b"x: y\r\n" * HTTP_HEAD_FIELDS_MAX + b"\r\n"
        connection.data_received(head)
        await turns()
        assert transport.statuses == [431]
        assert transport.reason == "too_many_fields"

    run(case)


@pytest.mark.parametrize(("target", "status"), [(b"far:443", 400), (b"/x", 200)])
def test_what_follows_a_request_for_a_tunnel_is_not_read_as_requests(
    target: bytes, status: int
) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(b"CONNECT " + target + b" HTTP/1.1\r\nHost: far\r\n\r\n" + OK)
        await turns()
        assert transport.statuses == [status]
        assert transport.ended

    run(case)


def test_a_refused_client_that_writes_on_is_cut_off() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(b"NONSENSE\r\n\r\n")
        connection.data_received(b"x" * HTTP_LINGER_BYTES_MAX)
        assert not transport.aborted
        connection.data_received(b"x")
        assert transport.aborted

    run(case)


class Clock:
    """A loop whose time a test sets."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time()

    def time(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


def test_a_head_that_comes_byte_by_byte_has_no_longer_than_one_that_stops() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        clock = Clock(connection.loop)
        connection.loop = clock  # type: ignore[assignment]
        head = b"GET / HTTP/1.1\r\nx-long: " + b"y" * 60
        began = clock.now
        for byte in head:
            clock.now += 1
            connection.data_received(bytes([byte]))
            server.connections.sweep(clock.now)
            if transport.ended:
                break
        assert (transport.statuses, transport.reason) == ([408], "head_too_slow")
        assert HTTP_HEAD_S <= clock.now - began <= HTTP_HEAD_S + 2

    run(case)


@pytest.mark.parametrize(
    ("sent", "within_s", "status", "reason"),
    [
        (b"", HTTP_HEAD_S, None, "no_request"),
        (b"\r\n", HTTP_HEAD_S, None, "no_request"),
        (b"G", HTTP_HEAD_S, 408, "head_too_slow"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n", HTTP_HEAD_S, 408, "head_too_slow"),
        (OK + b"G", HTTP_HEAD_S, 408, "head_too_slow"),
        (OK, HTTP_IDLE_S, None, None),
    ],
)
def test_silence_is_bounded(
    sent: bytes, within_s: float, status: int | None, reason: str | None
) -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        if sent:
            connection.data_received(sent)
        await turns()
        answered = transport.statuses
        server.connections.sweep(connection.since + within_s - 1)
        assert not transport.closed
        assert transport.statuses == answered
        server.connections.sweep(connection.since + within_s + 1)
        assert transport.ended
        assert transport.statuses == answered + ([] if status is None else [status])
        assert server.connections.refused == ({} if reason is None else {reason: 1})

    run(case)


def test_a_request_under_way_is_not_silence() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        server.may_answer.clear()
        connection.data_received(OK)
        await turns()
        server.connections.sweep(connection.since + 1000)
        assert not transport.closed

    run(case)


def test_what_follows_a_request_that_was_answered_early_is_bounded() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async def case(server: Server) -> None:
        server.config = server.connections.configure(app)
        server.config.load()
        connection, transport = server.connect()
        connection.data_received(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        await turns()
        connection.data_received(b"v")
        server.connections.sweep(connection.since + BODY_READ_S - 1)
        assert not transport.closed
        server.connections.sweep(connection.since + BODY_READ_S + 1)
        assert transport.aborted
        assert server.count("body_too_slow") == 1

    run(case)


def test_an_answer_that_nobody_reads_is_dropped_after_a_time() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(OK)
        await turns()
        now = connection.loop.time()
        connection.pause_writing()
        server.connections.sweep(now + HTTP_ANSWER_S - 1)
        connection.resume_writing()
        connection.pause_writing()
        server.connections.sweep(now + HTTP_ANSWER_S)
        assert not transport.closed
        server.connections.sweep(now + HTTP_ANSWER_S + 1)
        assert transport.aborted
        assert server.count("answer_not_read") == 1

    run(case)


def test_a_connection_that_is_closed_and_never_empties_is_dropped_after_a_time() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(OK)
        await turns()
        transport.close()
        now = connection.loop.time()
        server.connections.sweep(now)
        server.connections.sweep(now + HTTP_ANSWER_S - 1)
        assert not transport.aborted
        server.connections.sweep(now + HTTP_ANSWER_S + 1)
        assert transport.aborted

    run(case)


def test_the_largest_answers_that_nobody_reads_are_dropped_where_all_are_too_large() -> None:
    async def case(server: Server) -> None:
        made = [server.connect() for _ in range(4)]
        for number, (connection, transport) in enumerate(made):
            connection.data_received(OK)
            await turns()
            transport.unread_bytes = (number + 1) * HTTP_ANSWERS_BYTES_MAX // 8
            connection.pause_writing()
        server.connections.sweep(made[0][0].loop.time())
        assert [transport.aborted for _, transport in made] == [False, False, False, True]

    run(case)


def test_the_longest_silent_connection_makes_room_for_a_new_one() -> None:
    async def case(server: Server) -> None:
        served, kept = server.connect()
        served.data_received(OK)
        await turns()
        silent, closed = server.connect()
        silent.since += 1.0  # silent for less long, but it has never been served
        _, second = server.connect()
        assert closed.aborted
        assert not kept.closed
        assert server.count("closed_for_another") == 1
        assert len(server.connections) == 2
        _, third = server.connect()
        assert second.aborted
        assert not third.closed

    run(case, connections_max=2)


def test_many_that_are_accepted_at_one_time_of_the_loop_all_find_room() -> None:
    async def case(server: Server) -> None:
        transports = [server.connect()[1] for _ in range(100)]
        assert not any(transport.statuses for transport in transports)
        assert [transport.aborted for transport in transports] == [True] * 95 + [False] * 5

    run(case, connections_max=5)


def test_a_new_connection_is_refused_where_all_are_answering() -> None:
    async def case(server: Server) -> None:
        server.may_answer.clear()
        for _ in range(2):
            connection, transport = server.connect()
            connection.data_received(OK)
        await turns()
        _, refused = server.connect()
        assert refused.statuses == [503]
        assert refused.reason == "too_many"
        assert refused.closed
        assert not transport.closed
        server.may_answer.set()
        await turns()
        assert transport.statuses == [200]
        server.connections._scan_at = 0.0  # as after a while
        _, taken = server.connect()
        assert not taken.closed

    run(case, connections_max=2)


def test_the_last_descriptors_are_left_to_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(server: Server) -> None:
        server.connections.descriptor_max = 10
        _, first = server.connect(descriptor=9)
        _, second = server.connect(descriptor=10)
        assert not first.closed
        assert not second.closed
        server.connect(descriptor=11)
        assert first.aborted

    run(case)


def test_a_lifetime_ends_a_connection_whatever_it_does() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        server.may_answer.clear()
        connection.data_received(OK)
        await turns()
        server.connections.sweep(connection.made_at + 4)
        assert not transport.closed
        server.connections.sweep(connection.made_at + 6)
        assert transport.aborted
        assert server.count("too_long") == 1

    run(case, lifetime_s=5.0)


def test_refusals_are_logged_together(caplog: pytest.LogCaptureFixture) -> None:
    async def case(server: Server) -> None:
        for _ in range(100):
            server.connect()[0].data_received(b"NONSENSE\r\n\r\n")
        server.connections.sweep(0.0)
        server.connect()[0].data_received(b"NONSENSE\r\n\r\n")
        server.connections.sweep(1.0)
        assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
            "100 malformed; clients are told"
        ]
        server.connections.sweep(REFUSALS_LOG_S + 1)
        assert "1 malformed" in caplog.records[-1].getMessage()

    run(case)
