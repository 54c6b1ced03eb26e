"""Plain queries are answered from their bytes as uvicorn and the app would, whatever is sent."""

import asyncio
import json
import random
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from uvicorn.server import ServerState

from query_api.http.app import create_app
from query_api.http.plain_queries import PlainHead, PlainQueries
from query_api.http.requests import bodies
from reprise.http.connection import Connection
from reprise.http.connections import Connections
from schemas.answer_states import AnswerState
from schemas.limits import (
    BODY_READ_S,
    PLAIN_BODIES_BYTES_MAX,
    PLAIN_BODY_BYTES_MAX,
    PLAIN_BODY_S,
)
from streams.kernel import native_available, open_kernel
from tests.building import prefix_hashes
from tests.fakes import SEED, FakeTable, registration
from tests.unit.reprise.http.test_connection import FakeTransport, turns

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

SEQUENCES = 2_000
HASHES = prefix_hashes(range(16), 4, seed=SEED)
BODY = json.dumps({"model": "m", "block_size": 4, "token_ids": list(range(40))}).encode()


def request(body: bytes = BODY, *fields: bytes, line: bytes = b"POST /query HTTP/1.1") -> bytes:
    usual = [b"Host: x", b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([line, *usual, *fields, b"", b""]) + body


def filled() -> FakeTable:
    table = FakeTable(open_kernel(SEED, name="rust"))
    for place, name in enumerate(("a", "b-é")):
        publisher = table.add(registration(name))
        table.store(publisher, range(4 * (place + 2)), hashes=list(range(1, place + 3)))
    return table


class Server:
    """A server without a socket over the whole app.

    Args:
        plain: whether plain queries are answered from their bytes.
    """

    def __init__(self, *, plain: bool = True, **options: Any) -> None:
        self.table = filled()
        app = create_app(self.table, self.table, **options)
        self.plain: PlainQueries | None = app.plain  # type: ignore[attr-defined]
        if not plain:
            app.plain = None  # type: ignore[attr-defined]
        self.connections = Connections()
        self.state = ServerState()
        self.config = self.connections.configure(app)
        self.config.load()

    @property
    def answered(self) -> int:
        assert self.plain is not None
        return self.plain.answered

    @property
    def held_bytes(self) -> int:
        assert self.plain is not None
        return self.plain.held_bytes

    def connect(self) -> tuple[Connection, FakeTransport]:
        connection = self.connections._make(self.config, self.state, {})
        transport = FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    def counts(self) -> dict[str, float]:
        """Of the app's metrics, but for times."""
        return {
            f"{sample.name}{sample.labels}": sample.value
            for family in self.table.metrics.collect()
            for sample in family.samples
            if "seconds" not in sample.name
        }


async def exchange(server: Server, pieces: Sequence[bytes]) -> tuple[bytes, bool, bool]:
    """All that is answered, and how the connection then is."""
    connection, transport = server.connect()
    for piece in pieces:
        if transport.closed:
            break
        connection.data_received(piece)
        await turns()
    return transport.written, transport.closed, transport.half_closed


def run(case: Callable[[Server], Awaitable[None]], **options: Any) -> None:
    async def go() -> None:
        await case(Server(**options))

    asyncio.run(go())


# The same as the app


LINES = (
    b"POST /query HTTP/1.1",
    b"POST /query_by_hash HTTP/1.1",
    b"POST /query HTTP/1.0",
    b"POST /query?detail=1 HTTP/1.1",
    b"POST /query/ HTTP/1.1",
    b"GET /query HTTP/1.1",
    b"POST /query_by_hash/ HTTP/1.1",
    b"POST  /query HTTP/1.1",
    b"POST /query HTTP/1.1 ",
    b"post /query HTTP/1.1",
)
FIELDS = (
    b"X-Request-ID: 7",
    b"X-Request-ID:  7 8\t ",
    b"X-Request-ID: \xff",
    b"X-Request-ID: " + b"7" * 300,
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Expect: 100-continue",
    b"Transfer-Encoding: chunked",
    b"Content-Length: 3",
    b"Content-Type: application/msgpack",
    b"Content-Type: text/plain",
    b"Content-Encoding: gzip",
    b"Origin: http://elsewhere",
    b"Accept: */*",
    b"Accept: application/msgpack",
    b"Authorization: Bearer x",
    b"TE: trailers",
    b"A : b",
    b" folded",
    b"A: b\nC: d",
    b"A",
    b": b",
    b"A: " + b"x" * 5000,
    *([b"B: c"] * 3),
)


def fields_of(choose: random.Random, *, by_hash: bool) -> dict[str, object]:
    content = "seq_hashes" if by_hash else "token_ids"
    fields: dict[str, object] = {"model": "m", "block_size": 4, content: list(range(40))}
    if by_hash:
        fields[content] = [*HASHES[: choose.randrange(4)], choose.getrandbits(64)]
    odd = choose.random()
    if odd < 0.1 and not by_hash:
        fields[content] = list(range(choose.choice((0, 3, 3000))))
    elif odd < 0.25:
        fields[choose.choice(("cache_salt", "instance_id", "tenant_id", "lora_name"))] = (
            choose.choice(("a", "", "b-é", 'x"', "salt"))
        )
    elif odd < 0.35:
        fields[choose.choice(("model", "block_size", content, "other"))] = choose.choice(
            (None, -1, "x", [], [-1], [1.5], 10**12)
        )
    return fields


def packed_of(choose: random.Random, fields: dict[str, object], *, by_hash: bool) -> bytes:
    """In msgpack; the numbers mostly as one `bin`."""
    name, form = ("seq_hashes", "Q") if by_hash else ("token_ids", "I")
    numbers = fields.get(name)
    if isinstance(numbers, list) and choose.random() < 0.9:
        with suppress(struct.error):
            packed = struct.pack(f"<{len(numbers)}{form}", *numbers)
            fields = {**fields, name: packed + b"x" * (choose.random() < 0.05)}
    return msgspec.msgpack.encode(fields)


def body_of(choose: random.Random, *, packed: bool, by_hash: bool) -> bytes:
    fields = fields_of(choose, by_hash=by_hash)
    if packed:
        body = packed_of(choose, fields, by_hash=by_hash)
    else:
        separators = choose.choice(((",", ":"), (", ", ": ")))
        text = json.dumps(fields, separators=separators, ensure_ascii=choose.random() < 0.5)
        body = text.encode()
    odd = choose.random()
    return choose.choice((b"", b"{", body[:-1], body + b" ")) if odd > 0.95 else body


OPTIONS = (b"hits_only=1", b"hits_only=0", b"hits_only=x", b"detail=1", b"only=exact", b"x", b"#f")


def octets_of(choose: random.Random, *, by_hash: bool) -> tuple[bytes, bytes]:
    """The part of the URL behind `?`, and the body."""
    fields = fields_of(choose, by_hash=by_hash)
    name, form = ("seq_hashes", "Q") if by_hash else ("token_ids", "I")
    numbers, body = fields.pop(name, None), b"abcd" * choose.randrange(4)
    if isinstance(numbers, list):
        with suppress(struct.error):
            body = struct.pack(f"<{len(numbers)}{form}", *numbers)
    quoting = choose.choice((quote, quote, str))  # as it should be, or as it comes
    parameters = [
        f"{name}={quoting(str(value))}".encode() for name, value in fields.items() if value != " "
    ]
    if choose.random() < 0.3:
        parameters.append(choose.choice((*OPTIONS, *parameters)))
    if choose.random() < 0.3:
        choose.shuffle(parameters)
    return b"&".join(parameters), body + b"x" * (choose.random() < 0.05)


def octets_request(choose: random.Random) -> bytes:
    by_hash = choose.random() < 0.3
    url_query, body = octets_of(choose, by_hash=by_hash)
    kind = choose.choice([b"application/octet-stream"] * 9 + [b"Application/Octet-Stream"])
    return (
        b"\r\n".join(
            [
                b"POST /query%b?%b HTTP/1.1" % (b"_by_hash" if by_hash else b"", url_query),
                b"Content-Type: " + kind,
                b"Content-Length: %d" % len(body),
                *choose.sample(FIELDS, choose.choice((0, 0, 0, 1))),
                b"",
                b"",
            ]
        )
        + body
    )


def request_of(choose: random.Random) -> bytes:
    if choose.random() < 0.2:
        return octets_request(choose)
    packed, by_hash = choose.random() < 0.4, choose.random() < 0.3
    body = body_of(choose, packed=packed, by_hash=by_hash)
    line = LINES[by_hash] if choose.random() < 0.9 else choose.choice(LINES)
    if choose.random() < 0.1:
        line = line.replace(b" HTTP", b"?%b HTTP" % choose.choice(OPTIONS))
    kind = b"msgpack" if packed != (choose.random() < 0.02) else b"json"
    usual = [
        b"Host: x",
        b"Content-Type: application/%b" % kind,
        b"Content-Length: %d" % len(body),
    ]
    if choose.random() < 0.1:
        usual.pop(choose.randrange(3))
    fields = [*usual, *choose.sample(FIELDS, choose.choice((0, 0, 0, 1, 1, 2)))]
    if choose.random() < 0.3:
        choose.shuffle(fields)
    names = choose.choice((bytes, bytes, bytes.lower))
    end = b"\n" if choose.random() < 0.02 else b"\r\n"
    return end.join([line, *map(names, fields), b"", b""]) + body


def pieces_of(choose: random.Random, sent: bytes) -> list[bytes]:
    cuts = sorted(choose.randrange(len(sent) + 1) for _ in range(choose.choice((0, 0, 1, 2, 5))))
    edges = [0, *cuts, len(sent)]
    return [sent[a:b] for a, b in pairwise(edges) if a < b]


def test_whatever_is_sent_is_answered_as_by_the_app(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two servers that are asked one after the other, one would give up half a body first.
    for bound in ("BODY_PIECE_S", "BODY_READ_S"):
        monkeypatch.setattr(bodies, bound, 3600.0)

    async def compare() -> int:
        here, there = Server(), Server(plain=False)
        for place in range(SEQUENCES):
            choose = random.Random(f"{seed}-{place}")
            requests = [request_of(choose) for _ in range(choose.choice((1, 1, 2, 3)))]
            if choose.random() < 0.5:  # one after the other, or pipelined
                pieces = [piece for one in requests for piece in pieces_of(choose, one)]
            else:
                pieces = pieces_of(choose, b"".join(requests))
            state = choose.choice(list(AnswerState))
            here.table.answer_state = there.table.answer_state = state
            here.table.ready = there.table.ready = choose.random() < 0.95
            answers = [await exchange(server, pieces) for server in (here, there)]
            assert answers[0] == answers[1], f"seed {seed}, sequence {place}: {pieces}"
        assert here.counts() == there.counts()
        assert here.connections.refused == there.connections.refused
        assert here.held_bytes == 0
        return here.answered

    assert asyncio.run(compare()) > SEQUENCES / 10, "many should be answered from their bytes"


URL = b"POST /query?model=m&block_size=4"
OCTETS = struct.pack("<40I", *range(40))


@pytest.mark.parametrize(
    ("line", "body", "form"),
    [
        (URL, OCTETS, b"octet-stream"),
        (URL + b"&hits_only=1", OCTETS, b"octet-stream"),
        (URL + b"&instance_id=a&tenant_id=&hits_only=0", OCTETS, b"octet-stream"),
        (URL, b"", b"octet-stream"),
        (b"POST /query?hits_only=1", BODY, b"json"),
        (
            b"POST /query_by_hash?model=m&block_size=4",
            struct.pack("<2Q", *HASHES[:2]),
            b"octet-stream",
        ),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_octets_say_what_json_does(line: bytes, body: bytes, form: bytes, plain: bool) -> None:
    """What is hit, and whether the bytes were enough for it."""

    async def case(server: Server) -> None:
        sent = request(body, line=line + b" HTTP/1.1").replace(
            b"application/json", b"application/" + form
        )
        written, _, _ = await exchange(server, [sent])
        instances = json.loads(written.partition(b"\r\n\r\n")[2])["default"]
        depth = 8 if body else 0
        expected = {"a": depth, "b-é": depth + 4 if b"hash" not in line else depth}
        if b"instance_id=a" in line:
            del expected["b-é"]
        found = {name: one["longest_matched"] for name, one in instances.items()}
        assert found == {name: min(at, depth + 4) if body else 0 for name, at in expected.items()}
        assert server.answered == plain

    run(case, plain=plain)


def test_only_hits_are_listed_where_they_are_asked_for() -> None:
    async def case(server: Server) -> None:
        missed = json.dumps({"model": "m", "block_size": 4, "token_ids": [9] * 8}).encode()
        for body, names in ((BODY, {"a", "b-é"}), (missed, set())):
            for option in (b"hits_only=1", b"hits_only=true", b"hits_only=1&detail=1"):
                line = b"POST /query?%b HTTP/1.1" % option
                written, _, _ = await exchange(server, [request(body, line=line)])
                answer = json.loads(written.partition(b"\r\n\r\n")[2])
                assert set(answer.get("default", {})) == names, option
        assert server.answered == 2

    run(case)


@pytest.mark.parametrize("cut", [1, 30, 100, 140, len(request()) - 1, None])
def test_a_plain_query_is_answered_from_its_bytes_however_it_comes(cut: int | None) -> None:
    async def case(server: Server) -> None:
        sent = request(BODY, b"X-Request-ID: 7")
        pieces = [sent] if cut is None else [sent[:cut], sent[cut:]]
        written, _, _ = await exchange(server, pieces)
        head, _, body = written.partition(b"\r\n\r\n")
        assert head.split(b"\r\n") == [
            b"HTTP/1.1 200 OK",
            b"content-type: application/json",
            b"reprise-position: 0:1234",
            b"reprise-state: exact",
            b"content-length: %d" % len(body),
            b"x-request-id: 7",
        ]
        assert json.loads(body)["default"]["a"]["longest_matched"] == 8
        # A head that is cut is uvicorn's: that it is plain shows at its end.
        assert server.answered == (cut is None or cut >= sent.index(b"\r\n\r\n") + 4)

    run(case)


def test_many_queries_over_one_connection() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        for place in range(50):
            connection.data_received(request(BODY if place % 2 else BODY[:-2] + b"]}"))
            await turns()
        assert transport.statuses == [200] * 50
        assert server.answered == 50
        assert connection.served

    run(case)


# What is not answered here


@pytest.mark.parametrize("options", [{"only_exact": True}, {"plain": False}])
def test_where_there_is_none_the_app_answers(options: dict[str, bool]) -> None:
    async def case(server: Server) -> None:
        written, _, _ = await exchange(server, [request()])
        assert written.startswith(b"HTTP/1.1 200 ")
        assert server.plain is None or server.answered == 0

    run(case, **options)


def test_an_error_here_leaves_the_answer_to_the_app(caplog: pytest.LogCaptureFixture) -> None:
    async def case(server: Server) -> None:
        def failing(head: PlainHead, received: bytes) -> bytes | None:
            raise ZeroDivisionError

        assert server.plain is not None
        server.plain.answer = failing  # type: ignore[method-assign]
        written, _, _ = await exchange(server, [request()])
        assert written.startswith(b"HTTP/1.1 200 ")

    run(case)
    assert "plain query" in caplog.text


def test_a_client_that_does_not_read_is_answered_by_the_app() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.pause_writing()
        connection.data_received(request())
        await turns()
        assert transport.statuses == []
        connection.resume_writing()
        await turns()
        assert (transport.statuses, server.answered) == ([200], 0)

    run(case)


# Bodies whose end has not come


def test_a_body_that_takes_its_time_goes_to_the_app_and_has_its_bounds() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        sent = request()
        connection.data_received(sent[:-10])
        assert server.held_bytes == len(BODY)
        assert not connection.is_idle
        now = asyncio.get_running_loop().time()
        connection.check(now + PLAIN_BODY_S / 2)
        assert server.held_bytes == len(BODY)
        connection.check(now + PLAIN_BODY_S * 1.1)
        assert server.held_bytes == 0
        connection.data_received(sent[-10:])
        await turns()
        assert (transport.statuses, server.answered) == ([200], 0)
        connection.data_received(sent[:-10])
        connection.check(now + PLAIN_BODY_S * 3)
        await turns()
        connection.check(now + BODY_READ_S * 2)
        assert not transport.closed, "the app has it, and times it out itself"
        connection.connection_lost(None)
        await turns()

    run(case)


def test_one_that_is_too_large_goes_to_the_app_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def case(server: Server) -> None:
        assert server.plain is not None
        assert server.plain.has_room(PLAIN_BODY_BYTES_MAX)
        assert not server.plain.has_room(PLAIN_BODY_BYTES_MAX + 1)
        server.plain.held_bytes = PLAIN_BODIES_BYTES_MAX - len(BODY)
        assert server.plain.has_room(len(BODY))
        server.plain.held_bytes += 1
        written, _, _ = await exchange(server, [request()[:-10], request()[-10:]])
        assert written.startswith(b"HTTP/1.1 200 ")
        assert (server.answered, server.held_bytes) == (0, PLAIN_BODIES_BYTES_MAX - len(BODY) + 1)

    run(case)


def test_a_client_that_leaves_in_the_middle_gives_back_its_room() -> None:
    async def case(server: Server) -> None:
        connection, _ = server.connect()
        connection.data_received(request()[:-10])
        assert server.held_bytes == len(BODY)
        connection.connection_lost(None)
        assert server.held_bytes == 0
        await turns()

    run(case)


def test_a_server_that_stops_answers_what_is_under_way() -> None:
    async def case(server: Server) -> None:
        connection, transport = server.connect()
        connection.data_received(request()[:-10])
        await turns()
        connection.shutdown()
        await turns()
        assert not transport.closed
        connection.data_received(request()[-10:])
        await turns()
        assert transport.statuses == [200]
        assert transport.closed

    run(case)


def test_more_than_the_body_goes_to_the_app() -> None:
    async def case(server: Server) -> None:
        both = request() + request()
        for cut in (len(both), len(request()) - 5, len(request()) + 5):
            connection, transport = server.connect()
            for piece in (both[:cut], both[cut:]):
                if piece:
                    connection.data_received(piece)
            await turns()
            assert transport.statuses == [200, 200]

    run(case)
