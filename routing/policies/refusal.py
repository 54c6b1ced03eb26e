"""Whether a request is refused because its objectives would not be met; pure.

The load of a side is what is predicted for the best instance over the objective; above 1 it is too
high. (Where it was published, in arXiv 2407.00079, the worst instance counts; there all are alike.)

    now       at arrival by the prefill side; when the prompt has been computed, by the decode side:
              what was computed is lost
    early     at arrival by both sides, as they are. Today's decode load says nothing of the time at
              which this prompt will have been computed, so the two sides swing against each other
    predict   at arrival, the decode side as it will be then
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from routing.estimates.decode import DecodeTerms
from schemas.routing_records import Refusal

SHED_LOAD: Final = 0.8
"""Above it requests of a priority below 0 are refused."""


_LOOKS: Final = 5


class RefusalRule(StrEnum):
    """See the module."""

    NOW = "now"
    EARLY = "early"
    PREDICT = "predict"


class DecodingRequest(NamedTuple):
    """A request that is decoded: for how long already, and the tokens it holds."""

    age_s: float
    tokens: int


class PromptInProgress(NamedTuple):
    """A request whose prompt waits or is computed: when it will be done, and its tokens."""

    ends_in_s: float
    tokens: int


class Population(NamedTuple):
    """How many are decoded at a time, and the tokens that they hold: expected values."""

    requests: float
    tokens: float

    def tbt_s(self, terms: DecodeTerms, instances: int, prompt: int) -> float:
        """Seconds between two tokens, where they are spread evenly and one more is added."""
        count = max(instances, 1)
        return (
            terms.fixed_s
            + terms.request_s * (self.requests / count + 1)
            + terms.token_s * (self.tokens / count + prompt)
        )


def population_in(
    decoding: Sequence[DecodingRequest],
    computing: Sequence[PromptInProgress],
    in_s: float,
    decode_s: float,
) -> Population:
    """Who will be decoded in so many seconds, where each decode takes the mean.

    Those end that will have been decoded for that long, and those come whose prompts will have been
    computed. Who is decoded for longer already is one of the long ones, of which as many end in any
    second: without this rule all of them would count as ended at once. Cost O(both).

    Args:
        decoding: now.
        computing: prompts that wait or are computed now.
        in_s: when.
        decode_s: the mean of all decodes; positive.
    """
    requests = tokens = 0.0
    stay = max(1.0 - in_s / decode_s, 0.0)
    for one in decoding:
        if one.age_s >= decode_s:
            requests += stay
            tokens += stay * one.tokens
        elif one.age_s + in_s < decode_s:
            requests += 1.0
            tokens += one.tokens
    for coming in computing:
        if coming.ends_in_s <= in_s < coming.ends_in_s + decode_s:
            requests += 1.0
            tokens += coming.tokens
    return Population(requests, tokens)


def decode_time_s(mean_s: float, output_tokens: float, tbt_slo_s: float) -> float:
    """How long a decode will take: the mean of the last ones, and no less than an output of mean
    length takes at the objective. Whether to refuse is asked where decoding is about as slow as
    that; the mean is still of quicker times when load rises.
    """
    return max(mean_s, output_tokens * tbt_slo_s)


def times_ahead(computing: Sequence[PromptInProgress], in_s: float, decode_s: float) -> list[float]:
    """At which times a request that comes in so many seconds needs room: then, and up to when the
    last prompt will have been computed that was there before it; at most for as long as it is
    decoded itself. A short prompt would take, otherwise, the room of a long one that came first.
    """
    last = max([in_s, *(one.ends_in_s for one in computing)])
    span = min(last, in_s + decode_s) - in_s
    return [in_s + span * look / (_LOOKS - 1) for look in range(_LOOKS)] if span else [in_s]


class Prediction(NamedTuple):
    """What a request would get from the best instances; an objective of 0 is none.

    Attributes:
        ttft_s, ttft_slo_s: to its first token.
        tbt_now_s: between two tokens, by what is decoded now.
        tbt_then_s: by what will be decoded when its prompt has been computed.
        tbt_slo_s: the objective of both.
        priority: below 0: is refused first.
        is_idle: whether an instance that can take it has nothing to do, or nothing cached: nobody
            else would be served better for its refusal.
    """

    ttft_s: float
    ttft_slo_s: float = 0.0
    tbt_now_s: float = 0.0
    tbt_then_s: float = 0.0
    tbt_slo_s: float = 0.0
    priority: int = 0
    is_idle: bool = False


def refuse_at_arrival(rule: RefusalRule, one: Prediction, decode_load: float = 1.0) -> Refusal:
    """Why it is refused when it comes; `Refusal.NO` where it is not.

    Args:
        rule: by what it is.
        one: what it would get.
        decode_load: above which it is refused for the decode side: below 1 there is room for what
            instances differ.
    """
    share = SHED_LOAD if one.priority < 0 and not one.is_idle else 1.0
    if _load(one.ttft_s, one.ttft_slo_s) > share:
        return Refusal.SLO_UNREACHABLE
    if rule is RefusalRule.NOW:
        return Refusal.NO
    tbt_s = one.tbt_now_s if rule is RefusalRule.EARLY else one.tbt_then_s
    is_full = _load(tbt_s, one.tbt_slo_s) > share * decode_load
    return Refusal.DECODE_PREDICTED if is_full else Refusal.NO


def is_refused_at_decoding(rule: RefusalRule, tbt_s: float, tbt_slo_s: float) -> bool:
    """Whether it is refused when its prompt has been computed, by what is decoded then."""
    return rule is RefusalRule.NOW and _load(tbt_s, tbt_slo_s) > 1.0


def _load(seconds: float, objective_s: float) -> float:
    return seconds / objective_s if objective_s else 0.0
