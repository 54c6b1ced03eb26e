"""`POST /query` of a real service over raw connections that are kept alive.

Eight instances hold every prompt whole. The client is one loop over blocking sockets with bodies
made before. p50 and p99 are those of one connection, as a router's thread sees them; CPU is that of
the server's process divided by the requests, with eight connections, so that it always has work,
and with one, where each request also wakes it up. The same requests to a server that only answers
`{}` (`empty_server`) give the floor.
"""

import socket
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from time import perf_counter
from typing import Final, NamedTuple

import msgspec

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.service import MODEL, Service, thread_cpu_seconds, until
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, CHAIN_BLOCKS, SEED, KernelName, Sizes
from lab.engines.wire import BlockStored
from lab.traffic.event_load import LoadPlan, plan_events

INSTANCES: Final = 8
CONNECTIONS: Final = 8
EVENT_BLOCKS: Final = 64
REQUESTS_MIN: Final = 20
FLOOR_REQUESTS_MIN: Final = 400
FORMS: Final = {
    "JSON": b"application/json",
    "msgpack bin": b"application/msgpack",
    "octets": b"application/octet-stream",
}
OCTETS_URL: Final = f"?model={MODEL}&block_size={BLOCK_SIZE}".encode()


class Timing(NamedTuple):
    """One pass over one kind of request, in microseconds."""

    cpu: float
    floor: float
    single_cpu: float
    p50: float
    p99: float


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
        self._pid = pid

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
            cpu_s = thread_cpu_seconds(self._pid)
            for request in requests:
                started = perf_counter()
                client.send(request)
                client.receive()
                seconds.append(perf_counter() - started)
            return 1e6 * (thread_cpu_seconds(self._pid) - cpu_s) / len(requests), seconds

    def busy(self, requests: list[bytes]) -> float:
        """Over all connections, each with a request under way; CPU microseconds for each."""
        waiting: deque[Client] = deque()
        with self.connected(CONNECTIONS) as clients:
            cpu_s = thread_cpu_seconds(self._pid)
            for request, client in zip(requests, cycle(clients), strict=False):
                if len(waiting) == CONNECTIONS:
                    waiting.popleft().receive()
                client.send(request)
                waiting.append(client)
            for client in waiting:
                client.receive()
            return 1e6 * (thread_cpu_seconds(self._pid) - cpu_s) / len(requests)


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


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    plan = plan_of(sizes)
    figures = []
    with (
        Service(kernel) as service,
        Publisher(plan, publishers=INSTANCES) as publisher,
        empty_server() as empty,
    ):
        publisher.connect(service)
        prompts = prompts_of(plan)
        sent = publisher.send()
        until(lambda: service.folded_sequence() >= sent.last_sequence, poll_s=0.05)
        service.wait_flushed()
        server = Server(service.address, service.pid)
        for tokens in sizes.prompt_tokens:
            for form in FORMS:
                requests = [request_of(form, prompt[:tokens]) for prompt in prompts]
                _check(server, requests[0], form, tokens)
                passes = _measure_passes(server, empty, requests, sizes)
                figures += _figures(form, tokens, passes, len(requests))
    return figures


@contextmanager
def empty_server() -> Iterator[Server]:
    """The server that is the floor."""
    command = [sys.executable, "-m", "lab.benchmarks.embedded.empty_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Server(("127.0.0.1", port), process.pid)
        finally:
            process.kill()


def plan_of(sizes: Sizes) -> LoadPlan:
    """The prompts that are asked for: chains of the longest one's blocks."""
    chain_blocks = max(sizes.prompt_tokens) // BLOCK_SIZE
    assert chain_blocks <= CHAIN_BLOCKS, "a prompt is one chain"
    return LoadPlan(
        blocks=sizes.query_bodies * chain_blocks,
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


def _check(server: Server, request: bytes, form: str, tokens: int) -> None:
    instances = instances_of(form, server.ask(request))
    longest = [instance["longest_matched"] for instance in instances.values()]
    if longest != [tokens] * INSTANCES:
        raise RuntimeError(f"Expected {INSTANCES} whole matches of {tokens} tokens, got: {longest}")


def _measure_passes(
    server: Server, empty: Server, requests: list[bytes], sizes: Sizes
) -> list[Timing]:
    _, trial = server.single(requests)
    wanted = int(sizes.query_cpu_s / percentile(trial, 50))
    count = max(REQUESTS_MIN, len(requests), wanted)
    rotating = list(islice(cycle(requests), count))
    return [_measure_pass(server, empty, rotating) for _ in range(sizes.runs)]


def _measure_pass(server: Server, empty: Server, requests: list[bytes]) -> Timing:
    cpu = server.busy(requests)
    # Of few requests the first ones, over new connections, would be most.
    floor = empty.busy(list(islice(cycle(requests), max(len(requests), FLOOR_REQUESTS_MIN))))
    single_cpu, seconds = server.single(requests)
    return Timing(
        cpu, floor, single_cpu, 1e6 * percentile(seconds, 50), 1e6 * percentile(seconds, 99)
    )


def _figures(form: str, tokens: int, passes: list[Timing], bodies: int) -> list[Figure]:
    name = f"{form}, {tokens // 1024}K tokens"
    rows = {
        "CPU per request, 8 connections": [one.cpu for one in passes],
        "CPU of an empty answer, 8 connections": [one.floor for one in passes],
        "CPU per request, one connection": [one.single_cpu for one in passes],
        "p50, one connection": [one.p50 for one in passes],
        "p99, one connection": [one.p99 for one in passes],
    }
    first = next(iter(rows))
    return [
        Figure(
            name=f"{name}: {row}",
            unit="us",
            runs=runs,
            note=f"{bodies} bodies rotate, {INSTANCES} instances hold each" if row == first else "",
        )
        for row, runs in rows.items()
    ]
