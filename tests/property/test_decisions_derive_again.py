"""Whatever a router decides, its record says why: derived again it is the same, bit for bit; and a
record in which something was changed is found.
"""

import random
import struct
from typing import Any

import msgspec
import pytest

from routing.audit import differences_of
from routing.costs import UNLIMITED, Costs
from routing.decisions.interface import OfferedCandidate, PostedLoad, RouteRequest
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import Router
from routing.decisions.router_settings import RouterSettings
from routing.policies.decide import DegradedPolicy
from routing.policies.table import POLICIES
from schemas.answer_states import LOST_BATCHES, AnswerState, Doubt, Standing
from schemas.codec import decode_routing
from schemas.identities import PrefixScope
from schemas.registration import Label, PublisherKind, Registration
from schemas.routing_records import (
    CandidateRecord,
    Decision,
    DecisionsRecord,
    Phase,
    Refusal,
    encode_routing,
)
from streams.kernel.interface import InstanceMatch, RankMatch
from tests.fakes import FakeTable

SEEDS = range(150)
SCOPE = PrefixScope("default", "m", "", 16, "")
NAMES = [f"i{number}" for number in range(6)]
PARAMETERS = {
    "least-delay": ("", ":others=4,fetch=on"),
    "wait-and-work": ("", ":work=0.3,fetch=on", ":fetch=on"),
    "algorithm-1": ("", ":kvcache_balancing_threshold=1.1", ":fetch=off"),
    "weighted": ("", ":alpha=0.3,beta=2"),
}


class Clock:
    def __init__(self) -> None:
        self.now = 1_790_000_000.25

    def __call__(self) -> float:
        return self.now


def world(chance: random.Random, clock: Clock, degraded: DegradedPolicy) -> Router:
    """A router over instances of which some are away, degraded, or of another class."""
    table = FakeTable()
    for number, name in enumerate(NAMES):
        if chance.random() < 0.2:
            continue
        labels = (Label("class", chance.choice("xy")),) if chance.random() < 0.3 else ()
        for rank in range(chance.choice((1, 1, 2))):
            table.add(
                Registration(
                    endpoint=f"tcp://10.0.{rank}.{number}:5557",
                    kind=PublisherKind("vLLM"),
                    model_name="m",
                    instance_id=name,
                    block_size=16,
                    dp_rank=rank,
                    labels=labels,
                    role=chance.choice(("combined", "combined", "prefill", "decode")),
                    kv_bytes_per_token=chance.choice((0, 327_680)),
                )
            )
        if chance.random() < 0.3:
            state, reason = chance.choice(
                ((AnswerState.DEGRADED, LOST_BATCHES), (AnswerState.STALE, Doubt.LINK_DOWN))
            )
            table.standings[name] = Standing(state, reason, 0.0)
    costs = chance.choice((Costs(), Costs(fixed_s=0.1, fetch_tokens_per_s=UNLIMITED)))
    settings = RouterSettings(costs=costs, degraded=degraded)
    return Router(table, RoutingQueue(), LiveLoad(), settings, clock=clock, monotonic=clock)


def asked(chance: random.Random) -> RouteRequest:
    """A request with what some hold of its prompt."""
    policy = chance.choice(list(POLICIES))
    blocks = chance.choice((1, 7, 64, 2000))
    holders = sorted(chance.sample(NAMES, chance.randint(0, len(NAMES))))
    candidates = None
    if chance.random() < 0.6:
        candidates = tuple(
            OfferedCandidate(name, 0, load=posted(chance))
            for name in sorted(chance.sample(NAMES, chance.randint(1, len(NAMES))))
        )
    return RouteRequest(
        "",
        SCOPE,
        16 * blocks + chance.choice((0, 5)),
        [match(chance, name, blocks) for name in holders],
        struct.pack(f"<{blocks}Q", *range(1, blocks + 1)),
        phase=chance.choice((Phase.COMBINED, Phase.COMBINED, *Phase)),
        candidates=candidates,
        ttft_slo_s=chance.choice((0.0, 0.0, 0.5, 3.0)),
        tbt_slo_s=chance.choice((0.0, 0.0, 1e-4, 1.0)),
        session_id=chance.choice(("", "s", "t")),
        policy=policy + chance.choice(PARAMETERS.get(policy, ("",))),
        is_placed=chance.random() < 0.1,
    )


def match(chance: random.Random, name: str, blocks: int) -> InstanceMatch:
    gpu, cpu, disk = sorted(16 * chance.randint(0, blocks) for _ in range(3))
    ranks = [RankMatch(0, chance.choice((0, 16, disk)), gpu, cpu, disk)]
    return InstanceMatch(name, disk, gpu, cpu - gpu, disk - cpu, ranks)


def posted(chance: random.Random) -> PostedLoad | None:
    if chance.random() < 0.4:
        return None
    return PostedLoad(
        running=chance.randint(0, 20),
        waiting=chance.choice((0, 1, 9, 2000)),
        kv_usage=chance.choice((0.1, 0.9, 0.97)),
    )


