"""What a publisher holds and the index cannot use: both kernels know of it until it is over."""

from collections.abc import Callable
from typing import Any

import pytest

from schemas.events import ClearedBlocks, StoredBlocks
from schemas.identities import COPIES_UNKNOWN, Medium
from streams.kernel import open_kernel
from streams.kernel.reference import LEFT_OUT_REASONS_MAX
from tests.contract.kernels import BOTH, kernel_of
from tests.contract.test_kernel_contract import ABC, SEED, Bench, stored
from tests.strategies import BLOCK_SIZE, prompt_hashes, prompt_tokens, u64s

MAX = 40


@pytest.fixture(params=BOTH)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED, left_out_max=MAX))


REFUSED: dict[str, list[StoredBlocks]] = {
    "unknown_parent": [stored(ABC, parent=5)],
    "unresolved": [stored(ABC, tokens=b"", block_size=0)],
    f"block_size:{2 * BLOCK_SIZE}": [stored(ABC, block_size=2 * BLOCK_SIZE)],
    f"block_size:{4 * BLOCK_SIZE}": [stored(ABC, tokens=b"", block_size=4 * BLOCK_SIZE)],
    "chunks_differ": [stored(ABC, block_size=2 * BLOCK_SIZE, medium=Medium.CPU)],
    "token_count": [stored(ABC, tokens=prompt_tokens(ABC)[:-4])],
    "extra_keys": [stored(ABC, extra_keys=(b"x",))],
    "seed": [stored(ABC, tokens=b"", token_hashes=u64s([1, 2, 3]))],
    "hash_conflict": [
        stored((7, 8, 9), hashes=prompt_hashes(ABC)),
        stored(ABC),
    ],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_it_is_known_by_its_reason_and_shown_nowhere_else(bench: Bench, reason: str) -> None:
    publisher = bench.publisher()
    bench.apply(publisher, *REFUSED[reason])
    assert bench.kernel.left_out(publisher) == [(reason, 3)]
    assert bench.kernel.stats()["left_out"] == 3
    assert not any(bench.ask(ABC).values())
    held = 3 if reason == "hash_conflict" else 0
    assert bench.blocks() == held
    assert len(bench.kernel.scopes()) == bool(held)


def test_chunks_beside_the_gpu_are_told_from_blocks_of_a_size_that_is_not_registered(
    bench: Bench,
) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.store(publisher, (7, 8, 9), block_size=8 * BLOCK_SIZE, medium=Medium.CPU)
    bench.store(publisher, (4, 5, 6), block_size=8 * BLOCK_SIZE, tokens=b"", shared=True)
    assert bench.kernel.left_out(publisher) == [("chunks_differ", 6)]
    bench.store(publisher, (1, 2), block_size=8 * BLOCK_SIZE)
    left_out = [(f"block_size:{8 * BLOCK_SIZE}", 2), ("chunks_differ", 6)]
    assert bench.kernel.left_out(publisher) == left_out
    assert bench.ask(ABC) == {"a": 3}


ENDS: dict[str, Callable[[Bench, Any], object]] = {
    "its removal": lambda bench, one: bench.remove(one, prompt_hashes(ABC)),
    "a clear": lambda bench, one: bench.apply(one, ClearedBlocks(sequence=2)),
    "a new incarnation": lambda bench, one: bench.kernel.clear(one),
    "that it can be used": lambda bench, one: bench.store(one, ABC),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_is_over_with(bench: Bench, end: str) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, parent=5)
    ENDS[end](bench, publisher)
    assert bench.kernel.left_out(publisher) == []
    assert bench.kernel.stats()["left_out"] == 0
    assert bench.ask(ABC) == ({"a": 3} if end == "that it can be used" else {})


def test_it_is_counted_by_announcement_and_medium_like_all_others(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0,), parent=5)
    bench.store(publisher, (0,), parent=5)
    bench.store(publisher, (0,), parent=5, reported=True)
    bench.store(publisher, (0,), parent=5, medium=Medium.CPU)
    for left in (2, 1):
        assert bench.kernel.left_out(publisher) == [("unknown_parent", 2)][: left > 0]
        bench.remove(publisher, prompt_hashes((0,)))
    assert bench.kernel.left_out(publisher) == [("unknown_parent", 1)]
    bench.remove(publisher, prompt_hashes((0,)), Medium.CPU)
    assert bench.kernel.left_out(publisher) == []


def test_a_removal_takes_what_is_held_first(bench: Bench) -> None:
    """Of two blocks under one name nobody knows which was removed: no more than is sure is told."""
    publisher = bench.publisher()
    bench.store(publisher, (0,))
    bench.store(publisher, (1,), hashes=prompt_hashes((0,)))
    bench.remove(publisher, prompt_hashes((0,)))
    assert (bench.ask((0,)), bench.kernel.left_out(publisher)) == ({}, [("hash_conflict", 1)])
    bench.remove(publisher, prompt_hashes((0,)))
    assert bench.kernel.left_out(publisher) == []


