"""Each rule of what is done by advice, by hand."""

import random

import pytest

from routing.advice.acting import (
    Act,
    ActRules,
    PastActs,
    SuppressionReason,
    source_of,
    with_prefixes,
)
from routing.advice.advice import AdvisedAction
from schemas.command_records import CommandState
from schemas.limits import ACT_REMEMBERED_S

RULES = ActRules(
    at_once=2, horizon_s=300.0, backoff_first_s=60.0, backoff_max_s=200.0, unknown_s=30.0
)
NOW = 10_000.0
DONE, FAILED, PENDING = CommandState.DONE, CommandState.FAILED, CommandState.PENDING


def act(
    ago: float,
    state: CommandState = DONE,
    *,
    prefix: int = 1,
    source: str = "a",
    target: str = "b",
    action: AdvisedAction = AdvisedAction.COPY,
    took: float = 1.0,
    tokens: int = 16,
) -> Act:
    at = NOW - ago
    ended_at = 0.0 if state is PENDING else at + took
    name = f"{prefix}-{ago}"
    return Act(name, action, prefix, source, target, at, state, "", ended_at, tokens)


def past(*acts: Act, now: float = NOW, rules: ActRules = RULES) -> PastActs:
    return PastActs(acts, now, rules)


def test_nothing_is_against_what_was_never_done() -> None:
    assert past().why_not(1, "b") is None
    assert past(act(10.0)).why_not(2, "b") is None
    assert past(act(10.0)).why_not(1, "c") is None


@pytest.mark.parametrize("state", [DONE, FAILED, CommandState.PARTIAL])
def test_the_same_is_not_done_again_within_the_horizon(state: CommandState) -> None:
    assert past(act(299.0, state)).why_not(1, "b") is SuppressionReason.REPEATED
    assert past(act(300.0, state)).why_not(1, "b") is None


def test_what_is_under_way_is_waited_for_and_not_for_ever() -> None:
    assert past(act(29.0, PENDING)).why_not(1, "b") is SuppressionReason.UNDER_WAY
    assert past(act(30.0, PENDING)).why_not(1, "b") is SuppressionReason.REPEATED
    assert past(act(30.0, PENDING)).is_backing_off("b"), "what never ended has failed"


def test_so_many_are_under_way_at_once() -> None:
    two = [act(1.0, PENDING, prefix=1), act(1.0, PENDING, prefix=2)]
    assert past(*two).why_not(3, "c") is SuppressionReason.AT_ONCE
    assert past(two[0]).why_not(3, "c") is None
    begun = past(two[0])
    begun.begin(act(0.0, PENDING, prefix=9))
    assert begun.under_way == 2
    assert begun.why_not(3, "c") is SuppressionReason.AT_ONCE
    assert begun.why_not(9, "b") is SuppressionReason.UNDER_WAY


def test_so_many_are_begun_in_a_minute() -> None:
    rules = RULES._replace(rate=3)
    of_late = [act(ago, prefix=ago) for ago in (10, 20, 59)]
    assert past(*of_late, rules=rules).why_not(1, "c") is SuppressionReason.RATE
    assert past(*of_late[:2], act(60.0), rules=rules).why_not(1, "c") is None
    begun = past(*of_late[:2], rules=rules)
    begun.begin(act(0.0, PENDING, prefix=9))
    assert begun.why_not(1, "c") is SuppressionReason.RATE


def test_what_all_have_executed_and_brought_nothing_has_failed() -> None:
    empty = past(act(10.0, tokens=0))
    assert empty.copied() == {}
    assert empty.is_backing_off("a")
    assert empty.why_not(1, "b") is SuppressionReason.REPEATED
    assert past(act(20.0, FAILED, prefix=2), act(10.0, tokens=0)).is_backing_off("b")


