"""Counts against exact ones, with their bounds, in one part and in several."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.observed.decay import HOT_HALF_LIFE_S, step_of
from routing.observed.hot_prefixes import HotPrefix, HotPrefixes, HotScope, HotState, view
from routing.observed.promises import Promise, promise_of
from routing.observed.space_saving import SpaceSaving
from schemas.routing_records import CandidateRecord, PrefixMark
from tests.unit.routing.observed.records import (
    RUN,
    SCOPE,
    a_decision,
    marks_of,
    scope_of,
)

K = 8
Asked = tuple[float, int]
"""When, and which prefix."""

histories = st.lists(
    st.tuples(st.floats(0.0, 4000.0), st.integers(1, 30) | st.integers(1, 4)), max_size=120
).map(sorted)


def counted(history: Sequence[Asked], most: int = K) -> HotPrefixes:
    hot = HotPrefixes(counters_max=most)
    for time, prefix in history:
        hot.asked(time, SCOPE, marks_of((1, prefix)))
    return hot


def exactly(history: Sequence[Asked], now: float) -> dict[int, float]:
    """Each prompt halved by the steps since; by the definition, with no base and no counters."""
    counts: dict[int, float] = defaultdict(float)
    for time, prefix in history:
        counts[prefix] += 2.0 ** ((step_of(time) - step_of(now)) / 256)
    return counts


def seen(hot: HotPrefixes, now: float) -> HotScope:
    return view(hot, now).get(SCOPE, HotScope(0.0, 0.0, 0.0, []))


def find(scope: HotScope, prefix: int) -> HotPrefix:
    return next(one for one in scope.prefixes if one.prefix == prefix)


def assert_bounds_hold(found: HotScope, exact: dict[int, float], counters: int) -> None:
    slack = 1e-9 * (1.0 + found.total)
    assert found.total == pytest.approx(sum(exact.values()))
    assert found.error_max <= found.total / counters + slack
    known = {one.prefix for one in found.prefixes}
    for one in found.prefixes:
        assert one.count >= exact.get(one.prefix, 0.0) - slack, "never too low"
        assert one.count - one.error <= exact.get(one.prefix, 0.0) + slack
        assert one.error <= found.error_max + slack
    for prefix, count in exact.items():
        assert prefix in known or count <= found.error_max + slack


@given(histories)
def test_the_bounds_of_space_saving_hold_at_each_moment(history: list[Asked]) -> None:
    now = 4000.0
    found = seen(counted(history), now)
    assert len(found.prefixes) <= K
    assert_bounds_hold(found, exactly(history, now), K)


@given(histories)
def test_with_room_for_all_the_counts_are_exact(history: list[Asked]) -> None:
    found, exact = seen(counted(history, most=100), 4000.0), exactly(history, 4000.0)
    assert {one.prefix: one.count for one in found.prefixes} == pytest.approx(exact)
    assert not any(one.error for one in found.prefixes)


@given(histories)
def test_the_lowest_counter_goes_whatever_the_order_of_the_heap(history: list[Asked]) -> None:
    hot = counted(history)
    plain: dict[int, float] = {}
    for time, prefix in history:
        if prefix not in plain and len(plain) == K:
            gone = min(plain, key=lambda one: (plain[one], one))
            plain[prefix] = plain.pop(gone)
        plain[prefix] = plain.get(prefix, 0.0) + 2.0 ** (step_of(time) / 256)
    found = {one.prefix: one.count for one in seen(hot, 4000.0).prefixes}
    scale = 2.0 ** (step_of(4000.0) / 256)
    # Where two are lowest up to rounding, either may go.
    counts = sorted(count / scale for count in plain.values())
    assert sorted(found.values()) == pytest.approx(counts)


def test_a_count_halves_in_each_half_life() -> None:
    hot = counted([(0.0, 5)] * 8)
    for halves in range(4):
        assert find(seen(hot, halves * HOT_HALF_LIFE_S), 5).count == 8.0 / 2**halves


def test_counts_outlive_many_half_lives_and_go_to_nothing() -> None:
    hot = counted([(0.0, 5), (1e9, 6)])
    found = seen(hot, 1e9)
    assert find(found, 5).count == 0.0
    assert find(found, 6).count == 1.0


def test_a_rate_that_stays_is_read_from_the_count() -> None:
    hot = HotPrefixes()
    for second in range(3600):
        hot.asked(float(second), SCOPE, marks_of((1, 5)), times=2)
    assert find(seen(hot, 3600.0), 5).rate == pytest.approx(2.0, rel=0.02)


def test_a_prefix_that_is_new_has_the_rate_at_which_it_came_since() -> None:
    hot = HotPrefixes()
    for second in range(3600):
        hot.asked(float(second), SCOPE, marks_of((1, 5)))
    for second in range(100):
        hot.asked(3600.0 + second, SCOPE, marks_of((1, 6)), times=3)
    assert find(seen(hot, 3700.0), 6).rate == pytest.approx(3.0, rel=0.02)


def test_each_mark_counts_and_knows_the_one_before_it() -> None:
    hot = HotPrefixes()
    hot.asked(0.0, SCOPE, marks_of((1, 11), (2, 12), (3, 13)))
    found = {one.prefix: (one.parent, one.blocks, one.tokens) for one in seen(hot, 0.0).prefixes}
    assert found == {11: (0, 1, 16), 12: (11, 2, 32), 13: (12, 3, 48)}


def promised(cached: int = 0, **given: object) -> Promise:
    promise = promise_of(RUN, 0.0, a_decision(cached=cached, **given))  # type: ignore[arg-type]
    assert promise is not None
    return promise


MARKS = marks_of((1, 11), (2, 12), (4, 14))


def test_hits_promised_and_confirmed_saved_and_missed_are_kept_for_each_prefix() -> None:
    hot = HotPrefixes()
    one = promised(32, held=64, marks=MARKS)
    hot.decided(0.0, one)
    hot.confirmed(one, 20)
    found = seen(hot, 0.0)
    kept = {
        prefix: (at.promised, at.checked, at.confirmed, at.saved, at.missed)
        for prefix in (11, 12, 14)
        for at in [find(found, prefix)]
    }
    assert kept == {11: (1, 1, 1, 16, 0), 12: (1, 1, 0, 20, 0), 14: (0, 0, 0, 20, 32)}


def test_what_is_to_be_fetched_is_not_missed() -> None:
    hot = HotPrefixes()
    fetching = CandidateRecord("a", 0, cached=32, prefix=64, fetch_from="b")
    hot.decided(0.0, promised(candidates=[fetching], held=64, marks=MARKS))
    assert find(seen(hot, 0.0), 14).missed == 0


def test_a_hit_that_nobody_promised_is_saved_and_confirms_nothing() -> None:
    hot, one = HotPrefixes(), promised(0, marks=MARKS)
    hot.decided(0.0, one)
    hot.confirmed(one, 64)
    at = find(seen(hot, 0.0), 14)
    assert (at.promised, at.confirmed, at.saved) == (0, 0, 64)


def test_a_counter_that_began_after_the_decision_learns_nothing_of_it() -> None:
    hot, one = HotPrefixes(), promised(64, marks=MARKS)
    hot.asked(1.0, SCOPE, MARKS)
    hot.confirmed(one, 64)
    assert find(seen(hot, 1.0), 14).saved == 0


def test_an_outcome_of_a_scope_that_is_gone_is_passed_over() -> None:
    HotPrefixes().confirmed(promised(64, marks=MARKS), 64)


def test_a_prompt_that_is_its_prefix_promises_what_engines_can_have_of_it() -> None:
    hot, one = HotPrefixes(), promised(64, prompt=64, marks=MARKS)
    hot.decided(0.0, one)
    hot.confirmed(one, 48)
    at = find(seen(hot, 0.0), 14)
    assert (at.promised, at.confirmed, at.saved) == (1, 1, 48)


def test_a_prompt_of_no_tokens_is_no_hit() -> None:
    hot, one = HotPrefixes(), promised(0, prompt=0, marks=MARKS)
    hot.decided(0.0, one)
    hot.confirmed(one, 0)
    assert find(seen(hot, 0.0), 14).promised == 0


def test_thousands_of_scopes_leave_those_that_are_asked_for() -> None:
    hot = HotPrefixes(scopes_max=4)
    hot.asked(0.0, scope_of("hot"), MARKS, times=1000)
    for number in range(3000):
        hot.asked(1.0, scope_of(f"m{number}"), MARKS)
    assert len(hot.scopes) == 4
    assert hot.forgotten == 2997
    assert scope_of("hot") in hot.scopes


def test_a_decision_of_thousands_of_marks_costs_what_one_of_64_does() -> None:
    hot = HotPrefixes()
    hot.asked(0.0, SCOPE, marks_of(*((depth, depth) for depth in range(1, 5000))))
    assert len(hot) == 64


@given(histories, histories)
def test_a_state_comes_back_from_its_bytes_and_goes_on_alike(
    before: list[Asked], after: list[Asked]
) -> None:
    later = [(time + 4000.0, prefix) for time, prefix in after]
    whole = counted(before)
    again = HotPrefixes(counters_max=K)
    encoded = msgspec.msgpack.encode(whole.state())
    again.restore(msgspec.msgpack.decode(encoded, type=HotState))
    for hot in (whole, again):
        for time, prefix in later:
            hot.asked(time, SCOPE, marks_of((1, prefix)))
    assert msgspec.msgpack.encode(again.state()) == msgspec.msgpack.encode(whole.state())


def test_one_counter_serves_whoever_came_last() -> None:
    counters = SpaceSaving(0.0, most=1)
    for number, prefix in enumerate([1, 2, 3, 2], start=1):
        (counter,) = counters.note(0.0, [PrefixMark(1, prefix)])
        assert (counter.count, counter.error) == (number, number - 1)


def test_the_sum_of_counts_is_the_number_of_prompts_and_marks() -> None:
    history = [(0.0, prefix % 20 + 1) for prefix in range(200)]
    hot = counted(history)
    assert Counter(prefix for _, prefix in history).total() == seen(hot, 0.0).total
    assert sum(one.count for one in seen(hot, 0.0).prefixes) == 200, "none is lost to a counter"


def test_what_comes_again_stands_before_what_only_may_have() -> None:
    hot = HotPrefixes(counters_max=4)
    for number in range(100):
        hot.asked(0.0, SCOPE, marks_of((1, 1000 + number)))
        if number > 80:
            hot.asked(0.0, SCOPE, marks_of((1, 7)))
    first, *others = seen(hot, 0.0).prefixes
    assert first.prefix == 7
    assert first.certain == pytest.approx(19 - 1, abs=1)
    assert all(one.certain <= 1.0 < one.count for one in others)
