"""Plain requests of `/route` are decided without Python as Python would, and known to it."""

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from query_api.access.access_settings import AccessSettings
from query_api.access.key_editing import add_key
from query_api.access.keys import Key, digest_of, spell
from query_api.access.rights import Access, Right
from routing.decisions import kernel_decisions
from routing.decisions.kernel_decisions import WINDOWS_WAITING
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from schemas.routing_records import DecisionsRecord, decision_id
from streams.kernel import native_available
from tests.processes import until
from tests.unit.reprise.http.listening import Server, Table, exchange, receive
from tests.unit.reprise.http.plain_requests import request

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

LINE = b"POST /route HTTP/1.1"
CLIENTS = 6
ROUNDS = 50
SECRET = "secret-secret"
TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Decisions(Server):
    """A server that decides."""

    def __init__(self, *, window_items: int = 0, **options: Any) -> None:
        table = Table()
        self.live, self.queue = LiveLoad(), RoutingQueue(window_items=window_items)
        self.router = Router(table, self.queue, self.live)
        super().__init__(table=table, router=self.router, **options)

    @property
    def by_kernel(self) -> int:
        return self.live.kernel_counts()[0]

    def route(self, *fields: bytes, line: bytes = LINE, **body: Any) -> bytes:
        return exchange(self, asked(*fields, line=line, **body))

    def get(self, path: str) -> Any:
        answer = exchange(self, b"GET %b HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
        return json.loads(answer.partition(b"\r\n\r\n")[2])


def asked(*fields: bytes, line: bytes = LINE, **body: Any) -> bytes:
    plain = {"model": "m", "block_size": 4, "token_ids": list(range(40))}
    return request(json.dumps(plain | body).encode(), *fields, line=line)


def document(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), answer
    found: dict[str, Any] = json.loads(body)
    return found


@pytest.fixture
def server() -> Iterator[Decisions]:
    with Decisions() as running:
        running.route()  # it has a board from now on
        assert running.by_kernel == 0
        yield running


def test_it_is_answered_as_python_answers(server: Decisions) -> None:
    usual = server.route(b"X-Request-ID: 7")
    assert server.by_kernel == 1
    explained = server.route(b"X-Request-ID: 7", explain=True)
    assert server.by_kernel == 1, "what is unusual is Python's"
    native, python = document(usual), document(explained)
    assert python.pop("candidates")
    assert list(native) == list(python)
    assert list(native["prefill"]) == list(python["prefill"])
    assert {name: type(value) for name, value in native["prefill"].items()} == {
        name: type(value) for name, value in python["prefill"].items()
    }
    heads = [
        re.sub(rb"length: \d+", b"length: N", one.partition(b"\r\n\r\n")[0])
        for one in (usual, explained)
    ]
    assert heads[0] == heads[1]


def test_what_it_decides_is_booked_shown_and_reported_of(server: Decisions) -> None:
    decided = document(server.route(request_id="r"))
    assert server.by_kernel == 1
    name = decided["decision_id"]
    shown = server.get(f"/decisions/{name}")
    assert (shown["request_id"], shown["state"]) == ("r", "exact")
    assert shown["chosen"]["instance_id"] == decided["prefill"]["instance_id"]
    assert sum(one["requests"] for one in server.get("/routing")["targets"]) == 2
    for report in ({"decision_id": name}, {"request_id": "r"}):
        told = json.dumps(report | {"event": "completed"}).encode()
        answer = exchange(server, request(told, line=b"POST /feedback HTTP/1.1"))
        assert answer.startswith(b"HTTP/1.1 202"), answer
    assert b'"repeated":1' in answer
    assert sum(one["requests"] for one in server.get("/routing")["targets"]) == 1
    [record, other] = server.queue.take(0.0)[:2]
    names = []
    for one in (record, other):
        assert isinstance(one, DecisionsRecord)
        names += [decision_id(one.run, decision.number) for decision in one.decisions]
    assert name in names
    text = server.counts()
    assert text["reprise_http_requests_total{'route': '/route', 'status': '200'}"] == 2
    assert server.live.kernel_counts()[:3] == (1, 0, 0)


def test_a_connection_that_reports_is_the_listeners_again_at_once(server: Decisions) -> None:
    listener = server.connections.listener
    assert listener is not None
    with server.connect() as connection:
        for answered in range(1, 4):
            connection.sendall(asked())
            name = document(receive(connection))["decision_id"]
            assert server.by_kernel == answered, "by the listener"
            told = json.dumps({"decision_id": name, "event": "failed"}).encode()
            connection.sendall(request(told, line=b"POST /feedback HTTP/1.1"))
            assert receive(connection).startswith(b"HTTP/1.1 202")
            until(lambda: listener.open == 1, what="a connection that was given back")


@pytest.mark.parametrize("in_chunks", [False, True], ids=["plain", "chunks"])
def test_a_connection_without_a_board_is_the_listeners_again_once_there_is_one(
    server: Decisions, in_chunks: bool
) -> None:
    listener = server.connections.listener
    assert listener is not None
    body = json.dumps({"model": "m", "block_size": 4, "token_ids": [5] * 40}).encode()
    unusual = b"POST /route HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    unusual += b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with server.connect() as connection:
        connection.sendall(asked(explain=True))
        document(receive(connection))
        assert listener.open == 0, "the app has it"
        connection.sendall(unusual if in_chunks else asked())
        document(receive(connection))
        assert server.by_kernel == 1, "as the listener would"
        if in_chunks:
            asyncio.run(server.turns())
            assert listener.open == 0, "the next one is likely like it"
        else:
            until(lambda: listener.open == 1, what="a connection that was given back")


def test_where_python_answers_few_wait_to_be_booked() -> None:
    with Decisions(window_items=1) as server:
        server.route()
        for _ in range(3 * WINDOWS_WAITING):
            document(server.route(b"Connection: close"))
            shared = server.router.kernel
            assert shared is not None
            assert shared.waiting <= WINDOWS_WAITING
        assert server.by_kernel == 3 * WINDOWS_WAITING


def test_a_plain_report_is_answered_as_python_answers(server: Decisions) -> None:
    answers = []
    line = b"POST /feedback HTTP/1.1"
    for fields in ({"ttft_ms": 20.5}, {"ttft_ms": 20.5, "error": ""}):
        name = document(server.route())["decision_id"]
        told = json.dumps({"decision_id": name, "event": "completed"} | fields).encode()
        answers.append(exchange(server, request(told, b"X-Request-ID: 7", line=line)))
    assert server.live.kernel_counts().reported == 1, "the other one is Python's"
    native, python = (re.sub(rb"date: [^\r]+", b"", one) for one in answers)
    assert native == python
    text = server.counts()
    assert text["reprise_http_requests_total{'route': '/feedback', 'status': '202'}"] == 2
    assert server.live.counts()["under_way"] == 1
    for event in ("completed", "dispatched"):
        told = json.dumps({"decision_id": name, "event": event}).encode()
        assert b'"repeated":1' in exchange(server, request(told, line=line))


def test_a_list_of_reports_is_taken_whole_or_left(server: Decisions) -> None:
    names = [document(server.route())["decision_id"] for _ in range(3)]
    told = [{"decision_id": name, "event": "completed"} for name in names]
    for reports, answer in (
        ([told[0], told[0]], b'{"accepted":1,"repeated":1,"unknown":0}'),
        (told[1:], b'{"accepted":2,"repeated":0,"unknown":0}'),
    ):
        body = json.dumps(reports).encode()
        found = exchange(server, request(body, line=b"POST /feedback HTTP/1.1"))
        assert found.endswith(answer), found
    assert server.live.kernel_counts().reported == 2
    assert server.live.counts()["under_way"] == 1


def test_one_that_asks_for_what_is_unusual_stays_with_the_app(server: Decisions) -> None:
    listener = server.connections.listener
    assert listener is not None
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(asked(explain=True))
            document(receive(connection))
            asyncio.run(server.turns())
            assert listener.open == 0


def test_it_is_not_known_before_it_is_made(server: Decisions) -> None:
    name = document(server.route())["decision_id"]
    run, number = name.split("-")
    told = json.dumps({"decision_id": f"{run}-{int(number) + 1:x}", "event": "failed"}).encode()
    answer = exchange(server, request(told, line=b"POST /feedback HTTP/1.1"))
    assert b'"unknown":1' in answer


@pytest.mark.parametrize(
    "fields",
    [(b"traceparent: " + TRACEPARENT,), (b"X-LLM-D-SLO-TTFT-MS: 5000",), (b"Connection: close",)],
    ids=["traced", "objective", "closing"],
)
def test_what_its_head_asks_for_beside_is_pythons(
    server: Decisions, fields: tuple[bytes, ...]
) -> None:
    document(server.route(*fields))
    # One that is to close is decided by the kernel, behind the server that closes it.
    assert server.by_kernel == (1 if b"close" in fields[0] else 0)


@pytest.mark.parametrize(
    "body",
    [
        {"session_id": "s"},
        {"reserve": False},
        {"priority": 1},
        {"slo": {"ttft_ms": 1e6}},
        {"policy": "random"},
        {"phase": "pair"},
        {"candidates": [{"instance_id": "a"}]},
        {"model": "other"},
    ],
    ids=lambda body: next(iter(body)),
)
def test_what_its_body_asks_for_beside_is_pythons(server: Decisions, body: Any) -> None:
    server.route(**body)
    assert server.by_kernel == 0
    assert document(server.route())
    assert server.by_kernel == 1


def test_candidates_that_come_again_are_decided_of(server: Decisions) -> None:
    named = [{"instance_id": "a"}, {"instance_id": "new", "endpoint": "http://new"}]
    for _ in range(2):  # of a list that comes once there is no board
        document(server.route(candidates=named))
    assert server.by_kernel == 0
    prompts = [[number] * 40 for number in range(6)]
    answers = [server.route(candidates=named, token_ids=prompt) for prompt in prompts]
    assert server.by_kernel == 6
    found = {document(one)["prefill"]["endpoint"] for one in answers}
    assert "http://new" in found
    loaded = [{"instance_id": "a", "load": {"running": 1}}]
    for _ in range(3):
        document(server.route(candidates=loaded))
    assert server.by_kernel == 6, "a load is of its request"


@pytest.mark.parametrize("first", [False, True], ids=["kernel", "python"])
def test_each_side_knows_at_once_what_the_other_has_decided(server: Decisions, first: bool) -> None:
    def chosen(token: int, *, by_python: bool) -> dict[str, Any]:
        # A prompt that takes a second, which is no use to wait for where another one is idle.
        found = document(
            server.route(token_ids=[token] * 8192, explain=True)
            if by_python
            else server.route(token_ids=[token] * 8192)
        )
        prefill: dict[str, Any] = found["prefill"]
        return prefill

    one, other = chosen(1, by_python=first), chosen(2, by_python=not first)
    assert one["instance_id"] != other["instance_id"]
    again = chosen(1, by_python=not first)
    assert again["instance_id"] == one["instance_id"]
    assert again["predicted_tokens"] == 8192, "it is to be held there"
    assert server.by_kernel == (2 if first else 1)


def test_what_was_cancelled_is_to_be_held_no_more(server: Decisions) -> None:
    prompt = [7] * 40
    name = document(server.route(token_ids=prompt))["decision_id"]
    assert document(server.route(token_ids=prompt))["prefill"]["predicted_tokens"] == 40
    for one in (name, document(server.route(token_ids=prompt))["decision_id"]):
        told = json.dumps({"decision_id": one, "event": "cancelled"}).encode()
        exchange(server, request(told, line=b"POST /feedback HTTP/1.1"))
    now = server.router.now()
    for offset, record in enumerate(server.queue.take(now)):  # a window of the log
        server.live.follow(offset, record, now)
    by_kernel = server.by_kernel
    assert document(server.route(token_ids=prompt))["prefill"]["predicted_tokens"] == 0
    assert server.by_kernel == by_kernel + 1


def test_a_request_that_comes_again_gets_the_same_answer(server: Decisions) -> None:
    first = server.route(request_id="r")
    assert [server.route(request_id="r") for _ in range(2)] == [first, first]
    assert server.live.kernel_counts()[:3] == (1, 2, 0)
    name = document(first)["decision_id"]
    assert document(server.route(request_id="r", explain=True))["decision_id"] == name
    other = document(server.route(request_id="r", token_ids=[1] * 40))
    assert other["decision_id"] != name
    assert server.live.counts()["under_way"] == 2, "the first is taken back"
    again = document(server.route(request_id="r", token_ids=[1] * 40))
    assert again == other
    assert server.by_kernel == 1


def test_one_that_failed_is_decided_anew(server: Decisions) -> None:
    name = document(server.route(request_id="r"))["decision_id"]
    told = json.dumps({"decision_id": name, "event": "failed"}).encode()
    exchange(server, request(told, line=b"POST /feedback HTTP/1.1"))
    assert document(server.route(request_id="r"))["decision_id"] != name


def test_where_too_many_wait_to_be_booked_python_books_them_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_decisions, "KERNEL_DECISIONS_MAX", 2)
    with Decisions() as server:
        names = {document(server.route())["decision_id"] for _ in range(6)}
        assert server.live.kernel_counts()[:3] == (5, 0, 2)
        assert server.live.counts()["under_way"] == len(names) == 6


