"""Plain queries are answered without Python as uvicorn and the app would, whatever is sent."""

import asyncio
import json
import random
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest

from query_api.http import plain_listener
from query_api.http.http_settings import HttpSettings
from query_api.http.plain_listener import PLAIN_BODY_BYTES_MAX, PLAIN_STATE_S
from query_api.http.requests import bodies
from schemas.answer_states import AnswerState
from schemas.tracing import NO_TRACER
from streams.kernel import native_available
from tests.fakes import registration
from tests.processes import until
from tests.spans import TRACEPARENT, KeptSpans
from tests.unit.reprise.http.listening import (
    Server,
    complete,
    exchange,
    is_closed,
    receive,
    undated,
)
from tests.unit.reprise.http.plain_requests import (
    BODY,
    HASHES,
    body_of,
    pieces_of,
    request,
    request_of,
)

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

ROUNDS = 20
SEQUENCES = 40
"""In each round, all at the same time."""

SILENT_S = 0.4
"""After this nothing more is expected of a connection that is not closed."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


# The same as the app


class Client:
    """Keeps all that comes, also what came before a reset.

    A transport of asyncio would not: a write that fails ends it, with what it had not yet read.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.received = b""
        self.closed = False
        self.changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with suppress(ConnectionError):
            while data := await loop.sock_recv(self._connection, 65536):
                self.received += data
                self.changed.set()
        self.closed = True
        self.changed.set()

    async def send(self, data: bytes) -> None:
        with suppress(ConnectionError):  # what was answered before is still to be read
            await asyncio.get_running_loop().sock_sendall(self._connection, data)

    async def close(self) -> None:
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        self._connection.close()


async def connected(address: tuple[str, int]) -> Client:
    connection = socket.socket()
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio's own
    await asyncio.get_running_loop().sock_connect(connection, address)
    return Client(connection)


class Turn(NamedTuple):
    """What is sent, in pieces, and how many answers there should be by then."""

    pieces: list[bytes]
    answers: int


async def converse(server: Server, turns: Sequence[Turn]) -> bytes:
    """All that is answered. Each turn is sent once the one before it was answered, or nothing more
    came although the server has had its turns: on a busy machine, time alone says nothing.
    """
    client = await connected(server.address)
    for pieces, answers in turns:
        for piece in pieces:
            if not client.closed:
                await client.send(piece)
                await asyncio.sleep(0.001)
        while not client.closed and not complete(client.received, answers):
            client.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(client.changed.wait(), SILENT_S)
            if not client.changed.is_set():
                await server.turns()
                await asyncio.sleep(0)  # what they brought is read
                if not client.changed.is_set():
                    break
        if client.closed:
            break
    await client.close()
    return undated(client.received)


def turns_of(choose: random.Random) -> list[Turn]:
    if choose.random() < 0.8:
        requests = [request_of(choose) for _ in range(choose.choice((1, 1, 2, 3)))]
        return [Turn(pieces_of(choose, one), at) for at, one in enumerate(requests, 1)]
    # Of what is wrong in a pipeline, it depends on the time how much before it is answered.
    bodies_ = [body_of(choose, packed=False, by_hash=False) for _ in range(3)]
    return [Turn(pieces_of(choose, b"".join(map(request, bodies_))), 3)]


