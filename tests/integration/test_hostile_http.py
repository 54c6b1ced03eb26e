"""Hostile HTTP clients against `reprise up` as a process, each beside a neighbour that asks.

The bounds on memory are those of the service, plus what is said beside them.
"""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from query_api.bounds import BODY_PIECE_S
from query_api.http.requests.bodies import BODIES_LARGE_BYTES_MAX
from reprise.http.connection import HTTP_HEAD_S
from schemas.limits import BODY_BYTES_MAX, KIB, MIB
from tests.processes import Service, until

SLACK_BYTES = 48 * MIB  # of the allocator and of the interpreter, in every bound below
CONNECTION_BYTES = 16 * KIB  # of one that is silent
READ_BYTES = 320 * KIB  # that a connection may have received before the app reads: uvicorn, uvloop


class Neighbour:
    """A client that asks all the time: over a connection that it keeps, as a router's pool does, or
    over a new one each time.
    """

    def __init__(self, service: Service, *, keeps: bool = False) -> None:
        self._service = service
        self._kept: http.client.HTTPConnection | None = None
        if keeps:
            address = urlsplit(service.base_url)
            host = str(address.hostname)
            self._kept = http.client.HTTPConnection(host, address.port, timeout=20)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.answers = 0
        self.slowest_s = 0.0
        self.failure: BaseException | None = None

    def __enter__(self) -> "Neighbour":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._kept is not None:
            self._kept.close()

    def _ask(self) -> None:
        try:
            while not self._stop.is_set():
                started = time.monotonic()
                self._ask_once()
                self.slowest_s = max(self.slowest_s, time.monotonic() - started)
                self.answers += 1
                self._stop.wait(0.02)
        except BaseException as error:  # noqa: BLE001 -- the test reports it
            self.failure = error

    def _ask_once(self) -> None:
        if self._kept is None:
            assert self._service.query([1, 2, 3], model="another") == {}
            return
        content = {"Content-Type": "application/json"}
        self._kept.request(
            "POST", "/query", b'{"model":"m","block_size":16,"token_ids":[1]}', content
        )
        with self._kept.getresponse() as answered:
            assert answered.status == 200, answered.read()
            answered.read()

    def check(self) -> None:
        """It was answered throughout; the bound on time is a generous one."""
        if self.failure is not None:
            raise AssertionError(f"after {self.answers} answers") from self.failure
        assert self.answers >= 10
        assert self.slowest_s < 5.0


