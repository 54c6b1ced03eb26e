"""Why batches had been missing that a replay brings."""

import pytest

from bridge.publisher.causes import (
    JOINED_LATE,
    MISSED,
    NOT_FOLLOWED,
    RECONNECTED,
    RESTARTED,
    cause_of_repair,
)


@pytest.mark.parametrize("cause", ["", MISSED, RECONNECTED, NOT_FOLLOWED])
def test_before_the_first_batch_of_an_incarnation_it_was_joined_late(cause: str) -> None:
    assert cause_of_repair(cause, -1) == JOINED_LATE


def test_a_cause_that_says_more_stays() -> None:
    assert cause_of_repair(RESTARTED, -1) == RESTARTED


def test_behind_a_batch_the_cause_of_the_question_stays() -> None:
    assert cause_of_repair(RECONNECTED, 0) == RECONNECTED


def test_what_nobody_gave_a_cause_was_missed() -> None:
    assert cause_of_repair("", 0) == MISSED
