from lmcache_adapter.wire.messages import Operation
from lmcache_adapter.worker.keys import Budget
from lmcache_adapter.worker.waiting import LMCACHE_HELD_S, HeldOperations, WaitingOperations


def held(count: int) -> HeldOperations:
    return HeldOperations("x", [Operation(op_type="admit", key=1, seq_num=0)] * count)


def test_what_waits_takes_room_until_it_is_closed() -> None:
    budget = Budget(5)
    waiting = WaitingOperations(budget)
    assert waiting.is_open
    assert waiting.add(held(3), 0.0)
    assert not waiting.add(held(3), 0.0)
    assert waiting.add(held(2), 0.0)
    assert (len(waiting), budget.used) == (2, 5)
    assert waiting.close() == [held(3), held(2)]
    assert (len(waiting), budget.used, waiting.is_open) == (0, 0, False)
    waiting.open()
    assert waiting.is_open


def test_it_is_over_by_the_first_one() -> None:
    waiting = WaitingOperations(Budget(5))
    assert not waiting.is_over(1e9)
    waiting.add(held(1), 10.0)
    waiting.add(held(1), 50.0)
    assert not waiting.is_over(10.0 + LMCACHE_HELD_S - 1)
    assert waiting.is_over(10.0 + LMCACHE_HELD_S)
    waiting.close()
    assert not waiting.is_over(1e9)
