"""Answers of the routes of routing."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from query_api.unknown_scopes import ScopeMismatch
from routing.bounds import RETRY_AFTER_MAX_S
from routing.decisions.fetch_hint import KvHints
from routing.decisions.interface import RoutedDecision
from routing.decisions.live_load import TargetLoad
from routing.decisions.router import FeedbackCounts, Router
from routing.fold.failures import FailureState
from routing.policies.chunk_plan import ChunkPlan
from routing.policies.decide import DegradedPolicy
from routing.policies.table import policy_digest
from schemas.routing_records import CandidateRecord, Decision, Refusal, Target, decision_id

_REFUSALS: Final = {
    Refusal.NO_CANDIDATE: "no candidate is there",
    Refusal.OVERLOADED: "every candidate has more to do than it may",
    Refusal.SLO_UNREACHABLE: "no candidate is expected to meet the objective",
    Refusal.DECODE_PREDICTED: "no candidate is expected to decode in time when the prompt is done",
}
_HARMLESS: Final = frozenset({"degraded"})
_NONE: Final[frozenset[str]] = frozenset()


class TtftDocument(msgspec.Struct, frozen=True):
    """The time to the first token as it is expected, milliseconds, and what it is made of."""

    expected: float
    p90: float
    queue: float
    load: float
    transfer: float
    prefill: float


class FetchDocument(msgspec.Struct, frozen=True, rename={"source": "from"}):
    """What is to be fetched from another instance first; `kv_hints` is for the engine's request."""

    source: str
    tokens: int
    ms: float
    kv_hints: KvHints | None


class PrefillDocument(msgspec.Struct, frozen=True):
    """Who computes the prompt; tokens, of which `gpu`, `cpu` and `disk` are rising boundaries.

    `predicted_tokens` of the cached ones are not in the index: decisions say that it will hold
    them. `approximate` is true where nothing else is known of its cache.
    """

    instance_id: str
    dp_rank: int
    endpoint: str
    prompt_tokens: int
    cached_tokens: int
    predicted_tokens: int
    approximate: bool
    gpu: int
    cpu: int
    disk: int
    ttft_ms: TtftDocument
    fetch: FetchDocument | None


class DecodeDocument(msgspec.Struct, frozen=True):
    """Who decodes, where that is another one."""

    instance_id: str
    dp_rank: int
    endpoint: str
    tbt_ms: float