def test_whatever_is_sent_is_answered_as_by_the_app(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two servers that are asked one after the other, one would give up half a body first.
    for bound in ("BODY_PIECE_S", "BODY_READ_S"):
        monkeypatch.setattr(bodies, bound, 3600.0)

    async def compare(here: Server, there: Server) -> None:
        for round_ in range(ROUNDS):
            choose = random.Random(f"{seed}-{round_}")
            state = choose.choice(list(AnswerState))
            ready = choose.random() < 0.9
            for server in (here, there):
                server.table.answer_state, server.table.ready = state, ready
                server.table.changed()
            sequences = [turns_of(choose) for _ in range(SEQUENCES)]
            ours = await asyncio.gather(*(converse(here, turns) for turns in sequences))
            theirs = await asyncio.gather(*(converse(there, turns) for turns in sequences))
            for turns, answers, wanted in zip(sequences, ours, theirs, strict=True):
                assert answers == wanted, f"seed {seed}, round {round_}: {turns}"

    with Server() as here, Server(plain=False) as there:
        asyncio.run(compare(here, there))
        # Clients that left in the middle are counted a little later.
        with suppress(AssertionError):
            until(lambda: here.counts() == there.counts(), what="the same counts", timeout_s=5)
        assert here.counts() == there.counts(), f"seed {seed}"
        assert here.connections.refused == there.connections.refused
        least = ROUNDS * SEQUENCES / 10
        assert here.answered > least, "many should be answered without Python"


URL = b"POST /query?model=m&block_size=4"
OCTETS = struct.pack("<40I", *range(40))


@pytest.mark.parametrize("plain", [True, False])
def test_octets_say_what_json_does(plain: bool) -> None:
    """What is hit, and whether the bytes were enough for it."""
    cases = [
        (URL, OCTETS, {"a": 8, "b-é": 12}, b"octet-stream"),
        (URL + b"&hits_only=1", OCTETS, {"a": 8, "b-é": 12}, b"octet-stream"),
        (URL + b"&instance_id=a&tenant_id=&hits_only=0", OCTETS, {"a": 8}, b"octet-stream"),
        (URL, b"", {"a": 0, "b-é": 0}, b"octet-stream"),
        (b"POST /query?hits_only=1", BODY, {"a": 8, "b-é": 12}, b"json"),
        (
            b"POST /query_by_hash?model=m&block_size=4",
            struct.pack("<2Q", *HASHES[:2]),
            {"a": 8, "b-é": 8},
            b"octet-stream",
        ),
    ]
    with Server(plain=plain) as server:
        for line, body, expected, form in cases:
            sent = request(body, line=line + b" HTTP/1.1").replace(
                b"application/json", b"application/" + form
            )
            answer = exchange(server, sent)
            instances = json.loads(answer.partition(b"\r\n\r\n")[2])["default"]
            found = {name: one["longest_matched"] for name, one in instances.items()}
            assert found == expected, line
        assert server.answered == (len(cases) if plain else 0)


def test_only_hits_are_listed_where_they_are_asked_for(server: Server) -> None:
    missed = json.dumps({"model": "m", "block_size": 4, "token_ids": [9] * 8}).encode()
    for body, names in ((BODY, {"a", "b-é"}), (missed, set())):
        for option in (b"hits_only=1", b"hits_only=true", b"hits_only=1&detail=1"):
            answer = exchange(server, request(body, line=b"POST /query?%b HTTP/1.1" % option))
            found = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert set(found.get("default", {})) == names, option
    assert server.answered == 2, "two options; details are the app's"


@pytest.mark.parametrize("cut", [1, 30, 100, 140, len(request()) - 1, None])
def test_a_plain_query_is_answered_without_python_however_it_comes(
    server: Server, cut: int | None
) -> None:
    sent = request(BODY, b"X-Request-ID: 7")
    with server.connect() as connection:
        for piece in [sent] if cut is None else [sent[:cut], sent[cut:]]:
            connection.sendall(piece)
            time.sleep(0.02)
        head, _, body = receive(connection).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    date = lines.pop(1)
    assert re.fullmatch(rb"date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", date)
    assert lines == [
        b"HTTP/1.1 200 OK",
        b"content-type: application/json",
        b"reprise-position: 0:1234",
        b"reprise-state: exact",
        b"content-length: %d" % len(body),
        b"x-request-id: 7",
    ]
    assert json.loads(body)["default"]["a"]["longest_matched"] == 8
    assert server.answered == 1


def test_many_queries_over_one_connection(server: Server) -> None:
    with server.connect() as connection:
        for place in range(50):
            connection.sendall(request(BODY if place % 2 else BODY[:-2] + b"]}"))
            assert receive(connection).startswith(b"HTTP/1.1 200 ")
    assert server.answered == 50


# What an answer says of the table


def test_a_state_is_not_asked_for_by_each_query(server: Server) -> None:
    with server.connect() as connection:
        for state in (AnswerState.EXACT, AnswerState.DEGRADED, AnswerState.EXACT):
            server.table.answer_state = state
            server.table.changed()
            asked = server.table.asked
            ends = time.monotonic() + PLAIN_STATE_S
            for _ in range(20):
                connection.sendall(request())
                assert b"reprise-state: %b\r\n" % state.value.encode() in receive(connection)
            if time.monotonic() < ends:
                assert server.table.asked < asked + 10, "and beside them now and then"
    assert server.answered == 60


def test_a_state_that_ends_by_itself_is_told_in_time(server: Server) -> None:
    """As `exact` does, where no heartbeat comes: nobody says that it has changed."""
    server.table.holds_s = 0.01
    with server.connect() as connection:
        connection.sendall(request())
        assert b"reprise-state: exact" in receive(connection)
        server.table.answer_state = AnswerState.UNCONFIRMED
        time.sleep(0.02)
        connection.sendall(request())
        assert b"reprise-state: unconfirmed" in receive(connection)
    assert server.answered == 2


def test_a_table_that_is_not_ready_is_the_apps_to_explain(server: Server) -> None:
    with server.connect() as connection:
        server.table.ready = False
        server.table.changed()
        connection.sendall(request())
        assert receive(connection).startswith(b"HTTP/1.1 503 ")
        server.table.ready = True
        server.table.changed()
        server.sweep()
        connection.sendall(request())
        assert receive(connection).startswith(b"HTTP/1.1 200 ")
    assert server.answered == 1


def test_an_error_leaves_the_answer_to_the_app(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda found: reported.append(found.exc_type))
    server.table.failing = True
    assert exchange(server, request()).startswith(b"HTTP/1.1 200 ")
    assert (server.answered, reported) == (0, [ZeroDivisionError])


def test_where_there_is_none_the_app_answers() -> None:
    for options in ({"settings": HttpSettings(only_exact=True)}, {"plain": False}):
        with Server(**options) as server:
            assert exchange(server, request()).startswith(b"HTTP/1.1 200 ")
            assert server.answered == 0


# Handed over, and given back


def test_a_connection_comes_back_once_the_app_has_answered(server: Server) -> None:
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with server.connect() as connection:
        for round_ in range(1, 5):
            connection.sendall(health)
            assert b'"alive"' in receive(connection)
            connection.sendall(request())
            assert receive(connection).startswith(b"HTTP/1.1 200 ")
            assert server.answered == round_ - 1, "it is the server's for now"
            server.sweep()
            connection.sendall(request())
            assert receive(connection).startswith(b"HTTP/1.1 200 ")
            assert server.answered == round_
            assert len(server.connections) == 1
    until(lambda: len(server.connections) == 0, what="the end of the connection")


def test_one_with_half_a_request_does_not_come_back(server: Server) -> None:
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with server.connect() as connection:
        connection.sendall(health + request()[:50])
        receive(connection)
        server.sweep()
        connection.sendall(request()[50:])
        assert receive(connection).startswith(b"HTTP/1.1 200 ")
        assert server.answered == 0


def test_a_request_that_takes_its_time_goes_to_the_app_and_has_its_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain_listener, "PLAIN_REQUEST_S", 0.1)
    with Server() as server:
        sent = request()
        listener = server.connections.listener
        assert listener is not None
        for cut in (0, 20, len(sent) - 10):
            with server.connect() as connection:
                connection.sendall(sent[:cut])
                until(
                    lambda: len(server.connections) == 1 and not listener.open,
                    what="the server to have it",
                )
                connection.sendall(sent[cut:])
                assert receive(connection).startswith(b"HTTP/1.1 200 ")
            until(lambda: not len(server.connections), what="its end")
        assert (server.answered, listener.held_bytes) == (0, 0)


