"""Predictions against a plain list of them."""

from collections.abc import Sequence

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from routing.observed.predicted_blocks import (
    PREDICTED_S,
    PredictedHolders,
    PredictedState,
    predicted_s,
)
from schemas.limits import APPROXIMATE_S
from schemas.routing_records import PrefixMark, Target, marks_at
from tests.unit.routing.observed.records import SCOPE, scope_of

A, B, C = (Target("default", name, 0) for name in "abc")


def hashes_of(text: str) -> list[int]:
    """A block for each letter: the hash of each is of all before it, too."""
    return [hash_of(text[: end + 1]) for end in range(len(text))]


def hash_of(prefix: str) -> int:
    return xxhash.xxh3_64_intdigest(prefix.encode())


def marks_in(text: str) -> list[PrefixMark]:
    hashes = hashes_of(text)
    depths = sorted({*marks_at(len(text), 0), len(text)} - {0})
    return [PrefixMark(depth, hashes[depth - 1]) for depth in depths]


def note(
    holders: PredictedHolders,
    time: float,
    target: Target,
    text: str,
    lasts: float = PREDICTED_S,
    capacity: int = 0,
) -> None:
    holders.decided(time, target, SCOPE, marks_in(text), lasts_s=lasts, capacity_blocks=capacity)


def longest(holders: PredictedHolders, text: str, now: float) -> dict[str, int]:
    found = holders.longest(SCOPE, hashes_of(text), now)
    return {target.instance_id: blocks for target, blocks in found.items()}


@pytest.mark.parametrize(
    ("ttft_s", "lasts_s"),
    [(0.0, 2.0), (1.0, 2.0), (1.01, 4.0), (7.1, 16.0), (30.0, 32.0), (1e9, 64.0)],
)
def test_a_prediction_lasts_until_the_prompt_can_be_computed_and_a_while(
    ttft_s: float, lasts_s: float
) -> None:
    assert predicted_s(ttft_s) == lasts_s


def test_a_burst_of_siblings_finds_who_was_given_the_first() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcdwxyz")
    assert longest(holders, "abcdwxyz", 0.1) == {"a": 8}
    assert longest(holders, "abcdefgh", 0.1) == {"a": 4}
    assert longest(holders, "xbcd", 0.1) == {}


def test_hashes_may_come_as_octets() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcd")
    octets = b"".join(one.to_bytes(8, "little") for one in hashes_of("abcdef"))
    assert holders.longest(SCOPE, octets, 0.1) == {A: 4}
    assert holders.longest(SCOPE, octets[:17], 0.1) == {A: 2}, "of two whole hashes"


def test_another_scope_knows_nothing_of_it() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcd")
    assert holders.longest(scope_of("other"), hashes_of("abcd"), 0.1) == {}


def test_a_prediction_ends_in_its_time_and_one_that_is_repeated_begins_anew() -> None:
    holders, lasts = PredictedHolders(), APPROXIMATE_S
    note(holders, 0.0, A, "ab", lasts)
    assert longest(holders, "ab", lasts - 0.01) == {"a": 2}
    assert longest(holders, "ab", lasts) == {}
    note(holders, lasts / 2, A, "ab", lasts)
    assert longest(holders, "ab", lasts) == {"a": 2}


def test_one_that_lasts_long_keeps_none_that_has_ended() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "ab", APPROXIMATE_S)
    note(holders, 0.0, B, "xyz", PREDICTED_S)
    note(holders, 0.0, B, "q", capacity=5)
    note(holders, PREDICTED_S, A, "ab", APPROXIMATE_S)
    assert len(holders) == 3


def test_with_a_capacity_the_least_recently_used_goes_tails_first() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcd", capacity=6)
    note(holders, 1.0, A, "xy", capacity=6)
    assert longest(holders, "abcd", 1e9) == {"a": 4}, "no time ends it"
    note(holders, 2.0, A, "z", capacity=6)
    assert longest(holders, "abcd", 2.0) == {"a": 2}
    assert longest(holders, "xy", 2.0) == {"a": 2}
    note(holders, 3.0, A, "ab", capacity=6)
    note(holders, 4.0, A, "uvw", capacity=6)
    assert longest(holders, "ab", 4.0) == {"a": 2}, "used again, it stays"
    assert longest(holders, "xy", 4.0) == {}


def test_a_prompt_larger_than_the_capacity_keeps_its_head() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcdefgh", capacity=5)
    assert longest(holders, "abcdefgh", 0.0) == {"a": 4}


def test_a_prompt_that_comes_again_takes_its_place_in_the_capacity_once() -> None:
    holders = PredictedHolders()
    for _ in range(3):
        note(holders, 0.0, A, "abcdefgh", capacity=10)
    assert longest(holders, "abcdefgh", 0.0) == {"a": 8}
    note(holders, 0.0, A, "xyxy", capacity=10)
    assert longest(holders, "abcdefgh", 0.0) == {"a": 4}
    assert longest(holders, "xyxy", 0.0) == {"a": 4}


def test_a_target_whose_capacity_is_known_no_more_holds_what_it_is_given_since() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcd", capacity=8)
    note(holders, 1.0, A, "xy")
    assert longest(holders, "abcd", 1.0) == {}
    assert longest(holders, "xy", 1.0) == {"a": 2}


def test_a_request_that_failed_takes_its_prediction_back() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcd")
    holders.failed(A, SCOPE, marks_in("abcd"))
    holders.failed(A, SCOPE, marks_in("abcd"))
    assert longest(holders, "abcd", 0.0) == {}
    assert len(holders) == 0
    assert holders.state() == PredictedHolders().state()