class IndexDocument(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the index was when it was asked.

    `unknown`, where it is there, says what of the request no engine has, and what there is instead:
    `block_size=16; known=32,64`.
    """

    position: str
    state: str
    unknown: str = ""


class CandidateDocument(msgspec.Struct, frozen=True):
    """A candidate: why it was left out, or what the policy made of it. `terms` in milliseconds."""

    instance_id: str
    dp_rank: int
    eligible: bool
    key: float | None
    cached_tokens: int
    terms: dict[str, float]
    reasons: tuple[str, ...]


class PlanNodeDocument(msgspec.Struct, frozen=True):
    """An instance that has a part of the layers; in the order of the stages."""

    instance_id: str
    dp_rank: int


class PlanDocument(msgspec.Struct, frozen=True):
    """How several instances would compute the prompt together, as a pipeline of chunks.

    `chunks` are where each ends, in tokens of the prompt; both times are to the first token.
    """

    reason: str
    nodes: tuple[PlanNodeDocument, ...]
    chunks: tuple[int, ...]
    expected_ttft_ms: float
    single_ttft_ms: float


class RouteDocument(msgspec.Struct, frozen=True):
    """Who gets the request."""

    decision_id: str
    request_id: str
    policy: str
    parameters: str
    prefill: PrefillDocument | None
    decode: DecodeDocument | None
    index: IndexDocument
    load_age_ms: float | None
    plan: PlanDocument | None
    advice: list[dict[str, Any]]
    candidates: list[CandidateDocument] | msgspec.UnsetType = msgspec.UNSET


class RefusalDocument(msgspec.Struct, frozen=True):
    """Why nobody gets it, and when it may be tried again."""

    error: str
    reason: str
    retry_after_ms: float | None
    best: CandidateDocument | None
    candidates: list[CandidateDocument]
    plan: PlanDocument | None = None


class FeedbackDocument(msgspec.Struct, frozen=True):
    """How many reports were new, had been made before, or are of no decision that is known."""

    accepted: int
    repeated: int
    unknown: int


class LoadDocument(msgspec.Struct, frozen=True):
    """How many samples were taken."""

    accepted: int


class FailingDocument(msgspec.Struct, frozen=True):
    """What a target is sent fails: since when it is left out, until when it is not even tried, and
    how often it was left out or tried. Unix seconds.
    """

    since: float
    until: float
    times: int


class TargetDocument(msgspec.Struct, frozen=True):
    """What a rank of an instance carries: what is booked there, and what was last said of it."""

    tenant_id: str
    instance_id: str
    dp_rank: int
    wait_ms: float
    requests: int
    decoding: int
    pending_tokens: int
    active_tokens: int
    kv_tokens: int
    waiting: int | None
    running: int | None
    kv_usage: float | None
    observed_at: float | None
    failing: FailingDocument | None


class RoutingDocument(msgspec.Struct, frozen=True):
    """What is under way. Position, digest and number are of the routing log, as far as it was
    folded; targets and counts are what this service decides by, its latest decisions included.
    """

    position: int
    digest: str
    under_way: int
    targets: list[TargetDocument]
    counts: dict[str, int]


def route_document(
    routed: RoutedDecision, *, explain: bool, unknown: ScopeMismatch | None = None
) -> RouteDocument:
    """The answer of a decision; `unknown` where nobody has what was asked for."""
    decision = routed.decision
    age = routed.load_age_s
    document = RouteDocument(
        decision_id(routed.run, decision.number),
        decision.request_id,
        decision.policy,
        policy_digest(decision.policy),
        _prefill(routed),
        _decode(routed),
        IndexDocument(decision.position, decision.state, "" if unknown is None else unknown.text),
        None if age is None else 1000.0 * age,
        _plan(routed.plan),
        [],
    )
    if explain:
        candidates = [candidate_document(one, decision) for one in decision.candidates]
        document = msgspec.structs.replace(document, candidates=candidates)
    return document


def _prefill(routed: RoutedDecision) -> PrefillDocument | None:
    decision = routed.decision
    if decision.chosen < 0:
        return None
    one = decision.candidates[decision.chosen]
    expected = 1000.0 * decision.predicted_s
    fetched = one.prefix - one.cached
    fetch = None
    if one.fetch_from and fetched > 0:
        fetch = FetchDocument(one.fetch_from, fetched, 1000.0 * one.transfer_s, routed.hint)
    return PrefillDocument(
        one.instance_id,
        one.dp_rank,
        routed.endpoints[decision.chosen],
        decision.prompt_tokens,
        one.prefix,
        one.predicted,
        decision.is_approximate,
        one.gpu,
        one.cpu,
        one.disk,
        TtftDocument(
            expected,
            expected * decision.p90,
            1000.0 * one.queue_s,
            1000.0 * one.load_s,
            1000.0 * one.transfer_s,
            1000.0 * one.prefill_s,
        ),
        fetch,
    )


def _decode(routed: RoutedDecision) -> DecodeDocument | None:
    decision = routed.decision
    if decision.decode < 0:
        return None
    one = decision.candidates[decision.decode]
    endpoint = routed.endpoints[decision.decode]
    return DecodeDocument(one.instance_id, one.dp_rank, endpoint, 1000.0 * one.tbt_s)


def candidate_document(one: CandidateRecord, decision: Decision) -> CandidateDocument:
    """One candidate of a decision."""
    harmless = _NONE if decision.degraded == DegradedPolicy.DROP else _HARMLESS
    left_out = not harmless.issuperset(one.reasons)
    terms = {
        "queue": 1000.0 * one.queue_s,
        "load": 1000.0 * one.load_s,
        "transfer": 1000.0 * one.transfer_s,
        "prefill": 1000.0 * one.prefill_s,
    }
    return CandidateDocument(
        one.instance_id,
        one.dp_rank,
        not left_out,
        None if left_out and "slo" not in one.reasons else one.key,
        one.cached,
        terms,
        one.reasons,
    )


def refusal_document(
    routed: RoutedDecision, unknown: ScopeMismatch | None = None
) -> RefusalDocument:
    """The answer of a decision that nobody is chosen by; `unknown` as in `route_document`."""
    decision = routed.decision
    candidates = [candidate_document(one, decision) for one in decision.candidates]
    keyed = [one for one in candidates if one.key is not None]
    best = min(keyed, key=lambda one: one.key or 0.0) if keyed else None
    after = None
    if decision.refused is not Refusal.NO_CANDIDATE:
        after = 1000.0 * routed.retry_after_s
    text = _REFUSALS[decision.refused]
    if unknown is not None:
        text += f": no engine has {unknown.text}"
    elif decision.refused is Refusal.NO_CANDIDATE:
        reasons = Counter(reason for one in candidates for reason in one.reasons)
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        text += f": of {len(candidates)} engines, {counts}" if counts else ": no engine fits"
    plan = _plan(routed.plan)
    return RefusalDocument(text, decision.refused.value, after, best, candidates, plan)


def _plan(plan: ChunkPlan | None) -> PlanDocument | None:
    if plan is None:
        return None
    return PlanDocument(
        plan.reason,
        tuple(PlanNodeDocument(one.instance_id, one.dp_rank) for one in plan.nodes),
        plan.chunks,
        1000.0 * plan.expected_ttft_s,
        1000.0 * plan.single_ttft_s,
    )


def retry_after(routed: RoutedDecision) -> int:
    """Whole seconds."""
    return min(max(math.ceil(routed.retry_after_s), 1), RETRY_AFTER_MAX_S)


def feedback_document(taken: FeedbackCounts) -> FeedbackDocument:
    """The answer of `/feedback`."""
    return FeedbackDocument(*taken)


def routing_document(
    router: Router, admits: Callable[[str], bool] = lambda tenant_id: True
) -> RoutingDocument:
    """The answer of `GET /routing`. Cost O(state).

    Args:
        admits: whether targets of a tenant are shown.
    """
    position, digest, under_way = router.folded.read_all(
        lambda fold: (fold.offset, fold.digest, len(fold.bookings))
    )
    queue = router.queue
    counts = router.live.counts() | {"waiting": len(queue), "dropped": queue.dropped}
    failing = dict(router.live.failing(router.now()))
    targets = [
        _target(target, carried, failing.get(target))
        for target, carried in router.carried()
        if admits(target.tenant_id)
    ]
    return RoutingDocument(position, digest, under_way, targets, counts)


def _target(target: Target, carried: TargetLoad, failing: FailureState | None) -> TargetDocument:
    sample = carried.sample
    return TargetDocument(
        *target,
        1000.0 * carried.wait_s,
        carried.requests,
        carried.decoding,
        carried.pending,
        carried.active,
        carried.kv_tokens,
        None if sample is None else sample.waiting,
        None if sample is None else sample.running,
        None if sample is None else sample.kv_usage,
        None if sample is None else sample.observed_at,
        None if failing is None else FailingDocument(failing.since, failing.until, failing.times),
    )
