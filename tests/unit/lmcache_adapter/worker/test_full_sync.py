import pytest

from lmcache_adapter.worker.full_sync import (
    LMCACHE_MISSING_NAMED_MAX,
    LMCACHE_SYNC_BATCHES_MAX,
    LMCACHE_SYNC_IDLE_S,
    LMCACHE_WORKER_KEYS_MAX,
    FullSync,
)
from lmcache_adapter.worker.keys import Budget

BUDGET = 100


def sync(total: int = 3, batches: int = 2, budget: Budget | None = None) -> FullSync:
    return FullSync(
        sync_id="s",
        location="x",
        total=total,
        batches=batches,
        budget=budget or Budget(BUDGET),
        now=0.0,
    )


def test_it_is_whole_with_its_last_batch_in_any_order() -> None:
    one = sync()
    assert one.missing() == [0, 1]
    assert one.add(1, [3], 0.0)
    assert (one.missing(), one.is_whole) == ([0], False)
    assert one.add(0, [1, -2], 0.0)
    assert (one.missing(), one.is_whole, one.has_all) == ([], True, True)
    assert sorted(one.keys()) == [1, 3, 2**64 - 2]


def test_a_batch_that_comes_again_takes_the_place_of_the_first() -> None:
    budget = Budget(BUDGET)
    one = sync(total=2, budget=budget)
    assert one.add(0, [1, 2], 0.0)
    assert one.add(0, [1], 0.0)
    assert budget.used == 1
    assert one.add(1, [2], 0.0)
    assert sorted(one.keys()) == [1, 2]
    assert not one.add(0, [1], 0.0), "it is whole"


def test_batches_that_were_not_announced_are_not_taken() -> None:
    one = sync(total=2)
    assert not one.add(2, [1], 0.0)
    assert not one.add(0, [1, 2, 3], 0.0)
    assert one.missing() == [0, 1]


def test_fewer_keys_than_announced_are_known_to_be_fewer() -> None:
    one = sync(total=3)
    one.add(0, [1], 0.0)
    one.add(1, [2], 0.0)
    assert (one.is_whole, one.has_all) == (True, False)


def test_without_room_nothing_is_taken_and_released_keys_are_given_back() -> None:
    budget = Budget(3)
    one = sync(total=5, budget=budget)
    assert one.add(0, [1, 2], 0.0)
    assert not one.add(1, [3, 4], 0.0)
    one.release()
    assert budget.used == 0


def test_missing_batches_are_named_up_to_a_bound() -> None:
    one = sync(total=1, batches=LMCACHE_SYNC_BATCHES_MAX)
    assert one.missing() == list(range(LMCACHE_MISSING_NAMED_MAX))


def test_it_is_idle_once_no_batch_has_come_for_long() -> None:
    one = sync()
    assert not one.is_idle(LMCACHE_SYNC_IDLE_S)
    assert one.is_idle(LMCACHE_SYNC_IDLE_S + 1)
    one.add(0, [1], LMCACHE_SYNC_IDLE_S)
    assert not one.is_idle(LMCACHE_SYNC_IDLE_S + 1)


@pytest.mark.parametrize(
    ("total", "batches", "refused"),
    [
        (LMCACHE_WORKER_KEYS_MAX, LMCACHE_SYNC_BATCHES_MAX, None),
        (LMCACHE_WORKER_KEYS_MAX + 1, 1, LMCACHE_WORKER_KEYS_MAX + 1),
        (1, LMCACHE_SYNC_BATCHES_MAX + 1, LMCACHE_SYNC_BATCHES_MAX + 1),
        (0, 1, None),
        (0, 0, 0),
    ],
)
def test_what_is_announced_is_bounded(total: int, batches: int, refused: int | None) -> None:
    said = FullSync.refusal(total, batches)
    assert (said == "") if refused is None else said.endswith(f"got: {refused}")
