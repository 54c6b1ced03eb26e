"""The socket thread against real publishers on loopback."""

import ctypes
import logging
import math
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zmq

from bridge.bounds import LINK_WATCH_S
from bridge.link_numbers import LinkNumber
from bridge.sockets import connection as connection_module
from bridge.sockets import link_bytes as link_bytes_module
from bridge.sockets import link_life as link_life_module
from bridge.sockets import link_options as options_module
from bridge.sockets import lookup as lookup_module
from bridge.sockets import reader as reader_module
from bridge.sockets import subscriber as subscriber_module
from bridge.sockets.connection import PublisherConnection
from bridge.sockets.inbox import Inbox
from bridge.sockets.link_life import LinkLife
from bridge.sockets.raw_message import RawMessage, Received, each_of
from bridge.sockets.reader import PlainReader, open_reader
from bridge.sockets.subscriber import LINKS_LOOK_MIN, LINKS_LOOK_S, Subscriber
from schemas.errors import EndpointError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import MESSAGE_FRAMES_MAX
from schemas.registration import Registration
from streams.kernel import socket_reader
from tests.unit.bridge.messages import registration
from tests.zmtp import GREETING, READY

PATIENCE_S = 30.0
SO_ATTACH_FILTER = 26

GREETING_OF_ANOTHER_MECHANISM = (
    b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32)
)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Engine:
    """A publisher that knows when it has a subscriber."""

    def __init__(self, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.linger = 0
        self._socket.sndhwm = 0
        self._socket.xpub_verbose = True
        self._socket.bind(endpoint)
        last_endpoint = self._socket.last_endpoint
        assert isinstance(last_endpoint, bytes)
        self.endpoint = last_endpoint.decode().rstrip("\0")

    def await_subscriber(self) -> None:
        subscribed = False
        while not subscribed:
            assert self._socket.poll(round(PATIENCE_S * 1000))
            subscribed = self._socket.recv() == b"\x01"

    def has_subscriber(self) -> bool:
        """Whether one has come since that was asked last."""
        return bool(self._socket.poll(200))

    def send(self, *frames: bytes) -> None:
        self._socket.send_multipart(frames)

    def close(self) -> None:
        self._context.destroy(linger=0)


@contextmanager
def peer_of(subscriber: Subscriber, **fields: Any) -> Iterator[tuple[socket.socket, Registration]]:
    """A server that says what the test says, and what it is registered as."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        registered = registration(endpoint=endpoint, **fields)
        subscriber.follow(registered)
        yield server, registered


@pytest.fixture
def engine() -> Iterator[Engine]:
    built = Engine()
    yield built
    built.close()


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def subscriber(inbox: Inbox) -> Iterator[Subscriber]:
    built = Subscriber(inbox, open_reader(socket_reader))
    built.start()
    yield built
    built.stop()
    assert built.unexpected_errors == 0


def follow(subscriber: Subscriber, engine: Engine, instance_id: str = "w-1") -> PublisherKey:
    registered = registration(endpoint=engine.endpoint, instance_id=instance_id)
    subscriber.follow(registered)
    engine.await_subscriber()
    return registered.publisher


def take(inbox: Inbox, count: int) -> list[RawMessage]:
    taken: list[RawMessage] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(taken) < count:
        assert time.monotonic() < deadline
        taken += each_of(inbox.take(count - len(taken)))
        time.sleep(0.002)
    return taken


def free_endpoint() -> str:
    """An address where nothing listens."""
    engine = Engine()
    engine.close()
    return engine.endpoint


def test_messages_arrive_as_they_were_sent(
    subscriber: Subscriber, engine: Engine, inbox: Inbox
) -> None:
    publisher = follow(subscriber, engine)
    before = time.monotonic()
    engine.send(b"topic", b"sequence", b"payload")
    (message,) = take(inbox, 1)
    assert message.publisher == publisher
    assert message.frames == [b"topic", b"sequence", b"payload"]
    assert before <= message.received_at <= time.monotonic()
    assert inbox.take(1) == []


def test_an_address_in_the_file_system_serves_as_well(
    subscriber: Subscriber, inbox: Inbox, tmp_path: Path
) -> None:
    engine = Engine(f"ipc://{tmp_path}/engine")
    follow(subscriber, engine)
    engine.send(b"a")
    assert take(inbox, 1)[0].frames == [b"a"]
    engine.close()


def test_a_message_costs_nothing_of_the_publishers_that_are_silent(
    subscriber: Subscriber, engine: Engine, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = [Engine() for _ in range(60)]
    for number, one in enumerate(silent):
        follow(subscriber, one, f"silent-{number}")
    follow(subscriber, engine)
    wait_until(lambda: all(map(subscriber.connected, subscriber._connections)))
    asked, watched = Counter[PublisherKey](), Counter[PublisherKey]()
    receive, watch = PublisherConnection.receive, PublisherConnection.watch
    monkeypatch.setattr(subscriber_module, "LINK_WATCH_S", 3600.0)

    def looked_at(connection: PublisherConnection) -> None:
        watched[connection.publisher] += 1
        watch(connection)

    def counted(connection: PublisherConnection) -> list[Received]:
        asked[connection.publisher] += 1
        return receive(connection)

    monkeypatch.setattr(PublisherConnection, "receive", counted)
    monkeypatch.setattr(PublisherConnection, "watch", looked_at)
    for _ in range(50):
        engine.send(b"a")
        take(inbox, 1)
    assert asked.total() < 50 + 60
    assert watched.total() < 2 * 61, "each once where that was due, and no more"
    for one in silent:
        one.close()


def test_a_burst_arrives_whole_and_in_order(
    subscriber: Subscriber, engine: Engine, inbox: Inbox
) -> None:
    follow(subscriber, engine)
    for i in range(5000):
        engine.send(b"", i.to_bytes(8, "big"), b"x" * 50)
    numbers = [int.from_bytes(message.frames[1], "big") for message in take(inbox, 5000)]
    assert numbers == list(range(5000))


def test_little_is_taken_of_one_publisher_before_the_next_ones_turn(
    subscriber: Subscriber, engine: Engine, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RECEIVE_BURST_BYTES", 25_000)
    taken: list[int] = []
    put = inbox.put

    def counted(messages: Sequence[RawMessage]) -> None:
        taken.append(sum(message.size_bytes for message in messages))
        put(messages)

    monkeypatch.setattr(inbox, "put", counted)
    follow(subscriber, engine)
    for i in range(50):
        engine.send(b"", i.to_bytes(8, "big"), b"x" * (100_000 if i == 25 else 10_000))
    assert len(take(inbox, 50)) == 50
    assert 100_000 < max(taken) < 100_000 + 25_000
    assert sorted(taken)[-2] < 25_000 + 10_100


def test_a_publisher_whose_messages_take_long_to_receive_has_short_turns(
    inbox: Inbox, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RECEIVE_BURST_S", 0.01)
    receive, put = reader_module._receive, inbox.put
    taken: list[int] = []

    def slowly(socket: "zmq.Socket[bytes]") -> tuple[list[bytes], bool]:
        received = receive(socket)
        time.sleep(0.003)
        return received

    def counted(messages: Sequence[RawMessage]) -> None:
        taken.append(len(messages))
        put(messages)

    monkeypatch.setattr(reader_module, "_receive", slowly)
    monkeypatch.setattr(inbox, "put", counted)
    subscriber = Subscriber(inbox, PlainReader())
    subscriber.start()
    follow(subscriber, engine)
    for i in range(50):
        engine.send(b"", i.to_bytes(8, "big"), b"x")
    assert len(take(inbox, 50)) == 50
    assert max(taken) <= 4
    subscriber.stop()


def test_a_large_message_arrives(subscriber: Subscriber, engine: Engine, inbox: Inbox) -> None:
    follow(subscriber, engine)
    engine.send(b"", bytes(8), b"x" * 5_000_000)
    assert len(take(inbox, 1)[0].frames[2]) == 5_000_000


def test_messages_of_any_shape_leave_the_stream_alive(
    subscriber: Subscriber, engine: Engine, inbox: Inbox
) -> None:
    publisher = follow(subscriber, engine)
    engine.send(b"")
    engine.send(b"", b"")
    engine.send(b"", b"", b"", b"")
    engine.send(b"t", bytes(8), b"p")
    assert [len(message.frames) for message in take(inbox, 4)] == [1, 2, 4, 3]
    wait_until(lambda: subscriber.links(publisher) == 1)


@pytest.mark.parametrize("frames", [MESSAGE_FRAMES_MAX + 2, 1_000_000])
def test_a_message_of_many_frames_costs_its_link_and_nobody_else_a_moment(
    subscriber: Subscriber,
    engine: Engine,
    inbox: Inbox,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    frames: int,
) -> None:
    """A million empty frames took 30 times their size in memory, and seconds of this thread."""
    monkeypatch.setattr(connection_module, "LINK_BREACH_S", 0.3)
    received = 0
    receive = zmq.Socket.recv

    def counted(socket: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal received
        received += socket.type == zmq.SUB
        return receive(socket, *args, **kwargs)

    monkeypatch.setattr(zmq.Socket, "recv", counted)
    other = Engine()
    publisher = follow(subscriber, engine)
    follow(subscriber, other, "w-2")
    engine.send(*[b""] * frames)
    (broken,) = take(inbox, 1)
    assert (broken.publisher, len(broken.frames)) == (publisher, MESSAGE_FRAMES_MAX + 1)
    other.send(b"neighbour")
    assert take(inbox, 1)[0].frames == [b"neighbour"]
    wait_until(lambda: subscriber.links(publisher) == 2)
    engine.await_subscriber()
    engine.send(b"t", bytes(8), b"again")
    assert take(inbox, 1)[0].frames[-1] == b"again"
    assert received < 100
    assert f"more than {MESSAGE_FRAMES_MAX} frames" in caplog.text
    assert subscriber.unexpected_errors == 0
    other.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells when something came")
def test_a_peer_that_does_not_answer_is_silent_and_keeps_its_link(
    subscriber: Subscriber, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "LINK_HEARTBEAT_MS", 50)
    monkeypatch.setattr(link_life_module, "LINK_SILENT_S", 0.2)
    with peer_of(subscriber) as (frozen, one):
        client, _ = frozen.accept()
        client.sendall(GREETING + READY)
        wait_until(lambda: subscriber.is_silent(one.publisher))
        assert one.publisher in tuple(subscriber.changed()[1])
        assert subscriber.connected(one.publisher)
        client.sendall(b"\x00\x04back")
        assert take(inbox, 1)[0].frames == [b"back"]
        wait_until(lambda: not subscriber.is_silent(one.publisher))
        assert subscriber.links(one.publisher) == 1
        client.close()
    wait_until(lambda: not subscriber.connected(one.publisher))


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells when something came")
def test_a_peer_that_answers_nothing_for_long_loses_its_link_and_is_connected_to_again(
    subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "LINK_HEARTBEAT_MS", 50)
    monkeypatch.setattr(link_life_module, "LINK_SILENT_S", 0.2)
    monkeypatch.setattr(link_life_module, "LINK_UNANSWERED_MS", 400)
    with peer_of(subscriber) as (frozen, one):
        frozen.settimeout(PATIENCE_S)
        for links in (1, 2):
            client, _ = frozen.accept()
            with client:
                client.sendall(GREETING + READY)
                wait_until(partial(_has_links, subscriber, one.publisher, links))
                wait_until(lambda: not subscriber.connected(one.publisher))


def _has_links(subscriber: Subscriber, publisher: PublisherKey, links: int) -> bool:
    return subscriber.links(publisher) == links


@pytest.mark.parametrize("links", [4, 100, 1000])
def test_each_link_that_is_up_is_looked_at_in_time_and_of_many_none_more_often(links: int) -> None:
    class Connection:
        def __init__(self) -> None:
            self.life = LinkLife()
            self.connected, self.closed, self.looks = True, False, 0

        def is_to_be_watched(self, memory_bytes: int) -> bool:
            self.looks += 1
            return False

    subscriber = Subscriber(Inbox())
    up = [Connection() for _ in range(links)]
    subscriber._connections = dict(enumerate(up))  # type: ignore[arg-type]
    ticks = math.ceil(LINKS_LOOK_S / LINK_WATCH_S)
    for tick in range(ticks):
        subscriber._look_at_due(100.0 + tick * LINK_WATCH_S)
    looks = [one.looks for one in up]
    assert min(looks) >= 1
    assert sum(looks) <= max(ticks * LINKS_LOOK_MIN, links + links / ticks)
    subscriber._connections.clear()
    subscriber.stop()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux has such filters")
def test_a_peer_whose_host_has_vanished_loses_its_link(
    subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "LINK_HEARTBEAT_MS", 50)
    monkeypatch.setattr(options_module, "LINK_DEAD_MS", 300)
    with peer_of(subscriber) as (vanished, one):
        client, _ = vanished.accept()
        client.sendall(GREETING + READY)
        wait_until(lambda: subscriber.connected(one.publisher))
        drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # ret 0
        program = struct.pack("HL", 1, ctypes.addressof(drop_all))
        client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
        wait_until(lambda: not subscriber.connected(one.publisher))
        client.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux counts a link's bytes")
def test_a_message_without_an_end_costs_its_link(
    subscriber: Subscriber,
    inbox: Inbox,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """libzmq keeps it until it is whole: 3.9 GB in 20 s."""
    monkeypatch.setattr(link_bytes_module, "LINK_BUFFER_BYTES", 1_000_000)
    monkeypatch.setattr(link_bytes_module, "MESSAGE_BYTES_MAX", 1_000_000)
    follow(subscriber, engine)
    with peer_of(subscriber, instance_id="w-2") as (endless, other):
        client, _ = endless.accept()
        client.settimeout(PATIENCE_S)
        client.sendall(GREETING + READY)
        wait_until(lambda: subscriber.connected(other.publisher))
        frame = b"\x03" + (100_000).to_bytes(8, "big") + bytes(100_000)  # more follow, long
        sent = 0
        with suppress(OSError):  # the link is dropped
            while sent < 500_000_000:
                client.sendall(frame)
                sent += len(frame)
                time.sleep(0.001)
        client.close()
    assert sent < 500_000_000
    engine.send(b"neighbour")
    assert take(inbox, 1)[0].frames == [b"neighbour"]
    wait_until(lambda: "of a message without an end" in caplog.text)
    assert subscriber.unexpected_errors == 0


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux counts a link's bytes")
def test_endless_empty_frames_cost_their_link_before_they_cost_memory(
    subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two bytes each on the wire, and some sixty in memory: 33 MB of them took a gigabyte."""
    monkeypatch.setattr(link_bytes_module, "LINK_GROWN_BYTES_MAX", 32_000_000)
    with peer_of(subscriber, instance_id="w-2") as (endless, other):
        client, _ = endless.accept()
        client.settimeout(PATIENCE_S)
        client.sendall(GREETING + READY)
        wait_until(lambda: subscriber.connected(other.publisher))
        sent = 0
        with suppress(OSError):  # the link is dropped
            while sent < 30_000_000:
                client.sendall(b"\x01\x00" * 25_000)  # more follow
                sent += 50_000
                time.sleep(0.002)
        client.close()
    assert sent < 30_000_000
    wait_until(lambda: "of a message without an end, which take" in caplog.text)
    assert subscriber.unexpected_errors == 0


def test_two_publishers_are_told_apart(
    subscriber: Subscriber, engine: Engine, inbox: Inbox
) -> None:
    other = Engine()
    one = follow(subscriber, engine)
    two = follow(subscriber, other, "w-2")
    engine.send(b"1")
    other.send(b"2")
    assert {(message.publisher, message.frames[0]) for message in take(inbox, 2)} == {
        (one, b"1"),
        (two, b"2"),
    }
    other.close()


def test_what_does_not_fit_the_inbox_is_counted() -> None:
    inbox = Inbox(messages_max=6)
    subscriber = Subscriber(inbox)
    subscriber.start()
    engine = Engine()
    publisher = follow(subscriber, engine)
    for i in range(10):
        engine.send(bytes([i]))
    wait_until(lambda: inbox.dropped() == {publisher: 7})
    assert [message.frames for message in take(inbox, 3)] == [[b"\0"], [b"\1"], [b"\2"]]
    engine.send(b"later")
    assert take(inbox, 1)[0].frames == [b"later"]
    subscriber.stop()
    engine.close()


def test_a_publisher_that_comes_back_is_found_again(
    subscriber: Subscriber, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bridge")
    engine = Engine()
    publisher = follow(subscriber, engine)
    wait_until(lambda: subscriber.connected(publisher))
    engine.send(b"first life")
    assert take(inbox, 1)[0].frames == [b"first life"]
    engine.close()
    wait_until(lambda: not subscriber.connected(publisher))
    again = Engine(engine.endpoint)
    again.await_subscriber()
    again.send(b"second life")
    assert take(inbox, 1)[0].frames == [b"second life"]
    wait_until(lambda: subscriber.connected(publisher))
    again.close()
    assert [record.message.split()[0] for record in caplog.records][:3] == [
        "Connected",
        "Disconnected",
        "Connected",
    ]


def once(engine: Engine, endpoint: str = "") -> Registration:
    return registration(endpoint=endpoint or engine.endpoint)


def test_one_that_is_followed_for_one_link_is_not_connected_to_when_that_has_ended(
    subscriber: Subscriber, inbox: Inbox
) -> None:
    engine = Engine()
    publisher = once(engine).publisher
    subscriber.follow_once(once(engine))
    engine.await_subscriber()
    wait_until(lambda: subscriber.connected(publisher))
    engine.send(b"its own")
    assert take(inbox, 1)[0].frames == [b"its own"]
    engine.close()
    wait_until(lambda: not subscriber.connected(publisher))
    stranger, elsewhere = Engine(engine.endpoint), Engine()
    subscriber.follow_once(once(elsewhere))
    elsewhere.await_subscriber()
    elsewhere.send(b"its own again")
    assert take(inbox, 1)[0].frames == [b"its own again"]
    wait_until(lambda: subscriber.connected(publisher))
    assert subscriber.links(publisher) == 2
    assert not stranger.has_subscriber()
    stranger.close()
    elsewhere.close()


def test_nobody_listens_there_yet_and_it_is_connected_to_once_somebody_does(
    subscriber: Subscriber, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LINK_PROBE_S", "LINK_REPLACE_S"):
        monkeypatch.setattr(connection_module, name, 0.05)
    endpoint = free_endpoint()
    one = registration(endpoint=endpoint)
    subscriber.follow_once(one)
    engine = Engine(endpoint)
    engine.await_subscriber()
    engine.send(b"here")
    assert take(inbox, 1)[0].frames == [b"here"]
    engine.close()


def test_who_has_a_link_stays_where_it_is(subscriber: Subscriber, engine: Engine) -> None:
    other = Engine()
    publisher = once(engine).publisher
    subscriber.follow_once(once(engine))
    engine.await_subscriber()
    wait_until(lambda: subscriber.connected(publisher))
    subscriber.follow_once(once(other))
    assert subscriber.connected(publisher)
    assert subscriber.links(publisher) == 1
    assert not other.has_subscriber()
    other.close()


def test_a_place_that_cannot_be_connected_to_leaves_all_as_it_was(
    subscriber: Subscriber, engine: Engine
) -> None:
    publisher = once(engine).publisher
    with pytest.raises(EndpointError):
        subscriber.follow_once(once(engine, "tcp://*:1"))
    subscriber.follow_once(once(engine, free_endpoint()))
    with pytest.raises(EndpointError):
        subscriber.follow_once(once(engine, "tcp://*:1"))
    subscriber.follow_once(once(engine))
    engine.await_subscriber()
    wait_until(lambda: subscriber.connected(publisher))


def test_a_publisher_that_is_not_up_is_waited_for_and_named_once(
    subscriber: Subscriber,
    inbox: Inbox,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "LINK_WARN_S", 0.0)
    caplog.set_level(logging.WARNING, "bridge")
    registered = registration(endpoint=free_endpoint())
    subscriber.follow(registered)
    wait_until(lambda: bool(caplog.records))
    assert not subscriber.connected(registered.publisher)
    late = Engine(registered.endpoint)
    late.await_subscriber()
    late.send(b"up")
    assert take(inbox, 1)[0].frames == [b"up"]
    assert [registered.endpoint in record.message for record in caplog.records] == [True]
    late.close()


def test_each_address_of_a_name_is_tried_and_the_name_looked_up_again(
    subscriber: Subscriber, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINK_REPLACE_S", 0.0)
    endpoint = free_endpoint()
    nobody = [free_endpoint(), free_endpoint()]
    lookups: list[list[str]] = []

    def addresses_of(name: str) -> list[str]:
        assert name == endpoint.replace("127.0.0.1", "engine.example")
        lookups.append([*nobody, *([endpoint] if len(lookups) > 1 else [])])
        return lookups[-1]

    monkeypatch.setattr(lookup_module, "addresses_of", addresses_of)
    engine = Engine(endpoint)
    subscriber.follow(registration(endpoint=endpoint.replace("127.0.0.1", "engine.example")))
    engine.await_subscriber()
    assert len(lookups) == 3
    engine.send(b"up")
    assert take(inbox, 1)[0].frames == [b"up"]
    engine.close()


def test_a_name_whose_server_is_silent_delays_nobody(
    subscriber: Subscriber, engine: Engine, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def addresses_of(name: str) -> list[str]:
        asked.set()
        assert answer.wait(10)
        raise OSError("Name or service not known")

    monkeypatch.setattr(lookup_module, "addresses_of", addresses_of)
    try:
        subscriber.follow(registration(instance_id="named", endpoint="tcp://silent.example:5557"))
        assert asked.wait(5)
        follow(subscriber, engine)
        engine.send(b"up")
        assert take(inbox, 1)[0].frames == [b"up"]
        assert not subscriber.connected(registration(instance_id="named").publisher)
    finally:
        answer.set()


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    built: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield built
    built.destroy(linger=0)


def receive(connection: PublisherConnection) -> list[bytes]:
    messages: list[RawMessage] = []

    def received() -> bool:
        messages.extend(each_of(connection.receive()))
        return bool(messages)

    wait_until(received)
    return [message.frames[0] for message in messages]


def test_a_link_that_comes_up_while_it_is_looked_at_keeps_what_it_brings(
    context: "zmq.Context[zmq.Socket[bytes]]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINK_REPLACE_S", 0.0)
    endpoint = free_endpoint()
    connection = PublisherConnection(context, registration(endpoint=endpoint))
    wait = PublisherConnection._wait
    late: list[Engine] = []

    def come_up_and_wait(connection: PublisherConnection, now: float) -> None:
        if not late:  # the events have been read, the link has not been replaced yet
            late.append(Engine(endpoint))
            late[0].await_subscriber()
            late[0].send(b"kept")
        wait(connection, time.monotonic())

    monkeypatch.setattr(PublisherConnection, "_wait", come_up_and_wait)
    connection.watch()
    assert receive(connection) == [b"kept"]
    connection.watch()
    assert (connection.connected, connection.links) == (True, 1)
    connection.close()
    late[0].close()


def test_what_comes_before_the_first_look_is_of_the_first_link(
    context: "zmq.Context[zmq.Socket[bytes]]", engine: Engine
) -> None:
    connection = PublisherConnection(
        context, registration(endpoint=engine.endpoint), links=LinkNumber(4)
    )
    engine.await_subscriber()
    engine.send(b"early")
    assert connection.socket.poll(round(PATIENCE_S * 1000))
    connection.watch()
    assert [message.link for message in connection.receive()] == [connection.links] == [5]
    connection.close()


def test_a_lost_link_is_replaced_only_once_all_that_it_brought_is_received(
    context: "zmq.Context[zmq.Socket[bytes]]", engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINK_REPLACE_S", 0.0)
    connection = PublisherConnection(context, registration(endpoint=engine.endpoint))
    engine.await_subscriber()
    engine.send(b"kept")
    assert connection.socket.poll(round(PATIENCE_S * 1000))
    connection.watch()
    engine.close()
    replaced: list[bool] = []
    monkeypatch.setattr(PublisherConnection, "_connect", lambda _: replaced.append(True))

    def lost() -> bool:
        connection.watch()
        return not connection.connected

    wait_until(lost)
    end = time.monotonic() + 0.5  # libzmq waits at least this long before its fourth attempt
    while time.monotonic() < end:
        connection.watch()
    assert replaced == []
    assert receive(connection) == [b"kept"]

    def retried() -> bool:
        connection.watch()
        return bool(replaced)

    wait_until(retried)
    connection.close()


def test_an_oversized_message_costs_the_link_and_not_the_stream(
    subscriber: Subscriber, engine: Engine, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "MESSAGE_BYTES_MAX", 1000)
    monkeypatch.setattr(connection_module, "LINK_REPLACE_S", 0.1)
    follow(subscriber, engine)
    engine.send(b"", bytes(8), b"x" * 2000)
    engine.await_subscriber()
    engine.send(b"later")
    assert take(inbox, 1)[0].frames == [b"later"]


def test_a_port_that_accepts_and_says_nothing_is_tried_again(
    subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options_module, "LINK_CONNECT_MS", 100)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE_S / 3)
        subscriber.follow(registration(endpoint=f"tcp://127.0.0.1:{silent.getsockname()[1]}"))
        first, _ = silent.accept()
        second, _ = silent.accept()
        for client in (first, second):
            client.close()


def test_a_port_where_a_handshake_failed_is_tried_again(
    subscriber: Subscriber, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "LINK_REPLACE_S", 0.1)
    with peer_of(subscriber) as (stranger, registered):
        client, _ = stranger.accept()
        with client:
            client.sendall(GREETING_OF_ANOTHER_MECHANISM)
            client.settimeout(PATIENCE_S)
            with suppress(ConnectionError):
                wait_until(lambda: client.recv(4096) == b"")
    assert not subscriber.connected(registered.publisher)
    engine = Engine(registered.endpoint)
    engine.await_subscriber()
    engine.send(b"up")
    assert take(inbox, 1)[0].frames == [b"up"]
    engine.close()


@pytest.mark.parametrize(
    "endpoint", ["nowhere", "http://127.0.0.1:1", "tcp://a b:1", "ipc:///" + "x" * 200]
)
def test_an_address_that_cannot_be_connected_to_is_refused_at_once(
    subscriber: Subscriber, endpoint: str
) -> None:
    registered = registration(endpoint=endpoint)
    with pytest.raises(EndpointError, match="Expected"):
        subscriber.follow(registered)
    assert not subscriber.connected(registered.publisher)
    subscriber.follow(registration(endpoint=free_endpoint()))


def test_a_publisher_is_followed_once(subscriber: Subscriber) -> None:
    registered = registration(endpoint=free_endpoint())
    subscriber.follow(registered)
    with pytest.raises(RegistrationConflictError):
        subscriber.follow(registered)


def test_an_unfollowed_publisher_is_heard_no_more(
    subscriber: Subscriber, engine: Engine, inbox: Inbox
) -> None:
    publisher = follow(subscriber, engine)
    engine.send(b"waiting")
    wait_until(lambda: len(inbox) == 1)
    subscriber.unfollow(publisher)
    subscriber.unfollow(publisher)
    assert len(inbox) == 0
    assert not subscriber.connected(publisher)
    subscriber.follow(registration(endpoint=engine.endpoint))
    engine.await_subscriber()
    engine.send(b"again")
    assert take(inbox, 1)[0].frames == [b"again"]


def test_an_error_nobody_thought_of_is_logged_and_counted_and_the_loop_goes_on(
    inbox: Inbox, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = Subscriber(inbox)
    subscriber.start()
    follow(subscriber, engine)
    receive = PublisherConnection.receive

    def fail_once(connection: PublisherConnection) -> list[RawMessage]:
        monkeypatch.setattr(PublisherConnection, "receive", receive)
        raise LookupError("never seen")

    monkeypatch.setattr(PublisherConnection, "receive", fail_once)
    engine.send(b"kept")
    assert take(inbox, 1)[0].frames == [b"kept"]
    assert subscriber.unexpected_errors == 1
    assert "never seen" in caplog.text
    subscriber.stop()


@pytest.mark.parametrize("error", [LookupError("never seen"), SystemExit(1), MemoryError()])
def test_the_thread_outlives_an_error_while_it_handles_an_error(
    inbox: Inbox, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Nobody would notice its end: nothing would be received, and answers would stay `exact`."""
    subscriber = Subscriber(inbox)
    subscriber.start()
    follow(subscriber, engine)
    receive = PublisherConnection.receive
    left = 3

    def fail(connection: PublisherConnection) -> list[RawMessage]:
        nonlocal left
        left -= 1
        if not left:
            monkeypatch.setattr(PublisherConnection, "receive", receive)
        raise error

    def fail_too() -> None:
        raise OSError(22, "Invalid argument")  # as time.sleep where the clock is set

    monkeypatch.setattr(Subscriber, "_pause", staticmethod(fail_too))
    monkeypatch.setattr(PublisherConnection, "receive", fail)
    engine.send(b"kept")
    assert take(inbox, 1)[0].frames == [b"kept"]
    assert subscriber.unexpected_errors == 3
    subscriber.stop()


def test_it_stops_once_and_for_all(inbox: Inbox) -> None:
    subscriber = Subscriber(inbox)
    subscriber.start()
    subscriber.follow(registration(endpoint=free_endpoint()))
    subscriber.stop()
    subscriber.stop()
    with pytest.raises(RuntimeError):
        subscriber.follow(registration(endpoint=free_endpoint()))


def test_it_may_be_stopped_without_having_run(inbox: Inbox) -> None:
    subscriber = Subscriber(inbox)
    with pytest.raises(RuntimeError):
        subscriber.unfollow(registration().publisher)
    subscriber.stop()
    subscriber.stop()


def test_who_sends_large_messages_is_received_from_at_the_rate_of_small_ones(
    engine: Engine, inbox: Inbox, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RECEIVE_BURST_BYTES", 1000)  # in each 5 ms
    publisher = follow(subscriber, engine)
    before = time.monotonic()
    for number in range(6):
        engine.send(b"", bytes([number]), bytes(20_000))
    taken = take(inbox, 6)
    took_s = time.monotonic() - before
    assert [message.frames[1][0] for message in taken] == list(range(6))
    assert took_s >= 5 * 0.095, "five times what 19,000 bytes more than a burst take"
    assert subscriber.received_until(publisher) >= before


def test_while_large_messages_wait_for_their_time_it_is_known_that_they_do(
    engine: Engine, inbox: Inbox, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "RECEIVE_BURST_BYTES", 1000)
    publisher = follow(subscriber, engine)
    for number in range(3):
        engine.send(b"", bytes([number]), bytes(100_000))  # 0.5 s each
    take(inbox, 1)
    time.sleep(0.3)
    assert time.monotonic() - subscriber.received_until(publisher) > 0.2
    take(inbox, 2)
    wait_until(lambda: time.monotonic() - subscriber.received_until(publisher) < 0.2)


def test_a_link_that_brings_far_more_than_can_be_taken_is_dropped_and_comes_back(
    engine: Engine,
    inbox: Inbox,
    subscriber: Subscriber,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(connection_module, "RECEIVE_BURST_BYTES", 1000)
    monkeypatch.setattr(link_bytes_module, "LINK_QUEUE_BYTES", 2_000_000)
    monkeypatch.setattr(connection_module, "LINK_BREACH_S", 0.1)
    publisher = follow(subscriber, engine)
    for number in range(30):
        engine.send(b"", bytes([number]), bytes(100_000))  # 0.5 s each
    wait_until(lambda: "bytes more than could be taken" in caplog.text)
    engine.await_subscriber()
    engine.send(b"", b"later", b"")
    wait_until(lambda: any(one.frames[1] == b"later" for one in each_of(inbox.take(9))))
    assert subscriber.connected(publisher)


def test_many_small_messages_behind_a_large_one_arrive(
    engine: Engine, inbox: Inbox, subscriber: Subscriber
) -> None:
    follow(subscriber, engine)
    sizes = [10] * 5_000 + [1_000_000] + [10] * 5_000
    for number, size in enumerate(sizes):
        engine.send(b"", number.to_bytes(8, "big"), bytes(size))
    taken = take(inbox, len(sizes))
    assert [int.from_bytes(one.frames[1], "big") for one in taken] == list(range(len(sizes)))
    engine.send(b"", b"one more", b"")
    assert take(inbox, 1)[0].frames[1] == b"one more"
