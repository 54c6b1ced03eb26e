"""Each rule of an advice by hand: a token takes 1 ms to compute, and 0.1 ms to fetch."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.advice.advice import (
    Advice,
    AdviceReason,
    AdviceRules,
    AdvisedAction,
    HeldPrefix,
    Instance,
    advise,
    prompts_per_second,
)
from routing.costs import Costs
from routing.observed.decay import HOT_HALF_LIFE_S, HOT_RATE_S, per_second
from routing.observed.hot_prefixes import HotPrefix, HotPrefixes, view
from schemas.routing_records import DecidedScope, Target
from tests.unit.routing.observed.records import SCOPE, marks_of

COSTS = Costs(prefill_tokens_per_s=1000.0, token_squared_s=0.0, fetch_tokens_per_s=10_000.0)
A, B, C, D = (Target("default", name, 0) for name in "abcd")
RULES = AdviceRules()
SIZED = SCOPE._replace(block_size=100)


def hot(
    prefix: int = 1,
    rate: float = 1.0,
    blocks: int = 10,
    *,
    parent: int = 0,
    checked: int = 0,
    confirmed: int = 0,
    scope: DecidedScope = SIZED,
) -> HotPrefix:
    """Of 100 tokens a block."""
    count = rate * HOT_HALF_LIFE_S / math.log(2.0)
    asked = 100
    return HotPrefix(
        scope,
        prefix,
        parent,
        blocks,
        count,
        0.0,
        0.0,
        0.0,
        asked,
        checked,
        checked,
        confirmed,
        0,
        0,
    )


def instances(*loads: float, reuse: float = 0.0, capacity: int | None = None) -> list[Instance]:
    return [
        Instance(target, load, capacity=capacity, reuse=reuse, costs=COSTS)
        for target, load in zip((A, B, C, D), loads, strict=False)
    ]


def advised(
    given: list[Instance],
    *prefixes: HeldPrefix,
    prompts: float = 100.0,
    rules: AdviceRules = RULES,
) -> list[Advice]:
    return advise(prefixes, given, prompts, rules)


def only(given: list[Instance], *prefixes: HeldPrefix, prompts: float = 100.0) -> Advice:
    (found,) = advised(given, *(prefixes or [HeldPrefix(hot(), (A,))]), prompts=prompts)
    return found


def test_a_prefix_of_a_loaded_holder_is_copied_to_the_least_loaded() -> None:
    advice = only(instances(9.0, 1.0, 2.0))
    assert (advice.action, advice.why) == (AdvisedAction.COPY, AdviceReason.OVERLOAD)
    assert (advice.holders, advice.targets) == ((A,), (B,))
    # Of 300 prompts in the window the target takes half; 1,000 tokens take 1 s, or 0.1 s to fetch.
    assert advice.gain_s == pytest.approx(150.0)
    assert advice.cost_s == pytest.approx(0.1)
    assert advice.command == (
        'POST /move {"prefix_hash":"1","old_position":["a","LocalCPUBackend"],'
        '"new_position":["b","LocalCPUBackend"],"should_copy":true}'
    )


def test_what_is_asked_for_too_seldom_is_not_looked_at() -> None:
    cold = HeldPrefix(hot(rate=RULES.hot_rate * 0.99), (A,))
    assert advised(instances(9.0, 1.0), cold) == []


def test_holders_that_are_not_loaded_keep_it_to_themselves() -> None:
    assert only(instances(1.3, 1.0, 1.0)).why is AdviceReason.NO_OVERLOAD  # 1.18 of the mean of 1.1
    assert only(instances(1.4, 1.0, 1.0)).action is AdvisedAction.COPY  # 1.24 of the mean of 1.13
    assert only(instances(0.0, 0.0)).why is AdviceReason.NO_OVERLOAD


def test_the_load_of_all_holders_counts_together() -> None:
    held = HeldPrefix(hot(), (A, B))
    assert only(instances(9.0, 1.0, 4.0, 4.0), held).why is AdviceReason.NO_OVERLOAD
    assert only(instances(9.0, 7.0, 4.0, 4.0), held).action is AdvisedAction.COPY


def test_a_share_that_holders_cannot_serve_is_an_alarm_whatever_the_loads() -> None:
    # One of four holds it: at more than a quarter of the prompts it is too many for it.
    loads = instances(1.0, 1.0, 1.0, 0.9)
    assert only(loads, HeldPrefix(hot(rate=1.0), (A,)), prompts=4.1).why is AdviceReason.NO_OVERLOAD
    advice = only(loads, HeldPrefix(hot(rate=1.0), (A,)), prompts=3.9)
    assert (advice.action, advice.targets) == (AdvisedAction.COPY, (D,))


def test_a_target_is_below_the_mean_and_has_none_of_it_and_a_cache_for_it() -> None:
    assert only(instances(9.0, 9.0, 9.0), prompts=1.1).why is AdviceReason.NO_TARGET
    everywhere = HeldPrefix(hot(), (A, B))
    assert only(instances(9.0, 1.0), everywhere).why in (
        AdviceReason.NO_OVERLOAD,
        AdviceReason.NO_TARGET,
    )
    assert only(instances(9.0, 1.0, capacity=999)).why is AdviceReason.NO_TARGET
    assert only(instances(9.0, 1.0, capacity=1000)).action is AdvisedAction.COPY


def test_what_the_target_evicts_is_a_cost_as_far_as_it_is_used_again() -> None:
    # 1,000 tokens, each used 80 times in the window, take 80 s to be computed again: 150 < 2 * 80.1
    advice = only(instances(9.0, 1.0, reuse=80.0))
    assert (advice.action, advice.why) == (AdvisedAction.NONE, AdviceReason.NOT_WORTH_IT)
    assert advice.cost_s == pytest.approx(80.1)
    free = [one._replace(free=1000) for one in instances(9.0, 1.0, reuse=80.0)]
    assert only(free).action is AdvisedAction.COPY


def test_a_target_that_is_slow_to_reach_is_not_worth_it() -> None:
    slow = Costs(prefill_tokens_per_s=1000.0, token_squared_s=0.0, fetch_tokens_per_s=10.0)
    given = [one._replace(costs=slow) for one in instances(9.0, 1.0)]
    assert only(given).why is AdviceReason.NOT_WORTH_IT


def test_attention_counts_in_what_a_hit_saves_and_what_is_fixed_does_not() -> None:
    costs = Costs(
        fixed_s=5.0,
        prefill_tokens_per_s=1000.0,
        token_squared_s=1e-6,
        fetch_tokens_per_s=10_000.0,
    )
    given = [one._replace(costs=costs) for one in instances(9.0, 1.0)]
    assert only(given).gain_s == pytest.approx(150.0 * (1.0 + 1.0))


def test_nobody_known_holds_it() -> None:
    advice = only(instances(9.0, 1.0), HeldPrefix(hot(), (Target("default", "gone", 0),)))
    assert (advice.action, advice.why, advice.command) == (
        AdvisedAction.NONE,
        AdviceReason.NOBODY_HOLDS_IT,
        "",
    )
    assert only([], HeldPrefix(hot(), ())).why is AdviceReason.NOBODY_HOLDS_IT


def test_a_prefix_that_engines_drop_is_pinned_where_it_is() -> None:
    held = HeldPrefix(hot(checked=10, confirmed=6), (A, B))
    advice = only(instances(2.0, 1.0, 1.8), held)
    assert (advice.action, advice.why, advice.targets) == (
        AdvisedAction.PIN,
        AdviceReason.DROPPED,
        (B,),
    )
    assert advice.gain_s == pytest.approx(300 * 0.4 * 1.0)
    assert advice.command == (
        'POST /pin {"prefix_hash":"1","instance_id":"b","location":"LocalCPUBackend"}'
    )


@pytest.mark.parametrize(
    ("checked", "confirmed", "reuse"), [(9, 0, 0.0), (10, 10, 0.0), (10, 6, 60.0)]
)
def test_few_checks_no_loss_or_a_cache_that_is_worth_more_pin_nothing(
    checked: int, confirmed: int, reuse: float
) -> None:
    held = HeldPrefix(hot(checked=checked, confirmed=confirmed), (A,))
    assert only(instances(1.0, 1.0, reuse=reuse), held).action is AdvisedAction.NONE


def test_of_prefixes_of_the_same_prompts_the_one_with_the_most_gain_is_copied() -> None:
    chain = [
        HeldPrefix(hot(1, 2.0, 1), (A,)),
        HeldPrefix(hot(2, 2.0, 8, parent=1), (A,)),
        HeldPrefix(hot(3, 0.2, 16, parent=2), (A,)),
        HeldPrefix(hot(9, 1.0, 4), (A,)),
    ]
    found = {one.prefix.prefix: one for one in advised(instances(9.0, 1.0, 2.0), *chain)}
    assert found[2].targets == (B,)
    assert [found[number].why for number in (1, 3)] == [AdviceReason.COVERED, AdviceReason.COVERED]
    assert found[9].targets == (C,), "another one goes to another target"


def test_each_target_is_advised_one_copy() -> None:
    held = [HeldPrefix(hot(number), (A,)) for number in (1, 2, 3)]
    found = advised(instances(9.0, 1.0, 2.0), *held)
    assert [one.action for one in found] == [
        AdvisedAction.COPY,
        AdvisedAction.COPY,
        AdvisedAction.NONE,
    ]
    assert found[2].why is AdviceReason.NO_TARGET


def test_parents_in_a_circle_end_nothing() -> None:
    held = [HeldPrefix(hot(1, parent=2), (A,)), HeldPrefix(hot(2, parent=1), (A,))]
    assert [one.why for one in advised(instances(9.0, 1.0, 1.0), *held)] == [
        AdviceReason.OVERLOAD,
        AdviceReason.COVERED,
    ]


def test_prompts_are_counted_by_their_first_blocks() -> None:
    prefixes = HotPrefixes()
    prefixes.asked(0.0, SCOPE, marks_of((1, 1), (2, 2)), times=3)
    prefixes.asked(0.0, SCOPE, marks_of((1, 5)), times=4)
    (scope,) = view(prefixes, 0.0).values()
    assert prompts_per_second(scope) == pytest.approx(per_second(7.0, HOT_RATE_S))


def test_the_rate_of_all_prompts_is_of_the_time_since_the_first() -> None:
    """Each of many that came once is new, but prompts are not."""
    prefixes = HotPrefixes()
    for second in range(600):
        prefixes.asked(float(second), SCOPE, marks_of((1, second + 1)))
    (scope,) = view(prefixes, 600.0).values()
    assert prompts_per_second(scope) == pytest.approx(1.0, rel=0.02)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 5.0), st.integers(1, 64), st.integers(0, 40), st.integers(0, 15)),
        max_size=30,
    ),
    st.lists(st.floats(0.0, 100.0), min_size=1, max_size=4),
    st.floats(0.0, 50.0),
)
def test_whatever_is_advised_keeps_its_own_rules(
    prefixes: list[tuple[float, int, int, int]], loads: list[float], reuse: float
) -> None:
    given = instances(*loads, reuse=reuse)
    known = {one.target: one for one in given}
    mean = sum(loads) / len(loads)
    held = [
        HeldPrefix(
            hot(number, rate, blocks, parent=parent, checked=20, confirmed=20 - holders % 16),
            tuple(one for place, one in enumerate((A, B, C, D)) if holders >> place & 1),
        )
        for number, (rate, blocks, parent, holders) in enumerate(prefixes, start=1)
    ]
    found = advised(given, *held)
    assert len(found) == sum(one.prefix.rate >= RULES.hot_rate for one in held)
    copies = [one for one in found if one.action is AdvisedAction.COPY]
    targets = [target for one in copies for target in one.targets]
    assert len(set(targets)) == len(targets)
    for one in found:
        assert (one.action is AdvisedAction.NONE) == (not one.targets) == (not one.command)
        if one.action is not AdvisedAction.NONE:
            assert one.gain_s > RULES.gain_ratio * one.cost_s
    for one in copies:
        assert not set(one.targets) & set(one.holders)
        assert known[one.targets[0]].load < mean
