"""Who decodes, where a request asks for that: `phase` decode, or pair."""

from collections.abc import Sequence
from typing import NamedTuple

from routing.costs import UNLIMITED
from routing.decisions.live_load import TargetLoad
from routing.decisions.targets import KnownTarget
from routing.estimates.decode import DecodeTerms
from routing.interface import Candidate
from routing.policies.decide import DecisionResult
from routing.policies.decode_choice import (
    DecodeParameters,
    Decoder,
    DecodeRequest,
    is_separate,
    rank_decoders,
)
from routing.policies.refusal import Prediction, RefusalRule, refuse_at_arrival
from schemas.routing_records import Phase, Reason, Refusal

ROLES = ("combined", "decode")
"""Those who decode."""


class DecodeTask(NamedTuple):
    """What is to be decoded.

    Attributes:
        prompt_tokens, output_tokens: of it; the latter as they are expected.
        tbt_slo_s: 0 for none.
        priority: below 0 is refused first.
        tie: see `routing.interface.Request`.
    """

    phase: Phase
    prompt_tokens: int
    output_tokens: int
    tbt_slo_s: float
    priority: int
    tie: int


class DecodeCandidate(NamedTuple):
    """A candidate for decoding."""

    candidate: Candidate
    known: KnownTarget
    carried: TargetLoad
    terms: DecodeTerms
    role: str


class DecodePlacement(NamedTuple):
    """Who decodes.

    Attributes:
        place: index among the candidates, -1 for nobody.
        tbt_s: of each candidate that could, by index.
        is_separate: whether another one computes the prompt.
        refused: why nobody does.
        move_s: how long the caches are on their way.
    """

    place: int
    tbt_s: dict[int, float]
    is_separate: bool
    refused: Refusal = Refusal.NO
    move_s: float = 0.0


def choose_decoder(
    asked: DecodeTask, places: Sequence[DecodeCandidate], prefill: DecisionResult
) -> DecodePlacement:
    """The decoder of a request whose prompt is computed as `prefill` says. Cost O(n log n)."""
    computing = None
    prefill_s = 0.0
    if prefill.chosen >= 0:
        one = prefill.candidates[prefill.chosen]
        computing = (one.instance_id, one.dp_rank)
        prefill_s = one.prefill_s
    indices = {
        (place.candidate.instance_id, place.candidate.dp_rank): index
        for index, place in enumerate(places)
    }
    there = [one for one in places if one.role in ROLES and one.candidate.is_reachable]
    there = [one for one in there if not one.candidate.is_failing] or there
    decoders = [_decoder(place, computing) for place in there]
    if not decoders:
        return DecodePlacement(-1, {}, is_separate=False, refused=Refusal.NO_CANDIDATE)
    request = DecodeRequest(
        asked.prompt_tokens, asked.output_tokens, prefill_s, asked.tbt_slo_s, asked.tie
    )
    parameters = DecodeParameters()
    choices = rank_decoders(request, decoders, parameters)
    times = {
        indices[choice.decoder.instance_id, choice.decoder.dp_rank]: choice.tbt_s
        for choice in choices
    }
    best = choices[0]
    place = indices[best.decoder.instance_id, best.decoder.dp_rank]
    if best.reasons:
        late = Reason.SLO in best.reasons
        refused = Refusal.DECODE_PREDICTED if late else Refusal.OVERLOADED
        return DecodePlacement(-1, times, is_separate=False, refused=refused)
    prediction = Prediction(
        ttft_s=0.0,
        tbt_now_s=best.tbt_s,
        tbt_then_s=best.tbt_s,
        tbt_slo_s=asked.tbt_slo_s,
        priority=asked.priority,
        is_idle=best.decoder.running == 0,
    )
    refused = refuse_at_arrival(RefusalRule.PREDICT, prediction)
    if refused is not Refusal.NO:
        return DecodePlacement(-1, times, is_separate=False, refused=refused)
    apart = asked.phase is Phase.PAIR and computing is not None
    if apart:
        busy = prefill.candidates[prefill.chosen].queue_s
        apart = is_separate(request, best.decoder, parameters, busy)
    return DecodePlacement(place, times, is_separate=apart, move_s=best.move_s)


def _decoder(place: DecodeCandidate, computing: tuple[str, int] | None) -> Decoder:
    one, known = place.candidate, place.known
    sample = place.carried.sample
    running = place.carried.requests
    if sample is not None and sample.running is not None:
        running = max(running, sample.running)
    capacity = known.capacity_tokens
    if sample is not None and sample.kv_capacity_tokens:
        capacity = sample.kv_capacity_tokens
    return Decoder(
        one.instance_id,
        one.dp_rank,
        running,
        place.carried.kv_tokens,
        known.requests_max,
        capacity,
        one.cached,
        one.costs.fetch_tokens_per_s if one.costs is not None else UNLIMITED,
        (one.instance_id, one.dp_rank) == computing,
        terms=place.terms,
    )
