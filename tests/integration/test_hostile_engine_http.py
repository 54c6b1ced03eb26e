"""Engines whose HTTP servers are hostile, against `reprise up` as a process: they cost their own
answers, bounded memory, and nothing of a neighbour.
"""

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.engine_http.client import HTTP_BODIES_BYTES_MAX
from bridge.engine_http.engine import HTTP_ENGINES_AT_ONCE_MAX, HTTP_SILENT_AT_ONCE_MAX
from bridge.engine_http.load_watch import (
    LOAD_AT_ONCE_MAX,
    LOAD_BODIES_BYTES_MAX,
    LOAD_SILENT_AT_ONCE_MAX,
)
from lab.engines.publisher import Publisher, PublisherOptions
from schemas.limits import MIB
from tests.contract.test_service_contract import TOKENS, chain
from tests.engine_http import engine_server
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(300)

WAIT_S = 60.0
EACH = 6  # engines of each kind
# All bodies that are under way, as often as they are copied while one is read, and slack.
GROWTH_BYTES_MAX = 3 * (HTTP_BODIES_BYTES_MAX + LOAD_BODIES_BYTES_MAX) + 64 * MIB
# Five of each publisher with a link, one of each engine that is asked, and slack.
ASKED_MAX = HTTP_ENGINES_AT_ONCE_MAX + HTTP_SILENT_AT_ONCE_MAX
FILES_MAX = 5 * (10 * EACH + 2) + ASKED_MAX + LOAD_AT_ONCE_MAX + LOAD_SILENT_AT_ONCE_MAX + 32
OK = b"HTTP/1.1 200 OK\r\n"


