"""One model of what is wrong: levels, the rule of readiness, and what the log is told."""

import threading

import pytest

from schemas.conditions import (
    Condition,
    Conditions,
    Level,
    Part,
    health_document,
    ready_document,
)
from schemas.limits import CONDITION_REPEAT_S


class Lines:
    """Stands in for a logger."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def warning(self, text: str, /, *values: object) -> None:
        self.lines.append(f"WARNING {text % values}")

    def info(self, text: str, /, *values: object) -> None:
        self.lines.append(f"INFO {text % values}")


class Clock:
    """Turned by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log() -> Lines:
    return Lines()


@pytest.fixture
def conditions(clock: Clock, log: Lines) -> Conditions:
    return Conditions(clock, log)


def test_each_part_ends_by_its_own_success(conditions: Conditions) -> None:
    conditions.set(Part.TABLE, "disk", "table")
    conditions.set(Part.LOG, "disk", "log")
    conditions.clear(Part.LOG)
    assert conditions.problem == "table"
    assert (conditions.has(Part.TABLE), conditions.has(Part.LOG)) == (True, False)
    conditions.clear(Part.TABLE)
    assert conditions.all() == ()
    assert conditions.problem == ""


def test_beginning_and_end_are_logged_once_each(
    conditions: Conditions, clock: Clock, log: Lines
) -> None:
    for _ in range(3):
        conditions.set(Part.LOG, "disk", "no space left")
        clock.now += 20.0
    conditions.clear(Part.LOG)
    conditions.clear(Part.LOG)
    assert log.lines == [
        "WARNING log failed, retrying: no space left",
        "INFO log recovered after 60.0 s (was: no space left)",
    ]


def test_another_message_is_logged_after_a_while_and_shown_at_once(
    conditions: Conditions, clock: Clock, log: Lines
) -> None:
    conditions.set(Part.KAFKA, "unreachable", "refused")
    clock.now += CONDITION_REPEAT_S - 0.1
    conditions.set(Part.KAFKA, "unreachable", "no answer")
    assert conditions.problem == "no answer"
    assert len(log.lines) == 1
    clock.now += 0.1
    conditions.set(Part.KAFKA, "unreachable", "no answer")
    assert log.lines[1:] == ["WARNING kafka failed, retrying: no answer"]
    (condition,) = conditions.all()
    assert condition.since == 1000.0


def test_what_is_not_to_be_logged_begins_and_ends_in_silence(
    conditions: Conditions, log: Lines
) -> None:
    conditions.set(Part.RECOVERY, "recovering", "reading the log", logged=False)
    conditions.clear(Part.RECOVERY)
    assert log.lines == []


def test_a_role_is_ready_while_nothing_is_unavailable(conditions: Conditions) -> None:
    assert conditions.ready
    conditions.set(Part.LOG, "disk", "slow")
    assert conditions.ready
    conditions.set(Part.RECOVERY, "recovering", "reading", Level.UNAVAILABLE)
    assert not conditions.ready
    conditions.set(Part.RECOVERY, "recovering", "reading", Level.DEGRADED)
    assert conditions.ready


def test_the_worst_comes_first_then_the_oldest(conditions: Conditions, clock: Clock) -> None:
    for part, level in (
        (Part.LOG, Level.DEGRADED),
        (Part.TABLE, Level.DEGRADED),
        (Part.RECOVERY, Level.UNAVAILABLE),
    ):
        conditions.set(part, "reason", part.value, level)
        clock.now += 1.0
    assert [condition.part for condition in conditions.all()] == [
        Part.RECOVERY,
        Part.LOG,
        Part.TABLE,
    ]
    assert conditions.problem == "recovery; log; table"


def test_what_several_parts_say_is_said_once(conditions: Conditions) -> None:
    for part in (Part.LOG, Part.LOG_SYNC, Part.TABLE):
        conditions.set(part, "disk", "the disk is full")
    assert conditions.problem == "the disk is full"
    assert len(conditions.all()) == 3


def test_every_failure_is_counted_by_part(conditions: Conditions) -> None:
    for _ in range(3):
        conditions.set(Part.LOG, "disk", "no space left")
    conditions.clear(Part.LOG)
    conditions.set(Part.TABLE, "disk", "no space left")
    assert conditions.failures == {Part.LOG: 3, Part.TABLE: 1}


def test_threads_lose_no_condition_and_no_count(conditions: Conditions) -> None:
    rounds = 500

    def work(part: Part) -> None:
        for _ in range(rounds):
            conditions.set(part, "reason", "message")
            conditions.clear(part)
            conditions.set(part, "reason", "message")

    threads = [threading.Thread(target=work, args=(part,)) for part in Part]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {condition.part for condition in conditions.all()} == set(Part)
    assert set(conditions.failures.values()) == {2 * rounds}


def test_the_documents_follow_the_rule() -> None:
    wrong = Condition(Part.LOG, "disk", "no space left", 1000.12345, Level.DEGRADED)
    worse = Condition(Part.RECOVERY, "recovering", "reading", 1001.0, Level.UNAVAILABLE)
    assert ready_document([wrong]) == (200, {"ready": True})
    assert ready_document([wrong, worse]) == (
        503,
        {"ready": False, "error": "reading; no space left", "reason": "recovering"},
    )
    assert health_document("bridge", [wrong], "1.2") == {
        "status": "alive",
        "ready": True,
        "role": "bridge",
        "problem": "no space left",
        "conditions": [
            {
                "part": "log",
                "reason": "disk",
                "message": "no space left",
                "since": 1000.123,
                "level": "degraded",
            }
        ],
        "version": "1.2",
    }