def test_one_that_is_too_large_goes_to_the_app_at_once(server: Server) -> None:
    body = BODY[:-1] + b" " * PLAIN_BODY_BYTES_MAX + b"}"
    assert exchange(server, request(body)).startswith(b"HTTP/1.1 200 ")
    assert server.answered == 0


def test_bodies_in_part_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_listener, "PLAIN_BODIES_BYTES_MAX", 2 * len(BODY))
    with Server() as server, ExitStack() as open_ones:
        listener = server.connections.listener
        assert listener is not None
        sent = request()
        connections = [open_ones.enter_context(server.connect()) for _ in range(3)]
        for connection in connections[:2]:
            connection.sendall(sent[:-1])
        until(lambda: listener.held_bytes == 2 * len(BODY), what="both bodies")
        connections[2].sendall(sent[:-1])
        until(lambda: listener.open == 2, what="the third to be the server's")
        connections[0].close()
        until(lambda: listener.held_bytes == len(BODY), what="the room of one that has gone")
        for connection in connections[1:]:
            connection.sendall(sent[-1:])
            assert receive(connection).startswith(b"HTTP/1.1 200 ")
        assert (server.answered, listener.held_bytes) == (1, 0)


def test_a_client_that_does_not_read_its_answers_is_the_servers(server: Server) -> None:
    """What is left of an answer is sent there, and the connection has the bounds of all others."""
    for number in range(200):
        publisher = server.table.add(registration(f"{number:0500}"))
        server.table.store(publisher, range(8), hashes=[1, 2])
    with server.connect() as connection:
        sent = 0
        listener = server.connections.listener
        assert listener is not None
        until(lambda: listener.open, what="the connection")
        while listener.open and sent < 1000:
            connection.sendall(request())
            sent += 1
            time.sleep(0.005)
        assert sent < 1000, "an answer did not go out, and the connection was handed over"
        expected = server.table.kernel.answer(BODY)
        assert expected is not None
        received, text = bytearray(), expected[3]
        while not received.endswith(text) or received.count(b"HTTP/1.1 200 OK") < sent:
            came = connection.recv(65_536)
            assert came
            received += came
        assert received.count(text) == sent


