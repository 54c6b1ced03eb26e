import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from reprise import front
from reprise.front import Front, HostPort, addresses_of, is_ready, place_of


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class _Replica:
    """Says whether it is ready, and its name to everything else."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.is_ready = True
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._answer, self._host, self._port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status = "200 OK"
        if head.startswith(b"GET /ready ") and not self.is_ready:
            status = "503 Service Unavailable"
        body = self.name
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()


async def ask(port: int) -> str:
    """The name of the replica that answered; "" where the connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        answer = await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return answer.rpartition(b"\r\n")[2].decode()


@contextlib.asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, port: int, hosts: list[str], wait_s: float = 10.0
) -> AsyncIterator[tuple[Front, int]]:
    """A front before the replicas on these addresses, and its port."""
    monkeypatch.setattr(front, "addresses_of", lambda host, port: list(hosts))
    listen, stop = free_port(), asyncio.Event()
    made = Front(HostPort("serve", port), wait_s=wait_s)
    task = asyncio.create_task(made.serve(HostPort("127.0.0.1", listen), stop))
    await asyncio.sleep(0.05)
    try:
        yield made, listen
    finally:
        stop.set()
        await task


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "LOOK_S", 0.05)


def test_connections_go_to_those_that_are_ready_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> None:
        port = free_port()
        one, two = _Replica("one", "127.0.0.1", port), _Replica("two", "127.0.0.2", port)
        await one.start()
        await two.start()
        async with running(monkeypatch, port, ["127.0.0.1", "127.0.0.2"]) as (made, listen):
            await made.look()
            assert sorted([await ask(listen), await ask(listen)]) == ["one", "two"]
            one.is_ready = False
            await made.look()
            assert {await ask(listen) for _ in range(4)} == {"two"}
            one.is_ready = True
            await made.look()
            await two.stop()  # it is not known yet: the other one gets the connection
            assert {await ask(listen) for _ in range(4)} == {"one"}
        await one.stop()

    asyncio.run(go())


def test_while_none_is_ready_connections_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        port = free_port()
        replica = _Replica("one", "127.0.0.1", port)
        hosts: list[str] = []
        async with running(monkeypatch, port, hosts) as (_, listen):
            waiting = asyncio.create_task(ask(listen))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await replica.start()
            hosts.append("127.0.0.1")
            assert await asyncio.wait_for(waiting, 10) == "one"
        await replica.stop()

    asyncio.run(go())


def test_no_connection_waits_for_ever_nor_are_there_any_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> None:
        async with running(monkeypatch, free_port(), [], wait_s=0.1) as (_, listen):
            assert await asyncio.wait_for(ask(listen), 10) == ""
        monkeypatch.setattr(front, "CONNECTIONS_MAX", 1)
        async with running(monkeypatch, free_port(), [], wait_s=5.0) as (_, listen):
            first = asyncio.create_task(ask(listen))
            await asyncio.sleep(0.1)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(ask(listen), 2) == ""
            assert not first.done()
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first

    asyncio.run(go())


def test_who_does_not_answer_is_not_ready() -> None:
    assert not is_ready("127.0.0.1", free_port())
    assert addresses_of("127.0.0.1", 1) == ["127.0.0.1"]
    assert addresses_of("nothing.invalid", 1) == []


def test_a_place_is_a_host_and_a_port() -> None:
    assert place_of("[::1]:80") == HostPort("::1", 80)
    for wrong in ("serve", ":1", "serve:x", "serve:65536"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            place_of(wrong)
