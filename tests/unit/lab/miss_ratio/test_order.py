"""The rank of a block is its place in a list of blocks by their last use."""

import random

import pytest

from lab.miss_ratio import order
from lab.miss_ratio.order import RecencyOrder


@pytest.mark.parametrize("slots", [1, 4, 1024])
def test_ranks_are_places_in_a_list(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "ORDER_SLOTS_MIN", slots)
    source = random.Random(slots)
    recency, naive = RecencyOrder(), list[int]()
    for turn in range(3000):
        block = source.randrange(1 + turn % 60)
        expected = naive.index(block) + 1 if block in naive else 0
        assert recency.rank(block) == expected
        recency.use(block)
        if expected:
            naive.remove(block)
        naive.insert(0, block)
        if turn % 500 == 499:
            recency.keep(40)
            naive = [one for one in naive if one < 40]
    assert len(recency) == len(naive)
    assert [recency.rank(block) for block in naive] == list(range(1, len(naive) + 1))


def test_slots_are_few_however_often_blocks_are_used() -> None:
    recency = RecencyOrder()
    for turn in range(100_000):
        recency.use(turn % 10)
    assert recency._size <= 1024