def decisions(seed: int) -> tuple[int, list[Decision]]:
    """Those of one router, one after the other, as they come back from the log."""
    chance, clock = random.Random(seed), Clock()
    router = world(chance, clock, chance.choice(tuple(DegradedPolicy)))
    made = []
    for _ in range(8):
        clock.now += chance.choice((0.0, 0.01, 1.5))
        made.append(router.route(asked(chance)).decision)
    record = DecisionsRecord(run=router.run, time=clock.now, decisions=tuple(made))
    read = decode_routing(encode_routing(record))
    assert isinstance(read, DecisionsRecord)
    return read.run, list(read.decisions)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decision_is_derived_again_from_its_record_alone(seed: int) -> None:
    run, made = decisions(seed)
    for decision in made:
        assert differences_of(run, decision) == [], decision


def test_the_worlds_have_all_that_a_decision_may_be() -> None:
    """Otherwise the test before proves less than it says."""
    reasons: set[str] = set()
    refused: set[str] = set()
    policies: set[str] = set()
    phases: set[str] = set()
    fetched = predicted = costs = by_session = 0
    for seed in SEEDS:
        for decision in decisions(seed)[1]:
            refused.add(decision.refused.value)
            phases.add(decision.phase.value)
            policies.add(decision.policy.partition(":")[0])
            by_session += decision.last is not None
            costs += len(decision.costs) > 1
            for one in decision.candidates:
                reasons.update(one.reasons)
                fetched += bool(one.fetch_from)
                predicted += one.predicted > 0
    assert reasons >= {"not_allowed", "unreachable", "degraded", "memory", "queue_full", "slo"}
    assert refused == {one.value for one in Refusal}
    assert policies == set(POLICIES)
    assert phases == {one.value for one in Phase}
    assert min(fetched, predicted, costs, by_session) > 0


def flipped(value: Any) -> Any:
    """The same with its lowest bit changed."""
    if isinstance(value, float):
        (bits,) = struct.unpack("<Q", struct.pack("<d", value))
        return struct.unpack("<d", struct.pack("<Q", bits ^ 1))[0]
    return value ^ 1


def ranked(decision: Decision) -> list[int]:
    """Those whom the policy has ranked."""
    return [
        place
        for place, one in enumerate(decision.candidates)
        if not set(one.reasons) - {"slo"} and one.prefill_s
    ]


def with_candidate(decision: Decision, place: int, **changes: Any) -> Decision:
    candidates = list(decision.candidates)
    candidates[place] = msgspec.structs.replace(candidates[place], **changes)
    return msgspec.structs.replace(decision, candidates=tuple(candidates))


@pytest.mark.parametrize("seed", range(40))
def test_one_bit_that_was_changed_is_found(seed: int) -> None:
    run, made = decisions(seed)
    for decision in made:
        if decision.phase not in (Phase.COMBINED, Phase.PREFILL):
            continue
        for field in ("tie", "predicted_s"):
            changed = {field: flipped(getattr(decision, field))}
            assert differences_of(run, msgspec.structs.replace(decision, **changed)), field
        count = len(decision.candidates)
        for chosen in {-1, *range(count)} - {decision.chosen}:
            assert differences_of(run, msgspec.structs.replace(decision, chosen=chosen))
        for place in ranked(decision):
            one = decision.candidates[place]
            for field in ("key", "wait_s", "prefix", "queue_s", "load_s", "prefill_s"):
                changed = {field: flipped(getattr(one, field))}
                assert differences_of(run, with_candidate(decision, place, **changed)), field
            for reasons in ((*one.reasons, "memory"), ("policy",)):
                if not (one.reasons and reasons[-1] == "memory"):
                    assert differences_of(run, with_candidate(decision, place, reasons=reasons))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": "none"}, "policy"),
        ({"costs": ()}, "costs"),
        ({"chosen": 99}, "chosen"),
        ({"decode": 99}, "decode"),
        ({"degraded": "x"}, "degraded"),
        ({"refused": Refusal.OVERLOADED}, "refused"),
    ],
)
def test_a_record_that_cannot_be_is_named(changes: dict[str, Any], field: str) -> None:
    run, made = next(
        (run, found)
        for seed in SEEDS
        for run, all_of in [decisions(seed)]
        for found in [[one for one in all_of if one.chosen >= 0 and one.phase is Phase.COMBINED]]
        if found
    )
    (found, *_) = differences_of(run, msgspec.structs.replace(made[0], **changes))
    assert found.field == field


def test_a_candidate_with_a_cost_model_that_is_not_there_is_named() -> None:
    run, made = decisions(0)
    one = next(one for one in made if one.candidates)
    (found,) = differences_of(run, with_candidate(one, 0, costs=7))
    assert found.field == "candidates[0].costs"


def test_a_record_that_does_not_say_what_became_of_degraded_ones_is_tried_each_way() -> None:
    for seed in SEEDS:
        run, made = decisions(seed)
        for decision in made:
            assert not differences_of(run, msgspec.structs.replace(decision, degraded=""))


def test_a_negative_zero_is_not_zero() -> None:
    run, made = decisions(0)
    for decision in made:
        for place, one in enumerate(decision.candidates):
            assert isinstance(one, CandidateRecord)
            if one.transfer_s == 0.0 and decision.phase is Phase.COMBINED:
                assert differences_of(run, with_candidate(decision, place, transfer_s=-0.0))
                return
    pytest.fail("no decision without a transfer")
