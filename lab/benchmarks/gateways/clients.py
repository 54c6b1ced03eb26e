"""Clients of OpenAI's API: requests at given times to one address, and what came of each.

Times are kept whatever becomes of earlier requests. What OpenAI's client sends again by itself is
sent again here: a request that finds nobody at the address, or is told to come later (429, 503).
One that was broken off has failed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import fmean
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from lab.benchmarks.gateways.chats import Chat
from lab.benchmarks.report.figures import percentile

ANSWER_S: Final = 60.0
AGAIN_S: Final = 0.05  # how often an address is tried where nobody is
LATER_S: Final = 0.5  # before a request is sent again that is told to come later, and not when
LATER: Final = (429, 503)
BROKEN_OFF: Final = "broken off"
"""How the problem begins of a request that was under way."""

CHAT_PATH: Final = "/v1/chat/completions"


class AnsweredChat(NamedTuple):
    """What came of a request.

    Attributes:
        at_s: when it was sent, from the start.
        ttft_s: until the first of its answer, as the client saw it.
        problem: why it has no answer, or "".
        refused: how often nobody was at the address, or it was told to come later.
    """

    at_s: float
    ttft_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    problem: str = ""
    refused: int = 0


class AnsweredChats(NamedTuple):
    """What came of all requests of a run.

    Attributes:
        late_s: by how much one was sent late at the most.
    """

    chats: Sequence[AnsweredChat]
    late_s: float

    @property
    def answered(self) -> list[AnsweredChat]:
        """Those that have an answer."""
        return [one for one in self.chats if not one.problem]

    @property
    def failed(self) -> int:
        """How many have none."""
        return len(self.chats) - len(self.answered)

    @property
    def cached(self) -> float:
        """Share of the prompts' tokens that engines had cached, by their own word."""
        return cached_share(self.answered)

    @property
    def mean_s(self) -> float:
        """Until the first token."""
        return fmean(one.ttft_s for one in self.answered)

    def ttft_s(self, percent: float) -> float:
        """A percentile of the same."""
        return percentile([one.ttft_s for one in self.answered], percent)


def cached_share(chats: Sequence[AnsweredChat]) -> float:
    """See `AnsweredChats.cached`."""
    prompts = sum(one.prompt_tokens for one in chats)
    return sum(one.cached_tokens for one in chats) / prompts if prompts else 0.0


class Interruption(NamedTuple):
    """What happens in the middle.

    Attributes:
        before: the number of the request before which it happens; requests go on meanwhile.
    """

    before: int
    happen: Callable[[], Awaitable[None]]


async def ask(
    url: str, chats: Sequence[Chat], interruption: Interruption | None = None
) -> AnsweredChats:
    """Sends all of them, and returns when each has its answer, or none."""
    limit = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=limit, connector=connector) as session:
        under_way = []
        happening = None
        late_s, start = 0.0, time.monotonic()
        for number, chat in enumerate(chats):
            body = msgspec.json.encode(chat.body)
            await asyncio.sleep(max(start + chat.at_s - time.monotonic(), 0.0))
            late_s = max(late_s, time.monotonic() - start - chat.at_s)
            if interruption is not None and number == interruption.before:
                happening = asyncio.ensure_future(interruption.happen())
            under_way.append(asyncio.ensure_future(_asked(session, body, start)))
        found = await asyncio.gather(*under_way)
        if happening is not None:
            await happening
    return AnsweredChats(found, late_s)


async def _asked(session: aiohttp.ClientSession, body: bytes, start: float) -> AnsweredChat:
    began = time.monotonic()

    async def attempt() -> AnsweredChat:
        headers = {"content-type": "application/json"}
        async with session.post(CHAT_PATH, data=body, headers=headers) as answer:
            answer.raise_for_status()
            first = await answer.content.readany()
            ttft_s = time.monotonic() - began
            content = first + await answer.content.read()
        usage = msgspec.json.decode(content)["usage"]
        return answered_chat(began - start, ttft_s, usage)

    return await until_answered(attempt, began - start, ANSWER_S)


async def until_answered(
    attempt: Callable[[], Awaitable[AnsweredChat]], at_s: float, wait_s: float
) -> AnsweredChat:
    """What comes of a request that is sent again as the module says, so long at the most."""
    began, refused = time.monotonic(), 0

    def failed(problem: str) -> AnsweredChat:
        return AnsweredChat(at_s, 0.0, problem=problem, refused=refused)

    while True:
        pause_s = AGAIN_S
        try:
            return (await attempt())._replace(refused=refused)
        except aiohttp.ClientConnectorError:
            problem = "nobody is there"
        except aiohttp.ClientResponseError as error:
            problem = f"{error.status} {error.message}"
            if error.status not in LATER:
                return failed(problem)
            after = error.headers.get("retry-after") if error.headers else None
            pause_s = float(after) if after else LATER_S
        except (aiohttp.ClientError, TimeoutError) as error:
            return failed(f"{BROKEN_OFF}: {type(error).__name__}: {error}")
        if time.monotonic() + pause_s > began + wait_s:
            return failed(problem)
        refused += 1
        await asyncio.sleep(pause_s)


def answered_chat(at_s: float, ttft_s: float, usage: dict[str, Any]) -> AnsweredChat:
    """Of an answer that has said what it took; one that has not was broken off."""
    if not usage:
        return AnsweredChat(at_s, 0.0, problem=f"{BROKEN_OFF}: the answer has no end")
    details = usage.get("prompt_tokens_details") or {}
    return AnsweredChat(at_s, ttft_s, usage["prompt_tokens"], details.get("cached_tokens") or 0)
