"""Engines whose requests fail: when they are left out, tried again, and back."""

import pytest

from routing.fold.failures import (
    FAILING_BACKOFF_FIRST_S,
    FAILING_BACKOFF_MAX_S,
    FAILING_QUIET_S,
    FAILING_RUN,
    Failures,
)
from routing.fold.fold import RoutingFold
from schemas.routing_records import (
    DecisionsRecord,
    OutcomeEvent,
    OutcomesRecord,
    Target,
    UnregisteredEngine,
    UnregisteredEngines,
)
from tests.unit.routing.sample_decisions import A, B, candidate, decision, outcome

RUN = 7
FIRST, DONE = OutcomeEvent.FIRST_TOKEN, OutcomeEvent.COMPLETED
FAILED, CANCELLED = OutcomeEvent.FAILED, OutcomeEvent.CANCELLED


class World:
    """A fold of requests, each sent to an engine and ended there."""

    def __init__(self) -> None:
        self.fold = RoutingFold()
        self.now = 1000.0
        self._number = 0

    def send(self, place: int = 0, decode: int = -1) -> int:
        number = self._number
        self._number += 1
        candidates = tuple(candidate(name) for name in "abcd")
        made = decision(number, self.now, candidates=candidates, chosen=place, decode=decode)
        record = DecisionsRecord(run=RUN, time=self.now, decisions=(made,))
        self.fold.apply(self.fold.offset + 1, record)
        return number

    def tell(self, number: int, *events: OutcomeEvent) -> None:
        told = tuple(outcome(number, event, self.now) for event in events)
        record = OutcomesRecord(run=RUN, time=self.now, outcomes=told)
        self.fold.apply(self.fold.offset + 1, record)

    def ends(self, place: int, *events: OutcomeEvent, times: int = 1) -> None:
        for _ in range(times):
            self.tell(self.send(place), *events)

    def is_out(self, target: Target = A) -> bool:
        return self.fold.failures.is_left_out(target, self.now)

    def is_failing(self, target: Target = A) -> bool:
        return self.fold.failures.is_failing(target, self.now)


def test_three_failures_in_a_row_leave_it_out_at_once() -> None:
    world = World()
    world.ends(0, FAILED, times=FAILING_RUN - 1)
    assert not world.is_out()
    world.ends(0, FAILED)
    assert world.is_out()
    assert not world.is_out(B)
    assert world.fold.failures.left_out == 1


@pytest.mark.parametrize("event", [FIRST, DONE])
def test_what_goes_well_between_them_ends_the_row(event: OutcomeEvent) -> None:
    world = World()
    for _ in range(20):
        world.ends(0, FAILED, times=FAILING_RUN - 1)
        world.ends(0, event)
    assert not world.is_out()


def test_failures_behind_the_first_token_count_until_one_ends_well() -> None:
    world = World()
    world.ends(0, FIRST, FAILED, times=FAILING_RUN - 1)
    world.ends(0, FIRST, DONE)
    world.ends(0, FIRST, FAILED, times=FAILING_RUN - 1)
    assert not world.is_out()
    world.ends(0, FIRST, FAILED)
    assert world.is_out()


def test_cancelled_requests_say_nothing() -> None:
    world = World()
    world.ends(0, CANCELLED, times=100)
    assert not world.is_out()
    assert len(world.fold.failures) == 0


@pytest.mark.parametrize(("place", "target"), [(0, A), (1, B)])
def test_it_is_tried_by_one_request_at_a_time_ever_less_often(place: int, target: Target) -> None:
    world = World()
    world.ends(place, FAILED, times=FAILING_RUN)
    waits = []
    for _ in range(7):
        since = world.now
        while world.is_out(target):
            world.now += 0.25
        waits.append(world.now - since)
        trial = world.send(place)
        assert world.is_out(target), "one is enough"
        world.tell(trial, FAILED)
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, FAILING_BACKOFF_MAX_S, FAILING_BACKOFF_MAX_S]


@pytest.mark.parametrize("events", [(FIRST,), (DONE,), (FIRST, DONE)])
def test_a_trial_that_goes_well_brings_it_back(events: tuple[OutcomeEvent, ...]) -> None:
    world = World()
    world.ends(0, FAILED, times=FAILING_RUN)
    world.now += 1.0
    world.ends(0, *events)
    assert not world.is_failing()
    world.ends(0, FAILED, times=FAILING_RUN)
    since = world.now
    while world.is_out():
        world.now += 0.25
    assert world.now - since == 2.0, "its back-off goes on"


