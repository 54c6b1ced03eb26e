"""`POST /query` of a real service, over one raw connection that is kept alive.

Eight instances hold every prompt whole. The client is one loop over a blocking socket with bodies
made before, so that p50 and p99 are the service's; its CPU is that of the service's process,
divided by the requests.
"""

import socket
from array import array
from itertools import cycle, islice
from time import perf_counter
from typing import Final, NamedTuple

import msgspec

from benchmarks.figures import Aim, Figure, percentile
from benchmarks.publisher import Publisher
from benchmarks.service import MODEL, Service, until
from benchmarks.sizes import BLOCK_SIZE, CHAIN_BLOCKS, SEED, KernelName, Sizes
from replay.load import LoadPlan, plan_events
from replay.wire import BlockStored

INSTANCES: Final = 8
EVENT_BLOCKS: Final = 64
AIMS: Final = {("JSON", 8192): Aim(at_most=150.0)}
REQUESTS_MIN: Final = 40
FORMS: Final = {"JSON": b"application/json", "msgpack bin": b"application/msgpack"}


class Timing(NamedTuple):
    """One pass over one kind of request, in microseconds."""

    cpu: float
    p50: float
    p99: float


class Client:
    """One kept-alive connection that knows no more of HTTP than the service's answers need."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> bytes:
        """Sends a whole request; returns the answer's body.

        Raises:
            RuntimeError: the answer is not 200.
        """
        self._socket.sendall(request)
        answer = self._receive(b"")
        head, found, body = answer.partition(b"\r\n\r\n")
        while not found:
            answer = self._receive(answer)
            head, found, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"Expected status 200, got: {answer[:400].decode()}")
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


def request_of(form: str, tokens: list[int]) -> bytes:
    """The bytes of one `POST /query`."""
    if form == "JSON":
        fields = {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": tokens}
        body = msgspec.json.encode(fields)
    else:
        packed = array("i", tokens).tobytes()
        body = msgspec.msgpack.encode(
            {"model": MODEL, "block_size": BLOCK_SIZE, "token_ids": packed}
        )
    head = b"POST /query HTTP/1.1\r\nHost: bench\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    return head % (FORMS[form], len(body)) + body


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    plan = _plan(sizes)
    with Service(kernel) as service, Publisher(plan, publishers=INSTANCES) as publisher:
        publisher.connect(service)
        prompts = prompts_of(plan)
        sent = publisher.send()
        until(lambda: service.folded_sequence() >= sent.last_sequence, poll_s=0.05)
        service.wait_flushed()
        client = Client(service.address)
        figures = []
        for tokens in sizes.prompt_tokens:
            for form in FORMS:
                requests = [request_of(form, prompt[:tokens]) for prompt in prompts]
                _check(client.ask(requests[0]), form, tokens)
                passes = _measure_passes(service, client, requests, sizes)
                figures += _figures(form, tokens, passes, len(requests))
        client.close()
    return figures


def _plan(sizes: Sizes) -> LoadPlan:
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


def _check(answer: bytes, form: str, tokens: int) -> None:
    decoded = (msgspec.json if form == "JSON" else msgspec.msgpack).decode(answer)
    instances = decoded["default" if form == "JSON" else "instances"]
    longest = [instance["longest_matched"] for instance in instances.values()]
    if longest != [tokens] * INSTANCES:
        raise RuntimeError(f"Expected {INSTANCES} whole matches of {tokens} tokens, got: {longest}")


def _measure_passes(
    service: Service, client: Client, requests: list[bytes], sizes: Sizes
) -> list[Timing]:
    trial = _measure_pass(service, client, requests)
    wanted = int(1e6 * sizes.query_cpu_s / max(trial.p50, 1.0))
    count = max(REQUESTS_MIN, len(requests), wanted)
    rotating = list(islice(cycle(requests), count))
    return [_measure_pass(service, client, rotating) for _ in range(sizes.runs)]


def _measure_pass(service: Service, client: Client, requests: list[bytes]) -> Timing:
    seconds = []
    cpu_s = service.cpu_s()
    for request in requests:
        started = perf_counter()
        client.ask(request)
        seconds.append(perf_counter() - started)
    cpu_s = service.cpu_s() - cpu_s
    return Timing(
        1e6 * cpu_s / len(requests), 1e6 * percentile(seconds, 50), 1e6 * percentile(seconds, 99)
    )


def _figures(form: str, tokens: int, passes: list[Timing], bodies: int) -> list[Figure]:
    name = f"{form}, {tokens // 1024}K tokens"
    note = f"{bodies} bodies rotate, {INSTANCES} instances hold each"
    return [
        Figure(
            name=f"{name}: CPU per request",
            unit="us",
            runs=[one.cpu for one in passes],
            note=note,
            aim=AIMS.get((form, tokens)),
        ),
        Figure(name=f"{name}: p50", unit="us", runs=[one.p50 for one in passes]),
        Figure(name=f"{name}: p99", unit="us", runs=[one.p99 for one in passes]),
    ]
