"""Who may be chosen, who is, and when it comes to nobody."""

from typing import Any

import pytest

from routing.costs import Costs
from routing.interface import Candidate, Request
from routing.policies.decide import (
    DecisionRequest,
    DecisionResult,
    DegradedPolicy,
    Rules,
    costs_of_model,
    decide,
    model_of_costs,
)
from routing.policies.table import find_policy, parse_policy
from schemas.routing_records import Refusal, Target

COSTS = Costs(prefill_tokens_per_s=1000.0, token_squared_s=0.0, load_tokens_per_s=10_000.0)
PROMPT = 1000


def decided(
    *candidates: Candidate, policy: str = "wait-and-work", **options: Any
) -> DecisionResult:
    name, parameters = parse_policy(policy)
    found = find_policy(name)
    request = Request(0, PROMPT, tie=7)
    asked = DecisionRequest(request, found.rank, parameters, in_seconds=found.in_seconds, **options)
    return decide(asked, candidates, COSTS)


def reasons(one: DecisionResult) -> list[tuple[str, ...]]:
    return [candidate.reasons for candidate in one.candidates]


def test_the_first_choice_of_the_policy_is_chosen() -> None:
    one = decided(Candidate("a", cached=0), Candidate("b", cached=500, gpu=500))
    assert one.chosen == 1
    assert one.refused is Refusal.NO
    assert one.predicted_s == 0.5
    assert [candidate.key for candidate in one.candidates] == [2.0, 1.0]


def test_all_candidates_are_in_the_record_in_their_order() -> None:
    found = [Candidate(name, cached=100 * place) for place, name in enumerate("abcd")]
    one = decided(*found)
    assert [candidate.instance_id for candidate in one.candidates] == list("abcd")
    assert [candidate.prefill_s for candidate in one.candidates] == [1.0, 0.9, 0.8, 0.7]


def test_the_record_has_the_boundaries_of_the_tiers() -> None:
    one = decided(Candidate("a", cached=600, gpu=100, disk=200))
    (candidate,) = one.candidates
    assert (candidate.gpu, candidate.cpu, candidate.disk) == (100, 400, 600)
    assert candidate.load_s == 500 / 10_000 + 200 / COSTS.disk_tokens_per_s


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        ({"is_allowed": False}, "not_allowed"),
        ({"is_reachable": False}, "unreachable"),
        ({"kv_usage": 0.951}, "memory"),
        ({"wait_s": 30.1}, "queue_full"),
        ({"waiting": 1025}, "queue_full"),
    ],
)
def test_who_is_left_out_says_why(left_out: dict[str, Any], reason: str) -> None:
    one = decided(Candidate("a", cached=900, gpu=900, **left_out), Candidate("b"))
    assert one.chosen == 1
    assert reasons(one) == [(reason,), ()]


def test_bounds_are_inclusive() -> None:
    found = Candidate("a", wait_s=30.0, waiting=1024, kv_usage=0.95)
    assert decided(found).chosen == 0


def test_the_first_reason_in_the_order_is_told() -> None:
    one = decided(
        Candidate("a", is_allowed=False, is_reachable=False, kv_usage=1.0),
        Candidate("b", is_reachable=False, kv_usage=1.0, wait_s=99.0),
        Candidate("c", kv_usage=1.0, wait_s=99.0),
    )
    assert reasons(one) == [("not_allowed",), ("unreachable",), ("memory",)]


@pytest.mark.parametrize(
    ("rule", "chosen", "told"),
    [
        (DegradedPolicy.KEEP, 0, ("degraded",)),
        (DegradedPolicy.ZERO, 1, ("degraded",)),
        (DegradedPolicy.DROP, 1, ("degraded",)),
    ],
)
def test_what_is_made_of_a_degraded_one(
    rule: DegradedPolicy, chosen: int, told: tuple[str, ...]
) -> None:
    one = decided(
        Candidate("a", cached=900, gpu=900, is_degraded=True),
        Candidate("b", cached=100, gpu=100),
        rules=Rules(degraded=rule),
    )
    assert one.chosen == chosen
    assert reasons(one) == [told, ()]
    assert one.candidates[0].cached == 900  # what the index said


def test_a_degraded_one_that_counts_as_empty_can_still_be_chosen() -> None:
    one = decided(Candidate("a", cached=900, gpu=900, is_degraded=True))
    assert one.chosen == 0
    assert one.candidates[0].prefix == 0
    assert one.predicted_s == 1.0


