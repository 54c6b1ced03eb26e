"""The chats of the routers' benchmark, and the figures that are made of what came of them."""

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from lab.benchmarks.embedded import gateway
from lab.benchmarks.embedded.conversations import TURNS
from lab.benchmarks.gateways.chats import chats_of
from lab.benchmarks.gateways.clients import (
    BROKEN_OFF,
    AnsweredChat,
    AnsweredChats,
    until_answered,
)
from lab.benchmarks.gateways.simulated import RouterRun, _compared, _figures, _restarted
from lab.engines import words


def test_each_turn_has_the_answer_to_the_one_before_it() -> None:
    chats = chats_of(5, 3)
    assert len(chats) == 3 * TURNS
    assert chats == chats_of(5, 3)
    assert all(one.at_s < other.at_s for one, other in pairwise(chats))
    talks: dict[str, list[list[dict[str, str]]]] = {}
    for chat in chats:
        messages = chat.body["messages"]
        talks.setdefault(messages[1]["content"], []).append(messages)
    assert [len(talk) for talk in talks.values()] == [TURNS] * 3
    for talk in talks.values():
        for before, after in pairwise(talk):
            assert after[: len(before)] == before
            prompt, further = words.chat_tokens(before), words.chat_tokens(after)
            answer = words.word_tokens(after[len(before)]["content"])
            assert further[: len(prompt) + len(answer)] == [*prompt, *answer]
            assert list(answer) == words.answer_of(prompt, len(answer))


def _run(ttfts: list[float], cached: int, failed: int = 0) -> RouterRun:
    chats = [AnsweredChat(0.0, ttft, 100, cached) for ttft in ttfts]
    chats += [AnsweredChat(0.0, 0.0, problem="500")] * failed
    return RouterRun(AnsweredChats(chats, 0.0), ttfts, 1.0, 2.0)


def test_gateway_is_compared_with_the_best_other_of_each_seed() -> None:
    runs = {
        "vllm-router": [_run([0.1], 50), _run([0.3], 80)],
        "SMG": [_run([0.2], 40), _run([0.2], 90)],
        "Reprise": [_run([0.1, 0.1], 60), _run([0.4, 0.4], 90, failed=2)],
    }
    figures = [figure for name, of_name in runs.items() for figure in _figures(name, of_name)]
    known = {one.name: one.runs for one in figures + _compared(figures, ["vllm-router", "SMG"])}
    assert known["Reprise: cached, times the best other"] == [60 / 50, 1.0]
    assert known["Reprise: TTFT, mean, times the best other"] == [1.0, 2.0]
    assert known["Reprise: failed"] == [0.0, 2.0]
    assert known["Reprise: CPU of a request"] == [500.0, 250.0]


def test_what_was_under_way_when_the_router_was_killed_is_told_from_what_was_not() -> None:
    chats = [
        AnsweredChat(0.0, 0.1, 100, 0),
        AnsweredChat(1.0, 0.1, 100, 50),
        AnsweredChat(1.9, 0.0, problem=f"{BROKEN_OFF}: reset"),
        AnsweredChat(2.0, 1.5, 100, 80, refused=3),
        AnsweredChat(2.1, 1.7, 100, 90, refused=3),
        AnsweredChat(2.2, 0.0, problem="500 nothing"),
    ]
    found = {one.name: one.value for one in _restarted("R", AnsweredChats(chats, 0.0), 3)}
    assert found == {
        "R, the router is killed: failed": 2.0,
        "R, the router is killed: failed that were not under way": 1.0,
        "R, the router is killed: away": 1.5,
        "R, the router is killed: cached before it": 50.0,
        "R, the router is killed: cached after it": 85.0,
    }


def _refusal(status: int, **headers: str) -> aiohttp.ClientResponseError:
    told = CIMultiDictProxy(CIMultiDict(headers))
    nothing: Any = None
    return aiohttp.ClientResponseError(nothing, (), status=status, message="no", headers=told)


NOBODY = aiohttp.ClientConnectorError(None, OSError())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("errors", "problem", "refused"),
    [
        ([NOBODY, _refusal(503, **{"retry-after": "0.01"})], "", 2),
        ([_refusal(429, **{"retry-after": "9"})], "429 no", 0),
        ([NOBODY, _refusal(500)], "500 no", 1),
        ([aiohttp.ServerDisconnectedError()], f"{BROKEN_OFF}: ServerDisconnected", 0),
    ],
)
def test_clients_send_again_what_openais_client_does(
    errors: list[Exception], problem: str, refused: int
) -> None:
    left = list(errors)

    async def attempt() -> AnsweredChat:
        if left:
            raise left.pop(0)
        return AnsweredChat(1.0, 0.5)

    found = asyncio.run(until_answered(attempt, 1.0, 5.0))
    assert found.problem.startswith(problem)
    assert bool(found.problem) == bool(problem)
    assert found.refused == refused


def test_a_client_asks_again_where_the_server_has_closed_what_was_idle() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")
        writer.close()

    async def asked() -> list[float]:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            client = await gateway._client(server.sockets[0].getsockname()[1], False)
            took = []
            for _ in range(2):
                took.append(await client.ask(b"GET / HTTP/1.1\r\n\r\n"))
                await asyncio.sleep(0.1)  # so that the client has seen the end
            client.close()
            await asyncio.sleep(0.1)  # so that the server has, too
            return took

    assert all(seconds < gateway.ANSWER_S for seconds in asyncio.run(asked()))


def test_an_answer_that_does_not_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "ANSWER_S", 0.1)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        ended.set()

    async def asked() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            client = await gateway._client(server.sockets[0].getsockname()[1], False)
            try:
                await client.ask(b"GET / HTTP/1.1\r\n\r\n")
            finally:
                client.close()
                await ended.wait()
                await asyncio.sleep(0)  # the transport is closed in the next turn

    with pytest.raises(RuntimeError, match=r"within 0.1 s, got of it: HTTP/1.1 200"):
        asyncio.run(asked())