def connect(service: Service) -> socket.socket:
    address = urlsplit(service.base_url)
    return socket.create_connection((str(address.hostname), address.port or 0), timeout=20)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the end."""
    received = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(65_536):
            received += part
    return received


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data") as running:
        yield running


def test_a_head_without_an_end(service: Service) -> None:
    before = service.peak_bytes()
    with Neighbour(service) as neighbour:
        with connect(service) as connection:
            received: list[bytes] = []
            reader = threading.Thread(target=lambda: received.append(answer(connection)))
            reader.start()
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /health HTTP/1.1\r\n")
                for _ in range(300):
                    connection.sendall((b"x: " + b"v" * 1000 + b"\r\n") * 1000)
            reader.join()
        assert received[0].startswith(b"HTTP/1.1 431")
        until(lambda: neighbour.answers >= 10, what="answers of the neighbour")
    neighbour.check()
    assert service.peak_bytes() - before < SLACK_BYTES
    assert service.metric("reprise_http_refused_total", reason="head_too_large") == 1


def answered(service: Service, status: str) -> float:
    return service.metric("reprise_http_requests_total", status=status)


def test_many_half_bodies(service: Service) -> None:
    """1,000 requests with 1 MiB of 2 each, which their clients never finish."""
    before = service.peak_bytes()
    # Whoever asked whether it is ready before it was, has been told so with a 503.
    unready = answered(service, "503")
    half = b"POST /query HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (2 * MIB) + bytes(MIB)
    with contextlib.ExitStack() as open_ones, Neighbour(service) as neighbour:
        for _ in range(1000):
            connection = open_ones.enter_context(connect(service))
            connection.sendall(half)
        until(
            lambda: service.metric("reprise_http_body_bytes") == 0,
            what="end of the half bodies",
            timeout_s=3 * BODY_PIECE_S,
        )
        # What is refused is read on for a while: the last answers come after that.
        until(
            lambda: answered(service, "503") + answered(service, "408") >= unready + 1000,
            what="an answer to each",
            timeout_s=3 * BODY_PIECE_S,
        )
    neighbour.check()
    bound = BODIES_LARGE_BYTES_MAX + 1000 * CONNECTION_BYTES + SLACK_BYTES
    assert service.peak_bytes() - before < bound
    without_room, slow = (
        service.metric("reprise_http_bodies_refused_total", reason=reason)
        for reason in ("no_room", "too_slow")
    )
    assert without_room > 100  # of those that came before the first ones were too slow
    assert without_room + slow == 1000, "each is refused once"
    assert answered(service, "503") == unready + without_room
    assert answered(service, "408") == slow
    assert service.log().count("ERROR") == 0


def test_half_bodies_are_told_that_the_service_stops(service: Service) -> None:
    head = b"POST /query HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"
    with connect(service) as short, connect(service) as long:
        short.sendall(head + b"{")
        long.sendall(head + b'{"model": "m", ' + bytes(512 * KIB))
        until(lambda: service.metric("reprise_http_connections") >= 3, what="the connections")
        assert service.stop() == 0
        for connection in (short, long):
            told, _, body = answer(connection).partition(b"\r\n\r\n")
            assert told.startswith(b"HTTP/1.1 503")
            assert json.loads(body)["reason"] == "stopping"
    assert "Traceback" not in service.log()
    assert "ERROR" not in service.log()


def test_many_of_the_largest_bodies_at_once(service: Service) -> None:
    """40 of 32 MB: each is answered or told to come again."""
    before = service.peak_bytes()
    body = (
        b'{"model": "m", "block_size": 16, "token_ids": [1]' + b" " * (BODY_BYTES_MAX - 100) + b"}"
    )
    head = b"POST /query HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    statuses: list[bytes] = []

    def ask() -> None:
        with connect(service) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(head)
                connection.sendall(body)
            statuses.append(answer(connection)[9:12])

    with Neighbour(service) as neighbour:
        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    neighbour.check()
    assert set(statuses) <= {b"200", b"503"}
    assert statuses.count(b"200") >= 3
    # One is answered while the others wait: joined, and as the kernel's scanner reads it.
    bound = BODIES_LARGE_BYTES_MAX + 2 * BODY_BYTES_MAX + 40 * READ_BYTES + SLACK_BYTES
    assert service.peak_bytes() - before < bound


def test_many_silent_connections(service: Service) -> None:
    """5,000 that say nothing, or half a head: more than there may be, and none lasts."""
    before = service.peak_bytes()
    with contextlib.ExitStack() as open_ones, Neighbour(service) as neighbour:
        for number in range(5000):
            connection = open_ones.enter_context(connect(service))
            if number % 2:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost")
        assert service.metric("reprise_http_connections") > 1000
        until(
            lambda: service.metric("reprise_http_connections") < 10,
            what="end of the connections",
            timeout_s=HTTP_HEAD_S + 10,
        )
    neighbour.check()
    assert service.peak_bytes() - before < 5000 * CONNECTION_BYTES + SLACK_BYTES
    assert service.metric("reprise_http_refused_total", reason="no_request") > 100
    assert service.metric("reprise_http_refused_total", reason="head_too_slow") > 100
    assert service.metric("reprise_http_refused_total", reason="closed_for_another") > 500


def test_many_connections_where_few_files_may_be_opened(tmp_path: Path) -> None:
    limited = ("/bin/sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    with (
        Service(tmp_path / "data", prefix=limited) as service,
        contextlib.ExitStack() as open_ones,
        Neighbour(service, keeps=True) as neighbour,
    ):
        until(lambda: neighbour.answers >= 1, what="an answer of the neighbour")
        for _ in range(5):
            for _ in range(100):
                open_ones.enter_context(connect(service))
            time.sleep(0.2)
        until(lambda: neighbour.answers >= 20, what="answers of the neighbour")
        neighbour.check()
        bound = service.metric("reprise_http_max_connections")
        assert 2 <= bound < 20
        assert service.metric("reprise_http_connections") <= bound
        assert service.metric("reprise_http_refused_total", reason="closed_for_another") > 100
        assert "Traceback" not in service.log()


def test_more_publishers_than_files_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    limited = ("/bin/sh", "-c", 'ulimit -n 128; exec "$@"', "sh")
    with Service(tmp_path / "data", prefix=limited) as service, Neighbour(service) as neighbour:
        registered = 0
        status = 200
        answered: dict[str, str] = {}
        while status == 200:
            status, answered = service.post(
                "/register",
                {
                    "endpoint": f"tcp://127.0.0.1:{1 + registered}",
                    "type": "vLLM",
                    "modelname": "m",
                    "instance_id": f"i{registered}",
                    "block_size": 16,
                    "dp_rank": 0,
                },
            )
            registered += 1
            assert registered < 100
        assert (status, answered["reason"]) == (503, "open_files")
        assert "Raise the limit of open files" in answered["error"]
        assert registered > 5
        until(lambda: neighbour.answers >= 10, what="answers of the neighbour")
        neighbour.check()
        assert service.get("/services")[1]["count"] == registered - 1
    neighbour.check()


def test_answers_that_nobody_reads(service: Service) -> None:
    """Pipelined requests for a long answer, of clients that never read: the requests wait."""
    before = service.peak_bytes()
    with contextlib.ExitStack() as open_ones, Neighbour(service) as neighbour:
        for _ in range(50):
            connection = open_ones.enter_context(connect(service))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000)
        until(
            lambda: service.metric("reprise_http_refused_total", reason="pipelined") == 50,
            what="the bound of the pipelines",
        )
        until(lambda: neighbour.answers >= 10, what="answers of the neighbour")
    neighbour.check()
    assert service.peak_bytes() - before < 50 * 4 * MIB + SLACK_BYTES
