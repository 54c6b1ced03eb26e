"""A decision: who may be chosen, whom the policy chooses, and when it comes to nobody.

Pure: the same request, candidates and policy give the same decision, bit for bit, in the service,
in the simulator, and when it is derived again from its record.

The order of the reasons why a candidate is left out: `not_allowed`, `unreachable`, `degraded`
(where that is wanted), `memory`, `queue_full`; then the policy ranks those that are left, which may
leave out more (`policy`); then those that miss the objective go (`slo`).
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from schemas.limits import (
    KV_USAGE_MAX,
    QUEUE_WAIT_MAX_S,
    QUEUE_WAITING_MAX,
    RETRY_AFTER_MAX_S,
)
from schemas.routing_records import CandidateRecord, CostModel, Reason, Refused
from streams.routing.costs import Costs
from streams.routing.interface import Candidate, Choice, Rank, Request


class OfDegraded(StrEnum):
    """What is made of a candidate whose publisher has lost something."""

    KEEP = "keep"
    ZERO = "zero"
    """It counts as holding nothing of the prompt."""
    DROP = "drop"


class Rules(NamedTuple):
    """What leaves a candidate out before the policy sees it.

    Attributes:
        degraded: see `OfDegraded`.
        kv_usage_max: of its KV cache, 0 to 1.
        wait_max_s: until it would begin.
        waiting_max: requests that wait there, by its own word.
    """

    degraded: OfDegraded = OfDegraded.ZERO
    kv_usage_max: float = KV_USAGE_MAX
    wait_max_s: float = QUEUE_WAIT_MAX_S
    waiting_max: int = QUEUE_WAITING_MAX


class Found(NamedTuple):
    """A candidate with all that is known of it.

    Attributes:
        instance_id, dp_rank: its name.
        cached, gpu, cpu, disk: see `schemas.routing_records.CandidateRecord`.
        wait_s: seconds until it would begin.
        costs: what things take there.
        requests, pending, active, shared: see `streams.routing.interface.Candidate`.
        waiting: requests that wait there, by its own word.
        kv_usage: the share of its KV cache that is used, by its own word.
        is_allowed: whether the request may go there.
        is_reachable: whether its publisher is there.
        is_degraded: whether its publisher has lost something.
        predicted: of the cached tokens, those that only decisions say it holds.
    """

    instance_id: str
    dp_rank: int
    cached: int
    gpu: int
    cpu: int
    disk: int
    wait_s: float
    costs: Costs
    requests: int = 0
    pending: int = 0
    active: int = 0
    shared: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    is_allowed: bool = True
    is_reachable: bool = True
    is_degraded: bool = False
    predicted: int = 0


class Decided(NamedTuple):
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
    refused: Refused = Refused.NO
    predicted_s: float = 0.0
    retry_after_s: float = 0.0


class Asked(NamedTuple):
    """What is to be decided.

    Attributes:
        request: as the policy takes it.
        rank, parameters: the policy.
        ttft_slo_s: within which the first token must be expected; 0 for no objective.
        rules: what leaves candidates out.
    """

    request: Request
    rank: Rank
    parameters: Any
    ttft_slo_s: float = 0.0
    rules: Rules = Rules()


_HARD: Final = {Reason.NOT_ALLOWED, Reason.UNREACHABLE}
_NONE: Final[tuple[str, ...]] = ()
_ZERO: Final = (Reason.DEGRADED.value,)


def decide(asked: Asked, found: Sequence[Found]) -> Decided:
    """Chooses among the candidates, which are sorted by instance and rank. Cost O(candidates)."""
    reasons = [reason_of(one, asked.rules) for one in found]
    open_ones = [place for place, reason in enumerate(reasons) if reason is None]
    models, model_of = _cost_models(found)
    records = [
        _record(one, reason, number)
        for one, reason, number in zip(found, reasons, model_of, strict=True)
    ]
    if not open_ones:
        return _refuse_all(asked, found, reasons, records, models)
    candidates = [_candidate(found[place], asked.rules) for place in open_ones]
    places = {
        (one.instance_id, one.dp_rank): place
        for one, place in zip(candidates, open_ones, strict=True)
    }
    choices = asked.rank(asked.request, candidates, found[open_ones[0]].costs, asked.parameters)
    prompt, slo = asked.request.prompt_tokens, asked.ttft_slo_s
    chosen, predicted, shortest = -1, 0.0, math.inf
    for choice in choices:
        one = choice.candidate
        place = places.pop((one.instance_id, one.dp_rank))
        terms = terms_of(choice, prompt, found[place].costs)
        expected = sum(terms)
        late = bool(slo) and expected > slo
        if late:
            needed = expected - slo
            # Waiting shortens the wait and nothing else.
            shortest = min(shortest, needed if needed <= one.wait_s else math.inf)
        elif chosen < 0:
            chosen, predicted = place, expected
        records[place] = _ranked(records[place], choice, terms, late)
    for place in places.values():
        records[place] = _with_reason(records[place], Reason.POLICY)
    if chosen >= 0:
        return Decided(tuple(records), models, chosen, predicted_s=predicted)
    best = choices[0]
    predicted = sum(terms_of(best, prompt, best.candidate.costs or found[open_ones[0]].costs))
    after = min(shortest, RETRY_AFTER_MAX_S)
    return Decided(tuple(records), models, -1, Refused.SLO_UNREACHABLE, predicted, after)


def reason_of(one: Found, rules: Rules) -> Reason | None:
    """Why a candidate is left out before the policy sees it."""
    if not one.is_allowed:
        return Reason.NOT_ALLOWED
    if not one.is_reachable:
        return Reason.UNREACHABLE
    if one.is_degraded and rules.degraded is OfDegraded.DROP:
        return Reason.DEGRADED
    if one.kv_usage > rules.kv_usage_max:
        return Reason.MEMORY
    if one.wait_s > rules.wait_max_s or one.waiting > rules.waiting_max:
        return Reason.QUEUE_FULL
    return None


def terms_of(choice: Choice, prompt: int, costs: Costs) -> tuple[float, float, float, float]:
    """Seconds of waiting, loading, fetching and computing: the time to the first token. Policies
    that do not look at seconds leave them out of their choices, so they are computed here for all.
    """
    one = choice.candidate
    return (
        one.wait_s,
        costs.load_s(one.cached - one.gpu, one.disk),
        costs.fetch_s(choice.prefix - one.cached),
        costs.prefill_s(prompt, choice.prefix),
    )


def _candidate(one: Found, rules: Rules) -> Candidate:
    cached, gpu, disk = one.cached, one.gpu, one.disk - one.cpu
    if one.is_degraded and rules.degraded is OfDegraded.ZERO:
        cached = gpu = disk = 0
    return Candidate(
        one.instance_id,
        cached,
        gpu,
        one.wait_s,
        disk,
        one.requests,
        one.pending,
        one.active,
        one.shared,
        one.costs,
        one.dp_rank,
    )


def _record(one: Found, reason: Reason | None, model: int) -> CandidateRecord:
    reasons = _NONE
    if reason is not None:
        reasons = (reason.value,)
    elif one.is_degraded:
        reasons = _ZERO
    return CandidateRecord(
        one.instance_id,
        one.dp_rank,
        reasons,
        one.cached,
        one.gpu,
        one.cpu,
        one.disk,
        one.wait_s,
        one.requests,
        one.pending,
        one.active,
        one.shared,
        model,
        predicted=one.predicted,
    )


def _ranked(
    record: CandidateRecord, choice: Choice, terms: tuple[float, float, float, float], late: bool
) -> CandidateRecord:
    queue, load, transfer, prefill = terms
    return CandidateRecord(
        record.instance_id,
        record.dp_rank,
        (*record.reasons, Reason.SLO.value) if late else record.reasons,
        record.cached,
        record.gpu,
        record.cpu,
        record.disk,
        record.wait_s,
        record.requests,
        record.pending,
        record.active,
        record.shared,
        record.costs,
        choice.key,
        choice.prefix,
        choice.fetch_from,
        queue,
        load,
        transfer,
        prefill,
        record.tbt_s,
        record.predicted,
    )


def _with_reason(record: CandidateRecord, reason: Reason) -> CandidateRecord:
    return CandidateRecord(
        record.instance_id,
        record.dp_rank,
        (*record.reasons, reason.value),
        *(getattr(record, name) for name in CandidateRecord.__struct_fields__[3:]),
    )


def _cost_models(found: Sequence[Found]) -> tuple[tuple[CostModel, ...], list[int]]:
    """Each model once, and which is whose."""
    numbers: dict[Costs, int] = {}
    which, last, number = [], None, 0
    for one in found:
        if one.costs is not last:  # mostly all have the same one
            last = one.costs
            number = numbers.setdefault(last, len(numbers))
        which.append(number)
    return tuple(model_of_costs(costs) for costs in numbers), which


def model_of_costs(costs: Costs) -> CostModel:
    """As it stands in a record."""
    return CostModel(*(getattr(costs, name) for name in CostModel._fields))


def costs_of_model(model: CostModel) -> Costs:
    """The inverse of `model_of_costs`."""
    return Costs(**model._asdict())


def _refuse_all(
    asked: Asked,
    found: Sequence[Found],
    reasons: Sequence[Reason | None],
    records: list[CandidateRecord],
    models: tuple[CostModel, ...],
) -> Decided:
    """Nobody was left for the policy."""
    left = [
        one
        for one, reason in zip(found, reasons, strict=True)
        if reason not in _HARD and reason is not Reason.DEGRADED
    ]
    if not left:
        return Decided(tuple(records), models, -1, Refused.NO_CANDIDATE)
    over = min(max(one.wait_s - asked.rules.wait_max_s, 1.0) for one in left)
    return Decided(
        tuple(records),
        models,
        -1,
        Refused.OVERLOADED,
        min(one.wait_s for one in left),
        min(over, RETRY_AFTER_MAX_S),
    )
