"""One command before two real vLLM servers: conversations of an OpenAI client go back to their
caches, what was promised is what was found, and an engine that is killed costs no request.

Skipped where no engine is installed: `make engines`, or REPRISE_VLLM names the folder.
"""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.broker import free_ports
from devtools.engines import MissingEnginesError, engines
from tests.contract.test_gateway_contract import gateway_port
from tests.gateway import Client, ClientAnswer
from tests.processes import Service, until
from tests.vllm import ADAPTER, BLOCK, MODEL, START_S, VllmEngine

pytestmark = pytest.mark.timeout(2 * START_S + 300)

WORDS = (Path(__file__).parents[2] / "docs" / "topics.md").read_text().split()
CONVERSATIONS = 10
TURNS = 4
AT_ONCE = 3


@pytest.fixture
def real(tmp_path: Path) -> Iterator[tuple[Service, list[VllmEngine]]]:
    installed = engines()
    try:
        installed.check()
    except MissingEnginesError as error:
        pytest.skip(str(error))
    options = (
        *("--enable-lora", "--max-lora-rank", "8"),
        *("--lora-modules", f"{ADAPTER}={installed.model / 'adapter'}"),
    )
    found = []
    try:
        for core in ("0", "1"):
            port, events, replay = free_ports(3)
            ports = (port, events, replay)
            found.append(VllmEngine(installed, tmp_path, ports, cores=core, options=options))
            found[-1].begin()
        for one in found:
            one.wait()
        named = [part for one in found for part in ("--engine", one.url)]
        with Service(tmp_path / "data", "--gateway", "0", *named) as service:
            until(lambda: _states(service) == {"followed"}, what="both engines", timeout_s=60)
            yield service, found
    finally:
        for one in found:
            one.end(signal.SIGKILL)


def _states(service: Service) -> set[str]:
    return {one["state"] for one in service.get("/gateway")[1]["engines"]}


class Talk:
    """Some conversations, and what came of their turns."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.client = Client(gateway_port(service))
        self.statuses: Counter[int] = Counter()
        self.tokens: Counter[str] = Counter()
        self.by_load = 0

    async def run(self, rng: random.Random) -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def one() -> None:
            async with places:
                await self._conversation(rng)

        await asyncio.gather(*(one() for _ in range(CONVERSATIONS)))

    async def _conversation(self, rng: random.Random) -> None:
        messages = [{"role": "system", "content": " ".join(rng.choices(WORDS, k=200))}]
        for turn in range(TURNS):
            messages.append({"role": "user", "content": " ".join(rng.choices(WORDS, k=20))})
            body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0}
            got = await self.client.post(body | {"stream": bool(turn % 2)})
            self.statuses[got.status] += 1
            if got.status != 200 or not got.is_whole:
                return
            messages.append({"role": "assistant", "content": _said(got)})
            self._count(got)

    def _count(self, got: ClientAnswer) -> None:
        if got.header("reprise-by-load"):
            self.by_load += 1
            return
        status, decision = self.service.get(f"/decisions/{got.header('reprise-decision')}")
        assert status == 200
        outcome = decision["outcome"]
        assert outcome["prompt_tokens"] == decision["prompt_tokens"], "as the engine counts them"
        self.tokens["promised"] += decision["promised_tokens"]
        self.tokens["found"] += outcome["cached_tokens"]
        self.tokens["prompt"] += outcome["prompt_tokens"]


def _said(got: ClientAnswer) -> str:
    if got.header("content-type") == "application/json":
        content: str = got.document["choices"][0]["message"]["content"]
        return content
    *events, last = got.events
    assert last == "[DONE]"
    choices = [json.loads(one)["choices"] for one in events]
    assert all(choices), "the event with nothing but usage is left out"
    return "".join(one[0]["delta"].get("content") or "" for one in choices)


async def _respond(talk: Talk, rng: random.Random) -> None:
    """A conversation by `/v1/responses`: its tokens are those that the engine counts, and each turn
    finds the last one in the cache.
    """
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    items: list[Any] = [{"role": "user", "content": " ".join(rng.choices(WORDS, k=200))}]
    known = []
    for turn in range(6):
        body = {"model": MODEL, "instructions": "Be terse", "input": items, "tools": tools}
        more = {"max_output_tokens": 8, "temperature": 0, "stream": bool(turn % 2)}
        got = await talk.client.post(body | more, "/v1/responses")
        assert (got.status, got.is_whole) == (200, True), got.body
        items.append({"type": "function_call", "call_id": f"c{turn}", "name": "f"})
        items[-1]["arguments"] = json.dumps({"x": turn})
        items.append({"type": "function_call_output", "call_id": f"c{turn}", "output": "7"})
        decided = talk.service.get(f"/decisions/{got.header('reprise-decision')}")[1]
        outcome = decided["outcome"]
        assert outcome["event"] == "completed"
        if got.header("reprise-by-load") is None:
            known.append(decided)
            assert outcome["prompt_tokens"] == decided["prompt_tokens"], "as the engine counts them"
    print(f"{len(known)} of 6 responses known")
    assert known
    last = known[-1]
    assert last["outcome"]["cached_tokens"] > last["prompt_tokens"] / 2
    assert abs(last["promised_tokens"] - last["outcome"]["cached_tokens"]) <= 2 * BLOCK


def test_conversations_before_real_engines(real: tuple[Service, list[VllmEngine]]) -> None:
    service, found = real
    talk = Talk(service)
    asyncio.run(talk.run(random.Random(7)))
    print(dict(talk.tokens), f"{talk.by_load} by load")
    assert talk.statuses == {200: CONVERSATIONS * TURNS}
    assert talk.by_load < CONVERSATIONS * TURNS / 2
    assert talk.tokens["found"] > talk.tokens["prompt"] / 4
    # What comes between the question and the engine's answer changes a block or two.
    assert abs(talk.tokens["promised"] - talk.tokens["found"]) < talk.tokens["prompt"] / 20

    listed = asyncio.run(talk.client.get("/v1/models")).document["data"]
    assert {one["id"] for one in listed} == {MODEL, ADAPTER}
    asked: dict[str, Any] = {"model": ADAPTER, "messages": [{"role": "user", "content": "x"}]}
    assert asyncio.run(talk.client.post(asked | {"max_tokens": 2})).status == 200
    asyncio.run(_respond(talk, random.Random(8)))
    refused = asyncio.run(talk.client.post({"model": MODEL, "messages": "no list"}))
    assert refused.status == 400
    assert refused.document["error"]["message"]

    found[0].end(signal.SIGKILL)
    after = Talk(service)
    asyncio.run(after.run(random.Random(8)))
    assert after.statuses == {200: CONVERSATIONS * TURNS}
    until(lambda: service.get("/routing")[1]["under_way"] == 0, what="no booking is left")
    assert not service.first_traceback()
