"""The more there are and the more it costs, the more rarely engines are asked for their load."""

import pytest

from bridge.engine_http.bounds import LOAD_PERIOD_MAX_S
from bridge.engine_http.load_pace import (
    LOAD_BACKOFF_MAX_S,
    LOAD_COST_S,
    LOAD_QUESTION_S,
    LOAD_SERVER_CPU_SHARE,
    LoadPace,
    pause_s,
)


def test_a_few_are_asked_as_often_as_is_wanted() -> None:
    pace = LoadPace(1.0, share=0.04)
    assert pace.period_s(0) == 1.0
    assert pace.period_s(int(0.04 / LOAD_QUESTION_S)) == 1.0


def test_the_more_there_are_and_the_more_it_costs_the_more_rarely_each_is_asked() -> None:
    pace = LoadPace(1.0, share=0.04)
    assert pace.period_s(1000) == pytest.approx(1000 * LOAD_QUESTION_S / 0.04)
    pace.note(0.0, 5.0, 100)
    pace.note(LOAD_COST_S - 0.1, 50.0, 200)
    assert pace.period_s(1000) == pytest.approx(1000 * LOAD_QUESTION_S / 0.04), "not yet measured"
    pace.note(LOAD_COST_S, 5.0 + 100 * 0.002, 200)
    learned = (LOAD_QUESTION_S + 0.002) / 2
    assert pace.period_s(1000) == pytest.approx(1000 * learned / 0.04)
    pace.note(3 * LOAD_COST_S, 99.0, 200)
    assert pace.period_s(1000) == pytest.approx(1000 * learned / 0.04), "nobody was asked"
    assert pace.period_s(10**6) == LOAD_PERIOD_MAX_S


def test_who_fails_is_asked_ever_more_rarely_within_a_bound() -> None:
    pauses = [pause_s(1.0, failures) for failures in range(8)]
    assert pauses == [1, 2, 4, 8, 16, LOAD_BACKOFF_MAX_S, LOAD_BACKOFF_MAX_S, LOAD_BACKOFF_MAX_S]
    assert pause_s(45.0, 3) == 45.0
    assert pause_s(1.0, 10**9) == LOAD_BACKOFF_MAX_S


def test_who_answers_with_much_is_asked_more_rarely_and_the_others_are_not() -> None:
    assert pause_s(1.0, 0, 0.001) == 1.0
    assert pause_s(1.0, 0, 0.06) == pytest.approx(0.06 / LOAD_SERVER_CPU_SHARE)
    assert pause_s(1.0, 1, 0.06) == pytest.approx(0.06 / LOAD_SERVER_CPU_SHARE)
