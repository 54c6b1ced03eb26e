"""Connections that the listener hands over have their turn as soon as those that the server has."""

import gc
import selectors
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reprise.http.connection import Connection
from reprise.http.handover import HTTP_TAKEN_OVER_MAX
from streams.kernel import native_available
from tests.processes import until
from tests.unit.reprise.http.listening import Server, complete, receive
from tests.unit.reprise.http.plain_requests import request

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
OLD = 32
NEW = HTTP_TAKEN_OVER_MAX
TURNS = 12
"""In which those that are new are all answered, at the most: to be taken over takes some."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def test_a_connection_without_queries_is_not_given_back(server: Server) -> None:
    with server.connect() as connection:
        for _ in range(3):
            connection.sendall(HEALTH)
            receive(connection)
            server.sweep()
            listener = server.connections.listener
            assert listener is not None
            assert (listener.open, len(server.connections)) == (0, 1)
        for answered in (0, 1):
            connection.sendall(request())
            receive(connection)
            assert server.answered == answered
            server.sweep()


def test_those_that_are_handed_over_do_not_wait_for_many_requests_of_the_others(
    server: Server,
) -> None:
    """Each of the others asks again as soon as it has its answer, as clients of `/route` do."""
    with ExitStack() as open_ones, selectors.DefaultSelector() as ready:

        def ask(connection: socket.socket) -> None:
            connection.sendall(HEALTH)
            received[connection] = b""

        received: dict[socket.socket, bytes] = {}
        old = [open_ones.enter_context(server.connect()) for _ in range(OLD)]
        for connection in old:
            connection.sendall(HEALTH)
            receive(connection)
        new = {open_ones.enter_context(server.connect()) for _ in range(NEW)}
        for connection in (*old, *new):
            ready.register(connection, selectors.EVENT_READ, connection)
            ask(connection)
        answered: Counter[bool] = Counter()
        waiting = set(new)
        while waiting:
            found = ready.select(10)
            assert found, "nobody is answered"
            for key, _ in found:
                connection = key.data
                received[connection] += connection.recv(65_536)
                if not complete(received[connection], 1):
                    continue
                answered[connection in new] += 1
                waiting.discard(connection)
                if connection not in new:
                    ask(connection)
    assert answered[True] == NEW
    assert answered[False] <= TURNS * OLD


def test_an_ended_connection_leaves_the_garbage_collector_nothing(server: Server) -> None:
    """Thousands a second end where clients report, and a collection holds up all threads."""

    def left() -> int:
        return sum(isinstance(one, Connection) for one in gc.get_objects())

    before = left()
    gc.disable()
    try:
        for _ in range(8):
            with server.connect() as connection:
                connection.sendall(HEALTH)
                receive(connection)
        until(lambda: left() == before, what="the end of what has ended")
    finally:
        gc.enable()