def test_who_may_ask_and_not_route_does_not(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    fields = []
    for right in (Right.QUERY, Right.ROUTE, Right.FEEDBACK):
        access = Access(key_id=right.value, rights=frozenset({right}))
        add_key(path, Key(digest=digest_of(SECRET), access=access, rate=None, expires=None))
        fields.append(b"Authorization: Bearer " + spell(right.value, SECRET).encode())
    asks, routes, reports = fields
    with Decisions(guard=AccessSettings(keys=path).open_guard()) as server:
        for _ in range(3):
            assert exchange(server, request(b"{}", asks)).startswith(b"HTTP/1.1 400")
            assert server.route(asks).startswith(b"HTTP/1.1 403")
            assert document(server.route(routes))
            assert exchange(server, request(b"{}", routes)).startswith(b"HTTP/1.1 403")
            name = document(server.route(routes))["decision_id"]
            told = json.dumps({"decision_id": name, "event": "completed"}).encode()
            line = b"POST /feedback HTTP/1.1"
            assert exchange(server, request(told, routes, line=line)).startswith(b"HTTP/1.1 403")
            assert server.route(reports).startswith(b"HTTP/1.1 403")
            assert exchange(server, request(told, reports, line=line)).startswith(b"HTTP/1.1 202")
        assert server.by_kernel == 5
        assert server.live.kernel_counts().reported == 3


def test_where_booking_is_behind_requests_wait_for_it_and_python_does_nothing() -> None:
    """Each window books one; six clients ask and report as fast as they have their answers."""
    ended, offsets, folded = threading.Event(), count(), list[str]()

    def write(server: Decisions) -> None:
        while not ended.wait(0.001) or server.queue.has_much:
            for record in server.queue.take(server.router.now()):
                if isinstance(record, DecisionsRecord):
                    folded.extend(decision_id(record.run, one.number) for one in record.decisions)
                server.live.follow(next(offsets), record, server.router.now())

    def work(server: Decisions, number: int) -> None:
        with server.connect() as connection:
            for _ in range(12):
                connection.sendall(asked(token_ids=[number] * 40))
                name = document(receive(connection))["decision_id"]
                told = json.dumps({"decision_id": name, "event": "completed"}).encode()
                connection.sendall(request(told, line=b"POST /feedback HTTP/1.1"))
                assert receive(connection).endswith(b'{"accepted":1,"repeated":0,"unknown":0}')
                names.append(name)

    names: list[str] = []
    with Decisions(window_items=1) as server:
        server.route()
        threads = [
            threading.Thread(target=work, args=(server, number)) for number in range(CLIENTS)
        ]
        writing = threading.Thread(target=write, args=(server,))
        for thread in (writing, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        writing.join()
        counts = server.live.kernel_counts()
        assert counts.rested > 0
        assert (counts.decided, counts.reported, counts.left) == (len(names), len(names), 0)
        assert len(set(names)) == 12 * CLIENTS, "no client has failed"
        assert sorted(folded[1:]) == sorted(names)
        assert server.live.counts()["under_way"] == 1


def test_many_at_once_are_booked_once_each(server: Decisions) -> None:
    names: list[str] = []
    ended: list[str] = []

    def work(number: int) -> None:
        for place in range(ROUNDS):
            body: dict[str, Any] = {"explain": True} if place % 10 == number else {}
            name = document(server.route(token_ids=[number] * 40, **body))["decision_id"]
            names.append(name)
            if place % 3 == 0:
                told = json.dumps({"decision_id": name, "event": "completed"}).encode()
                answer = exchange(server, request(told, line=b"POST /feedback HTTP/1.1"))
                assert b'"accepted":1' in answer
                ended.append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == CLIENTS * ROUNDS == len(set(names)), "no client has failed"
    assert server.by_kernel > 0
    assert server.live.counts()["under_way"] == 1 + len(names) - len(ended)
    written = [
        decision_id(record.run, one.number)
        for record in server.queue.take(0.0)
        if isinstance(record, DecisionsRecord)
        for one in record.decisions
    ]
    assert len(written) == len(set(written)) == 1 + len(names)
    assert set(names) <= set(written)
