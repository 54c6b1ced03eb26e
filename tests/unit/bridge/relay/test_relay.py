"""A relay's links: engines that come and go, strangers, and bridges that take little."""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from bridge.relay import followers
from bridge.relay.bridge_keys import RELAY_KEYS_CHECK_S, BridgeKeys
from schemas.errors import ConfigurationError
from tests.unit.bridge.relay.scene import Scene, scene
from tests.zmtp import GREETING, READY

PATIENCE_S = 20.0
CURVE_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(47)


@pytest.fixture
def relayed(tmp_path: Path) -> Iterator[Scene]:
    with scene(tmp_path) as one:
        yield one


def wait_until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def receive_through(relayed: Scene, engine: "zmq.Socket[bytes]") -> None:
    """A message of now reaches a bridge."""
    with relayed.bridge() as bridge:
        number, message = 0, [b""]
        end = time.monotonic() + PATIENCE_S
        while message[0] != b"t":  # what was sent before may still be on its way
            assert time.monotonic() < end
            engine.send_multipart([b"t", number.to_bytes(8, "big"), b"payload"])
            number += 1
            if bridge.poll(20):
                message = bridge.recv_multipart()
        _, sequence, payload = message
        assert payload == b"payload"
        assert int.from_bytes(sequence, "big") < number


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_is_found_however_it_came_and_went(relayed: Scene, seed: int) -> None:
    """Also where it was there for a moment: its address answers, and is gone when it is taken."""
    chance = random.Random(seed)
    for _ in range(6):
        for _ in range(chance.randrange(1, 4)):
            with relayed.engine():
                time.sleep(chance.choice([0.0, 0.02, 0.16, 0.25]))
            time.sleep(chance.choice([0.0, 0.001, 0.1, 0.3]))
        with relayed.engine() as engine:
            wait_until(lambda: relayed.publication.has_link)
            receive_through(relayed, engine)
    assert relayed.relay.faults == 0


def test_the_link_of_bridges_is_one_with_the_engines(relayed: Scene) -> None:
    """Messages of two processes never come over one link: a bridge takes it for one process."""
    with relayed.bridge() as bridge:
        monitor = bridge.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        for process in range(3):
            with relayed.engine() as engine:
                while not bridge.poll(20):
                    engine.send_multipart([b"", bytes(8), str(process).encode()])
                for _ in range(100):
                    engine.send_multipart([b"", bytes(8), str(process).encode()])
                while bridge.poll(200):
                    assert bridge.recv_multipart()[-1] == str(process).encode()
            wait_until(lambda: relayed.publication._bound is None)
            wait_until(lambda: monitor.poll(0))
        events = [zmq.EVENT_DISCONNECTED]
        while monitor.poll(200):
            event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
            if (
                event != events[-1]
            ):  # a connection that ends before its handshake carried no message
                events.append(zmq.Event(event))
        bridge.disable_monitor()
        monitor.close()
    assert events[1 : 1 + 2 * 3] == [zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED] * 3


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux tells when something came")
def test_bridges_have_no_link_while_an_engine_does_not_answer(relayed: Scene) -> None:
    """They see no other sign of it. The relay's own link to the engine stays."""
    publication = relayed.publication
    with socket.create_server(("127.0.0.1", relayed.port)) as listening:
        while True:
            engine, _ = listening.accept()
            if engine.recv(1):  # the first one only asked whether somebody listens
                break
            engine.close()
        with engine:
            engine.sendall(GREETING + READY)
            wait_until(lambda: publication._bound is not None)
            wait_until(lambda: publication._bound is None)
            assert not publication.has_link
            engine.sendall(b"\x00\x04back")
            wait_until(lambda: publication._bound is not None)
            assert publication.links == 1
    assert relayed.relay.faults == 0


