"""People that talk to a model by OpenAI's API: a turn has the answers that came before it.

A conversation begins when its time has come. Its next turn is asked for some time after the answer
to the last one, so it waits where answers are late, as people do.
"""

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import aiohttp

from lab.benchmarks.gateways.clients import (
    CHAT_PATH,
    AnsweredChat,
    AnsweredChats,
    answered_chat,
    until_answered,
)

TALK_S: Final = 120.0  # until an answer is whole


class Talks(NamedTuple):
    """What is talked about.

    Attributes:
        system_prompts: one of which a conversation begins with; of words.
        conversations: in all; they begin at random, `per_s` of them a second.
        turns: of each.
        user_words: of each turn.
        answer_tokens: of each answer.
        think_s: from an answer to the next turn.
    """

    system_prompts: Sequence[str]
    conversations: int
    per_s: float
    turns: int
    user_words: int
    answer_tokens: int
    think_s: float


class Talking:
    """All conversations of one seed, at one address.

    Attributes:
        words: that users say.
        model: that they ask.
    """

    def __init__(self, talks: Talks, words: Sequence[str], model: str, url: str) -> None:
        self.words = words
        self.model = model
        self._talks = talks
        self._url = url
        self._start = 0.0
        self._found: list[AnsweredChat] = []

    async def run(self, seed: int) -> AnsweredChats:
        """Returns when the last turn has its answer, or none."""
        chance = random.Random(seed)
        limit = aiohttp.ClientTimeout(total=TALK_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self._url, timeout=limit, connector=connector) as session:
            self._start, at_s, under_way = time.monotonic(), 0.0, []
            for _ in range(self._talks.conversations):
                at_s += chance.expovariate(self._talks.per_s)
                talk = self._talk(session, random.Random(chance.random()), at_s)
                under_way.append(asyncio.ensure_future(talk))
            await asyncio.gather(*under_way)
        return AnsweredChats(self._found, 0.0)

    async def _talk(
        self, session: aiohttp.ClientSession, chance: random.Random, at_s: float
    ) -> None:
        await asyncio.sleep(at_s)
        messages = [{"role": "system", "content": chance.choice(self._talks.system_prompts)}]
        for _ in range(self._talks.turns):
            said = " ".join(chance.choices(self.words, k=self._talks.user_words))
            messages.append({"role": "user", "content": said})
            text = await self._turn(session, messages)
            messages.append({"role": "assistant", "content": text})
            await asyncio.sleep(self._talks.think_s)

    async def _turn(self, session: aiohttp.ClientSession, messages: list[dict[str, str]]) -> str:
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": self._talks.answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, text = time.monotonic(), ""

        async def attempt() -> AnsweredChat:
            nonlocal text
            ttft_s, text = 0.0, ""
            usage: dict[str, Any] = {}
            async with session.post(CHAT_PATH, json=body) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    ttft_s = ttft_s or time.monotonic() - began
                    usage = event.get("usage") or usage
                    for choice in event.get("choices", ()):
                        text += choice["delta"].get("content") or ""
            return answered_chat(began - self._start, ttft_s, usage)

        self._found.append(await until_answered(attempt, began - self._start, TALK_S))
        return text