class HostileServer:
    """Answers each connection by `attack`, in a thread of its own, until it is closed.

    Attributes:
        asked: how often.
    """

    def __init__(self, attack: Callable[["HostileServer", socket.socket], None]) -> None:
        self.asked = 0
        self.closed = threading.Event()
        self._attack = attack
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.add(connection)
            self.asked += 1
        with suppress(OSError), connection:
            self._attack(self, connection)
        with self._lock:
            self._open.discard(connection)

    def close(self) -> None:
        self.closed.set()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def endless_body(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(OK + b"\r\n")
    while not server.closed.is_set():
        connection.sendall(b"# x\n" * 16_384)


def endless_head(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(OK)
    while not server.closed.is_set():
        connection.sendall(b"X-Y: z\r\n" * 1000)


def endless_line(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(OK + b"X: ")
    while not server.closed.is_set():
        connection.sendall(b"y" * 65_536)


def one_byte_a_second(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    for number in range(10_000):
        connection.sendall((OK + b"\r\n[")[number % 19 :][:1])
        if server.closed.wait(1.0):
            return


def silence(server: HostileServer, connection: socket.socket) -> None:
    server.closed.wait()


def a_million_entries(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    numbers = ",".join(f'"{number}":{{"endpoint":"a"}}' for number in range(1_000_000))
    body = b'{"startup_time":{' + numbers.encode() + b"}}"
    connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def as_much_as_is_read(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    entry = b'{"endpoint":"tcp://*:1"},'
    body = b"[" + entry * (2_000_000 // len(entry)) + entry[:-1] + b"]"
    connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def deep_json(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    body = b'{"kv_events":' + b"[" * 1_000_000
    connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def no_http(server: HostileServer, connection: socket.socket) -> None:
    connection.sendall(bytes(range(256)) * 256)


def numbers_that_are_none(server: HostileServer, connection: socket.socket) -> None:
    connection.recv(4096)
    body = b"process_start_time_seconds " + b"9" * 100_000 + b"\nprocess_start_time_seconds 1e999\n"
    connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)


ATTACKS = (
    endless_body,
    endless_head,
    endless_line,
    one_byte_a_second,
    silence,
    a_million_entries,
    as_much_as_is_read,
    deep_json,
    no_http,
    numbers_that_are_none,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("hostile") / "data") as service:
        yield service


def files(service: Service) -> int:
    assert service.process is not None
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


def services(service: Service) -> dict[str, dict[str, object]]:
    return {one["InstanceID"]: one for one in service.get("/services")[1]["services"]}


def test_hostile_servers_cost_a_neighbour_nothing(service: Service) -> None:
    servers = [HostileServer(attack) for attack in ATTACKS]
    publishers: list[Publisher] = []
    before, files_before = service.peak_bytes(), files(service)
    try:
        with engine_server() as good:
            for number, server in enumerate(servers):
                kind = ("vLLM", "SGLang")[number % 2]
                for each in range(EACH):
                    publisher = Publisher(PublisherOptions(replay_endpoint=""))
                    publishers.append(publisher)
                    name = f"{ATTACKS[number].__name__}-{each}"
                    more = {"type": kind, "instance_id": name}
                    service.register(publisher.endpoint, http_endpoint=server.url, **more)
                    more["instance_id"] = f"by-url-{name}"
                    service.register(server.url, dp_rank=each, **more)
            until(lambda: all(one.asked for one in servers), what="attacks", timeout_s=WAIT_S)

            first = Publisher(PublisherOptions())
            publishers.append(first)
            began = time.time()
            good.starts(began, first)
            service.register(good.url, instance_id="good")
            first.publish([chain(1, TOKENS)])
            until(lambda: service.longest(TOKENS, "good") == 64, what="events", timeout_s=WAIT_S)
            until(
                lambda: services(service)["good"]["State"] == "exact",
                what="exact",
                timeout_s=WAIT_S,
            )
            good.ends()
            first.close()
            second = Publisher(PublisherOptions())
            publishers.append(second)
            second.publish([chain(1, TOKENS[:32])])
            good.starts(began + 1000, second)
            until(lambda: service.longest(TOKENS, "good") == 32, what="restart", timeout_s=WAIT_S)
            until(
                lambda: services(service)["good"]["State"] == "exact",
                what="exact again",
                timeout_s=WAIT_S,
            )
            assert files(service) - files_before <= FILES_MAX
            before_rounds = Counter({one.url: one.asked for one in servers})
            until(
                lambda: all(one.asked > before_rounds[one.url] + 1 for one in servers),
                what="further attacks",
                timeout_s=WAIT_S,
            )
    finally:
        for server in servers:
            server.close()
        for publisher in publishers:
            publisher.close()
    assert service.peak_bytes() - before <= GROWTH_BYTES_MAX
    assert service.metric("reprise_bridge_http_requests_total", outcome="silent") > len(ATTACKS)
    assert service.metric("reprise_bridge_load_failures_total", reason="silent") > len(ATTACKS)
    assert service.metric("reprise_internal_errors_total") == 0, service.log()
    assert service.first_traceback() == ""


def test_nothing_is_asked_but_the_address_that_was_registered(service: Service) -> None:
    """A redirect may name what only this machine may ask, such as a cloud's metadata."""
    asked: list[bytes] = []

    def secret(server: HostileServer, connection: socket.socket) -> None:
        asked.append(connection.recv(4096))
        connection.sendall(OK + b"Content-Length: 0\r\n\r\n")

    elsewhere = HostileServer(secret)
    lines: list[bytes] = []

    def redirect(server: HostileServer, connection: socket.socket) -> None:
        lines.append(connection.recv(4096))
        location = f"Location: {elsewhere.url}/latest/meta-data\r\n".encode()
        connection.sendall(b"HTTP/1.1 307 x\r\n" + location + b"Content-Length: 0\r\n\r\n")

    server = HostileServer(redirect)
    publishers = [Publisher(PublisherOptions(replay_endpoint="")) for _ in range(2)]
    try:
        for publisher, kind in zip(publishers, ("vLLM", "SGLang"), strict=True):
            service.register(
                publisher.endpoint, http_endpoint=server.url, type=kind, instance_id=f"r-{kind}"
            )
        service.register(server.url, instance_id="r-url")
        until(
            lambda: services(service)["r-url"]["Reason"] == "no_endpoint",
            what="a refusal",
            timeout_s=WAIT_S,
        )
        paths = {b"/health", b"/metrics", b"/model_info", b"/server_info", b"/kv_event_sources"}
        until(
            lambda: paths <= {line.split()[1] for line in lines if line},
            what="all questions",
            timeout_s=WAIT_S,
        )
    finally:
        server.close()
        elsewhere.close()
        for publisher in publishers:
            publisher.close()
    assert not asked
