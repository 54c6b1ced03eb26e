"""Prompts whose tokens engines do not make in time."""

import logging

import pytest

from tokens import engine_questions
from tokens.engine_questions import (
    QUESTIONS_KEPT_MAX,
    QUESTIONS_S,
    UNANSWERED_MIN,
    EngineQuestions,
    UnansweredModel,
)


def ask(questions: EngineQuestions, times: int, *, answered: bool, now: float = 1000.0) -> None:
    for _ in range(times):
        questions.note("", "m", now, is_answered=answered)


def test_prompts_without_tokens_are_counted_among_the_latest() -> None:
    questions = EngineQuestions()
    ask(questions, UNANSWERED_MIN - 1, answered=False)
    ask(questions, 20, answered=True)
    assert questions.unanswered(1000.0) == []
    ask(questions, 1, answered=False, now=1001.0)
    asked = UNANSWERED_MIN + 20
    expected = [UnansweredModel("default", "m", asked, UNANSWERED_MIN, 1001.0)]
    assert questions.unanswered(1001.0) == expected
    ask(questions, QUESTIONS_KEPT_MAX, answered=True, now=1002.0)
    assert questions.unanswered(1002.0) == []


def test_what_is_long_ago_says_nothing() -> None:
    questions = EngineQuestions()
    ask(questions, UNANSWERED_MIN, answered=False)
    assert questions.unanswered(1000.0 + QUESTIONS_S - 1) != []
    assert questions.unanswered(1000.0 + QUESTIONS_S) == []


def test_each_such_time_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    questions = EngineQuestions()
    with caplog.at_level(logging.WARNING):
        ask(questions, UNANSWERED_MIN - 1, answered=False)
        assert caplog.records == []
        ask(questions, 20, answered=False)
        assert len(caplog.records) == 1
        ask(questions, QUESTIONS_KEPT_MAX, answered=True)
        ask(questions, UNANSWERED_MIN, answered=False)
        assert len(caplog.records) == 2
    assert "the model m" in caplog.text


def test_models_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_questions, "QUESTIONS_MODELS_MAX", 2)
    questions = EngineQuestions()
    for model in ("m", "n", "o"):
        for _ in range(UNANSWERED_MIN):
            questions.note("t", model, 1.0, is_answered=False)
    assert [one.model for one in questions.unanswered(1.0)] == ["n", "o"]
