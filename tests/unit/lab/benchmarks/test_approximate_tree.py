"""The approximate tree that a gateway keeps, against prompts kept one by one."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.benchmarks.peers.approximate_tree import PAGE_TOKENS, ApproximateTree, pages_of
from lab.benchmarks.peers.guesses import route
from lab.benchmarks.sizes import SEED
from lab.traffic.conversations import Conversations

WORKERS = ("a", "b", "c")


def prompt(kinds: str, rest: int = 0) -> list[int]:
    """A page for each letter, and some tokens that fill none."""
    pages = [100 * ord(kind) + place for kind in kinds for place in range(PAGE_TOKENS)]
    return pages + [7] * rest


def tree(pages_max: int = 1000) -> ApproximateTree:
    return ApproximateTree(WORKERS, pages_max=pages_max)


def test_a_worker_has_what_it_was_sent() -> None:
    one = tree()
    one.insert(prompt("xyz", rest=3), "a")
    one.insert(prompt("xyq"), "b")
    assert one.match(prompt("xyzw")) == {"a": 3 * PAGE_TOKENS, "b": 2 * PAGE_TOKENS}
    assert one.match(prompt("x")) == {"a": PAGE_TOKENS, "b": PAGE_TOKENS}
    assert one.match(prompt("q")) == {}
    assert one.match([1, 2, 3]) == {}
    assert one.pages == {"a": 3, "b": 3, "c": 0}


def test_the_least_recently_used_leaves_go_first() -> None:
    one = tree(pages_max=10)
    one.insert(prompt("rxx"), "a")
    one.insert(prompt("ryy"), "a")
    one.insert(prompt("rxx"), "a")  # used again
    one.insert(prompt("rzzzzz"), "a")
    assert one.pages["a"] == 10
    one.insert(prompt("rq"), "a")
    assert one.pages["a"] == 9
    assert one.match(prompt("ryy")) == {"a": PAGE_TOKENS}
    assert one.match(prompt("rxx")) == {"a": 3 * PAGE_TOKENS}
    assert one.match(prompt("rzzzzz")) == {"a": 6 * PAGE_TOKENS}


def test_what_one_worker_loses_others_keep() -> None:
    one = tree(pages_max=4)
    for worker in ("a", "b"):
        one.insert(prompt("xxxx"), worker)
    one.insert(prompt("yyyy"), "a")
    assert one.match(prompt("xxxx")) == {"b": 4 * PAGE_TOKENS}
    assert one.pages["a"] <= 4


prompts = st.lists(
    st.tuples(st.text("xy", max_size=6), st.integers(0, 3), st.sampled_from(WORKERS)), max_size=12
)


@given(prompts, st.text("xy", max_size=8))
def test_it_answers_as_prompts_kept_one_by_one(
    sent: list[tuple[str, int, str]], asked: str
) -> None:
    one = tree()
    expected: dict[str, int] = {}
    held: dict[str, set[str]] = {worker: set() for worker in WORKERS}
    for kinds, rest, worker in sent:
        one.insert(prompt(kinds, rest), worker)
        held[worker] |= {kinds[: at + 1] for at in range(len(kinds))}
    for worker, prefixes in held.items():
        longest = max((at for at in range(1, len(asked) + 1) if asked[:at] in prefixes), default=0)
        if longest:
            expected[worker] = longest * PAGE_TOKENS
    assert one.match(prompt(asked)) == expected
    assert one.pages == {worker: len(prefixes) for worker, prefixes in held.items()}


@given(prompts, st.integers(1, 6))
def test_it_stays_within_its_bound(sent: list[tuple[str, int, str]], most: int) -> None:
    one = tree(pages_max=most)
    for kinds, rest, worker in sent:
        one.insert(prompt(kinds, rest), worker)
        assert max(one.pages.values()) <= most
        # What it still says of a worker is never more than it was sent.
        assert one.match(prompt(kinds)).get(worker, 0) <= len(kinds) * PAGE_TOKENS


def test_a_tree_has_workers_and_room() -> None:
    with pytest.raises(ValueError, match="Expected workers and room"):
        ApproximateTree((), pages_max=1)
    with pytest.raises(ValueError, match="Expected workers and room"):
        ApproximateTree(("a",), pages_max=0)


def test_only_whole_pages_count() -> None:
    assert [len(pages_of([1] * tokens)) for tokens in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_events_tell_the_truth_and_trees_guess() -> None:
    turns = list(islice(Conversations(SEED), 240))
    events, guesses, nothing = (
        route(turns, source, warm_turns=100) for source in ("events", "trees", "nothing")
    )
    assert (events.wrong, events.unheld) == (0, 0)
    assert 0 < guesses.wrong <= guesses.guesses
    assert 0 < guesses.unheld <= guesses.claimed
    assert nothing.claimed == 0
    assert events.prompt == guesses.prompt == nothing.prompt
    assert nothing.cached < guesses.cached < events.cached