def test_what_has_no_room_is_counted_and_what_ends_first_goes() -> None:
    holders = PredictedHolders(most=4)
    note(holders, 0.0, C, "p", capacity=100)
    note(holders, 0.0, A, "ab", APPROXIMATE_S)
    note(holders, 0.0, B, "xyz", PREDICTED_S)
    assert (len(holders), holders.forgotten) == (4, 2)
    assert longest(holders, "ab", 0.0) == {"a": 2}
    assert longest(holders, "p", 0.0) == {"c": 1}
    assert longest(holders, "xyz", 0.0) == {"b": 1}


def test_thousands_of_targets_and_scopes_stay_below_the_bound() -> None:
    holders = PredictedHolders(most=50)
    for number in range(3000):
        target = Target("default", f"i{number}", 0)
        holders.decided(0.0, target, scope_of(f"m{number}"), marks_in("ab"), lasts_s=2.0)
    assert (len(holders), holders.forgotten) == (50, 5950)


def test_scopes_of_which_nothing_is_marked_leave_nothing() -> None:
    holders = PredictedHolders()
    for number in range(100):
        holders.decided(2.0 * number, A, scope_of(f"m{number}"), (), lasts_s=2.0)
        holders.decided(2.0 * number, A, scope_of(f"n{number}"), marks_in("ab"), lasts_s=2.0)
    assert len(holders._index._scopes) == 1, "the last one's"


def test_marks_that_no_prompt_has_are_harmless() -> None:
    holders = PredictedHolders()
    hostile = [PrefixMark(0, 1), PrefixMark(9, 2), PrefixMark(3, 2), PrefixMark(2**40, 3)]
    holders.decided(0.0, A, SCOPE, hostile, lasts_s=2.0, capacity_blocks=10)
    assert holders.longest(SCOPE, [1, 2, 3], 0.0) == {}
    assert len(holders) == 2, "what is larger than the cache is not in it"


def test_marks_that_do_not_count_leave_what_is_above_them() -> None:
    holders = PredictedHolders()
    note(holders, 0.0, A, "abcd")
    prefixes = hashes_of("abcd")
    deepest = (A, SCOPE, prefixes[3])
    assert holders.longest(SCOPE, prefixes, 0.0, but={deepest})[A] < 4
    assert holders.longest(SCOPE, prefixes, 0.0) == {A: 4}


prompts = st.text("ab", min_size=1, max_size=9)
decisions = st.lists(
    st.tuples(
        st.floats(0.0, 10.0),
        st.sampled_from([A, B]),
        prompts,
        st.sampled_from([PREDICTED_S, 5.0]),
    ),
    max_size=25,
).map(lambda found: sorted(found, key=lambda one: one[0]))
Decided = tuple[float, Target, str, float]


def by_hand(history: Sequence[Decided], asked: str, now: float) -> dict[Target, int]:
    """The last decision that noted a prefix at a target says until when it lasts."""
    until: dict[tuple[Target, str], float] = {}
    for time, target, text, lasts in history:
        for mark in marks_in(text):
            until[target, text[: mark.blocks]] = time + lasts
    found: dict[Target, int] = {}
    for (target, text), end in until.items():
        if asked.startswith(text) and end > now:
            found[target] = max(found.get(target, 0), len(text))
    return found


@given(decisions, prompts)
def test_the_longest_of_each_target_is_that_of_a_plain_list(
    history: list[Decided], asked: str
) -> None:
    holders = PredictedHolders()
    for time, target, text, lasts in history:
        note(holders, time, target, text, lasts)
    now = history[-1][0] if history else 0.0
    assert holders.longest(SCOPE, hashes_of(asked), now) == by_hand(history, asked, now)


@given(decisions, decisions, st.sampled_from([0, 6]))
def test_a_state_comes_back_from_its_bytes_and_goes_on_alike(
    before: list[Decided], after: list[Decided], capacity: int
) -> None:
    whole = PredictedHolders(most=12)
    for time, target, text, lasts in before:
        note(whole, time, target, text, lasts, capacity if target == A else 0)
    again = PredictedHolders(most=12)
    encoded = msgspec.msgpack.encode(whole.state())
    again.restore(msgspec.msgpack.decode(encoded, type=PredictedState))
    for holders in (whole, again):
        for time, target, text, lasts in after:
            note(holders, time + 10.0, target, text, lasts, capacity if target == A else 0)
    assert msgspec.msgpack.encode(again.state()) == msgspec.msgpack.encode(whole.state())


class AlwaysMade(PredictedHolders):
    """The specification: marks that were made before are made once more."""

    def _made_again(self, *_: object) -> bool:
        return False


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["decided", "decided", "decided", "failed"]),
            st.sampled_from([A, B]),
            st.sampled_from(["abcdwxyz", "abcd", "abcdefgh", "x", ""]),
            st.sampled_from([PREDICTED_S, APPROXIMATE_S]),
            st.sampled_from([0, 0, 0, 12]),
            st.sampled_from([0.0, 0.5, 3.0]),
        ),
        max_size=40,
    )
)
def test_marks_that_are_made_again_are_as_if_they_were_made(
    steps: list[tuple[str, Target, str, float, int, float]],
) -> None:
    kept, made, now = PredictedHolders(), AlwaysMade(), 0.0
    for kind, target, text, lasts, capacity, pause in steps:
        now += pause
        for holders in (kept, made):
            if kind == "failed":
                holders.failed(target, SCOPE, marks_in(text))
            else:
                note(holders, now, target, text, lasts, capacity)
        assert kept.state() == made.state()
        assert kept._index.size_bytes == made._index.size_bytes
        for text_asked in ("abcdwxyz", "abcdefgh"):
            assert longest(kept, text_asked, now) == longest(made, text_asked, now)
