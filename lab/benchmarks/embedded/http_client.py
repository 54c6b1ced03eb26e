"""`POST /query` and others over raw connections that are kept alive, and the prompts asked for.

The client is one loop over blocking sockets with bodies made before. CPU is that of the server's
process divided by the requests: with eight connections, so that the server always has work, or with
one, where each request also wakes the server up.
"""

import socket
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from time import perf_counter, sleep
from typing import Final

import msgspec

from lab.benchmarks.embedded.service import MODEL, thread_cpu_seconds
from lab.benchmarks.sizes import BLOCK_SIZE, SEED
from lab.engines.wire import BlockStored
from lab.traffic.event_load import LoadPlan, plan_events

INSTANCES: Final = 8
CONNECTIONS: Final = 8
SETTLING_LOOK_S: Final = 1.0
SETTLING_LOOKS_MAX: Final = 20
SETTLED_SHARE: Final = 0.01  # of a core, by which two looks differ at most
EVENT_BLOCKS: Final = 64
FORMS: Final = {
    "JSON": b"application/json",
    "msgpack bin": b"application/msgpack",
    "octets": b"application/octet-stream",
}
OCTETS_URL: Final = f"?model={MODEL}&block_size={BLOCK_SIZE}".encode()


class Client:
    """One kept-alive connection that knows no more of HTTP than the servers' answers need."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> None:
        """Sends a whole request."""
        self._socket.sendall(request)

    def fileno(self) -> int:
        """Of its socket, to wait until there is an answer."""
        return self._socket.fileno()

    def receive(self, expected: tuple[int, ...] = (200,)) -> bytes:
        """The body of the next answer.

        Raises:
            RuntimeError: its status is not one of those that are expected.
        """
        answer = self._receive(b"")
        head, found, body = answer.partition(b"\r\n\r\n")
        while not found:
            answer = self._receive(answer)
            head, found, body = answer.partition(b"\r\n\r\n")
        if int(head[9:12]) not in expected:
            raise RuntimeError(f"Expected status {expected}, got: {answer[:400].decode()}")
        size_bytes = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        while len(body) < size_bytes:
            body = self._receive(body)
        return body

    def _receive(self, before: bytes) -> bytes:
        received = self._socket.recv(65_536)
        if not received:
            raise RuntimeError("Expected an answer, got a closed connection")
        return before + received

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()


class Server:
    """A server's process, and connections to it."""

    def __init__(self, address: tuple[str, int], pid: int) -> None:
        self.address = address
        self.pid = pid

    @contextmanager
    def connected(self, connections: int) -> Iterator[list[Client]]:
        """New connections, as the server closes those that have been idle for some seconds."""
        clients = [Client(self.address) for _ in range(connections)]
        try:
            yield clients
        finally:
            for client in clients:
                client.close()

    def ask(self, request: bytes) -> bytes:
        """One request over a connection of its own."""
        with self.connected(1) as (client,):
            client.send(request)
            return client.receive()

    def single(self, requests: list[bytes]) -> tuple[float, list[float]]:
        """One after the other; CPU microseconds for each, and the seconds of each."""
        seconds = []
        with self.connected(1) as (client,):
            cpu_s = thread_cpu_seconds(self.pid)
            for request in requests:
                started = perf_counter()
                client.send(request)
                client.receive()
                seconds.append(perf_counter() - started)
            return 1e6 * (thread_cpu_seconds(self.pid) - cpu_s) / len(requests), seconds

    def busy(
        self, requests: list[bytes], *, settles: bool = False, expected: tuple[int, ...] = (200,)
    ) -> float:
        """Over all connections, each with a request under way; CPU microseconds for each.

        Args:
            requests: in their order.
            settles: whether the server goes on with them behind the last answer: what that takes
                counts, too, but for what the server takes idle.
            expected: statuses.
        """
        waiting: deque[Client] = deque()
        idle = self._settled() if settles else 0.0
        with self.connected(CONNECTIONS) as clients:
            began_s, cpu_s = perf_counter(), thread_cpu_seconds(self.pid)
            for request, client in zip(requests, cycle(clients), strict=False):
                if len(waiting) == CONNECTIONS:
                    waiting.popleft().receive(expected)
                client.send(request)
                waiting.append(client)
            for client in waiting:
                client.receive(expected)
            if settles:
                idle = min(idle, self._settled())
            cpu_s = thread_cpu_seconds(self.pid) - cpu_s
            return 1e6 * (cpu_s - idle * (perf_counter() - began_s)) / len(requests)

    def _settled(self) -> float:
        """Waits until the server does what it does idle alone; the CPU of that, of a core."""
        before = float("inf")
        for _ in range(SETTLING_LOOKS_MAX):
            cpu_s = thread_cpu_seconds(self.pid)
            sleep(SETTLING_LOOK_S)
            found = (thread_cpu_seconds(self.pid) - cpu_s) / SETTLING_LOOK_S
            if abs(found - before) <= SETTLED_SHARE:
                return min(found, before)
            before = found
        return before


def request_of(form: str, tokens: list[int]) -> bytes:
    """The bytes of one `POST /query`."""
    if form == "JSON":
        body = msgspec.json.encode({"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": tokens})
    else:
        body = array("i", tokens).tobytes()
    if form == "msgpack bin":
        body = msgspec.msgpack.encode({"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": body})
    url_query = OCTETS_URL if form == "octets" else b""
    return post_of(b"/query" + url_query, body, FORMS[form])


def post_of(target: bytes, body: bytes, content_type: bytes = FORMS["JSON"]) -> bytes:
    """The bytes of one `POST`."""
    fields = b"Host: bench\r\nContent-Type: %b\r\nContent-Length: %d" % (content_type, len(body))
    return b"POST %b HTTP/1.1\r\n%b\r\n\r\n%b" % (target, fields, body)


def instances_of(form: str, answer: bytes) -> dict[str, dict[str, int]]:
    """What an answer to a request of that form has, by instance."""
    if form == "msgpack bin":
        return msgspec.msgpack.decode(answer)["instances"]  # type: ignore[no-any-return]
    return msgspec.json.decode(answer)["default"]  # type: ignore[no-any-return]


def plan_of(tokens: int, bodies: int) -> LoadPlan:
    """So many prompts that are asked for: chains of the blocks of so many tokens."""
    chain_blocks = tokens // BLOCK_SIZE
    return LoadPlan(
        blocks=bodies * chain_blocks,
        blocks_per_event=EVENT_BLOCKS,
        block_size=BLOCK_SIZE,
        chain_events=chain_blocks // EVENT_BLOCKS,
        seed=SEED,
    )


def prompts_of(plan: LoadPlan) -> list[list[int]]:
    """The tokens of each chain of the plan."""
    prompts: list[list[int]] = []
    for event in plan_events(plan):
        assert isinstance(event, BlockStored)
        if event.parent_block_hash is None:
            prompts.append([])
        prompts[-1].extend(event.token_ids)
    return prompts
