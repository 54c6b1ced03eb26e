"""What the gateway adds: requests to two trivial engines, directly and by the gateway.

The engines answer at once (`lab.engines.openai_engine`, without events), so what is measured is the
gateway: a prompt of 1,024 token ids is decided by the index, booked, sent on, its answer passed on
and reported. At 25 requests a second direct requests and those by the gateway take turns; what is
added is the difference of their percentiles. Then 64 clients ask as soon as each has its answer.
CPU is that of the service's process.
"""

import asyncio
import http.client
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Final, NamedTuple, cast

import msgspec

from lab.benchmarks.embedded.service import Service, thread_cpu_seconds
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import KernelName, Sizes

ENGINES: Final = 2
RATE: Final = 25.0
PACED: Final = 200
"""Requests of each way, at that rate."""

CROWD: Final = 64
CROWD_REQUESTS: Final = 6_400
TOKENS: Final = 1_024
OUTPUT: Final = 8
ENROLLED_S: Final = 20.0
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


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    with _engines() as ports:
        named = [part for port in ports for part in ("--engine", f"http://127.0.0.1:{port}")]
        with Service(kernel, "--gateway", "0", *named) as service:
            gateway = _port_of(service)
            return asyncio.run(_measured(service, gateway, ports[0], sizes.runs))


@contextmanager
def _engines() -> Iterator[list[int]]:
    """Their ports."""
    processes = []
    try:
        for number in range(ENGINES):
            command = [sys.executable, "-m", "lab.engines.openai_engine", "0", f"e{number}"]
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        ports = []
        for one in processes:
            assert one.stdout is not None, "it was started with a pipe"
            ports.append(int(one.stdout.readline()))
        yield ports
    finally:
        for one in processes:
            one.kill()
            one.wait()


def _port_of(service: Service) -> int:
    """Of the gateway, once it has engines."""
    connection = http.client.HTTPConnection(*service.address)
    connection.request("GET", "/gateway")
    found = msgspec.json.decode(connection.getresponse().read(), type=_Addressed)
    port = int(found.address.rpartition(":")[2])
    end = monotonic() + ENROLLED_S
    while monotonic() < end:
        asked = http.client.HTTPConnection("127.0.0.1", port)
        asked.request("GET", "/health")
        if asked.getresponse().status == 200:
            return port
    raise TimeoutError(f"no engine was enrolled within {ENROLLED_S:g} s")


async def _measured(service: Service, gateway: int, engine: int, runs: int) -> list[Figure]:
    prompt = list(range(TOKENS))
    text = {"messages": [{"role": "user", "content": "w " * TOKENS}]}
    ways = (
        _Way("token ids", _request(_COMPLETIONS, {"prompt": prompt})),
        _Way("token ids, stream", _request(_COMPLETIONS, {"prompt": prompt}, True), True),
        _Way("text, tokens by an engine", _request(_CHAT, text)),
    )
    figures = []
    for way in ways:
        added = [await _added(way, gateway, engine) for _ in range(runs)]
        crowds = [await _crowd(way, gateway, service.pid) for _ in range(runs)]
        figures += [
            Figure(name=f"{way.name}: {what}", unit=unit, runs=values)
            for what, unit, values in (
                (f"added at {RATE:g} requests/s, p50", "ms", [one[0] for one in added]),
                (f"added at {RATE:g} requests/s, p99", "ms", [one[1] for one in added]),
                (f"{CROWD} clients", "requests/s", [one[0] for one in crowds]),
                (f"{CROWD} clients: CPU of a request", "us", [one[1] for one in crowds]),
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

    def __init__(self, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._got = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._answered is not None and self._is_whole():
            assert self._got.startswith(b"HTTP/1.1 200 "), bytes(self._got[:200])
            self._got.clear()
            self._answered.set_result(None)

    def _is_whole(self) -> bool:
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            return False
        if self._is_stream:
            return self._got.endswith(b"\r\n0\r\n\r\n")
        at = self._got.lower().find(b"content-length:", 0, end) + 15
        return len(self._got) >= end + 4 + int(self._got[at : self._got.find(b"\r", at)])

    async def ask(self, request: bytes) -> float:
        """Seconds until the answer is whole."""
        assert self._transport is not None
        self._answered = asyncio.get_running_loop().create_future()
        began = monotonic()
        self._transport.write(request)
        await self._answered
        return monotonic() - began

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


async def _client(port: int, is_stream: bool) -> _Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: _Client(is_stream), "127.0.0.1", port)
    return client
