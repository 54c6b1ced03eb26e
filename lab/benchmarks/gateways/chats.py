"""The chats that clients have: the conversations of `lab.benchmarks.embedded.conversations`, as
messages of words, and the answers that they got before.
"""

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from lab.benchmarks.embedded.conversations import PER_S, TRAFFIC, TURNS
from lab.engines import words
from lab.traffic.conversations import Conversations, Turn

MODEL: Final = "m"


class Chat(NamedTuple):
    """A request.

    Attributes:
        at_s: from the start.
    """

    at_s: float
    body: dict[str, Any]


def chats_of(seed: int, conversations: int) -> list[Chat]:
    """All turns of so many conversations; Poisson arrivals."""
    chance = random.Random(seed)
    talks = _Talks()
    found = []
    for turn in Conversations(seed, TRAFFIC):
        if turn.conversation < conversations:
            found.append(talks.body(turn))
        if len(found) == TURNS * conversations:
            break
    at_s = accumulate(chance.expovariate(PER_S) for _ in found)
    return [Chat(*one) for one in zip(at_s, found, strict=True)]


class _Talks:
    """What has been said in each conversation so far."""

    def __init__(self) -> None:
        self._said: dict[int, list[dict[str, str]]] = {}
        self._known: dict[int, int] = {}

    def body(self, turn: Turn) -> dict[str, Any]:
        """Of the request, whose answer is said then, too."""
        system, first = turn.prompt[: _SYSTEM[0]], turn.prompt[_SYSTEM[0] :]
        said = self._said.setdefault(turn.conversation, [_message("system", system)])
        known = self._known.get(turn.conversation)
        said.append(_message("user", first if known is None else turn.prompt[known:]))
        messages = list(said)
        answer = words.answer_of(words.chat_tokens(messages), len(turn.answer))
        said.append(_message("assistant", answer))
        self._known[turn.conversation] = len(turn.prompt) + len(turn.answer)
        return {"model": MODEL, "max_tokens": len(answer), "temperature": 0, "messages": messages}


_SYSTEM: Final = TRAFFIC.system_tokens


def _message(role: str, tokens: Sequence[int]) -> dict[str, str]:
    return {"role": role, "content": words.text_of(tokens)}