@pytest.mark.parametrize("reason", ["unknown_parent", "unknown_field"])
@pytest.mark.parametrize("times", [1, 2])
def test_what_was_left_out_of_a_block_that_is_found_may_be_copies_of_it(
    bench: Bench, reason: str, times: int
) -> None:
    """An engine that has announced it so often may have to remove it as often."""
    publisher = bench.publisher()
    bench.store(publisher, (0,))
    second = prompt_hashes((0, 1), start=1)
    for _ in range(times):
        bad = {"parent": 5} if reason == "unknown_parent" else {"tokens": b"", "left_out": reason}
        bench.apply(publisher, stored((1,), hashes=second, **bad))
    bench.apply(publisher, stored((0, 1), start=1))
    assert (bench.ask((0, 1)), bench.kernel.left_out(publisher)) == ({"a": 2}, [])
    for _ in range(times):
        bench.remove(publisher, second)
        assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, 1)]
    bench.remove(publisher, second)
    assert (bench.ask((0, 1)), bench.kernel.left_out(publisher)) == ({"a": 1}, [])


def test_a_report_of_what_was_left_out_is_no_further_copy(bench: Bench) -> None:
    publisher = bench.publisher()
    for _ in range(2):
        bench.store(publisher, (0,), parent=5)
    bench.store(publisher, (0,), reported=True)
    bench.remove(publisher, prompt_hashes((0,)))
    assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, 1)]
    bench.remove(publisher, prompt_hashes((0,)))
    assert (bench.ask((0,)), bench.kernel.left_out(publisher)) == ({}, [])


def test_an_object_that_was_left_out_is_held_once(bench: Bench) -> None:
    publisher = bench.publisher()
    bad = stored((), hashes=u64s([9]), left_out="unknown_field")
    good = stored((), hashes=u64s([9]), aliases=u64s([7]), by_hash=True)
    bench.apply(publisher, bad, bad, good)
    bench.remove(publisher, u64s([9]))
    assert (bench.blocks(), bench.kernel.left_out(publisher)) == (0, [])


def test_another_block_of_a_name_stays_left_out_when_the_first_is_announced_again(
    bench: Bench,
) -> None:
    publisher = bench.publisher()
    name = prompt_hashes((0,))
    bench.store(publisher, (0,))
    bench.store(publisher, (1,), hashes=name)
    bench.remove(publisher, name)
    bench.store(publisher, (1,), hashes=name)
    assert (bench.ask((1,)), bench.kernel.left_out(publisher)) == ({"a": 1}, [("hash_conflict", 1)])
    for _ in range(2):
        bench.remove(publisher, name)
    assert (bench.ask((1,)), bench.kernel.left_out(publisher)) == ({}, [])


@pytest.mark.parametrize("first", [0, MAX])
def test_what_has_no_room_is_known_until_so_many_are_removed(bench: Bench, first: int) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (1,))  # so that what it removes is of a group of prefixes
    for number in range(MAX + 2):
        bench.store(publisher, (0,), hashes=u64s([number]), parent=5)
    assert bench.kernel.left_out(publisher) == [("overflow", 1), ("unknown_parent", MAX)]
    order = [*range(first, MAX + 2), *range(first)]
    bench.remove(publisher, u64s([number + 100 for number in order]), Medium.CPU)
    assert bench.kernel.left_out(publisher) == [("overflow", 1), ("unknown_parent", MAX)]
    for number in order:
        assert bench.kernel.left_out(publisher) != []
        bench.remove(publisher, u64s([number]))
    assert bench.kernel.left_out(publisher) == []
    assert bench.kernel.unheld_removed(publisher) == 0
    bench.remove(publisher, u64s([7]))
    assert bench.kernel.unheld_removed(publisher) == 1


def test_or_until_a_clear(bench: Bench) -> None:
    publisher = bench.publisher()
    for number in range(MAX + 2):
        bench.store(publisher, (0,), hashes=u64s([number]), parent=5)
    for number in range(MAX + 1):
        bench.remove(publisher, u64s([number]))
    assert bench.kernel.left_out(publisher) == [("overflow", 1)]
    bench.apply(publisher, ClearedBlocks(sequence=2))
    assert bench.kernel.left_out(publisher) == []


def test_reasons_are_bounded(bench: Bench) -> None:
    publisher = bench.publisher()
    for number in range(LEFT_OUT_REASONS_MAX + 3):
        bench.store(publisher, (0,), hashes=u64s([number]), block_size=BLOCK_SIZE + 1 + number)
    reasons = dict(bench.kernel.left_out(publisher))
    assert len(reasons) == LEFT_OUT_REASONS_MAX + 1
    assert reasons["overflow"] == 1


def test_rows_have_it(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, parent=5)
    loaded = Bench(open_kernel(SEED, name=bench.kernel.name))
    for view in bench.kernel.contexts():
        for rows in bench.kernel.dump(view.context, 2):
            loaded.kernel.load(view.context, rows)
    assert loaded.kernel.contexts() == bench.kernel.contexts()
    again = loaded.publisher()
    assert loaded.kernel.left_out(again) == [("unknown_parent", 3)]
    loaded.remove(again, prompt_hashes(ABC))
    assert loaded.kernel.left_out(again) == []


def test_a_query_by_engine_hash_does_not_find_it(bench: Bench) -> None:
    bench.store(bench.publisher(), ABC, parent=5)
    assert bench.kernel.query_by_engine_hash("t", None, prompt_hashes(ABC)) == []


@pytest.mark.parametrize("kind", ["unknown", "lightning_indexer"])
def test_a_group_of_an_unknown_kind_counts_where_it_is_like_full_attention(
    bench: Bench, kind: str
) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC, spec_kind=kind)
    bench.store(publisher, (7, 8), spec_kind=kind, tokens=prompt_tokens((7,)), group=1)
    assert bench.ask(ABC) == {"a": 3}
    assert bench.kernel.left_out(publisher) == [("token_count", 2)]
