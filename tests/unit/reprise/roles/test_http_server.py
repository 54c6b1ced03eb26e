import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reprise.roles.http_server import Server
from reprise.roles.leaving import ReplicaLeave


class _Service:
    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class _Leaving(ReplicaLeave):
    """Is over when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Callable[[], None]] = []

    def begin(self, then: Callable[[], None]) -> None:
        self.begun.append(then)


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_sigterm_waits_for_what_the_replica_leaves_to() -> None:
    server, leaving, said = Server("127.0.0.1", 0), _Leaving(), []

    def serving(base_url: str) -> None:
        def ask() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            while not leaving.begun:
                time.sleep(0.01)
            with urllib.request.urlopen(base_url, timeout=10) as answer:
                said.append(answer.read())
            leaving.begun[0]()

        threading.Thread(target=ask).start()

    server.run(
        app,
        _Service(),
        when_serving=serving,
        when_stopping=lambda: said.append(b"stopping"),
        leaving=leaving,
    )
    assert said == [b"here", b"stopping"]


def test_sigint_waits_for_nothing() -> None:
    server, leaving = Server("127.0.0.1", 0), _Leaving()
    server.run(
        app,
        _Service(),
        when_serving=lambda base_url: os.kill(os.getpid(), signal.SIGINT),
        leaving=leaving,
    )
    assert leaving.begun == []
