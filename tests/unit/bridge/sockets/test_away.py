"""How a publisher that is away is asked for, over a clock of numbers, and found again."""

import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from bridge.bounds import LINK_WATCH_S
from bridge.sockets import connection as connection_module
from bridge.sockets.bounds import LINK_PROBE_AWAY_S, LINK_PROBE_S, LINK_REPLACE_S
from bridge.sockets.connection import LINK_AWAY_S, PublisherConnection
from bridge.sockets.inbox import Inbox
from bridge.sockets.link_life import LINK_LOOK_S
from bridge.sockets.probing import Address, LinkProbes, address_of
from bridge.sockets.subscriber import Subscriber
from tests.unit.bridge.messages import registration
from tests.unit.bridge.sockets.test_subscriber import Engine, free_endpoint, take, wait_until


class FakeProbing(LinkProbes[PublisherConnection]):
    """Says what it is told to, and remembers when it was asked."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self._now = now
        self.answers: bool | None = False
        self.asked: list[float] = []
        self.addresses: list[Address] = []

    def begin(self, owner: PublisherConnection, address: Address) -> bool | None:
        self.asked.append(self._now())
        self.addresses.append(address)
        return self.answers


class Scene:
    """A connection to an endpoint that libzmq has given up."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", patch: pytest.MonkeyPatch
    ) -> None:
        self.endpoint = free_endpoint()
        self.probing = FakeProbing(time.monotonic)
        patch.setattr(connection_module, "LINK_REPLACE_S", 0.0)
        began = time.monotonic()
        self.connection = PublisherConnection(
            context, registration(endpoint=self.endpoint), probing=self.probing
        )

        def asked() -> bool:
            self.connection.receive()
            self.connection.watch()
            return bool(self.probing.asked)

        wait_until(asked)
        patch.setattr(connection_module, "LINK_REPLACE_S", LINK_REPLACE_S)
        # From when it was asked: on a busy machine that is long after it began.
        self.now, self.began = self.probing.asked[0], began
        self.probing._now = lambda: self.now
        self.probing.clock = lambda: self.now
        self.probing.asked.clear()

    def go_on(self, seconds: float) -> None:
        """Looks at the connection whenever it says so."""
        until = self.now + seconds
        while (at := self.connection.look_at) is not None and at <= until:
            self.now = max(self.now, at)
            self.connection.look()
        self.now = until


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with monkeypatch.context() as patch:
        built = Scene(context, patch)
        yield built
        built.connection.close()
    context.destroy(linger=0)


def test_it_is_asked_for_every_three_seconds_and_less_often_after_a_minute(scene: Scene) -> None:
    scene.go_on(LINK_AWAY_S + 60)
    pauses = [
        later - one
        for one, later in zip(scene.probing.asked, scene.probing.asked[1:], strict=False)
    ]
    assert max(pauses) <= LINK_PROBE_AWAY_S + 1e-6
    early = [one for one in scene.probing.asked if one < scene.began + LINK_AWAY_S]
    assert LINK_AWAY_S / LINK_PROBE_S - 2 <= len(early) <= LINK_AWAY_S / LINK_PROBE_S + 2
    assert len(scene.probing.asked) - len(early) <= 60 / LINK_PROBE_AWAY_S + 2
    assert set(scene.probing.addresses) == {address_of(scene.endpoint)}


def test_while_its_host_has_not_answered_it_is_not_asked_again(scene: Scene) -> None:
    scene.probing.answers = None
    scene.go_on(100)
    assert len(scene.probing.asked) == 1
    assert scene.connection.look_at is None
    scene.connection.note_answer(answers=False)
    scene.go_on(LINK_PROBE_AWAY_S)
    assert len(scene.probing.asked) == 2


def test_where_somebody_answers_libzmq_has_it_again(scene: Scene) -> None:
    scene.go_on(LINK_AWAY_S * 2)
    engine = Engine(scene.endpoint)
    scene.probing.answers = True
    scene.go_on(LINK_PROBE_AWAY_S)
    asked = len(scene.probing.asked)
    engine.await_subscriber()
    scene.go_on(LINK_REPLACE_S)

    def connected() -> bool:
        scene.connection.watch()
        return scene.connection.connected

    wait_until(connected)
    assert len(scene.probing.asked) == asked
    engine.close()


def test_who_answers_and_is_no_engine_is_left_again_and_asked_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.probing.answers = True
    scene.go_on(LINK_PROBE_S)
    assert len(scene.probing.asked) == 1

    def asked_again() -> bool:
        scene.connection.receive()
        scene.connection.watch()  # what libzmq tells of its attempts
        scene.go_on(0.02)
        return len(scene.probing.asked) > 1

    left_at = scene.now
    wait_until(asked_again)
    assert scene.now - left_at >= LINK_REPLACE_S - LINK_PROBE_S


def test_an_engine_that_comes_and_goes_is_found_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "LINK_REPLACE_S", 0.0)
    monkeypatch.setattr(connection_module, "LINK_PROBE_S", 0.05)
    inbox = Inbox()
    subscriber = Subscriber(inbox)
    subscriber.start()
    registered = registration(endpoint=free_endpoint())
    publisher = registered.publisher
    subscriber.follow(registered)
    subscriber.changed()
    for life in range(4):
        engine = Engine(registered.endpoint)
        engine.await_subscriber()
        engine.send(bytes([life]))
        assert take(inbox, 1)[0].frames == [bytes([life])]
        wait_until(lambda: subscriber.connected(publisher))
        assert subscriber.links(publisher) == life + 1
        assert publisher in subscriber.changed()[1]
        engine.close()
        wait_until(lambda: not subscriber.connected(publisher))
        wait_until(lambda: publisher in subscriber.changed()[1])
    wait_until(lambda: subscriber._connections[publisher]._is_away)
    assert publisher not in subscriber.changed()[1], "to be away changes nothing"
    subscriber.stop()
    assert subscriber.unexpected_errors == 0


def test_until_it_is_known_over_which_link_messages_come_it_is_looked_at_often() -> None:
    """Of a link whose messages may be of the one before, the first batch proves nothing."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    engine = Engine()
    connection = PublisherConnection(context, registration(endpoint=engine.endpoint))

    def connected() -> bool:
        connection.watch()
        return connection.connected

    wait_until(connected)
    engine.await_subscriber()
    engine.send(b"of the first")
    assert connection.socket.poll(5000)
    engine.close()
    wait_until(lambda: not connected())
    engine = Engine(connection.endpoint)
    wait_until(connected)
    at = connection.look_at
    assert at is not None
    assert at <= time.monotonic() + LINK_WATCH_S, "nobody has looked for what it has brought"
    assert [message.link for message in connection.receive()] == [0]
    connection.watch()
    before = time.monotonic()
    at = connection.look_at
    assert at is not None
    assert at >= before + LINK_LOOK_S
    connection.close()
    engine.close()
    context.destroy(linger=0)