def test_nobody_is_there() -> None:
    assert decided().refused is Refusal.NO_CANDIDATE
    one = decided(Candidate("a", is_reachable=False), Candidate("b", is_allowed=False))
    assert (one.chosen, one.refused) == (-1, Refusal.NO_CANDIDATE)


def test_all_that_are_there_have_too_much_to_do() -> None:
    one = decided(
        Candidate("a", wait_s=40.0), Candidate("b", wait_s=35.0), Candidate("c", is_reachable=False)
    )
    assert (one.chosen, one.refused) == (-1, Refusal.OVERLOADED)
    assert one.retry_after_s == 5.0


def test_who_misses_the_objective_is_passed_over() -> None:
    one = decided(Candidate("a", cached=900, gpu=900, wait_s=0.5), Candidate("b"), ttft_slo_s=1.0)
    assert one.chosen == 0
    assert reasons(one) == [(), ()]
    late = decided(Candidate("a", cached=900, gpu=900, wait_s=0.95), Candidate("b"), ttft_slo_s=1.0)
    assert late.chosen == 1
    assert reasons(late) == [("slo",), ()]


def test_nobody_meets_the_objective() -> None:
    one = decided(Candidate("a", wait_s=3.0), Candidate("b", wait_s=2.0), ttft_slo_s=1.5)
    assert (one.chosen, one.refused) == (-1, Refusal.SLO_UNREACHABLE)
    assert one.retry_after_s == 1.5  # then `b` waits no longer than half a second
    assert one.predicted_s == 3.0
    assert reasons(one) == [("slo",), ("slo",)]


def test_an_objective_that_waiting_does_not_help_is_told_as_the_longest_wait() -> None:
    one = decided(Candidate("a", wait_s=3.0), ttft_slo_s=0.5)
    assert one.retry_after_s == 60.0


def test_whom_the_policy_leaves_out_is_told() -> None:
    one = decided(
        Candidate("a", cached=900, gpu=900, wait_s=5.0),
        Candidate("b"),
        policy="longest-prefix:overload_s=1",
    )
    assert one.chosen == 1
    assert reasons(one) == [("policy",), ()]


def test_the_last_instance_of_a_session_wins_where_it_is_nearly_the_best() -> None:
    found = (Candidate("a", cached=500, gpu=500), Candidate("b", cached=480, gpu=480))
    assert decided(*found).chosen == 0
    assert decided(*found, last=Target("default", "b", 0)).chosen == 1
    far = (Candidate("a", cached=500, gpu=500), Candidate("b", cached=100, gpu=100))
    assert decided(*far, last=Target("default", "b", 0)).chosen == 0


def test_ranks_of_an_instance_are_candidates_of_their_own() -> None:
    one = decided(Candidate("a", dp_rank=0, wait_s=1.0), Candidate("a", dp_rank=1))
    assert one.chosen == 1
    assert [candidate.dp_rank for candidate in one.candidates] == [0, 1]


def test_a_candidate_may_have_costs_of_its_own() -> None:
    fast = Costs(prefill_tokens_per_s=10_000.0, token_squared_s=0.0)
    one = decided(Candidate("a"), Candidate("b", costs=fast), Candidate("c"))
    assert one.chosen == 1
    assert [candidate.costs for candidate in one.candidates] == [0, 1, 0]
    assert [costs_of_model(model) for model in one.costs] == [COSTS, fast]


def test_cost_models_stand_in_records_as_they_are() -> None:
    assert costs_of_model(model_of_costs(COSTS)) == COSTS
    assert costs_of_model(model_of_costs(Costs())) == Costs()


@pytest.mark.parametrize("policy", ["algorithm-1", "wait-and-work:fetch=on"])
def test_a_fetch_stands_in_the_record(policy: str) -> None:
    one = decided(Candidate("a", cached=900, gpu=900, wait_s=9.0), Candidate("b"), policy=policy)
    assert one.chosen == 1
    chosen = one.candidates[1]
    assert (chosen.fetch_from, chosen.prefix, chosen.cached) == ("a", 900, 0)
    assert chosen.transfer_s == 900 / 60_000
    assert one.predicted_s == pytest.approx(0.1 + 900 / 60_000)
