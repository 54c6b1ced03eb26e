"""Decoding by hand, and against a second one that keeps what is left of each output."""

import random
from typing import Any

import pytest

from lab.whatif.decoding import DecodePool
from lab.whatif.outcome import RunOutcome
from lab.whatif.run import SimulationRun
from lab.whatif.setup import DecodeCosts, RefusalBasis, Setup
from lab.whatif.workload import Workload
from replay.traces.request import TraceRequest
from routing.costs import UNLIMITED, Costs

PLAIN = DecodeCosts(request_s=0.01, token_s=0.0)


def pool(**values: Any) -> DecodePool:
    costs = Costs(fetch_tokens_per_s=UNLIMITED)
    defaults: dict[str, Any] = {"decoders": 1, "decode_costs": PLAIN, "costs": costs}
    return DecodePool(Setup(**{**defaults, **values}))


def give(decoders: DecodePool, number: int, at: float, output: int, prompt: int = 1) -> None:
    decoders.assign(
        number, number, prompt=prompt, output=output, prefill_s=1.0, ends_at=at, is_in_time=True
    )


def test_a_batch_shares_its_time() -> None:
    # Alone, a token takes 10 ms; the second comes after 5 of 10 tokens, and both take 20 ms.
    decoders = pool(slo_tbt_s=0.015, refusal=RefusalBasis.NONE)
    give(decoders, 0, 0.0, 10)
    give(decoders, 1, 0.05, 10)
    decoders.advance(0.1499)
    assert decoders.tbt_now_s(1) == pytest.approx(0.03)
    decoders.advance(0.1501)
    assert decoders.tbt_now_s(1) == pytest.approx(0.02)
    decoders.advance(0.2001)
    assert decoders.tbt_now_s(1) == pytest.approx(0.01)
    outcome = decoders.outcome()
    assert (outcome.requests, outcome.within) == (2, 0)
    assert outcome.tbt.p50 == outcome.tbt.max == pytest.approx(0.02)


def test_the_longest_tenth_of_the_intervals_counts() -> None:
    decoders = pool(slo_tbt_s=0.016, refusal=RefusalBasis.NONE)
    give(decoders, 0, 0.0, 100)
    give(decoders, 1, 0.1, 5)
    # 5 of the longest 10 intervals of the first are 20 ms, and 5 are 10 ms.
    outcome = decoders.outcome()
    assert outcome.tbt.p50 == pytest.approx(0.015)
    assert outcome.tbt.max == pytest.approx(0.02)
    assert outcome.within == 1


def test_an_output_of_one_token_is_not_decoded() -> None:
    decoders = pool()
    give(decoders, 0, 0.0, 1)
    give(decoders, 1, 0.0, 0)
    outcome = decoders.outcome()
    assert (outcome.requests, outcome.within, outcome.tbt.max) == (2, 2, 0.0)


def test_load_is_spread() -> None:
    decoders = pool(decoders=4)
    for number in range(40):
        give(decoders, number, 0.0, 1000)
    decoders.advance(0.1)
    assert decoders.tbt_now_s(1) == pytest.approx(0.11)


def test_what_a_prefill_does_not_hide_of_a_move_is_waited_for() -> None:
    decoders = pool(costs=Costs(fetch_tokens_per_s=1_000.0))
    give(decoders, 0, 5.0, 100, prompt=3_000)  # 3 s beside a prefill of 1 s
    decoders.advance(5.0 + 2.0 + 3.0 / 80 - 0.001)
    assert decoders.tbt_now_s(1) == pytest.approx(0.01)
    decoders.advance(5.0 + 2.0 + 3.0 / 80 + 0.001)
    assert decoders.tbt_now_s(1) == pytest.approx(0.02)


def test_only_now_wastes_what_was_computed() -> None:
    for rule, wasted in ((RefusalBasis.NOW, 1), (RefusalBasis.EARLY, 0), (RefusalBasis.PREDICT, 0)):
        decoders = pool(refusal=rule, slo_tbt_s=0.015)
        give(decoders, 0, 0.0, 100)
        give(decoders, 1, 0.1, 100)
        assert decoders.outcome().wasted == wasted