@pytest.mark.parametrize("is_replay", [False, True])
def test_a_stranger_takes_no_memory(relayed: Scene, is_replay: bool) -> None:
    """A command that says it is 8 GiB long, before anybody has shown a key."""
    with relayed.engine() as engine:
        wait_until(lambda: relayed.publication._bound is not None)
        port = relayed.listen_replay if is_replay else relayed.listen
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as stranger:
            stranger.sendall(CURVE_GREETING + b"\x06" + (2**33).to_bytes(8, "big"))
            sent = 0
            with suppress(OSError):
                while sent < 500_000_000:
                    stranger.sendall(bytes(1_000_000))
                    sent += 1_000_000
        assert sent < 50_000_000, "it is ended after what the system's buffers hold"
        receive_through(relayed, engine)


@pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="only Linux counts a link's bytes")
def test_a_bridge_that_takes_little_loses_its_link_and_no_other_does(
    relayed: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "RELAY_WAITING_BYTES_MAX", 4_000_000)
    body = os.urandom(100_000)
    with relayed.engine() as engine, relayed.bridge() as good:
        wait_until(lambda: relayed.publication._bound is not None)
        with _stalled(relayed) as stalled:
            received = 0
            end = time.monotonic() + PATIENCE_S
            while not relayed.publication.dropped_bridges:
                assert time.monotonic() < end
                engine.send_multipart([b"", bytes(8), body])
                while good.poll(1):
                    good.recv_multipart()
                    received += 1
            assert stalled.fileno() >= 0
        assert received > 40
        assert relayed.publication.dropped_bridges == 1
        receive_through(relayed, engine)


class _stalled:
    """A listed bridge behind a proxy that passes its handshake on, and then takes no more."""

    def __init__(self, relayed: Scene) -> None:
        self._relayed = relayed

    def __enter__(self) -> socket.socket:
        listening = socket.create_server(("127.0.0.1", 0))
        self._bridge = self._relayed.bridge(port=listening.getsockname()[1])
        near, _ = listening.accept()
        listening.close()
        far = socket.socket()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        far.connect(("127.0.0.1", self._relayed.listen))
        self._ends = (near, far)
        for one in self._ends:
            one.settimeout(0.05)
        until = time.monotonic() + 1.0  # the handshake, and the subscription
        while time.monotonic() < until:
            for source, sink in ((near, far), (far, near)):
                with suppress(TimeoutError):
                    sink.sendall(source.recv(65_536))
        return far

    def __exit__(self, *_: object) -> None:
        for one in self._ends:
            one.close()
        self._bridge.close()


def test_a_list_that_can_never_be_read_to_its_end_is_none(tmp_path: Path) -> None:
    path = tmp_path / "bridges.txt"
    key = zmq.curve_keypair()[0]
    path.write_bytes(key)
    now = [0.0]
    listed = BridgeKeys(path, monotonic=lambda: now[0])
    path.unlink()
    os.mkfifo(path)
    now[0] += RELAY_KEYS_CHECK_S
    assert not listed.look()
    assert "no regular file" in listed.problem
    assert listed.callback("reprise", key), "the list of before goes on"
    with pytest.raises(ConfigurationError, match="no regular file"):
        BridgeKeys(path)


def test_a_file_of_keys_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "bridges.txt"
    keys = [zmq.curve_keypair()[0] for _ in range(3)]
    path.write_bytes(keys[0] + b"  one of ours\n# a word\n\n#" + keys[1] + b"\n")
    now = [0.0]
    listed = BridgeKeys(path, monotonic=lambda: now[0])
    assert len(listed) == 1, "of a key that is commented out nothing is left"
    assert listed.callback("reprise", keys[0])
    assert not listed.callback("reprise", keys[1])
    path.write_bytes(b"\n".join(keys))
    assert not listed.look(), "not more often than that"
    now[0] += RELAY_KEYS_CHECK_S
    assert not listed.look(), "none is gone"
    assert all(listed.callback("reprise", key) for key in keys)
    path.unlink()
    now[0] += RELAY_KEYS_CHECK_S
    assert not listed.look()
    assert listed.problem
    assert listed.callback("reprise", keys[2])
    path.write_bytes(keys[2])
    now[0] += RELAY_KEYS_CHECK_S
    assert listed.look()
    assert (len(listed), listed.problem, listed.refused) == (1, "", 1)
