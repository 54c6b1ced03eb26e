"""Which engine gets a request: cached share less load, among those that are not overloaded.

    score = alpha * cached tokens / prompt tokens + beta * (1 - load)

Longest prefix alone does not do: a prefix that every prompt shares (a system prompt) would send
everything to whoever computed it first. So a target whose recent work is more than `overload` times
the average is excluded, and load weighs among the others.

Work is counted in tokens that the target had to compute, and fades with each request that is
routed, not with time: the same requests give the same choices.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec


class Target(NamedTuple):
    """What a request can be sent to: a data-parallel rank of an engine."""

    instance_id: str
    dp_rank: int


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """The score's parameters.

    Attributes:
        alpha: weight of the cached share.
        beta: weight of being idle.
        overload: a target with more than this multiple of the average work is excluded.
        fade: the part of its work that a target is still charged with after one more request.
    """

    alpha: float = 1.0
    beta: float = 0.3
    overload: float = 1.5
    fade: float = 0.98


class Scorer:
    """Remembers the recent work of each target, and chooses."""

    def __init__(self, targets: Sequence[Target], weights: Weights | None = None) -> None:
        if not targets:
            raise ValueError("Expected at least one target")
        self.weights = Weights() if weights is None else weights
        if self.weights.overload < 1:
            raise ValueError(f"Expected overload of 1 or more, got: {self.weights.overload}")
        self._work = dict.fromkeys(targets, 0.0)

    def choose(self, cached_tokens: Mapping[Target, int], prompt_tokens: int) -> Target:
        """The target of the highest score; of equals the one with least work, then the first."""
        admitted = self._not_overloaded()
        return max(
            admitted,
            key=lambda target: (
                self.score(target, cached_tokens.get(target, 0), prompt_tokens),
                -self._work[target],
            ),
        )

    def score(self, target: Target, cached_tokens: int, prompt_tokens: int) -> float:
        """The score, whether the target is overloaded or not."""
        share = cached_tokens / prompt_tokens if prompt_tokens else 0.0
        return self.weights.alpha * share + self.weights.beta * (1 - self._load(target))

    def record(self, target: Target, computed_tokens: int) -> None:
        """A request was sent to `target`, which had to compute this many tokens."""
        for charged in self._work:
            self._work[charged] *= self.weights.fade
        self._work[target] += computed_tokens

    def _load(self, target: Target) -> float:
        """Work as a share of the busiest target's, 0..1."""
        busiest = max(self._work.values())
        return self._work[target] / busiest if busiest else 0.0

    def _not_overloaded(self) -> list[Target]:
        limit = self.weights.overload * sum(self._work.values()) / len(self._work)
        return [target for target, work in self._work.items() if work <= limit or not limit]