def test_what_comes_is_predicted() -> None:
    decoders = pool(slo_tbt_s=0.1)
    give(decoders, 0, 0.0, 1000)
    give(decoders, 1, 5.0, 1000)
    decoders.advance(1.0)
    assert decoders.tbt_now_s(1) == pytest.approx(0.02)
    assert decoders.tbt_then_s(1, 1.0, 6.0) == pytest.approx(0.03)
    # One that comes before it has to leave it its room.
    assert decoders.tbt_then_s(1, 1.0, 1.0) == pytest.approx(0.03)


def naive_tbts(costs: DecodeCosts, requests: list[tuple[float, int, int]]) -> list[float]:
    """The mean of the longest tenth of each request's intervals, in the order of their ends."""
    left: dict[int, float] = {}
    spans: dict[int, list[tuple[float, float]]] = {}
    tokens = {number: prompt + output // 2 for number, (_, output, prompt) in enumerate(requests)}
    coming = sorted(range(len(requests)), key=lambda number: (requests[number][0], number))
    now, ended = 0.0, []
    while coming or left:
        held = sum(tokens[number] for number in left)
        interval = costs.fixed_s + costs.request_s * len(left) + costs.token_s * held
        ends = now + min(left.values()) * interval if left else float("inf")
        comes = requests[coming[0]][0] if coming else float("inf")
        until = min(ends, comes)
        for number in left:
            steps = (until - now) / interval
            left[number] -= steps
            spans[number].append((interval, steps))
        now = until
        if comes < ends:
            number = coming.pop(0)
            left[number], spans[number] = float(requests[number][1]), []
        else:
            number = min(left, key=lambda one: left[one])
            del left[number]
            ended.append(number)
    found = []
    for number in ended:
        rest = worst = requests[number][1] / 10
        seconds = 0.0
        for interval, steps in sorted(spans[number], reverse=True):
            seconds += interval * min(steps, rest)
            rest -= min(steps, rest)
        found.append(seconds / worst)
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_equals_the_naive_one(seed: int) -> None:
    chance = random.Random(seed)
    costs = DecodeCosts(fixed_s=0.001, request_s=0.003, token_s=1e-6)
    requests = [
        (chance.uniform(0, 20), chance.randint(2, 300), chance.randint(1, 5_000))
        for _ in range(chance.randint(1, 60))
    ]
    decoders = pool(decode_costs=costs)
    for number, (at, output, prompt) in enumerate(requests):
        give(decoders, number, at, output, prompt)
    decoders.outcome()
    assert decoders._tbts == pytest.approx(naive_tbts(costs, requests), rel=1e-6)


def run(rule: RefusalBasis, **values: Any) -> RunOutcome:
    """Overload: prompts of 1,000 tokens at 40 a second, which two decoders cannot take."""
    chance = random.Random(3)
    lines = [
        TraceRequest(25.0 * number, 1_000, chance.randint(50, 400), [number] * 2)
        for number in range(4_000)
    ]
    setup = Setup(
        policy="least-loaded",
        nodes=6,
        refusal=rule,
        slo_ttft_s=20.0,
        slo_tbt_s=0.1,
        decode_load=0.9,
        decoders=2,
        decode_costs=DecodeCosts(request_s=0.001),
        **values,
    )
    return SimulationRun(setup, Workload("overload", 512, lines)).outcome()


def test_a_run_repeats_itself() -> None:
    assert run(RefusalBasis.PREDICT) == run(RefusalBasis.PREDICT)


def test_predictions_waste_nothing_and_serve_more() -> None:
    none, now, early, predict = (run(rule) for rule in RefusalBasis)
    outcomes = [one.decode for one in (none, now, early, predict)]
    assert all(outcomes)
    wasted = [one.wasted for one in outcomes if one]
    within = [one.within for one in outcomes if one]
    assert wasted[0] == wasted[2] == wasted[3] == 0 < wasted[1]
    assert within[0] < within[2] <= within[3]
    assert none.refused == 0 < early.refused
