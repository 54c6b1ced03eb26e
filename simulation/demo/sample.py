"""A prompt for people to ask with: one of those that were sent of late, of which engines hold
different parts.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from simulation.traffic.conversations import Conversations, Turn
from simulation.traffic.index_client import InstanceMatch

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


def curl_command(
    base_url: str, prompt: list[int], *, model: str, block_size: int, key: bool
) -> str:
    """The query as people paste it; where a key is asked for, it is in $KEY."""
    body = {"model": model, "block_size": block_size, "token_ids": prompt}
    text = json.dumps(body, separators=(",", ":"))
    header = ' -H "Authorization: Bearer $KEY"' if key else ""
    return f"curl -s {base_url}/query{header} -H 'Content-Type: application/json' -d '{text}'"
