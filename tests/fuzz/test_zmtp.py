"""Publishers that speak ZMTP by hand, and badly, against `reprise up`, beside a neighbour."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bridge.sockets.link_bytes import LINK_BUFFER_BYTES
from schemas.limits import MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX, MIB
from tests.fuzz.neighbour import Neighbour
from tests.processes import Service, until
from tests.zmtp import GREETING, READY

pytestmark = pytest.mark.timeout(600)

HALF = 200
ENDLESS = 2
ROUNDS = 10
FRAME = b"\x03" + (100_000).to_bytes(8, "big") + bytes(100_000)  # more follow; long
EMPTY_FRAMES = b"\x01\x00" * 1_000_000 + b"\x00\x00"
# Each link may have a message and a buffer before it is looked at, and as much again while it is
# dropped; the links of half a greeting have nothing.
GROWTH_BYTES_MAX = 2 * (ENDLESS + 1) * (MESSAGE_BYTES_MAX + LINK_BUFFER_BYTES) + 64 * MIB


def half_a_greeting(client: socket.socket) -> None:
    client.sendall(GREETING[:5])
    client.recv(1)
    while client.recv(4096):
        pass


def shake_hands(client: socket.socket) -> None:
    """Returns once the other side subscribes: what comes before is an error of the handshake."""
    client.sendall(GREETING + READY)
    received = b""
    while b"READY" not in received or len(received.partition(b"READY")[2]) < 20:
        part = client.recv(4096)
        if not part:
            raise ConnectionError("closed")
        received += part


def a_message_without_an_end(client: socket.socket) -> None:
    shake_hands(client)
    while True:
        client.sendall(FRAME)


def a_million_empty_frames(client: socket.socket) -> None:
    shake_hands(client)
    while True:
        client.sendall(EMPTY_FRAMES)


@contextmanager
def publisher(say: Callable[[socket.socket], None]) -> Iterator[str]:
    """Says so to whoever connects, one after the other; its endpoint."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # closed below
                while True:
                    client, _ = server.accept()
                    with client, suppress(OSError):  # the link is dropped
                        client.settimeout(30)
                        say(client)

        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def test_publishers_that_speak_zmtp_badly(
    service: Service, seed: int, request: pytest.FixtureRequest
) -> None:
    rounds = max(round(ROUNDS * request.config.getoption("--fuzz-scale")), 1)
    sayings = [half_a_greeting] * HALF + [a_message_without_an_end] * ENDLESS
    sayings += [a_million_empty_frames]
    with ExitStack() as publishers, Neighbour(service, seed).beside() as neighbour:
        before_ms = neighbour.measure(1000)
        before = service.peak_bytes()
        neighbour.begin()
        for number, say in enumerate(sayings):
            endpoint = publishers.enter_context(publisher(say))
            service.register(endpoint, instance_id=f"attacker-{number}", modelname="other")
        for breach, times in (
            ("of a message without an end", ENDLESS * rounds),
            (f"a message of more than {MESSAGE_FRAMES_MAX} frames", rounds),
        ):
            await_log(service, breach, times)
            neighbour.check()
        neighbour.measure(500)
        neighbour.check_p99(before_ms)
        grown = service.peak_bytes() - before
        assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB"
        neighbour.check_once_quiet()
    assert service.first_traceback() == ""
    assert service.metric("reprise_internal_errors_total") == 0


def await_log(service: Service, breach: str, times: int) -> None:
    until(
        lambda: service.whole_log().count(breach) >= times,
        what=f"{times} links that are dropped for {breach}",
        timeout_s=60 + 30 * times,
    )
