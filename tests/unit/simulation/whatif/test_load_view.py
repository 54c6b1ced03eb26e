"""What the router knows of loads, by hand."""

import math

import pytest

from simulation.whatif.load_view import Errors, LoadView, slowed
from simulation.whatif.queue import Load, WorkQueue
from streams.routing.costs import Costs


def view(age_s: float, *, bookings: bool) -> tuple[WorkQueue, LoadView]:
    queue = WorkQueue()
    return queue, LoadView([queue], age_s, bookings=bookings)


def give(queue: WorkQueue, seen: LoadView, took: float, booked: float, now: float) -> None:
    queue.book(took, 100, now)
    seen.book(0, booked, 90, now)


def test_a_queue_is_done_one_after_the_other() -> None:
    queue = WorkQueue()
    queue.book(2.0, 100, 1.0)
    queue.book(3.0, 50, 1.5)
    assert queue.load(2.0) == Load(4.0, 2, 150)
    assert queue.load(3.0) == Load(3.0, 1, 50)
    assert queue.load(7.0) == Load(0.0, 0, 0)


def test_a_copy_goes_its_own_way() -> None:
    queue = WorkQueue()
    queue.book(2.0, 100, 0.0)
    other = queue.copy()
    other.book(1.0, 1, 0.0)
    assert queue.load(0.0) == Load(2.0, 1, 100)
    assert other.load(0.0) == Load(3.0, 2, 101)


def test_without_an_age_loads_are_known() -> None:
    queue, seen = view(0.0, bookings=False)
    give(queue, seen, 5.0, 1.0, 0.0)
    assert seen.loads(1.0) == [Load(4.0, 1, 100)]


def test_without_bookings_nothing_is_known_until_it_is_told() -> None:
    queue, seen = view(10.0, bookings=False)
    assert seen.loads(0.0) == [Load()]
    give(queue, seen, 25.0, 25.0, 0.0)
    assert seen.loads(9.9) == [Load()]
    assert seen.loads(10.5) == [Load(14.5, 1, 100)]
    give(queue, seen, 5.0, 5.0, 11.0)
    assert seen.loads(19.0) == [Load(6.0, 1, 100)]
    assert seen.loads(20.0) == [Load(10.0, 2, 200)]


def test_bookings_are_estimates_until_the_load_is_told() -> None:
    queue, seen = view(10.0, bookings=True)
    assert seen.loads(0.0) == [Load()]
    give(queue, seen, 25.0, 7.0, 1.0)
    assert seen.loads(2.0) == [Load(6.0, 1, 90)]
    assert seen.loads(9.0) == [Load(0.0, 0, 0)]  # as was estimated
    assert seen.loads(12.0) == [Load(14.0, 1, 100)]


def test_errors_are_log_normal_and_repeat_themselves() -> None:
    errors, again = Errors(0.3, 5), Errors(0.3, 5)
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
