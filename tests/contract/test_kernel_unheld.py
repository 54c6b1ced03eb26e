"""Blocks that a publisher removes from its GPU and holds nowhere: its events contradict themselves.

Whatever it may hold all the same, as what is left out, excuses a removal.
"""

from typing import Any

import pytest

from schemas.events import ClearedBlocks, RemovedBlocks
from schemas.identities import Medium
from tests.contract.kernels import BOTH, kernel_of
from tests.contract.test_kernel_contract import ABC, SEED, Bench, stored
from tests.strategies import BLOCK_SIZE, prompt_hashes, u64s

OTHERS = u64s([91, 92, 93])


@pytest.fixture(params=BOTH)
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(kernel_of(request, SEED))


def removed(hashes: bytes = b"", **fields: Any) -> RemovedBlocks:
    return RemovedBlocks(sequence=1, hashes=hashes or prompt_hashes(ABC), **fields)


def test_each_removal_of_what_is_held_nowhere_counts_until_nothing_is_held(bench: Bench) -> None:
    publisher, unheld = bench.publisher(), bench.kernel.unheld_removed
    bench.apply(publisher, removed())
    assert unheld(publisher) == 0, "of a publisher that has stored nothing yet nothing is known"
    bench.store(publisher, ABC)
    bench.store(publisher, ABC)
    for due in (0, 0, 3, 6):
        bench.apply(publisher, removed())
        assert unheld(publisher) == due
    bench.store(publisher, ABC)
    assert unheld(publisher) == 6
    for medium, due in ((Medium.CPU, 6), (Medium.GPU, 0)):
        bench.apply(publisher, ClearedBlocks(sequence=1, medium=medium))
        assert unheld(publisher) == due
    bench.apply(publisher, removed())
    assert unheld(publisher) == 3
    bench.apply(publisher, ClearedBlocks(sequence=2))
    assert unheld(publisher) == 0
    bench.apply(publisher, removed())
    assert unheld(publisher) == 3, "a clear that the engine has announced, and not done"
    bench.kernel.clear(publisher)
    bench.apply(publisher, removed())
    assert unheld(publisher) == 0, "of another engine nothing is known"


@pytest.mark.parametrize("medium", [Medium.CPU, Medium.DISK])
def test_other_tiers_say_nothing_and_what_they_hold_excuses_it(
    bench: Bench, medium: Medium
) -> None:
    """A removal of TensorRT-LLM names no tier, and is one event for each."""
    publisher, unheld = bench.publisher(), bench.kernel.unheld_removed
    bench.store(publisher, ABC)
    for one in Medium:
        bench.apply(publisher, removed(medium=one))
    assert unheld(publisher) == 0
    bench.store(publisher, ABC, medium=medium)
    bench.apply(publisher, removed())
    assert unheld(publisher) == 0
    bench.apply(publisher, stored(ABC, hashes=OTHERS, block_size=BLOCK_SIZE + 1, medium=medium))
    bench.apply(publisher, removed(OTHERS))
    assert unheld(publisher) == 0, "though it is left out"
    bench.apply(publisher, removed(medium=Medium.GPU, shared=True))
    assert unheld(publisher) == 0


def test_what_is_left_out_excuses_it_once(bench: Bench) -> None:
    publisher, unheld = bench.publisher(), bench.kernel.unheld_removed
    bench.store(publisher, ABC)
    bench.apply(publisher, stored(ABC, hashes=OTHERS, block_size=BLOCK_SIZE + 1))
    for due in (0, 3):
        bench.apply(publisher, removed(OTHERS))
        assert unheld(publisher) == due


def test_copies_that_there_may_be_excuse_as_many_removals(bench: Bench) -> None:
    publisher, unheld = bench.publisher(), bench.kernel.unheld_removed
    for _ in range(2):
        bench.store(publisher, ABC, undecided=True)
    for due in (0, 0, 3):
        bench.apply(publisher, removed())
        assert unheld(publisher) == due


@pytest.mark.parametrize("is_known", [True, False])
def test_who_reports_hits_may_have_copies_that_are_not_counted(
    bench: Bench, is_known: bool
) -> None:
    publisher, unheld = bench.publisher(), bench.kernel.unheld_removed
    size = BLOCK_SIZE if is_known else BLOCK_SIZE + 1
    bench.store(publisher, (9,))
    for _ in range(2):
        bench.apply(publisher, stored(ABC, block_size=size, reported=True))
    for _ in range(2):
        bench.apply(publisher, removed())
        assert unheld(publisher) is None
    bench.apply(publisher, ClearedBlocks(sequence=1))
    assert unheld(publisher) == 0, "it holds no copy now"


def test_who_says_how_many_are_left_may_say_it_twice(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    for _ in range(2):
        bench.apply(publisher, removed(whole=True))
    assert bench.kernel.unheld_removed(publisher) == 0


def test_only_groups_that_form_prefixes_say_it(bench: Bench) -> None:
    publisher, unheld = bench.publisher(), bench.kernel.unheld_removed
    bench.store(publisher, ABC, group=1)
    bench.store(publisher, ABC, group=100, spec_kind="cross_attention")
    for group, due in ((0, 0), (100, 0), (2, 0), (1, 0), (1, 3)):
        bench.apply(publisher, removed(group=group))
        assert unheld(publisher) == due, group


def test_what_was_counted_before_counts_on(bench: Bench) -> None:
    publisher = bench.publisher()
    bench.store(publisher, ABC)
    bench.apply(publisher, removed())
    bench.kernel.set_unheld_removed(publisher, 2**40)
    bench.apply(publisher, removed())
    assert bench.kernel.unheld_removed(publisher) == 2**40 + 3
    bench.kernel.set_unheld_removed(publisher, None)
    bench.apply(publisher, removed())
    assert bench.kernel.unheld_removed(publisher) is None
