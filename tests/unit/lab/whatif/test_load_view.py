"""What is left of a queue, and how wrong estimates are, by hand."""

import math

import pytest

from lab.whatif.load_view import EstimateErrors, slowed
from lab.whatif.queue import Load, WorkQueue
from routing.costs import Costs


def test_a_queue_is_done_one_after_the_other() -> None:
    queue = WorkQueue()
    queue.book(2.0, 100, 1.0)
    queue.book(3.0, 50, 1.5)
    assert queue.load(2.0) == Load(4.0, 2, 150)
    assert queue.load(3.0) == Load(3.0, 1, 50)
    assert queue.load(7.0) == Load(0.0, 0, 0)


def test_errors_are_log_normal_and_repeat_themselves() -> None:
    errors, again = EstimateErrors(0.3, 5), EstimateErrors(0.3, 5)
    drawn = [errors.draw() for _ in range(4_000)]
    assert [again.draw() for _ in range(4_000)] == drawn
    for logs in ([math.log(one.wait) for one in drawn], [math.log(one.prefill) for one in drawn]):
        mean = sum(logs) / len(logs)
        assert mean == pytest.approx(0.0, abs=0.02)
        assert sum((one - mean) ** 2 for one in logs) / len(logs) == pytest.approx(0.09, rel=0.1)


def test_slowed_costs_take_so_many_times_as_long_to_compute_and_not_to_move() -> None:
    costs = Costs(fixed_s=0.5)
    slow = slowed(costs, 1.5)
    assert slow.prefill_s(9_000, 1_000) == pytest.approx(1.5 * costs.prefill_s(9_000, 1_000))
    assert slow.fetch_s(1_000) == costs.fetch_s(1_000)
