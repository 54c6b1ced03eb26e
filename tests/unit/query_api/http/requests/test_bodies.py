"""Reading of bodies: what is kept of all of them together, and how slowly one may come."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from query_api.bounds import BODY_PIECE_BYTES
from query_api.http.errors import ClientGoneError, RequestError
from query_api.http.requests import bodies as module
from query_api.http.requests.bodies import (
    BODIES_BYTES_MAX,
    BODIES_LARGE_BYTES_MAX,
    NO_ROOM,
    TOO_SLOW,
    Bodies,
)
from reprise.application import create_app
from schemas.limits import BODY_BYTES_MAX, MIB
from tests.fakes import FakeTable
from tests.simulation import loop as simulated
from tests.simulation.loop import SimulatedLoop


def piece(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


class Client:
    """Sends what the test says, when it says so."""

    def __init__(self, bodies: Bodies) -> None:
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self.request = asyncio.create_task(bodies.read(self._messages.get, []))

    async def send(self, *pieces: bytes, more: bool = True) -> None:
        for body in pieces:
            self._messages.put_nowait(piece(body, more=more))
        for _ in range(4 * len(pieces) + 4):
            await asyncio.sleep(0)

    async def refusal(self) -> RequestError:
        with pytest.raises(RequestError) as refused:
            await self.request
        return refused.value


def run(case: Callable[[], Awaitable[None]]) -> None:
    """On simulated time: what is too slow does not depend on the machine."""

    async def go(loop: SimulatedLoop) -> None:
        await case()

    simulated.run(go)


def test_a_body_in_pieces_is_held_until_its_end() -> None:
    async def case() -> None:
        bodies = Bodies()
        client = Client(bodies)
        await client.send(b"abc", b"de")
        assert bodies.held_bytes == 5
        await client.send(b"f", more=False)
        assert await client.request == b"abcdef"
        assert bodies.held_bytes == 0
        assert not bodies.refused

    run(case)


def test_one_that_has_no_room_and_stays_silent_is_refused_once_and_for_that() -> None:
    """It was counted under both reasons, and the client told the other one."""

    async def case() -> None:
        bodies = Bodies()
        bodies.held_bytes = BODIES_BYTES_MAX
        client = Client(bodies)
        await client.send(bytes(MIB))
        refused = await client.refusal()
        assert (refused.status, refused.reason) == (503, "no_room_for_body")
        assert bodies.refused == {NO_ROOM: 1}
        assert bodies.held_bytes == BODIES_BYTES_MAX

    run(case)


def test_a_whole_body_is_held_for_no_time_and_always_has_room() -> None:
    async def case() -> None:
        bodies = Bodies()
        bodies.held_bytes = BODIES_BYTES_MAX
        client = Client(bodies)
        await client.send(bytes(MIB), more=False)
        assert len(await client.request) == MIB
        assert bodies.held_bytes == BODIES_BYTES_MAX

    run(case)


def test_a_large_body_without_room_is_discarded_and_refused() -> None:
    async def case() -> None:
        bodies = Bodies()
        bodies.held_bytes = BODIES_LARGE_BYTES_MAX - MIB
        client = Client(bodies)
        await client.send(bytes(MIB))
        assert not client.request.done()
        await client.send(bytes(MIB))
        assert bodies.held_bytes == BODIES_LARGE_BYTES_MAX - MIB, "nothing of it is kept"
        await client.send(b"end", more=False)
        refused = await client.refusal()
        assert (refused.status, refused.reason) == (503, "no_room_for_body")
        assert refused.headers["retry-after"] == "1"
        assert bodies.refused == {NO_ROOM: 1}

    run(case)


def test_a_small_body_in_pieces_has_room_beside_large_ones() -> None:
    async def case() -> None:
        bodies = Bodies()
        bodies.held_bytes = BODIES_LARGE_BYTES_MAX
        client = Client(bodies)
        await client.send(b"abc")
        await client.send(b"def", more=False)
        assert await client.request == b"abcdef"
        bodies.held_bytes = BODIES_BYTES_MAX
        client = Client(bodies)
        await client.send(b"abc")
        await client.send(b"def", more=False)
        assert (await client.refusal()).status == 503

    run(case)


def test_forty_of_the_largest_bodies_at_once_stay_within_the_bound() -> None:
    async def case() -> None:
        bodies = Bodies()
        clients = [Client(bodies) for _ in range(40)]
        part = bytes(MIB)
        most = 0
        for number in range(BODY_BYTES_MAX // MIB):
            for client in clients:
                await client.send(part, more=number < BODY_BYTES_MAX // MIB - 1)
                most = max(most, bodies.held_bytes)
        done = [await asyncio.wait({client.request}) for client in clients]
        answered = [one for tasks, _ in done for one in tasks if one.exception() is None]
        assert most <= BODIES_LARGE_BYTES_MAX + MIB
        assert len(answered) >= 4
        assert bodies.refused == {NO_ROOM: 40 - len(answered)}
        assert bodies.held_bytes == 0

    run(case)


def test_a_body_above_its_own_bound_is_refused_as_before() -> None:
    async def case() -> None:
        bodies = Bodies()
        client = Client(bodies)
        await client.send(*[bytes(8 * MIB)] * 5)
        await client.send(b"", more=False)
        assert (await client.refusal()).status == 413
        assert bodies.held_bytes == 0
        assert not bodies.refused

    run(case)


def test_a_body_that_stalls_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_PIECE_S", 0.1)

    async def case() -> None:
        bodies = Bodies()
        client = Client(bodies)
        await client.send(bytes(MIB))
        refused = await client.refusal()
        assert (refused.status, refused.reason) == (408, "body_too_slow")
        assert refused.headers["connection"] == "close"
        assert bodies.held_bytes == 0
        assert bodies.refused == {TOO_SLOW: 1}

    run(case)


def test_a_body_that_dribbles_is_ended_and_a_steady_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BODY_PIECE_S", 0.5)

    async def case() -> None:
        bodies = Bodies()
        dribbling, steady = Client(bodies), Client(bodies)
        for _ in range(20):
            await dribbling.send(b"x")
            await steady.send(bytes(BODY_PIECE_BYTES))
            await asyncio.sleep(0.05)
        assert (await dribbling.refusal()).status == 408
        await steady.send(b"x", more=False)
        assert len(await steady.request) == 20 * BODY_PIECE_BYTES + 1

    run(case)


def test_even_a_steady_body_is_ended_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_READ_S", 0.3)

    async def case() -> None:
        client = Client(Bodies())
        while not client.request.done():
            await client.send(bytes(BODY_PIECE_BYTES // 4))
            await asyncio.sleep(0.01)
        assert (await client.refusal()).status in (408, 413)

    run(case)


def test_a_client_that_leaves_gives_its_room_back() -> None:
    async def case() -> None:
        bodies = Bodies()
        client = Client(bodies)
        await client.send(bytes(MIB))
        client._messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(ClientGoneError):
            await client.request
        assert bodies.held_bytes == 0

    run(case)


@pytest.mark.parametrize("path", ["/query", "/register"])
def test_a_slow_body_is_answered_on_every_route(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_PIECE_S", 0.05)
    table = FakeTable()
    app = create_app(table, table)
    sent: list[Message] = []

    async def case() -> None:
        incoming = [piece(b"{")]

        async def receive() -> Message:
            if incoming:
                return incoming.pop()
            await asyncio.sleep(3600)
            raise AssertionError

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "root_path": ""}
        await app(scope | {"query_string": b"", "http_version": "1.1"}, receive, send)

    run(case)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert b"body_too_slow" in sent[1]["body"]
