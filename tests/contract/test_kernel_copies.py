"""Blocks that are announced again, where nothing tells whether that is a further copy: what is sure
is answered, and of what is not the kernel says so.
"""

import pytest

from schemas.events import ClearedBlocks, RemovedBlocks
from schemas.identities import COPIES_UNKNOWN, Medium
from streams.kernel import open_kernel
from streams.kernel.interface import PublisherId
from streams.kernel.reference import COPIES_KEPT_SHARE
from tests.contract.kernels import BOTH, kernel_of
from tests.contract.test_kernel_contract import ABC, SEED, Bench, stored
from tests.strategies import Prompt, prompt_hashes, u64s

KEPT = 2  # blocks that answers count though they may be gone
MAX = KEPT * COPIES_KEPT_SHARE


@pytest.fixture(params=BOTH)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED, left_out_max=MAX))


def announce(bench: Bench, publisher: PublisherId, prompt: Prompt, times: int) -> None:
    for _ in range(times):
        bench.store(publisher, prompt, undecided=True)


def doubt(bench: Bench, publisher: PublisherId) -> int:
    """Blocks of which it is not known whether they are held; nothing else is left out."""
    left_out = dict(bench.kernel.left_out(publisher))
    blocks = left_out.pop(COPIES_UNKNOWN, 0)
    assert not left_out
    return blocks


PAIR: Prompt = (0, 1)


def test_until_one_is_removed_all_readings_say_the_same(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 9)
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 0)
    assert bench.counted()["repeated"] == 8 * len(PAIR)


def test_from_the_first_removal_to_the_last_one_it_is_not_known_whether_it_is_held(
    bench: Bench,
) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 9)
    for _ in range(8):
        bench.remove(publisher, prompt_hashes(PAIR))
        assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 2)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)
    assert bench.kernel.contexts() == []
    bench.remove(publisher, prompt_hashes(PAIR))
    assert bench.counted()["unknown_removed"] == 2


def test_who_announces_it_again_holds_it_and_may_hold_as_many_copies_as_before(
    bench: Bench,
) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 3)
    bench.remove(publisher, prompt_hashes(PAIR))
    announce(bench, publisher, PAIR, 1)
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 0)
    for left in (2, 1):
        bench.remove(publisher, prompt_hashes(PAIR))
        assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 2), left
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)


def test_what_is_surely_a_copy_is_counted_as_one(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 2)
    bench.store(publisher, PAIR)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 0)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 2)
    bench.store(publisher, PAIR)
    assert doubt(bench, publisher) == 0
    bench.remove(publisher, prompt_hashes(PAIR))
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)


def test_a_block_that_is_announced_once_is_in_no_doubt(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, ABC, 1)
    bench.remove(publisher, prompt_hashes(ABC, start=2))
    assert (bench.ask(ABC), doubt(bench, publisher)) == ({"a": 2}, 0)


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize(
    "end",
    [
        ClearedBlocks(sequence=2),
        ClearedBlocks(sequence=2, medium=Medium.GPU),
        RemovedBlocks(sequence=2, hashes=prompt_hashes(PAIR), whole=True),
    ],
)
def test_it_is_over_with(
    bench: Bench, end: ClearedBlocks | RemovedBlocks, is_removed: bool
) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 5)
    if is_removed:
        bench.remove(publisher, prompt_hashes(PAIR))
    bench.apply(publisher, end)
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)
    bench.store(publisher, PAIR)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)
    assert bench.kernel.contexts() == []


def leave(bench: Bench, publisher: PublisherId, left: int, prompt: Prompt = (0, 1)) -> None:
    """The publisher removes a copy, and says how many are left."""
    hashes = prompt_hashes(prompt)
    bench.apply(publisher, RemovedBlocks(sequence=1, hashes=hashes, whole=not left, left=left))


@pytest.mark.parametrize("stores", [1, 2, 5])
@pytest.mark.parametrize("left", [1, 3])
@pytest.mark.parametrize("undecided", [False, True])
def test_as_many_copies_are_left_as_the_publisher_says(
    bench: Bench, stores: int, left: int, undecided: bool
) -> None:
    publisher = bench.publisher()
    for _ in range(stores):
        bench.store(publisher, PAIR, undecided=undecided)
    leave(bench, publisher, left)
    for _ in range(left):
        assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 0)
        bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)
    assert bench.kernel.contexts() == []
    assert bench.counted()["removed"] == 2 * (1 + left)


def test_what_may_be_held_or_not_is_held_where_copies_are_left(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 3)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert doubt(bench, publisher) == 2
    leave(bench, publisher, 1)
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({"a": 2}, 0)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)


def test_what_may_be_held_and_is_not_answered_stays_so_until_none_is_left(bench: Bench) -> None:
    publisher = bench.publisher()
    prompt = (0, 1, 2, 3)
    announce(bench, publisher, prompt, 2)
    bench.remove(publisher, prompt_hashes(prompt))
    assert (bench.blocks(), doubt(bench, publisher)) == (KEPT, 4)
    leave(bench, publisher, 2, prompt)
    assert (bench.blocks(), doubt(bench, publisher)) == (KEPT, 4 - KEPT)
    assert bench.counted()["left_out_removed"] == 4 - KEPT
    leave(bench, publisher, 1, prompt)
    leave(bench, publisher, 0, prompt)
    assert (bench.blocks(), doubt(bench, publisher)) == (0, 0)