def test_what_was_sent_before_says_nothing_of_it() -> None:
    world = World()
    before = [world.send(0) for _ in range(30)]
    world.now += 1.0
    world.ends(0, FAILED, times=FAILING_RUN)
    for number in before[:20]:
        world.tell(number, FAILED)
    for number in before[20:]:
        world.tell(number, FIRST, DONE)
    assert world.is_out()
    world.now += 1.0
    assert not world.is_out(), "a trial is due, whatever became of those"
    assert world.is_failing()


def test_a_minute_without_a_failure_brings_it_back() -> None:
    """Its clients report nothing but failures."""
    world = World()
    world.ends(0, FAILED, times=FAILING_RUN)
    world.now += FAILING_QUIET_S
    assert not world.is_failing()
    world.ends(0, FAILED, times=FAILING_RUN - 1)
    assert not world.is_failing(), "the row begins anew"


def test_a_trial_of_which_nobody_reports_is_followed_by_another() -> None:
    world = World()
    world.ends(0, FAILED, times=FAILING_RUN)
    world.now += 1.0
    world.send(0)
    world.now += 1.5
    assert world.is_out()
    world.now += 0.5
    assert not world.is_out()


def test_who_fails_everywhere_leaves_nobody_out() -> None:
    """Nine of ten requests are of a client that fails everywhere, or all of them for a while."""
    world = World()
    for _ in range(3):
        for place in range(4):
            world.ends(place, FAILED)
            world.ends(place, FAILED)
            world.ends(place, DONE)
    for turn in range(200):
        for place in range(4):
            world.ends(place, DONE if turn % 10 == 9 else FAILED)
    assert world.fold.failures.left_out == 0


def test_an_engine_that_fails_beside_one_that_fails_now_and_then_is_left_out() -> None:
    world = World()
    for turn in range(64):
        world.ends(1, FAILED if turn % 10 == 0 else DONE)
    world.ends(0, FAILED, times=FAILING_RUN)
    assert world.is_out()


def test_engines_that_are_left_out_already_do_not_excuse_the_next() -> None:
    world = World()
    for place in (0, 1, 2):
        world.ends(3, DONE)
        world.ends(place, FAILED, times=FAILING_RUN)
    assert [world.is_out(Target("default", name, 0)) for name in "abcd"] == [
        True,
        True,
        True,
        False,
    ]


def test_a_failed_decode_is_of_the_one_that_decodes() -> None:
    world = World()
    for _ in range(FAILING_RUN):
        world.tell(world.send(0, decode=1), FIRST, FAILED)
    assert (world.is_out(A), world.is_out(B)) == (False, True)
    for _ in range(FAILING_RUN):
        world.tell(world.send(0, decode=2), FAILED)
    assert world.is_out(A)


def test_a_successor_of_its_name_begins_anew() -> None:
    world = World()
    world.ends(0, FAILED, times=FAILING_RUN)
    gone = UnregisteredEngines(run=0, time=world.now, engines=(UnregisteredEngine(A, "m"),))
    world.fold.apply(world.fold.offset + 1, gone)
    assert not world.is_failing()


def test_a_restored_fold_goes_on_likewise() -> None:
    world = World()
    world.ends(1, DONE, times=5)
    world.ends(0, FAILED, times=FAILING_RUN)
    restored = RoutingFold.load(world.fold.dump())
    assert restored.dump() == world.fold.dump()
    other = Failures()
    other.restore(world.fold.failures.state())
    assert other.is_left_out(A, world.now)


def test_what_all_are_sent_while_all_are_left_out_is_no_trial() -> None:
    """Else an outage of three seconds would keep all but one away for half a minute."""
    world = World()
    for place in range(4):
        world.ends(place, FIRST, DONE, times=16)
    for _ in range(75):
        world.now += 0.04
        for place in range(4):
            world.ends(place, FAILED)
    assert world.is_failing(A)
    assert world.is_failing(B)
    world.now += 4 * FAILING_BACKOFF_FIRST_S
    assert not world.is_out(A)
    assert not world.is_out(B)
    world.ends(0, FIRST, DONE)
    world.ends(1, FIRST, DONE)
    assert not world.is_failing(A)
    assert not world.is_failing(B)
