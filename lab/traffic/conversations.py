"""A seeded source of multi-turn conversations, as prompts of token ids.

A conversation begins with one of a few system prompts and grows: each turn's prompt is the prompt
before it, the answer to that, and the user's new words. Many are open at once. Which system prompt
a new conversation takes, and which open conversation speaks next, follow Zipf's law: a few are
popular. The same seed gives the same turns, whoever runs them.
"""

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the traffic; lengths are in tokens, ranges include both ends.

    Attributes:
        system_tokens: length of each system prompt, the most popular first.
        open_max: conversations that are open at once.
        prompt_tokens_max: a conversation ends before its prompt would be longer.
        zipf: exponent of popularity; 0 makes all equal.
        vocabulary: token ids are below it.
        rest: a conversation that spoke leaves so many turns to others: its next turn quotes the
            answer, which takes time to come. Fewer than are open.
    """

    system_tokens: tuple[int, ...] = (128, 256, 192, 160, 320, 96, 224, 288)
    user_tokens: tuple[int, int] = (40, 240)
    answer_tokens: tuple[int, int] = (80, 400)
    turns: tuple[int, int] = (3, 14)
    open_max: int = 64
    prompt_tokens_max: int = 4096
    zipf: float = 0.8
    vocabulary: int = 32_000
    rest: int = 0


class Turn(NamedTuple):
    """One request: what is asked, and what the model is going to answer."""

    conversation: int
    prompt: Sequence[int]
    answer: Sequence[int]


class _Conversation:
    """One open conversation. `history` is what the next prompt extends."""

    def __init__(self, number: int, system_prompt: list[int], turns_left: int) -> None:
        self.number = number
        self.history = system_prompt
        self.turns_left = turns_left


class Conversations:
    """Draws turns for ever; not for use from several threads at once."""

    def __init__(self, seed: int, traffic: Traffic | None = None) -> None:
        self.traffic = Traffic() if traffic is None else traffic
        if min(self.traffic.system_tokens, default=0) < 1 or self.traffic.open_max < 1:
            raise ValueError(f"Expected system prompts and open conversations: {self.traffic}")
        if not 0 <= self.traffic.rest < self.traffic.open_max:
            raise ValueError(f"Expected fewer that rest than are open: {self.traffic}")
        self._random = random.Random(seed)
        self._numbers = itertools.count()
        self.system_prompts = [self._tokens((n, n)) for n in self.traffic.system_tokens]
        self._prompt_weights = self._zipf_weights(len(self.system_prompts))
        self._open = [self._begin() for _ in range(self.traffic.open_max)]
        self._speaker_weights = self._zipf_weights(len(self._open))
        self._resting: deque[int] = deque(maxlen=self.traffic.rest)

    def __iter__(self) -> Iterator[Turn]:
        return self

    def __next__(self) -> Turn:
        place = self._speaker()
        while place in self._resting:
            place = self._speaker()
        self._resting.append(place)
        user = self._tokens(self.traffic.user_tokens)
        answer = self._tokens(self.traffic.answer_tokens)
        speaker = self._open[place]
        grown = len(speaker.history) + len(user) > self.traffic.prompt_tokens_max
        if speaker.turns_left == 0 or grown:
            speaker = self._open[place] = self._begin()
        prompt = (speaker.history + user)[: self.traffic.prompt_tokens_max]
        speaker.history = prompt + answer
        speaker.turns_left -= 1
        return Turn(speaker.number, prompt, answer)

    def _speaker(self) -> int:
        return self._random.choices(range(len(self._open)), cum_weights=self._speaker_weights)[0]

    def _begin(self) -> _Conversation:
        system_prompt = self._random.choices(self.system_prompts, cum_weights=self._prompt_weights)[
            0
        ]
        turns = self._random.randint(*self.traffic.turns)
        return _Conversation(next(self._numbers), system_prompt, turns)

    def _tokens(self, length: tuple[int, int]) -> list[int]:
        count = self._random.randint(*length)
        return self._random.choices(range(self.traffic.vocabulary), k=count)

    def _zipf_weights(self, count: int) -> list[float]:
        weights = (1 / rank**self.traffic.zipf for rank in range(1, count + 1))
        return list(itertools.accumulate(weights))
