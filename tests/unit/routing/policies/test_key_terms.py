"""What a key was made of: terms that add up to it, for each policy."""

import random

import msgspec
import pytest

from routing.costs import Costs
from routing.interface import Candidate, Request
from routing.policies.decide import DecisionRequest, DegradedPolicy, Rules, decide, with_terms
from routing.policies.key_terms import key_terms, key_unit
from routing.policies.table import POLICIES, find_policy, parse_policy
from schemas.routing_records import CandidateRecord

COSTS = Costs(prefill_tokens_per_s=1000.0, token_squared_s=1e-8, load_tokens_per_s=10_000.0)
PROMPT = 1000
WITH_PARAMETERS = (
    "least-delay:others=3,work=0.5,fetch=on",
    "wait-and-work:work=2,fetch=on",
    "algorithm-1:fetch=off",
    "weighted:alpha=0.5,beta=2,full_load_s=3",
    "blocks:gpu=0.5,cpu=0.25,disk=0.1,scale=2,block=32",
)


def some_candidates(count: int, seed: int) -> list[Candidate]:
    picked = random.Random(seed)
    found = []
    for place in range(count):
        cached = picked.choice((0, picked.randrange(PROMPT), PROMPT))
        disk = picked.randrange(cached + 1)
        gpu = picked.randrange(cached - disk + 1)
        found.append(
            Candidate(
                f"engine-{place}",
                cached,
                gpu,
                picked.choice((0.0, picked.random())),
                disk,
                picked.randrange(4),
                picked.randrange(5000),
                picked.randrange(1000, 9000),
                picked.randrange(500),
                is_degraded=picked.random() < 0.2,
                others=4 * picked.random(),
            )
        )
    return found


def ranked(policy: str, candidates: list[Candidate]) -> list[CandidateRecord]:
    name, parameters = parse_policy(policy)
    found = find_policy(name)
    asked = DecisionRequest(
        Request(5, PROMPT, tie=7), found.rank, parameters, rules=Rules(degraded=DegradedPolicy.ZERO)
    )
    records = decide(asked, candidates, COSTS).candidates
    return [one for one in records if "policy" not in one.reasons]


@pytest.mark.parametrize("policy", [*POLICIES, *WITH_PARAMETERS])
def test_the_terms_of_each_policy_add_up_to_its_key(policy: str) -> None:
    for seed in range(20):
        for one in ranked(policy, some_candidates(5, seed)):
            terms = key_terms(policy, one, PROMPT)
            assert "other" not in terms, (one, terms)
            assert all(value >= 0 for name, value in terms.items() if name != "at best"), terms
            assert sum(terms.values()) == pytest.approx(one.key, rel=1e-9, abs=1e-9)


def test_the_terms_of_the_default_policy_by_hand() -> None:
    candidate = Candidate("a", cached=800, gpu=800, wait_s=0.5, others=8.0)
    costs = Costs(prefill_tokens_per_s=1000.0, token_squared_s=0.0)
    name, parameters = parse_policy("least-delay")
    asked = DecisionRequest(Request(0, PROMPT), find_policy(name).rank, parameters, in_seconds=True)
    (one,) = decide(asked, [candidate], costs).candidates
    expected = {
        "wait": 0.5,
        "load": 0.0,
        "fetch": 0.0,
        "prefill": 0.2,
        "work": 0.02,
        "others": 0.96,
    }
    assert key_terms("least-delay", one, PROMPT) == pytest.approx(expected)
    assert one.key == pytest.approx(1.68)


def test_one_that_was_not_ranked_by_the_policy_has_the_time_that_its_key_is() -> None:
    (one,) = ranked("least-delay", [Candidate("a", others=3.0)])
    one = with_terms(one, 100, (0.5, 0.0, 0.0, 0.9))
    expected = {"wait": 0.5, "load": 0.0, "fetch": 0.0, "prefill": 0.9}
    assert key_terms("least-delay", one, PROMPT) == expected


@pytest.mark.parametrize("policy", ["of-tomorrow", "least-delay:colour=red", ""])
def test_a_policy_that_is_not_known_here_has_its_key(policy: str) -> None:
    (one,) = ranked("blocks", [Candidate("a")])
    assert key_terms(policy, one, PROMPT) == {"key": one.key}


def test_what_is_left_of_a_key_is_shown() -> None:
    (one,) = ranked("least-delay", [Candidate("a")])
    terms = key_terms("least-delay", msgspec.structs.replace(one, key=one.key + 2), PROMPT)
    assert terms["other"] == pytest.approx(2.0)


def test_units_of_keys() -> None:
    units = {policy: key_unit(policy) for policy in POLICIES}
    assert {name for name, unit in units.items() if unit == "s"} == {
        *("least-delay", "wait-and-work", "algorithm-1", "least-loaded")
    }
    assert key_unit("blocks:scale=2") == "blocks"
    assert units["lmetric"] == units["sticky"] == units["longest-prefix"] == "tokens"
    assert (units["weighted"], key_unit("of-tomorrow")) == ("", "")