def test_what_is_left_out_is_left_so_often_and_goes_with_the_last_copy(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, (0,), parent=5)
    leave(bench, publisher, 2, (0,))
    bench.remove(publisher, prompt_hashes((0,)))
    assert bench.kernel.left_out(publisher) == [("unknown_parent", 1)]
    leave(bench, publisher, 0, (0,))
    assert bench.kernel.left_out(publisher) == []
    bench.store(publisher, (0,))
    bench.store(publisher, (1,), hashes=prompt_hashes((0,)))
    leave(bench, publisher, 1, (0,))
    assert (bench.ask((0,)), bench.kernel.left_out(publisher)) == ({"a": 1}, [("hash_conflict", 1)])
    leave(bench, publisher, 0, (0,))
    assert (bench.ask((0,)), bench.kernel.left_out(publisher)) == ({}, [])


def test_of_a_block_that_is_not_known_nothing_is_left(bench: Bench) -> None:
    publisher = bench.publisher()
    leave(bench, publisher, 2, (0,))
    assert bench.counted() == {"unknown_removed": 1}
    assert bench.kernel.contexts() == []


def test_of_what_may_be_gone_only_so_much_is_answered(bench: Bench) -> None:
    """What an engine that reports hits leaves behind is bounded."""
    publisher = bench.publisher()
    announce(bench, publisher, (0, 1, 2, 3), 2)
    bench.remove(publisher, prompt_hashes((0, 1, 2, 3)))
    assert (bench.ask((0, 1, 2, 3)), doubt(bench, publisher)) == ({"a": KEPT}, 4)
    assert bench.blocks() == KEPT
    bench.remove(publisher, prompt_hashes((0, 1, 2, 3), start=3))
    assert (bench.ask((0, 1, 2, 3)), doubt(bench, publisher)) == ({"a": KEPT}, 3)
    announce(bench, publisher, ABC, 1)
    assert (bench.ask((0, 1, 2, 3)), doubt(bench, publisher)) == ({"a": 3}, 0)
    assert bench.counted()["left_out_removed"] == 1


def test_where_there_is_no_room_it_is_known_until_a_clear(bench: Bench) -> None:
    publisher = bench.publisher()
    for number in range(MAX + 1):
        hashes = u64s([10_000 + number])
        for _ in range(2):
            bench.store(publisher, (number,), hashes=hashes, undecided=True)
        bench.remove(publisher, hashes)
    assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, MAX), ("overflow", 1)]
    assert bench.blocks() == KEPT
    bench.apply(publisher, ClearedBlocks(sequence=2))
    assert bench.kernel.left_out(publisher) == []


@pytest.mark.parametrize("times", [1, 2])
def test_or_until_each_copy_is_removed(bench: Bench, times: int) -> None:
    publisher = bench.publisher()
    for number in range(MAX + 1):
        for _ in range(1 + times):
            bench.store(publisher, (number,), hashes=u64s([10_000 + number]), undecided=True)
        bench.remove(publisher, u64s([10_000 + number]))
    for left in reversed(range(times)):
        assert bench.kernel.left_out(publisher) == [(COPIES_UNKNOWN, MAX), ("overflow", 1)]
        for number in range(MAX + 1):
            bench.remove(publisher, u64s([10_000 + number]))
        assert bool(bench.kernel.left_out(publisher)) is bool(left)
    assert (bench.blocks(), bench.kernel.unheld_removed(publisher)) == (0, 0)


def test_tiers_are_counted_apart(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 2)
    bench.store(publisher, PAIR, medium=Medium.CPU, undecided=True)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert doubt(bench, publisher) == 2
    bench.remove(publisher, prompt_hashes(PAIR), Medium.CPU)
    bench.remove(publisher, prompt_hashes(PAIR))
    assert (bench.ask(PAIR), doubt(bench, publisher)) == ({}, 0)


def test_rows_have_it(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, ABC, 3)
    bench.remove(publisher, prompt_hashes(ABC, start=1))
    loaded = Bench(open_kernel(SEED, name=bench.kernel.name, left_out_max=MAX))
    for view in bench.kernel.contexts():
        for rows in bench.kernel.dump(view.context, 2):
            loaded.kernel.load(view.context, rows)
    replayed = Bench(open_kernel(SEED, name=bench.kernel.name, left_out_max=MAX))
    for context, changes in bench.kernel.take_changes():
        replayed.kernel.load(context, changes)
    for other in (loaded, replayed):
        assert other.kernel.contexts() == bench.kernel.contexts()
        again = other.publisher()
        assert (other.ask(ABC), doubt(other, again)) == ({"a": 3}, 2)
        for _ in range(2):
            other.remove(again, prompt_hashes(ABC, start=1))
        assert (other.ask(ABC), doubt(other, again)) == ({"a": 1}, 0)


def test_it_is_in_no_view_but_the_digest(bench: Bench) -> None:
    publisher = bench.publisher()
    announce(bench, publisher, PAIR, 2)
    assert [view.scope.lora_name for view in bench.kernel.scopes()] == [""]
    assert bench.kernel.query_by_engine_hash("t", None, prompt_hashes(PAIR)) == []
    assert [view.context.lora_name for view in bench.kernel.contexts()] == ["", "\0repeated"]
    assert stored(PAIR).undecided is False
