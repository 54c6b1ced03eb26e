"""A server with a listener of plain queries over a small table, and what a client sees of it."""

import asyncio
import re
import socket
import threading
import time
from typing import Any, Self

from query_api.http.plain_listener import PlainAnswers
from reprise.application import create_app
from reprise.http.connections import Connections
from reprise.http.handover import ConnectionsServer
from schemas.answer_states import Verdict
from schemas.identities import PrefixScope
from streams.kernel import open_kernel
from tests.fakes import SEED, FakeTable, registration
from tests.processes import until

LOOP_TURNS = 100
"""Of a server: more than a request takes, from the handing over of its connection to its answer."""


class Table(FakeTable):
    """A small table whose state a test sets."""

    def __init__(self) -> None:
        super().__init__(open_kernel(SEED, name="rust"))
        self.kernel.note_position(0, 1234)
        self.asked = 0
        self.failing = False
        self.holds_s = 3600.0
        self.changed = lambda: None
        for place, name in enumerate(("a", "b-é")):
            publisher = self.add(registration(name))
            self.store(publisher, range(4 * (place + 2)), hashes=list(range(1, place + 3)))

    def verdict(self, scope: PrefixScope) -> Verdict:
        self.asked += 1
        if self.failing:
            raise ZeroDivisionError
        return Verdict(self.answer_state, time.monotonic() + self.holds_s)


class _Server(ConnectionsServer):
    loop: asyncio.AbstractEventLoop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)


class Server:
    """A real server over the whole app.

    Args:
        plain: whether a listener without Python has the address.
        connections: that may be open at once.
        table: that is served; None: a new one.
    """

    def __init__(
        self,
        *,
        plain: bool = True,
        connections: int = 4096,
        table: Table | None = None,
        **options: Any,
    ) -> None:
        self.table = Table() if table is None else table
        app = create_app(self.table, self.table, **options)
        self.plain: PlainAnswers | None = app.plain if plain else None  # type: ignore[attr-defined]
        self.connections = Connections(connections_max=connections)
        config = self.connections.configure(app, timeout_graceful_shutdown=2)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = self._listening.getsockname()
        self._server = _Server(config, self.connections, self.plain)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._server.run(sockets=[self._listening])

    def __enter__(self) -> Self:
        self._thread.start()
        until(
            lambda: self._server.started and (self.plain is None or self.connections.listener),
            what="the server",
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server, which answers what is under way."""
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._listening.close()

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address, timeout=10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def sweep(self) -> None:
        """Has the server look at its connections now."""
        loop = self._server.loop
        done = threading.Event()

        def look() -> None:
            self.connections.sweep(loop.time())
            done.set()

        loop.call_soon_threadsafe(look)
        assert done.wait(10)

    async def turns(self, count: int = LOOP_TURNS) -> None:
        """Returns once its loop has looked so often at what came: awaited from another loop."""
        here, done = asyncio.get_running_loop(), asyncio.Event()

        def turn(left: int) -> None:
            if left:
                self._server.loop.call_soon(turn, left - 1)
            else:
                here.call_soon_threadsafe(done.set)

        self._server.loop.call_soon_threadsafe(turn, count)
        await done.wait()

    @property
    def answered(self) -> int:
        """Without Python."""
        self.counts()
        return 0 if self.plain is None else self.plain.answered

    def counts(self) -> dict[str, float]:
        """Of the app's metrics, but for times."""
        return {
            f"{sample.name}{sample.labels}": sample.value
            for family in self.table.metrics.collect()
            for sample in family.samples
            if "seconds" not in sample.name
        }


def undated(answers: bytes) -> bytes:
    return re.sub(rb"date: [^\r]*\r\n", b"", answers)


def receive(connection: socket.socket, answers: int = 1) -> bytes:
    """So many answers, each with a length."""
    received = b""
    while not complete(received, answers):
        part = connection.recv(65_536)
        assert part, f"closed after {received!r}"
        received += part
    return received


def complete(received: bytes, answers: int) -> bool:
    for _ in range(answers):
        head, end, rest = received.partition(b"\r\n\r\n")
        if not end:
            return False
        length = re.search(rb"content-length: (\d+)", head.lower())
        if length is None or len(rest) < int(length[1]):
            return False
        received = rest[int(length[1]) :]
    return True


def is_closed(connection: socket.socket) -> bool:
    """Whether it is closed, or will be soon."""
    connection.settimeout(0.5)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False


def exchange(server: Server, sent: bytes) -> bytes:
    """The answer to one request."""
    with server.connect() as connection:
        connection.sendall(sent)
        return undated(receive(connection))
