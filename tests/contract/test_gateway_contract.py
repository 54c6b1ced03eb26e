"""One command, engines named by their addresses, and an OpenAI client: as processes."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.engines.openai import prompt_tokens
from tests.gateway import CHAT, Client
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(240)

CLIENTS = 64
"""Of the load test."""


class EngineProcess:
    """`lab.engines.openai_engine`, at one port all its life."""

    def __init__(self, name: str, *options: str) -> None:
        self.name = name
        self.port = 0
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "lab.engines.openai_engine", str(self.port), self.name]
        self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


@contextmanager
def engines(count: int, *options: str) -> Iterator[list[EngineProcess]]:
    found = [EngineProcess(f"e{number}", *options) for number in range(count)]
    try:
        yield found
    finally:
        for one in found:
            one.kill()


def gateway_port(service: Service) -> int:
    """Where the gateway of the last start listens."""
    found = re.findall(r"The gateway listens on http://127.0.0.1:(\d+)", service.whole_log())
    return int(found[-1])


def up(directory: Path, found: list[EngineProcess]) -> Service:
    named = [part for one in found for part in ("--engine", one.url)]
    return Service(directory / "data", "--gateway", ":0", *named)


def until_enrolled(service: Service) -> None:
    def states() -> set[str]:
        return {one["state"] for one in service.get("/gateway")[1]["engines"]}

    until(lambda: states() == {"followed"}, what="engines that are followed")
    until(lambda: asyncio.run(_health(service)) == 200, what="engines in the table")


def are_connected(service: Service) -> bool:
    """Whether there is a link to each engine, without which it is no candidate."""
    return all(one["Connected"] for one in service.get("/services")[1]["services"])


async def _health(service: Service) -> int:
    return (await Client(gateway_port(service)).get("/health")).status


def turn(*words: str) -> dict[str, Any]:
    """A request of a conversation."""
    messages = [{"role": "user", "content": f"{word} " * 100} for word in words]
    return {"model": "m", "messages": messages, "max_tokens": 4}


def held(service: Service, found: list[EngineProcess], name: str, engine: str) -> bool:
    """Whether the index knows that an engine holds the first turn of a conversation."""
    tokens = list(prompt_tokens(turn(name)))
    url = next(one.url for one in found if one.name == engine)
    return service.longest(tokens, url.removeprefix("http://")) > 0


@pytest.mark.smoke
def test_turns_of_a_conversation_go_back_to_their_cache(tmp_path: Path) -> None:
    with engines(2, "--events") as found, up(tmp_path, found) as service:
        until_enrolled(service)

        async def talk() -> None:
            client = Client(gateway_port(service))
            for name in ("alpha", "beta", "gamma", "delta"):
                first = await client.post(turn(name))
                assert first.status == 200, first
                engine = first.document["engine"]
                for words in ((name, "one"), (name, "one", "two")):
                    until(partial(held, service, found, name, engine), what="events")
                    got = await client.post(turn(*words) | {"stream": True})
                    assert f'"engine": "{engine}"' in got.events[0]
                    assert got.header("reprise-state") in ("exact", "unconfirmed")
                    assert got.header("reprise-by-load") is None
                    name_of_it = got.header("reprise-decision")
                    [decision] = await decisions(name_of_it)
                    outcome = decision["outcome"]
                    assert outcome["event"] == "completed"
                    assert outcome["cached_tokens"] >= decision["promised_tokens"] > 0
                    assert outcome["output_tokens"] == 4

        async def decisions(name: str | None) -> list[dict[str, Any]]:
            status, document = service.get(f"/decisions/{name}")
            assert status == 200
            return [document]

        asyncio.run(talk())
        assert service.metric("reprise_gateway_failures_total") == 0
        # What the log has, which trails what was told by a window.
        until(lambda: service.get("/routing")[1]["under_way"] == 0, what="no booking is left")


@pytest.mark.faults
def test_gateway_that_is_killed_comes_back_with_its_index(tmp_path: Path) -> None:
    with engines(2, "--events") as found, up(tmp_path, found) as service:
        until_enrolled(service)
        first = asyncio.run(Client(gateway_port(service)).post(turn("alpha")))
        engine = first.document["engine"]
        until(partial(held, service, found, "alpha", engine), what="events")
        service.restart()
        until_enrolled(service)
        until(lambda: are_connected(service), what="links to the engines")
        got = asyncio.run(Client(gateway_port(service)).post(turn("alpha", "beta")))
        assert got.document["engine"] == engine
        assert got.document["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.faults
def test_engines_that_end_or_stand_still_under_load_cost_no_request(tmp_path: Path) -> None:
    """The load test in short: `tests/fuzz/test_gateway_load.py` has the long one."""
    with engines(3, "--events", "--token-s", "0.002") as found, up(tmp_path, found) as service:
        until_enrolled(service)
        outcomes = asyncio.run(loaded(service, found, seconds=12.0, every_s=4.0, how=""))
        assert outcomes["failed"] == 0, outcomes
        assert outcomes["whole"] > CLIENTS
        until(lambda: service.get("/routing")[1]["under_way"] == 0, what="no booking is left")
        assert service.get("/gateway")[1]["under_way"] == 0
        assert not service.first_traceback()


async def loaded(
    service: Service, found: list[EngineProcess], *, seconds: float, every_s: float, how: str
) -> Counter[str]:
    """64 clients, and an engine that ends again and again, or every other time stands still if none
    of both is named; what became of requests.
    """
    client = Client(gateway_port(service))
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + seconds

    async def ask(number: int) -> None:
        turns = 0
        while time.monotonic() < end:
            turns += 1
            user = f"u-{number}-{turns}"
            body = turn(f"c{number}", *map(str, range(turns % 4))) | {"user": user}
            got = await client.post(body | {"stream": bool(turns % 2)}, CHAT)
            outcomes[judged(got, user)] += 1

    async def end_engines() -> None:
        number = 0
        while True:
            await asyncio.sleep(every_s / 2)
            engine = found[number % len(found)]
            number += 1
            if how == "kill" or not (how or number % 2):
                await asyncio.to_thread(engine.kill)
                await asyncio.sleep(every_s / 2)
                await asyncio.to_thread(engine.start)
            else:
                engine.signal(signal.SIGSTOP)
                await asyncio.sleep(every_s / 2)
                engine.signal(signal.SIGCONT)

    ending = asyncio.create_task(end_engines())
    await asyncio.gather(*map(ask, range(CLIENTS)))
    ending.cancel()
    for engine in found:
        engine.signal(signal.SIGCONT)
    return outcomes


def judged(got: Any, user: str) -> str:
    """What a client got, in a word: a stream that breaks off behind its first byte is no failure of
    the gateway.
    """
    if got.status != 200:
        return "failed"
    assert user in got.body.decode(), "its own answer"
    if not got.is_whole:
        assert b"broken_off" in got.body
        return "broken_off"
    return "whole"
