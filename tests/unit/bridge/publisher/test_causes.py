"""Why batches had been missing that a replay brings."""

import pytest

from bridge.publisher.causes import (
    JOINED_LATE,
    MISSED,
    NOT_FOLLOWED,
    RECONNECTED,
    RESTARTED,
    Causes,
)


def cause_of_repair(cause: str, sequence: int) -> str:
    causes = Causes()
    causes.wait = cause
    causes.begin_repaired(sequence)
    assert causes.repaired == causes.wait, "a gap in the reply has the same cause"
    return causes.repaired


@pytest.mark.parametrize("cause", ["", MISSED, RECONNECTED, NOT_FOLLOWED])
def test_before_the_first_batch_of_an_incarnation_it_was_joined_late(cause: str) -> None:
    assert cause_of_repair(cause, -1) == JOINED_LATE


def test_a_cause_that_says_more_stays() -> None:
    assert cause_of_repair(RESTARTED, -1) == RESTARTED


def test_behind_a_batch_the_cause_of_the_question_stays() -> None:
    assert cause_of_repair(RECONNECTED, 0) == RECONNECTED


def test_what_nobody_gave_a_cause_was_missed() -> None:
    assert cause_of_repair("", 0) == MISSED


def test_what_is_accepted_later_came_live() -> None:
    causes = Causes()
    causes.begin_repaired(0)
    causes.end_repaired()
    assert (causes.repaired, causes.wait) == ("", MISSED)


def test_the_publisher_waits_for_the_first_cause() -> None:
    causes = Causes()
    assert causes.of_gap == MISSED
    causes.away = RECONNECTED
    assert causes.of_gap == RECONNECTED
    causes.hold(NOT_FOLLOWED)
    causes.hold(RESTARTED)
    assert (causes.wait, causes.of_gap) == (RECONNECTED, RECONNECTED)
