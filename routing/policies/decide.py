"""A decision: who may be chosen, whom the policy chooses, and when it comes to nobody.

Pure: the same request, candidates and policy give the same decision, bit for bit, in the service,
in the simulator, and when it is derived again from its record.

The order of the reasons why a candidate is left out: `not_allowed`, `unreachable`, `failing` (not
where all are that could be chosen else), `degraded` (where that is wanted), `memory`, `queue_full`;
then the policy ranks those that are left, which may leave out more (`policy`); then those that miss
the objective go (`slo`).
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from routing.bounds import RETRY_AFTER_MAX_S
from routing.costs import Costs
from routing.interface import Candidate, Choice, Rank, Request
from routing.observed.sessions import with_affinity
from routing.policies.refusal import SHED_LOAD
from schemas.limits import KV_USAGE_MAX
from schemas.routing_records import CandidateRecord, CostModel, Reason, Refusal, Target

QUEUE_WAIT_MAX_S: Final = 30.0  # a candidate that would begin later is left out: `queue_full`
QUEUE_WAITING_MAX: Final = 1024  # or one with more requests that wait


class DegradedPolicy(StrEnum):
    """What is made of a candidate whose publisher has lost something."""

    KEEP = "keep"
    ZERO = "zero"
    """It counts as holding nothing of the prompt."""
    DROP = "drop"


class Rules(NamedTuple):
    """What leaves a candidate out before the policy sees it.

    Attributes:
        degraded: see `DegradedPolicy`.
        kv_usage_max: of its KV cache, 0 to 1.
        wait_max_s: until it would begin.
        waiting_max: requests that wait there, by its own word.
    """

    degraded: DegradedPolicy = DegradedPolicy.ZERO
    kv_usage_max: float = KV_USAGE_MAX
    wait_max_s: float = QUEUE_WAIT_MAX_S
    waiting_max: int = QUEUE_WAITING_MAX

    def shed(self) -> "Rules":
        """For requests of a priority below 0: the room above it is for others."""
        return self._replace(
            kv_usage_max=SHED_LOAD * self.kv_usage_max,
            wait_max_s=SHED_LOAD * self.wait_max_s,
            waiting_max=int(SHED_LOAD * self.waiting_max),
        )


class DecisionResult(NamedTuple):
    """What came of it.

    Attributes:
        candidates: all that were found, in their order.
        costs: their cost models.
        chosen: index of the candidate, -1 for none.
        refused: why nobody was chosen.
        predicted_s: until the first token of the chosen one, or of the best one where none was.
        retry_after_s: after which it may be tried again, where it was refused.
    """

    candidates: tuple[CandidateRecord, ...]
    costs: tuple[CostModel, ...]
    chosen: int
    refused: Refusal = Refusal.NO
    predicted_s: float = 0.0
    retry_after_s: float = 0.0


class DecisionRequest(NamedTuple):
    """What is to be decided.

    Attributes:
        request: as the policy takes it.
        rank, parameters: the policy.
        ttft_slo_s: within which the first token must be expected; 0 for no objective.
        rules: what leaves candidates out.
        last: where the session's request before went; it wins where it is nearly the best.
        in_seconds: whether the policy's keys are seconds.
    """

    request: Request
    rank: Rank
    parameters: Any
    ttft_slo_s: float = 0.0
    rules: Rules = Rules()
    last: Target | None = None
    in_seconds: bool = False


_HARD: Final = frozenset({Reason.NOT_ALLOWED, Reason.UNREACHABLE, Reason.FAILING, Reason.DEGRADED})
_NONE: Final[tuple[str, ...]] = ()
_DEGRADED: Final = (Reason.DEGRADED.value,)
_POLICY: Final = (Reason.POLICY.value,)
_DEGRADED_POLICY: Final = (Reason.DEGRADED.value, Reason.POLICY.value)


def decide(asked: DecisionRequest, candidates: Sequence[Candidate], costs: Costs) -> DecisionResult:
    """Chooses among the candidates, which are sorted by instance and rank. Cost O(candidates).

    Args:
        asked: what is to be decided.
        candidates: all there are.
        costs: what things take where a candidate has no costs of its own.
    """
    rules = asked.rules
    models = _CostModels(costs)
    reasons, left = _sort_out(candidates, rules)
    if not left:
        return _refuse_all(candidates, reasons, rules, models)
    choices = asked.rank(asked.request, left, costs, asked.parameters)
    if asked.last is not None:
        choices = with_affinity(choices, asked.last, keys_are_seconds=asked.in_seconds)
    judged = _judge(choices, asked, costs)
    chosen, records = -1, []
    for place, (one, reason) in enumerate(zip(candidates, reasons, strict=True)):
        ranked = judged.by_name.get((one.instance_id, one.dp_rank)) if reason is None else None
        if ranked is None:
            records.append(_left_out(one, reason, models))
            continue
        choice, terms, is_late = ranked
        if choice is judged.chosen:
            chosen = place
        records.append(_record(one, choice, terms, models, is_late=is_late))
    if chosen >= 0:
        return DecisionResult(tuple(records), models.all(), chosen, predicted_s=judged.predicted_s)
    after = min(judged.retry_after_s, RETRY_AFTER_MAX_S)
    refused = Refusal.SLO_UNREACHABLE
    return DecisionResult(tuple(records), models.all(), -1, refused, judged.predicted_s, after)


def _sort_out(
    candidates: Sequence[Candidate], rules: Rules
) -> tuple[list[Reason | None], list[Candidate]]:
    """Why each is left out, None for no reason; and those that are not, as the policy sees them."""
    _, usage_max, wait_max, waiting_max = rules
    reasons: list[Reason | None] = []
    left = []
    for one in candidates:
        reason = None
        # Mostly all can be chosen, so that is looked at first.
        if (
            one.is_degraded
            or not (one.is_allowed and one.is_reachable)
            or one.kv_usage > usage_max
            or one.wait_s > wait_max
            or one.waiting > waiting_max
            or one.is_failing
        ):
            reason = reason_of(one, rules)
        reasons.append(reason)
        if reason is None:
            left.append(_discounted(one, rules) if one.is_degraded else one)
    if not left and Reason.FAILING in reasons and _HARD.issuperset(reasons):
        # Rather one that fails than nobody.
        return _sort_out([one._replace(is_failing=False) for one in candidates], rules)
    return reasons, left


def reason_of(one: Candidate, rules: Rules) -> Reason | None:
    """Why a candidate is left out before the policy sees it."""
    if not one.is_allowed:
        return Reason.NOT_ALLOWED
    if not one.is_reachable:
        return Reason.UNREACHABLE
    if one.is_failing:
        return Reason.FAILING
    if one.is_degraded and rules.degraded is DegradedPolicy.DROP:
        return Reason.DEGRADED
    if one.kv_usage > rules.kv_usage_max:
        return Reason.MEMORY
    if one.wait_s > rules.wait_max_s or one.waiting > rules.waiting_max:
        return Reason.QUEUE_FULL
    return None


def _discounted(one: Candidate, rules: Rules) -> Candidate:
    if rules.degraded is DegradedPolicy.ZERO:
        return one._replace(cached=0, gpu=0, disk=0, predicted=0)
    return one


Terms = tuple[float, float, float, float]
"""Seconds of waiting, loading, fetching and computing: the time to the first token."""


def total_s(terms: Terms) -> float:
    """Of all terms, one after the other: `sum` of newer Pythons rounds otherwise."""
    wait, load, transfer, prefill = terms
    return wait + load + transfer + prefill


def terms_of(choice: Choice, prompt: int, costs: Costs) -> Terms:
    """Of a choice. Policies that do not look at seconds leave them out of theirs, so they are
    computed here for all.
    """
    if choice.prefill_s:  # it has looked at them
        return choice.queue_s, choice.load_s, choice.transfer_s, choice.prefill_s
    one = choice.candidate
    return (
        one.wait_s,
        costs.load_s(one.cached - one.gpu, one.disk),
        costs.fetch_s(choice.prefix - one.cached) if choice.fetch_from else 0.0,
        costs.prefill_s(prompt, choice.prefix),
    )


def with_terms(record: CandidateRecord, prefix: int, terms: Terms) -> CandidateRecord:
    """One that is to compute a prompt without having been ranked for it: its key is its time."""
    queue, load, transfer, prefill = terms
    return msgspec.structs.replace(
        record,
        reasons=(),
        key=total_s(terms),
        prefix=prefix,
        queue_s=queue,
        load_s=load,
        transfer_s=transfer,
        prefill_s=prefill,
    )


class _Judged(NamedTuple):
    """The choices beside the objective: each with its terms, and whether it is late."""

    by_name: dict[tuple[str, int], tuple[Choice, Terms, bool]]
    chosen: Choice | None
    predicted_s: float
    retry_after_s: float


def _judge(choices: Sequence[Choice], asked: DecisionRequest, costs: Costs) -> _Judged:
    prompt, slo = asked.request.prompt_tokens, asked.ttft_slo_s
    by_name: dict[tuple[str, int], tuple[Choice, Terms, bool]] = {}
    chosen: Choice | None = None
    predicted, shortest = 0.0, math.inf
    for choice in choices:
        one = choice.candidate
        # As `terms_of`, which most need not be asked.
        terms = choice[4:] if choice.prefill_s else terms_of(choice, prompt, one.costs or costs)
        late = False
        if chosen is None or slo:
            expected = total_s(terms)
            late = bool(slo) and expected > slo
            if late:
                needed = expected - slo
                # Waiting shortens the wait and nothing else.
                shortest = min(shortest, needed if needed <= one.wait_s else math.inf)
            elif chosen is None:
                chosen, predicted = choice, expected
        by_name[one.instance_id, one.dp_rank] = (choice, terms, late)
    if chosen is None:
        best = choices[0]
        predicted = total_s(terms_of(best, prompt, best.candidate.costs or costs))
    return _Judged(by_name, chosen, predicted, shortest)


def _left_out(one: Candidate, reason: Reason | None, models: "_CostModels") -> CandidateRecord:
    """One that was left out for that reason; for none: by the policy."""
    reasons: tuple[str, ...] = _DEGRADED_POLICY if one.is_degraded else _POLICY
    if reason is not None:
        reasons = (reason.value,)
    return CandidateRecord(
        one.instance_id,
        one.dp_rank,
        reasons,
        one.cached,
        one.gpu,
        one.cached - one.disk,
        one.cached,
        one.wait_s,
        one.requests,
        one.pending,
        one.active,
        one.shared,
        models.number(one.costs),
        predicted=one.predicted,
        others=one.others,
    )


def _record(
    one: Candidate, choice: Choice, terms: Terms, models: "_CostModels", *, is_late: bool
) -> CandidateRecord:
    """One that the policy has ranked."""
    reasons = _DEGRADED if one.is_degraded else _NONE
    if is_late:
        reasons = (*reasons, Reason.SLO.value)
    name, cached, gpu, wait, disk, requests, pending, active, shared, costs, rank, *_ = one
    return CandidateRecord(
        name,
        rank,
        reasons,
        cached,
        gpu,
        cached - disk,
        cached,
        wait,
        requests,
        pending,
        active,
        shared,
        0 if costs is None else models.number(costs),
        choice.key,
        choice.prefix,
        choice.fetch_from,
        *terms,
        0.0,
        one.predicted,
        one.others,
    )


class _CostModels:
    """Each cost model once; candidates without one of their own have the first."""

    def __init__(self, costs: Costs) -> None:
        self._numbers = {costs: 0}
        self._last: Costs | None = None
        self._number = 0

    def number(self, costs: Costs | None) -> int:
        """Of a candidate's model."""
        if costs is self._last or costs is None:  # mostly all have the same one
            return self._number if costs is not None else 0
        self._last = costs
        self._number = self._numbers.setdefault(costs, len(self._numbers))
        return self._number

    def all(self) -> tuple[CostModel, ...]:
        """By number."""
        return tuple(map(model_of_costs, self._numbers))


@lru_cache(maxsize=1024)
def model_of_costs(costs: Costs) -> CostModel:
    """As it stands in a record."""
    return CostModel(*(getattr(costs, name) for name in CostModel._fields))


def costs_of_model(model: CostModel) -> Costs:
    """The inverse of `model_of_costs`."""
    return Costs(**model._asdict())


def _refuse_all(
    candidates: Sequence[Candidate],
    reasons: Sequence[Reason | None],
    rules: Rules,
    models: _CostModels,
) -> DecisionResult:
    """Nobody was left for the policy."""
    records = tuple(
        _left_out(one, reason, models) for one, reason in zip(candidates, reasons, strict=True)
    )
    busy = [one for one, reason in zip(candidates, reasons, strict=True) if reason not in _HARD]
    if not busy:
        return DecisionResult(records, models.all(), -1, Refusal.NO_CANDIDATE)
    over = min(max(one.wait_s - rules.wait_max_s, 1.0) for one in busy)
    wait = min(one.wait_s for one in busy)
    after = min(over, RETRY_AFTER_MAX_S)
    return DecisionResult(records, models.all(), -1, Refusal.OVERLOADED, wait, after)
