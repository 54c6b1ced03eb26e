"""Lag in records and seconds, and when answers become stale, over a clock of numbers."""

from query_api.replica.lag import LAG_SAMPLES_MAX, NEVER, LagTracker
from schemas.limits import STALE_RECORDS, STALE_S


def tracker(*places: str) -> LagTracker[str]:
    made = LagTracker[str]()
    for place in places:
        made.add(place, as_of=0.0)
    return made


def test_a_table_that_holds_all_is_not_behind_however_old_its_newest_record_is() -> None:
    lag = tracker("a")
    lag.advance("a", 7)
    lag.note_ends(1000.0, {"a": 7})
    assert lag.records("a") == 0
    assert lag.seconds(1000.4, reachable=True) == 0.0
    assert lag.stale_at(reachable=True) == 1000.0 + STALE_S


def test_the_age_counts_from_when_the_end_that_was_reached_was_noted() -> None:
    lag = tracker("a")
    lag.note_ends(10.0, {"a": 5})
    lag.note_ends(11.0, {"a": 9})
    lag.note_ends(12.0, {"a": 12})
    assert lag.records("a") == 12
    lag.advance("a", 6)
    assert lag.seconds(12.5, reachable=True) == 2.5
    lag.advance("a", 11)
    assert lag.seconds(12.5, reachable=True) == 1.5
    assert lag.records("a") == 1
    lag.advance("a", 12)
    assert lag.seconds(12.5, reachable=True) == 0.0


def test_the_partition_that_is_furthest_behind_counts() -> None:
    lag = tracker("a", "b")
    lag.note_ends(10.0, {"a": 1, "b": 1})
    lag.advance("a", 1)
    lag.advance("b", 1)
    lag.note_ends(20.0, {"a": 2, "b": 1})
    assert lag.seconds(21.0, reachable=True) == 11.0
    assert lag.stale_at(reachable=True) == 10.0 + STALE_S


def test_of_two_that_are_behind_the_older_one_counts() -> None:
    lag = tracker("a", "b")
    lag.note_ends(10.0, {"a": 1, "b": 1})
    lag.advance("b", 1)
    lag.note_ends(12.0, {"a": 1, "b": 1})
    lag.note_ends(20.0, {"a": 2, "b": 2})
    assert lag.seconds(20.5, reachable=True) == 20.5
    lag.advance("a", 1)
    assert lag.seconds(20.5, reachable=True) == 10.5


def test_less_than_a_second_behind_is_told_as_it_is() -> None:
    lag = tracker("a")
    lag.note_ends(10.0, {"a": 0})
    lag.note_ends(10.25, {"a": 1})
    assert lag.seconds(10.5, reachable=True) == 0.5


def test_before_the_log_was_asked_nothing_is_missing_and_nothing_is_proven() -> None:
    lag = tracker("a")
    assert lag.records("a") == 0
    assert lag.stale_at(reachable=True) == -NEVER
    assert tracker().stale_at(reachable=True) == -NEVER


def test_an_end_that_stays_takes_one_place_among_the_notes() -> None:
    lag = tracker("a")
    lag.note_ends(10.0, {"a": 1})
    for second in range(2 * LAG_SAMPLES_MAX):
        lag.note_ends(11.0 + second, {"a": 2})
    lag.advance("a", 1)
    assert lag.as_of("a") == 10.0


def test_without_an_answer_the_age_grows_and_answers_are_stale() -> None:
    lag = tracker("a")
    lag.note_ends(10.0, {"a": 0})
    assert lag.seconds(13.0, reachable=False) == 3.0
    assert lag.stale_at(reachable=False) == -NEVER


def test_too_many_records_make_answers_stale_at_once() -> None:
    lag = tracker("a", "b")
    lag.note_ends(9.0, {"a": 0, "b": 0})
    lag.note_ends(10.0, {"a": STALE_RECORDS, "b": 0})
    assert lag.stale_at(reachable=True) > 0
    lag.note_ends(10.5, {"a": STALE_RECORDS, "b": 1})
    assert lag.stale_at(reachable=True) == -NEVER


def test_a_guess_is_shown_and_proves_nothing_until_a_noted_end_is_reached() -> None:
    lag = tracker("a")
    lag.note_ends(100.0, {"a": 4})
    lag.guess("a", 99.0)
    assert lag.seconds(101.0, reachable=True) == 2.0
    assert (lag.as_of("a"), lag.stale_at(reachable=True)) == (-NEVER, -NEVER)
    lag.advance("a", 4)
    lag.guess("a", 70.0)
    lag.note_ends(102.0, {"a": 5})
    assert lag.seconds(102.0, reachable=True) == 2.0


def test_forgotten_notes_make_the_age_longer_never_shorter() -> None:
    lag = tracker("a")
    for second in range(2 * LAG_SAMPLES_MAX):
        lag.note_ends(float(second), {"a": second + 1})
    lag.advance("a", LAG_SAMPLES_MAX // 2)
    assert lag.seconds(2.0 * LAG_SAMPLES_MAX, reachable=True) == 2.0 * LAG_SAMPLES_MAX
