"""The server as a socket sees it: frames, bounds, and clients that are slow, idle or no clients."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from query_api.rpc import server as server_module
from query_api.rpc.bounds import RPC_LARGE_BYTES_MAX, RPC_QUERY_BYTES_MAX, RPC_SMALL_BYTES
from query_api.rpc.frames import answer_frame, function_of, request_frame
from query_api.rpc.messages import ERROR_TEXT
from schemas.limits import QUERY_TOKENS_MAX
from tests.conductor_rpc import (
    SERVICE,
    WAIT_S,
    Recorded,
    RpcClient,
    RpcFailedError,
    recorded,
    service,
)
from tests.fakes import FakeTable, registration
from tests.processes import until
from tests.unit.query_api.rpc.conftest import Served

QUERY = function_of(SERVICE + "Query")
SERVICES = function_of(SERVICE + "ListServices")


def head(
    function: int = SERVICES,
    body: int = 0,
    attachment: int = 0,
    *,
    magic: int = 21,
    version: int = 0,
    serialization: int = 0,
    kind: int = 0,
) -> bytes:
    numbers = (7, function, body, attachment)
    packed = b"".join(number.to_bytes(4, "little") for number in numbers)
    return bytes([magic, version, serialization, kind]) + packed


def is_ended(client: RpcClient) -> bool:
    try:
        return client.socket.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("call", recorded(), ids=lambda one: f"{one.build}: {one.case}")
def test_recorded_requests_are_answered(client: RpcClient, call: Recorded) -> None:
    answer = client.exchange(call.request)
    assert (answer.errc, answer.number) == (0, int.from_bytes(call.request[4:8], "little"))


def test_an_unknown_function_is_answered_and_the_connection_goes_on(
    served: Served, client: RpcClient
) -> None:
    with pytest.raises(RpcFailedError) as caught:
        client.call("Remove", b"some arguments")
    assert caught.value.args == (11, "the rpc function not registered")
    assert client.services() == []
    assert served.counts.calls == {
        ("unknown", "FUNCTION_NOT_REGISTERED"): 1,
        ("ListServices", "OK"): 1,
    }


def test_arguments_that_are_none_are_answered_and_the_connection_goes_on(
    client: RpcClient,
) -> None:
    for body in (b"", bytes(30), b"\x1c\x1a\x00\xf9\xff"):
        with pytest.raises(RpcFailedError) as caught:
            client.call("Query", body)
        code, text = caught.value.args
        assert code == 4
        assert text.startswith("invalid rpc arg: Expected ")
    assert client.query([1]) == {}


def test_requests_may_come_before_the_answers_are_read(client: RpcClient) -> None:
    frames = [request_frame(number, SERVICES, b"") for number in range(5)]
    client.socket.sendall(b"".join(frames))
    assert [client.receive().number for _ in range(5)] == [0, 1, 2, 3, 4]


def test_attachments_and_kinds_of_messages_are_passed_over(client: RpcClient) -> None:
    attached = head(body=3, attachment=40_000, kind=9) + b"abc" + bytes(40_000)
    assert client.exchange(attached + head()).errc == 0
    assert client.receive().errc == 0


@pytest.mark.parametrize(
    "frame",
    [
        head(magic=22),
        head(version=1),
        head(serialization=1),
        b"GET /query HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_is_not_this_protocol_ends_its_connection(
    served: Served, client: RpcClient, frame: bytes
) -> None:
    client.socket.sendall(frame)
    assert is_ended(client)
    until(lambda: served.counts.refused == {"no_rpc": 1}, what="the count")


@pytest.mark.parametrize(
    ("frame", "most"),
    [
        (head(QUERY, 2**32 - 1), RPC_QUERY_BYTES_MAX),
        (head(QUERY, 0, 2**32 - 1), RPC_QUERY_BYTES_MAX),
        (head(QUERY, RPC_QUERY_BYTES_MAX, 1), RPC_QUERY_BYTES_MAX),
        (head(SERVICES, RPC_SMALL_BYTES + 1), RPC_SMALL_BYTES),
        (head(1, RPC_SMALL_BYTES + 1), RPC_SMALL_BYTES),
    ],
)
def test_what_is_too_large_is_told_before_a_byte_of_it_is_read(
    served: Served, client: RpcClient, frame: bytes, most: int
) -> None:
    answer = client.exchange(frame)
    assert (answer.errc, answer.number) == (14, 7)
    assert f"Expected a request of at most {most} bytes" in ERROR_TEXT.unpack(answer.body)
    assert is_ended(client)
    assert served.counts.refused == {"too_large": 1}


def test_the_largest_query_is_answered(client: RpcClient) -> None:
    assert client.query([7] * QUERY_TOKENS_MAX) == {}


def test_large_requests_share_a_bound(served: Served) -> None:
    many = RPC_LARGE_BYTES_MAX // RPC_QUERY_BYTES_MAX
    with ExitStack() as stack:
        clients = [stack.enter_context(RpcClient(served.address)) for _ in range(many + 1)]
        for one in clients[:-1]:
            one.socket.sendall(head(QUERY, RPC_QUERY_BYTES_MAX))
            with RpcClient(served.address) as small:
                assert small.services() == [], "small ones have room"
        last = clients[-1]
        until(lambda: served.counts.connections > many, what="connections")
        assert last.exchange(head(QUERY, RPC_QUERY_BYTES_MAX)).errc == 14
        assert served.counts.refused == {"no_room": 1}
    until(lambda: served.counts.connections == 0, what="the end of the others")
    with RpcClient(served.address) as client:
        assert client.query([7] * 100_000) == {}


def test_connections_have_a_bound(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "RPC_CONNECTIONS_MAX", 1)
    with RpcClient(served.address) as first:
        assert first.services() == []
        with RpcClient(served.address) as second:
            assert is_ended(second)
        assert first.services() == []
    assert served.counts.refused == {"too_many_connections": 1}
    until(lambda: served.counts.connections == 0, what="the end of the first")


@pytest.mark.parametrize(
    ("bound", "sent", "reason"),
    [("RPC_IDLE_S", b"", "idle"), ("RPC_READ_S", b"\x15\x00", "too_slow")],
)
def test_who_sends_nothing_or_half_of_a_request_is_ended(
    served: Served, monkeypatch: pytest.MonkeyPatch, bound: str, sent: bytes, reason: str
) -> None:
    monkeypatch.setattr(server_module, bound, 0.05)
    with RpcClient(served.address) as client:
        client.socket.sendall(sent)
        assert is_ended(client)
    assert served.counts.refused == {reason: 1}


def test_who_reads_no_answers_is_ended(
    served: Served, table: FakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "RPC_WRITE_S", 0.05)
    for at in range(200):
        table.add(registration(f"{at}-{'a' * 900}", endpoint=f"tcp://{at}:1"))
    frame = request_frame(1, SERVICES, b"")
    with RpcClient(served.address) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

        def send() -> None:
            try:
                for _ in range(200):
                    client.socket.sendall(frame)
            except OSError:
                pass

        sender = threading.Thread(target=send)
        sender.start()
        until(lambda: served.counts.refused == {"answer_not_read": 1}, what="the end")
        sender.join(WAIT_S)


@contextmanager
def blocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """While it lasts, `ListServices` waits, and the event says that one does."""
    is_asked, goes_on = threading.Event(), threading.Event()

    def wait(number: int, body: bytes) -> bytes:
        is_asked.set()
        goes_on.wait(WAIT_S)
        return answer_frame(number, body)

    monkeypatch.setattr(server_module, "answer_frame", wait)
    try:
        yield is_asked
    finally:
        goes_on.set()


def test_at_the_end_idle_clients_are_ended_and_requests_are_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RpcClient(served.address) as idle, RpcClient(served.address) as busy:
        assert idle.services() == []
        assert busy.services() == []
        with blocked(monkeypatch) as is_asked:
            busy.socket.sendall(head())
            assert is_asked.wait(WAIT_S)
            ending = threading.Thread(target=served.close)
            ending.start()
        assert busy.receive().errc == 0
        ending.join(WAIT_S)
        assert is_ended(busy)
        assert is_ended(idle)
    with pytest.raises(OSError, match="refused"):
        RpcClient(served.address)
    assert served.counts.connections == 0


def test_a_request_that_does_not_end_is_ended_with_the_server(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "RPC_GRACE_S", 0.05)
    with RpcClient(served.address) as client:
        client.socket.sendall(head(QUERY, 100) + bytes(50))
        until(lambda: served.counts.connections == 1, what="the connection")
        served.close()
        assert is_ended(client)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_mutated_frames_do_not_end_the_server(
    served: Served, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    frame = bytearray(data.draw(st.sampled_from(recorded())).request)
    for _ in range(data.draw(st.integers(1, 5))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with RpcClient(served.address) as client:
        client.socket.sendall(bytes(frame[: data.draw(st.integers(0, len(frame)))]))
        client.socket.shutdown(socket.SHUT_WR)
        while not is_ended(client):
            pass
    with RpcClient(served.address) as client:
        assert client.query([1, 2], model="other") == {}
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


def test_a_client_may_leave_at_any_byte(served: Served) -> None:
    frame = request_frame(1, QUERY, bytes(100))
    for cut in (1, 19, 20, 70):
        with RpcClient(served.address) as client:
            client.socket.sendall(frame[:cut])
    with RpcClient(served.address) as last:
        assert last.services() == [], "all of them have begun"
    until(lambda: served.counts.connections == 0, what="the end of all")
    assert served.counts.refused == {}


def test_registrations_by_one_connection_are_seen_by_another(served: Served) -> None:
    with RpcClient(served.address) as first, RpcClient(served.address) as second:
        first.register(service("a", "tcp://a:1"))
        assert [one.instance_id for one in second.services()] == ["a"]
