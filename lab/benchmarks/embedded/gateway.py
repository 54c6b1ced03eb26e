"""What the gateway adds: requests to two trivial engines, directly and by the gateway.

The engines answer at once (`lab.engines.openai_engine`, without events), so what is measured is the
gateway: a prompt of 1,024 token ids is decided by the index, booked, sent on, its answer passed on
and reported. At 25 requests a second direct requests and those by the gateway take turns; what is
added is the difference of their percentiles. Then 64 clients ask as soon as each has its answer.
CPU is that of the service's process.
"""

import asyncio
import http.client
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from time import monotonic
from typing import Final, NamedTuple, cast

import msgspec

from lab.benchmarks.embedded.service import Service, thread_cpu_seconds, until
from lab.benchmarks.job_process import ChildProcess
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import Sizes

ENGINES: Final = 2
RATE: Final = 25.0
PACED: Final = 100
"""Requests of each way, at that rate."""

CROWD: Final = 64
CROWD_REQUESTS: Final = 6_400
TOKENS: Final = 1_024
OUTPUT: Final = 8
ENROLLED_S: Final = 20.0
ENROLLED_LOOK_S: Final = 0.05
ANSWER_S: Final = 30.0
"""For one answer: an engine's comes at once."""

_COMPLETIONS: Final = b"/v1/completions"
_CHAT: Final = b"/v1/chat/completions"


class _Addressed(msgspec.Struct):
    address: str
    under_way: int


class _Way(NamedTuple):
    """A kind of requests."""

    name: str
    request: bytes
    is_stream: bool = False


def measure(sizes: Sizes) -> list[Figure]:
    with ExitStack() as stack:
        ports = []
        for number in range(ENGINES):
            command = [sys.executable, "-m", "lab.engines.openai_engine", "0", f"e{number}"]
            ports.append(stack.enter_context(ChildProcess(command)).hear(int))
        named = [part for port in ports for part in ("--engine", f"http://127.0.0.1:{port}")]
        service = stack.enter_context(Service("--gateway", "0", *named))
        return asyncio.run(_measured(service, _port_of(service), ports[0]))


def _port_of(service: Service) -> int:
    """Of the gateway, once it has engines."""
    found = msgspec.json.decode(service.get("/gateway"), type=_Addressed)
    port = int(found.address.rpartition(":")[2])

    def has_engines() -> bool:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)) as asked:
            asked.request("GET", "/health")
            return asked.getresponse().status == 200

    until(has_engines, poll_s=ENROLLED_LOOK_S, timeout_s=ENROLLED_S)
    return port


async def _measured(service: Service, gateway: int, engine: int) -> list[Figure]:
    prompt = list(range(TOKENS))
    text = {"messages": [{"role": "user", "content": "w " * TOKENS}]}
    ways = (
        _Way("token ids", _request(_COMPLETIONS, {"prompt": prompt})),
        _Way("token ids, stream", _request(_COMPLETIONS, {"prompt": prompt}, True), True),
        _Way("text, tokens by an engine", _request(_CHAT, text)),
    )
    figures = []
    for way in ways:
        p50, p99 = await _added(way, gateway, engine)
        rate, cpu_us = await _crowd(way, gateway, service.pid)
        figures += [
            Figure(name=f"{way.name}: {what}", unit=unit, runs=[value])
            for what, unit, value in (
                (f"added at {RATE:g} requests/s, p50", "ms", p50),
                (f"added at {RATE:g} requests/s, p99", "ms", p99),
                (f"{CROWD} clients", "requests/s", rate),
                (f"{CROWD} clients: CPU of a request", "us", cpu_us),
            )
        ]
    return figures


def _request(path: bytes, prompt: Mapping[str, object], is_stream: bool = False) -> bytes:
    body = msgspec.json.encode({"model": "m", "max_tokens": OUTPUT, "stream": is_stream, **prompt})
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" % path
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _added(way: _Way, gateway: int, engine: int) -> tuple[float, float]:
    """Milliseconds at the 50th and the 99th percentile."""
    direct, passed = [await _client(port, way.is_stream) for port in (engine, gateway)]
    took: dict[_Client, list[float]] = {direct: [], passed: []}
    at = monotonic()
    for _ in range(PACED):
        for client in (direct, passed):
            at += 0.5 / RATE
            await asyncio.sleep(max(at - monotonic(), 0))
            took[client].append(await client.ask(way.request))
    for client in (direct, passed):
        client.close()
    return tuple(  # type: ignore[return-value]
        1000 * (percentile(took[passed], percent) - percentile(took[direct], percent))
        for percent in (50, 99)
    )


async def _crowd(way: _Way, gateway: int, pid: int) -> tuple[float, float]:
    """Requests a second, and microseconds of CPU for each."""
    clients = [await _client(gateway, way.is_stream) for _ in range(CROWD)]

    async def ask(client: "_Client") -> None:
        for _ in range(CROWD_REQUESTS // CROWD):
            await client.ask(way.request)

    cpu_s, began = thread_cpu_seconds(pid), monotonic()
    await asyncio.gather(*map(ask, clients))
    took_s, cpu_s = monotonic() - began, thread_cpu_seconds(pid) - cpu_s
    for client in clients:
        client.close()
    return CROWD_REQUESTS / took_s, 1e6 * cpu_s / CROWD_REQUESTS


class _Client(asyncio.Protocol):
    """One connection; looks no closer at answers than to see their ends."""

    def __init__(self, port: int, is_stream: bool) -> None:
        self._port = port
        self._is_stream = is_stream
        self._got = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None

    async def connect(self) -> None:
        """Makes the connection, again where the server has closed it as idle."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._answered is None or self._answered.done() or not self._is_whole():
            return
        if self._got.startswith(b"HTTP/1.1 200 "):
            self._answered.set_result(None)
        else:
            said = self._got[:200].decode(errors="replace")
            self._answered.set_exception(RuntimeError(f"Expected an answer of 200, got: {said}"))
        self._got.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(
                RuntimeError("Expected an answer, got a closed connection")
            )

    def _is_whole(self) -> bool:
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return False
        if self._is_stream and self._got.startswith(b"HTTP/1.1 200 "):
            return self._got.endswith(b"\r\n0\r\n\r\n")
        at = self._got.lower().find(b"content-length:", 0, end) + 15
        return len(self._got) >= end + 4 + int(self._got[at : self._got.find(b"\r", at)])

    async def ask(self, request: bytes) -> float:
        """Seconds until the answer is whole.

        Raises:
            RuntimeError: it did not come, or not all of it.
        """
        assert self._transport is not None
        if self._transport.is_closing():  # what is written to it is lost, and nothing says so
            await self.connect()
        self._answered = asyncio.get_running_loop().create_future()
        began = monotonic()
        self._transport.write(request)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._answered
        except TimeoutError as error:
            said = self._got[-200:].decode(errors="replace")
            raise RuntimeError(
                f"Expected an answer within {ANSWER_S:g} s, got of it: {said}"
            ) from error
        return monotonic() - began

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


async def _client(port: int, is_stream: bool) -> _Client:
    client = _Client(port, is_stream)
    await client.connect()
    return client
