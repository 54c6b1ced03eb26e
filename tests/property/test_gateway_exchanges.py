"""Whatever engines and clients do: none is answered twice, none is lost that could be answered, and
nothing is booked or kept in the end.

One engine of three works; the others do at each request what a seed says, are killed and come back.
Clients leave when the seed says so, before the first byte and behind it.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.gateway import BROKEN_DEEDS, ClientAnswer, Deed, World, world

REQUESTS = 60
CLIENTS = 6
DEEDS = (
    *BROKEN_DEEDS,
    Deed.ANSWER,
    Deed.BUSY,
    Deed.ERROR_503,
    Deed.EARLY_HINTS,
    Deed.SLOW_HEAD,
    Deed.HALF_STREAM,
)
GOOD = "good"


@pytest.mark.parametrize("seed", range(8))
def test_engines_that_fail_at_every_point(seed: int) -> None:
    asyncio.run(_run(random.Random(seed)))


async def _run(rng: random.Random) -> None:
    async with world(silence_s=1.0) as found:
        for name in ("bad-1", GOOD, "bad-2"):
            await found.add(name)
        kills = asyncio.create_task(_kill(found, random.Random(rng.random())))
        outcomes: Counter[str] = Counter()
        numbers = iter(range(REQUESTS))
        clients = [_ask(found, rng, numbers, outcomes) for _ in range(CLIENTS)]
        await asyncio.gather(*clients)
        kills.cancel()
        await found.until_quiet()
        assert outcomes.total() == REQUESTS
        assert outcomes["whole"] > 0
        answered = found.gateway.endpoint.answered
        assert sum(answered.values()) + outcomes["left_unseen"] >= REQUESTS
        assert sum(count for (_, status), count in answered.items() if status >= 500) == 0
        assert found.gateway.endpoint.faults == 0
        assert found.gateway.placer.faults == 0


async def _kill(found: World, rng: random.Random) -> None:
    """One of the bad ones, again and again."""
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.2))
        engine = found.engines[rng.choice(("bad-1", "bad-2"))]
        await engine.kill()
        await asyncio.sleep(rng.uniform(0, 0.1))
        await engine.start()


async def _ask(
    found: World, rng: random.Random, numbers: Iterator[int], outcomes: Counter[str]
) -> None:
    for number in numbers:
        for name in ("bad-1", "bad-2"):
            found.engines[name].deeds.append(rng.choice(DEEDS))
        is_stream, leaves = rng.random() < 0.5, rng.random() < 0.1
        body = {"model": "m", "messages": [], "user": f"u-{number}", "stream": is_stream}
        answer = await found.client.post(
            body,
            leaves_after_s=rng.uniform(0, 0.01) if leaves else None,
        )
        outcomes[_judged(answer, f"u-{number}", leaves)] += 1


def _judged(answer: ClientAnswer, user: str, left: bool) -> str:
    """What a client got, in a word; fails where it is what nobody may get."""
    if left:
        return "left_unseen"
    assert answer.status == 200, answer
    if answer.header("content-type") == "application/json":
        assert answer.is_whole, answer
        assert json.loads(answer.body)["echo"] == user
        return "whole"
    events = [json.loads(one) for one in answer.events if one != "[DONE]"]
    if answer.is_whole:
        assert answer.events[-1] == "[DONE]"
        assert len({one["engine"] for one in events}) == 1, "by one engine"
        assert {one["echo"] for one in events} == {user}
        words = [one["choices"][0]["delta"]["content"] for one in events]
        assert words == ["w0", "w1", "w2", "w3"]
        return "whole"
    assert "error" in events[-1], "who reads events alone is told, too"
    return "broken_off"
