"""A relay in this process, and an engine's socket that comes and goes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from zmq.auth import create_certificates, load_certificate

from bridge.relay.publication import Publication
from bridge.relay.relay import Relay
from bridge.relay.relay_settings import RelayedEngine, RelaySettings
from devtools.broker import free_ports
from schemas.conditions import Conditions


class Scene:
    """One engine, the relay in front of it, and whoever is listed.

    Attributes:
        relay: it runs.
        port: of the engine.
        listen: of the relay.
    """

    def __init__(self, directory: Path) -> None:
        for name in ("relay", "bridge"):
            create_certificates(directory, name)
        self.public, _ = load_certificate(directory / "relay.key")
        self.pair = load_certificate(directory / "bridge.key_secret")
        (directory / "bridges.txt").write_bytes(self.pair[0])
        self.port, self.listen, self.listen_replay, self.replay = free_ports(4)
        engine = RelayedEngine(
            endpoint=f"tcp://127.0.0.1:{self.port}",
            listen=f"tcp://127.0.0.1:{self.listen}",
            replay_endpoint=f"tcp://127.0.0.1:{self.replay}",
            listen_replay=f"tcp://127.0.0.1:{self.listen_replay}",
        )
        settings = RelaySettings(
            engines=(engine,),
            key=directory / "relay.key_secret",
            bridge_keys=directory / "bridges.txt",
        )
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.relay = Relay(settings, Conditions(time.time))
        self._thread = threading.Thread(target=self.relay.run)
        self._thread.start()

    @property
    def publication(self) -> Publication:
        return self.relay.publications[0]

    def engine(self) -> "zmq.Socket[bytes]":
        """Its PUB socket, bound."""
        socket = self.context.socket(zmq.PUB)
        socket.linger = 0
        socket.sndhwm = 0
        for _ in range(2000):
            try:
                socket.bind(f"tcp://127.0.0.1:{self.port}")
            except zmq.ZMQError:  # the one before is about to end
                time.sleep(0.001)
            else:
                return socket
        raise AssertionError("the engine's port is not given up")

    def bridge(self, kind: int = zmq.SUB, port: int = 0) -> "zmq.Socket[bytes]":
        """A socket of a listed bridge, which is connecting."""
        socket = self.context.socket(kind)
        socket.linger = 0
        socket.curve_serverkey = self.public
        socket.curve_publickey, socket.curve_secretkey = self.pair
        if kind == zmq.SUB:
            socket.subscribe(b"")
        socket.connect(f"tcp://127.0.0.1:{port or self.listen}")
        return socket

    def close(self) -> None:
        self.relay.stop()
        self._thread.join()
        self.relay.close()
        self.context.destroy(linger=0)


@contextmanager
def scene(directory: Path) -> Iterator[Scene]:
    one = Scene(directory)
    try:
        yield one
    finally:
        one.close()
