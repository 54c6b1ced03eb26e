"""What a decision expected, so that what came of it can teach: pure."""

from typing import Final

import msgspec

from routing.estimates.classes import ClassKey
from routing.estimates.estimates import ObservedOutcome
from routing.estimates.links import KV_BYTES_PER_TOKEN, LOAD, READ, TokenMove
from schemas.identities import Text
from schemas.routing_records import (
    CANCELLED,
    COMPLETED,
    FAILED,
    FIRST_TOKEN,
    CandidateRecord,
    CostModel,
    Decision,
    FeedbackReport,
    TokenCount,
)


class Expectation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a report of a decision is compared with.

    Attributes:
        class_name: of who computes it.
        decode_class: of who decodes.
        prior: what computing was set to take.
        expected_s: to the first token; `queue_s`: of that, waiting.
        loaded, read: tokens that were to come from the CPU tier, and from disk.
        kv_bytes: of a token; 0 where that is not known.
        running, kv_tokens: what the decoder had beside it.
    """

    model_name: Text
    class_name: Text
    decode_class: Text
    prior: CostModel
    expected_s: float
    queue_s: float
    loaded: TokenCount
    read: TokenCount
    kv_bytes: int
    running: int
    kv_tokens: int


def lesson_of(decision: Decision) -> Expectation | None:
    """That of a decision; None where nobody computes a prompt, or a fetch would spoil it."""
    if decision.chosen < 0 or not decision.costs:
        return None
    one: CandidateRecord = decision.candidates[decision.chosen]
    if one.fetch_from:
        return None
    return Expectation(
        decision.scope.model_name,
        decision.class_name or one.instance_id,
        decision.decode_class,
        decision.costs[0],
        decision.predicted_s,
        one.queue_s,
        max(one.cached - one.gpu, 0),
        max(one.disk - one.cpu, 0),
        decision.kv_bytes,
        decision.decode_running,
        decision.decode_kv_tokens,
    )


def observed_of(
    lesson: Expectation,
    outcome: FeedbackReport,
    *,
    tenant_id: str,
    prompt: int,
    cached: int,
    since_s: float,
    decode_s: float,
) -> ObservedOutcome:
    """A report as estimates take it.

    Args:
        outcome: the report; each time in it counts, so it must be told once.
        prompt: tokens, as the decision had them.
        cached: of these, those that were not to be computed.
        since_s: from the decision to the report.
        decode_s: from the first token to the report; 0 where that is not known.
    """
    key = ClassKey(tenant_id, lesson.model_name, lesson.class_name)
    if outcome.event in _USELESS:
        return ObservedOutcome(key, is_usable=False)
    is_first = outcome.event is FIRST_TOKEN
    ttft = outcome.ttft_s
    if ttft is None and is_first and since_s > 0.0:
        ttft = since_s
    prompt = prompt if outcome.prompt_tokens is None else outcome.prompt_tokens
    moves = ((LOAD, lesson.loaded), (READ, lesson.read))
    is_end = outcome.event is COMPLETED
    decoder = lesson.decode_class
    return ObservedOutcome(
        key,
        lesson.prior,
        prompt_tokens=prompt,
        cached_tokens=cached if outcome.cached_tokens is None else outcome.cached_tokens,
        expected_s=lesson.expected_s,
        expected_queue_s=lesson.queue_s,
        queue_s=outcome.queue_s,
        prefill_s=outcome.prefill_s,
        ttft_s=ttft,
        moves=tuple([TokenMove(path, tokens) for path, tokens in moves if tokens]),
        kv_bytes=lesson.kv_bytes or KV_BYTES_PER_TOKEN,
        output_tokens=outcome.output_tokens if is_end else None,
        decode_s=decode_s if is_end and decode_s > 0.0 else None,
        decode_key=ClassKey(tenant_id, lesson.model_name, decoder) if decoder else key,
        running=lesson.running,
        kv_tokens=lesson.kv_tokens,
        tbt_s=outcome.tbt_s,
    )


_USELESS: Final = frozenset({FAILED, CANCELLED})