def test_more_than_the_body_goes_to_the_app(server: Server) -> None:
    both = request() + request()
    for cut in (len(both), len(request()) - 5, len(request()) + 5):
        with server.connect() as connection:
            connection.sendall(both[:cut])
            time.sleep(0.02)
            connection.sendall(both[cut:])
            assert receive(connection, 2).count(b"HTTP/1.1 200 OK") == 2


def test_a_client_that_sends_no_more_is_answered_and_its_connection_closed(
    server: Server,
) -> None:
    """Its end may come with its request: no other event would tell of it."""
    for place in range(50):
        with server.connect() as connection:
            if place % 2:
                connection.sendall(request())
                receive(connection)
            connection.sendall(request())
            connection.shutdown(socket.SHUT_WR)
            assert receive(connection).startswith(b"HTTP/1.1 200 ")
            assert connection.recv(1) == b""
    until(lambda: len(server.connections) == 0, what="the end of all")
    assert server.answered == 75


# How many


def test_an_idle_connection_is_closed_for_a_new_one() -> None:
    with Server(connections=3) as server, ExitStack() as open_ones:
        kept = [open_ones.enter_context(server.connect()) for _ in range(3)]
        for connection in kept:
            connection.sendall(request())
            receive(connection)
        new = open_ones.enter_context(server.connect())
        new.sendall(request())
        assert receive(new).startswith(b"HTTP/1.1 200 ")
        closed = [connection for connection in kept if is_closed(connection)]
        assert len(closed) == 1
        until(lambda: len(server.connections) == 3, what="the bound")
        server.sweep()
        assert server.connections.refused == Counter({"closed_for_another": 1})


def test_where_all_are_busy_a_new_one_is_refused() -> None:
    with Server(connections=2) as server, ExitStack() as open_ones:
        half = [open_ones.enter_context(server.connect()) for _ in range(2)]
        for connection in half:
            connection.sendall(request()[:-1])
        until(lambda: len(server.connections) == 2, what="both")
        new = open_ones.enter_context(server.connect())
        assert receive(new).startswith(b"HTTP/1.1 503 ")
        assert new.recv(1) == b""
        assert server.connections.refused == Counter({"too_many": 1})
        for connection in half:
            connection.sendall(request()[-1:])
            assert receive(connection).startswith(b"HTTP/1.1 200 ")


# The end


def test_a_server_that_stops_answers_what_is_under_way() -> None:
    with ExitStack() as open_ones:
        server = open_ones.enter_context(Server())
        idle, served, half, late = (open_ones.enter_context(server.connect()) for _ in range(4))
        served.sendall(request())
        receive(served)
        half.sendall(request()[:-10])
        late.sendall(request()[:-10])
        time.sleep(0.05)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        time.sleep(0.2)
        late.sendall(request()[-10:])
        assert receive(late).startswith(b"HTTP/1.1 200 ")
        assert receive(half).startswith(b"HTTP/1.1 503 ")
        stopping.join()
        for connection in (idle, served, late):
            assert connection.recv(1) == b""
        with pytest.raises(ConnectionError):
            server.connect()


@pytest.mark.parametrize("is_on", [False, True])
def test_a_query_of_a_trace_is_the_apps_where_tracing_is_on(is_on: bool) -> None:
    spans = KeptSpans()
    traced = request(BODY, b"TraceParent: " + TRACEPARENT.encode())
    with Server(tracer=spans.tracer if is_on else NO_TRACER) as server:
        answers = {exchange(server, sent) for sent in (request(BODY), traced)}
        assert len(answers) == 1
        assert server.answered == (1 if is_on else 2)
    assert [kept.name for kept in spans.take()] == ["reprise.query"] * is_on
