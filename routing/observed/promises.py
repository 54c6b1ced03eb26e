"""What a decision promised, what came of it, and where the tokens went that were computed anew.

Of a prompt of n tokens an instance was said to hold the first p, the best of all instances the
first h, and the engine found a of them in its cache. The n - a others were computed, and each of
them has one cause:

    index     max(p - a, 0): the index said that they were held, and the engine did not have them
    routing   max(h - max(p, a), 0): another instance than the one that was chosen held them
    workload  the rest, n - max(p, h, a): nobody was known to hold them

All are >= 0, and their sum is n - a, also where the engine had more than anybody was said to hold
(a > h): then nothing is lost to the index or to routing.

An engine computes the last block of a prompt whatever it holds, for the first token must come from
somewhere: p and h count up to the last whole block that begins before the prompt's last token. What
lies behind that is workload.

Tokens that are to be fetched from elsewhere are not promised: p is what the instance itself holds.
Where they come, a is larger; where they do not, they are lost to routing, `not_fetched` among it.
Tokens that only decisions said are held are promised as others are: `predicted` of what the index
lost. A request that was sent elsewhere than it was told has no promise: p = 0.
"""

from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from routing.bounds import DECISION_MARKS_MAX
from routing.sizes import MARK_SIZE, OBJECT_SIZE, target_bytes, text_bytes
from schemas.answer_states import AnswerState
from schemas.limits import QUERY_TOKENS_MAX
from schemas.routing_records import DecidedScope, Decision, FeedbackReport, PrefixMark, Target


class IndexCause(StrEnum):
    """Why the index said that an engine held what it did not: the state of its answer, mostly."""

    STALE = "stale"
    DEGRADED = "degraded"
    UNCONFIRMED = "unconfirmed"
    EVICTED = "evicted"
    """The answer was exact: the engine dropped it between the decision and the request."""
    PREDICTED = "predicted"
    """Only earlier decisions said that it was held."""


_CAUSES: Final = {
    AnswerState.STALE.value: IndexCause.STALE,
    AnswerState.DEGRADED.value: IndexCause.DEGRADED,
    AnswerState.EXACT.value: IndexCause.EVICTED,
}


class Promise(msgspec.Struct, array_like=True, gc=False):
    """A decision of which more is to be told.

    Attributes:
        time: when it was made, by the time of records.
        policy: with its parameters.
        target: who was chosen for the prompt.
        decode: who was chosen for decoding, or None.
        cause: what index losses are put down to.
        prompt: tokens.
        cached: tokens that the target was said to hold.
        predicted: of these, the last, which only decisions said it held.
        fetched: tokens behind them that it was to fetch.
        held: the most that anybody held.
        ttft_s: until the first token, as expected; 0 where nothing was.
        p90_s: its 90th percentile.
        marks: prefixes of the prompt, by rising depth; the first DECISION_MARKS_MAX of them.
        moved: whether it is known that it went elsewhere.
        has_cached, has_ttft: what was reported of it.
        has_begun: whether its first token was reported, or what came with it.
        gpu: of the cached ones, the first, which were on its GPU.
        test_s: a first token within so many seconds shows that what the engine found tests the
            index; 0 where nothing does: see `routing.observed.contradictions`.
        overdue: of the cached tokens, the first, of which its events have told, or should have.
        is_approximate, capacity_blocks: whether the target publishes no events; of its cache then,
            0 where that is not known.
    """

    run: int
    number: int
    time: float
    scope: DecidedScope
    policy: str
    target: Target
    decode: Target | None
    cause: IndexCause
    prompt: int
    cached: int
    predicted: int
    fetched: int
    held: int
    ttft_s: float
    p90_s: float
    marks: tuple[PrefixMark, ...]
    moved: bool = False
    has_cached: bool = False
    has_ttft: bool = False
    is_approximate: bool = False
    capacity_blocks: int = 0
    has_begun: bool = False
    gpu: int = 0
    test_s: float = 0.0
    overdue: int = 0

    @property
    def usable(self) -> int:
        """Tokens that an engine can take from its cache: all but the prompt's last block."""
        size = self.scope.block_size
        return max(self.prompt - 1, 0) // size * size

    @property
    def size_bytes(self) -> int:
        """That it takes, about; the same all its life."""
        names = text_bytes(*self.scope[:3], self.scope.additional_salt, self.policy)
        names += target_bytes(self.target) + target_bytes(self.decode)
        return OBJECT_SIZE + MARK_SIZE * len(self.marks) + names

    def note_place(self, outcome: FeedbackReport) -> bool:
        """Whether the outcome is the first to say that the request went elsewhere than told."""
        if self.moved or outcome.instance_id is None:
            return False
        rank = self.target.dp_rank if outcome.dp_rank is None else outcome.dp_rank
        place = self.target._replace(instance_id=outcome.instance_id, dp_rank=rank)
        self.moved = place not in (self.target, self.decode)
        return self.moved


