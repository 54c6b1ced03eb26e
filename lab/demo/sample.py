"""A prompt for people to ask with: one of those that were sent of late, of which engines hold
different parts.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from lab.traffic.conversations import Conversations, Turn
from lab.traffic.index_client import IndexClient, InstanceMatch, ServiceError

PROMPTS_REMEMBERED_MAX: Final = 64
PROMPTS_ASKED_MAX: Final = 4


class Sampler:
    """The turns of conversations, of which it remembers the last prompts."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations
        self._prompts: deque[list[int]] = deque(maxlen=PROMPTS_REMEMBERED_MAX)

    def __iter__(self) -> Iterator[Turn]:
        return self

    def __next__(self) -> Turn:
        turn = next(self._conversations)
        self._prompts.append(list(turn.prompt))
        return turn

    def choose(self, query: Callable[[list[int]], Mapping[str, InstanceMatch]]) -> list[int] | None:
        """A short prompt of which engines hold different parts; None where there is none yet. Costs
        up to PROMPTS_ASKED_MAX queries.
        """
        for prompt in sorted(self._prompts, key=len)[:PROMPTS_ASKED_MAX]:
            held = [match.longest_matched for match in query(prompt).values()]
            if held and max(held) > min(held):
                return prompt
        return None


class QueryCommand(NamedTuple):
    """How people ask.

    Attributes:
        base_url: where.
        key: whether a key is asked for, which is in $KEY then.
        read_key: how people read the key into that, where it is to be said; else "".
    """

    base_url: str
    model: str
    block_size: int
    key: bool = False
    read_key: str = ""

    def command(self, prompt: list[int]) -> str:
        """The query as people paste it; $TOKENS is for their next ones."""
        body = {"model": self.model, "block_size": self.block_size, "token_ids": ["'$TOKENS'"]}
        text = json.dumps(body, separators=(",", ":"))
        text = text.replace("\"'$TOKENS'\"", "'$TOKENS'")
        header = ' -H "Authorization: Bearer $KEY"' if self.key else ""
        return (
            f"TOKENS={','.join(map(str, prompt))}; curl -s {self.base_url}/query{header}"
            f" -H 'Content-Type: application/json' -d '{text}'"
        )


def say_sample(
    say: Callable[[str], None], sampler: Sampler, index: IndexClient, asked: QueryCommand
) -> list[int] | None:
    """Says a query that can be pasted, where there is one that shows something by now.

    Returns:
        Its prompt; None where nothing was said.
    """
    try:
        prompt = sampler.choose(
            partial(index.query, model=asked.model, block_size=asked.block_size)
        )
    except (OSError, ServiceError):
        return None
    if prompt is None:
        return None
    prompt = prompt[: len(prompt) // asked.block_size * asked.block_size]  # engines hold no more
    say(f"Try it: which engine holds how much of this prompt of {len(prompt)} tokens?")
    if asked.read_key:
        say(asked.read_key)
    say(asked.command(prompt))
    return prompt