def test_after_a_failure_both_instances_are_let_alone_and_after_the_next_one_longer() -> None:
    once = past(act(60.9, FAILED))  # which ended 59.9 s ago
    assert once.is_backing_off("a")
    assert once.why_not(2, "b") is SuppressionReason.BACKING_OFF
    assert not past(act(61.0, FAILED)).is_backing_off("a")
    twice = [act(400.0, FAILED), act(120.9, FAILED)]
    assert past(*twice).is_backing_off("a")
    assert not past(act(400.0, FAILED), act(121.0, FAILED)).is_backing_off("a")
    many = [act(1000.0 + number, FAILED) for number in range(100)]
    assert past(*many, act(200.9, FAILED)).is_backing_off("a")
    assert not past(*many, act(201.0, FAILED)).is_backing_off("a"), "up to a bound"
    assert not past(act(10.0, FAILED)).is_backing_off("c")


def test_a_success_ends_the_back_off_of_both() -> None:
    acts = [act(50.0, FAILED), act(40.0, FAILED, prefix=2), act(30.0, DONE, prefix=3)]
    assert not past(*acts).is_backing_off("a")
    assert not past(*acts).is_backing_off("b")
    assert past(*acts, act(5.0, FAILED, prefix=4)).is_backing_off("a")


def test_a_pin_fails_at_one_instance_once() -> None:
    pin = act(60.0, FAILED, source="a", target="a", action=AdvisedAction.PIN)
    later = past(pin, now=NOW + 1.5)
    assert not later.is_backing_off("a"), "counted twice it would be let alone for 120 s"


def test_a_copy_counts_as_held_from_its_beginning_and_for_the_horizon() -> None:
    assert past(act(1.0, PENDING)).copied() == {1: {"b"}}
    assert past(act(299.0), act(5.0, target="c")).copied() == {1: {"b", "c"}}
    assert past(act(300.0)).copied() == {}
    assert past(act(1.0, FAILED)).copied() == {}
    assert past(act(1.0, action=AdvisedAction.PIN)).copied() == {}


def test_who_was_sent_a_prefix_has_all_that_it_begins_with() -> None:
    parents = {3: 2, 2: 1, 1: 0, 9: 1}
    found = with_prefixes({3: frozenset("b"), 9: frozenset("c")}, parents)
    assert found == {3: {"b"}, 2: {"b"}, 1: {"b", "c"}, 9: {"c"}}
    assert with_prefixes({1: frozenset("b")}, {1: 2, 2: 1}) == {1: {"b"}, 2: {"b"}}


def test_the_first_holder_that_takes_commands_is_the_source() -> None:
    assert source_of(["a", "c"], "b", past(), ["c", "a"]) == "a"
    assert source_of(["a", "c"], "b", past(), ["c", "b"]) == "c"
    assert source_of(["b"], "b", past(), ["b"]) is SuppressionReason.NO_WORKER
    assert source_of(["a"], "b", past(), []) is SuppressionReason.NO_WORKER
    failed = past(act(1.0, FAILED, source="a", target="d"))
    assert source_of(["a", "c"], "b", failed, ["a", "c"]) == "c"
    assert source_of(["a"], "b", failed, ["a", "c"]) is SuppressionReason.BACKING_OFF


def test_what_is_long_past_or_says_to_be_of_later_does_no_harm() -> None:
    assert past(act(ACT_REMEMBERED_S + 1.0, FAILED)).why_not(1, "b") is None
    ahead = act(-5_000.0, PENDING)  # by a clock that runs ahead
    assert past(ahead).why_not(1, "b") is SuppressionReason.UNDER_WAY
    assert past(ahead, now=NOW + 6_000.0).why_not(1, "b") is None


def test_whatever_the_order_in_which_it_is_told_the_answer_is_the_same() -> None:
    """Invariant: what holds an act back depends on the set of acts alone. Seed 20261126."""
    chance = random.Random(20261126)
    for _ in range(200):
        acts = [
            act(
                chance.uniform(0.0, 700.0),
                chance.choice(list(CommandState)),
                prefix=chance.randrange(3),
                source=chance.choice("abc"),
                target=chance.choice("abc"),
            )
            for _ in range(chance.randrange(12))
        ]
        shuffled = chance.sample(acts, len(acts))
        one, two = past(*acts), past(*shuffled)
        assert one.copied() == two.copied()
        for prefix in range(3):
            for target in "abc":
                assert one.why_not(prefix, target) == two.why_not(prefix, target)