def promise_of(run: int, time: float, decision: Decision) -> Promise | None:
    """What a decision promised; None where nobody was chosen to compute the prompt.

    A prompt that is longer than any may be counts as that long, so that sums fit 64 bits.
    """
    chosen, decode, candidates = decision.chosen, decision.decode, decision.candidates
    if not 0 <= chosen < len(candidates):
        return None
    one, apart = candidates[chosen], 0 <= decode < len(candidates) and decode != chosen
    prompt = min(decision.prompt_tokens, QUERY_TOKENS_MAX)
    cached = min(one.cached, prompt)
    return Promise(
        run,
        decision.number,
        time,
        decision.scope,
        decision.policy,
        decision.target(chosen),
        decision.target(decode) if apart else None,
        _CAUSES.get(decision.state, IndexCause.UNCONFIRMED),
        prompt,
        cached,
        min(one.predicted, cached),
        max(min(one.prefix, prompt) - cached, 0) if one.fetch_from else 0,
        min(max(decision.held, cached), prompt),
        decision.predicted_s,
        decision.predicted_s * decision.p90,
        decision.marks[:DECISION_MARKS_MAX],
        is_approximate=decision.is_approximate,
        capacity_blocks=decision.capacity_tokens // decision.scope.block_size,
        gpu=min(one.gpu, cached),
    )


class PromiseTokens(msgspec.Struct, frozen=True, gc=False):
    """What became of the prompt's tokens; all counts are of tokens.

    Attributes:
        promised: that the instance was said to hold, as far as an engine could use them.
        actual: that the engine found.
        predicted: of the promised ones, those that only decisions said were held.
        fetched: that were to be fetched, and came.
        unpromised: that the engine found though nobody had said so.
        workload, routing, index: of those that were computed, by cause.
        not_fetched: of `routing`, those that were to be fetched.
        not_predicted: of `index`, those that only decisions said were held.
    """

    prompt: int
    promised: int
    actual: int
    predicted: int
    fetched: int
    unpromised: int
    workload: int
    routing: int
    index: int
    not_fetched: int
    not_predicted: int


def kept(promise: Promise, cached: int) -> PromiseTokens:
    """What became of the tokens, where the engine says that so many of them were cached.

    See the module for the formulas.
    """
    prompt, usable = promise.prompt, promise.usable
    said, predicted, fetched = promise.cached, promise.predicted, promise.fetched
    if promise.moved:
        said = predicted = fetched = 0
    certain, promised = min(said - predicted, usable), min(said, usable)
    best = max(min(promise.held, usable), promised)
    to_fetch, actual = min(said + fetched, usable), min(cached, prompt)
    known = max(promised, actual)
    routing = max(best - known, 0)
    index = max(promised - actual, 0)
    return PromiseTokens(
        prompt,
        promised,
        actual,
        promised - certain,
        max(min(actual, to_fetch) - promised, 0),
        max(actual - max(promised, to_fetch), 0),
        prompt - actual - index - routing,
        routing,
        index,
        max(min(to_fetch, best) - known, 0),
        max(promised - max(actual, certain), 0),
    )


def bucket(bounds: Sequence[float], value: float) -> int:
    """The first bucket whose bound the value does not exceed; len(bounds) for none of them."""
    return bisect_left(bounds, value)
