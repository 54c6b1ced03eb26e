import copy

import pytest

from bridge.publisher.tracker import (
    OUTCOMES,
    Evidence,
    Gap,
    IncarnationTracker,
    NumberPlace,
    NumberTracker,
    ProcessTracker,
    SequenceOutcome,
    SequenceTracker,
    Verdict,
)
from schemas.limits import DUPLICATE_WINDOW
from schemas.positions import NO_CURSOR, Cursor

NEXT = Verdict(SequenceOutcome.NEXT)
DUPLICATE = Verdict(SequenceOutcome.DUPLICATE)


def test_the_first_batch_of_all_is_next_in_incarnation_one() -> None:
    tracker = SequenceTracker(NO_CURSOR)
    assert tracker.observe(0, 1) == NEXT
    assert tracker.cursor == Cursor(1, 0)


def test_joining_late_is_a_gap_from_zero() -> None:
    tracker = SequenceTracker()
    assert tracker.observe(5, 1) == Verdict(SequenceOutcome.GAP, Gap(0, 4))
    assert tracker.cursor == Cursor(1, 5)


def test_a_jump_is_a_gap_of_what_was_jumped_over() -> None:
    tracker = SequenceTracker(Cursor(2, 7))
    assert tracker.observe(10, 1) == Verdict(SequenceOutcome.GAP, Gap(8, 9))
    assert tracker.observe(11, 1) == NEXT


def test_numbers_of_no_batch_are_no_gap_and_prove_nothing() -> None:
    tracker = SequenceTracker(Cursor(2, 7))
    tracker.observe(8, 1)
    tracker.skip(3)
    assert tracker.cursor == Cursor(2, 11)
    assert tracker.observe(12, 5) == NEXT
    assert [tracker.recognises(number, 1) for number in (8, 9, 11)] == [True, None, None]
    tracker.skip(10 * DUPLICATE_WINDOW)
    assert tracker.recognises(12, 5) is None


def test_the_same_number_with_the_same_payload_is_a_duplicate() -> None:
    tracker = SequenceTracker()
    for sequence in range(4):
        tracker.observe(sequence, 100 + sequence)
    assert tracker.observe(3, 103) == DUPLICATE
    assert tracker.observe(0, 100) == DUPLICATE
    assert tracker.cursor == Cursor(1, 3)


def test_a_number_below_with_another_payload_is_a_restart() -> None:
    tracker = SequenceTracker(Cursor(1, 7))
    tracker.observe(8, 1)
    assert tracker.observe(0, 2) == Verdict(SequenceOutcome.RESTART)
    assert tracker.cursor == Cursor(2, 0)


def test_a_restart_that_was_joined_late_has_a_gap_from_zero() -> None:
    tracker = SequenceTracker(Cursor(1, 7))
    assert tracker.observe(3, 1) == Verdict(SequenceOutcome.RESTART, Gap(0, 2))
    assert tracker.observe(4, 1) == NEXT
    assert tracker.cursor == Cursor(2, 4)


def test_the_last_number_again_with_another_payload_is_a_restart() -> None:
    tracker = SequenceTracker()
    tracker.observe(0, 1)
    assert tracker.observe(0, 2).outcome is SequenceOutcome.RESTART


def test_what_a_bridge_did_not_see_itself_is_no_evidence_for_a_duplicate() -> None:
    assert SequenceTracker(Cursor(1, 0)).observe(0, 1).outcome is SequenceOutcome.RESTART


def test_evidence_of_the_life_before_does_not_count() -> None:
    tracker = SequenceTracker()
    tracker.observe(0, 1)
    tracker.observe(1, 2)
    assert tracker.observe(0, 3).outcome is SequenceOutcome.RESTART
    tracker.observe(1, 4)
    assert tracker.observe(1, 2).outcome is SequenceOutcome.RESTART


def test_evidence_of_the_life_before_does_not_count_where_the_new_one_has_a_hole() -> None:
    tracker = SequenceTracker()
    for sequence in range(3):
        tracker.observe(sequence, sequence)
    tracker.observe(0, 7)
    assert tracker.observe(3, 7) == Verdict(SequenceOutcome.GAP, Gap(1, 2))
    assert tracker.observe(2, 2).outcome is SequenceOutcome.RESTART


def test_every_life_has_evidence_of_a_whole_window() -> None:
    tracker = SequenceTracker(Cursor(1, 7))
    tracker.begin_incarnation()
    assert tracker.cursor == Cursor(2, -1)
    for sequence in range(DUPLICATE_WINDOW):
        assert tracker.observe(sequence, sequence) == NEXT
    for sequence in (0, DUPLICATE_WINDOW - 1):
        assert tracker.observe(sequence, sequence) == DUPLICATE


@pytest.mark.parametrize(
    ("sequence", "digest"), [(0, 1), (0, 2), (1, 1), (4, 1), (5, 1), (5, 2), (6, 1), (9, 1)]
)
def test_to_peek_says_what_observing_would_and_moves_nothing(sequence: int, digest: int) -> None:
    tracker = SequenceTracker()
    tracker.observe(0, 1)
    for seen in (4, 5):
        tracker.observe(seen, 1)
    said = tracker.peek(sequence, digest)
    assert tracker.cursor == Cursor(1, 5)
    assert said == copy.copy(tracker).observe(sequence, digest)


def test_evidence_ends_with_the_window() -> None:
    def after(batches: int) -> SequenceOutcome:
        tracker = SequenceTracker()
        for sequence in range(batches):
            tracker.observe(sequence, sequence)
        return tracker.observe(0, 0).outcome

    assert after(DUPLICATE_WINDOW) is SequenceOutcome.DUPLICATE
    assert after(DUPLICATE_WINDOW + 1) is SequenceOutcome.RESTART


def test_of_what_was_jumped_over_nothing_is_known() -> None:
    tracker = SequenceTracker()
    for sequence in range(5):
        tracker.observe(sequence, sequence)
    tracker.observe(DUPLICATE_WINDOW + 4, 1)
    assert tracker.recognises(DUPLICATE_WINDOW + 2, 2) is None
    assert tracker.recognises(DUPLICATE_WINDOW + 4, 2) is False


# Senders whose payloads are no evidence

NAMED = [
    (Cursor(3, 8), NEXT, NumberPlace.NEXT),
    (Cursor(3, 10), Verdict(SequenceOutcome.GAP, Gap(8, 9)), NumberPlace.ABOVE),
    (Cursor(3, 7), DUPLICATE, NumberPlace.BELOW),
    (Cursor(3, 0), DUPLICATE, NumberPlace.BELOW),
    (Cursor(4, 0), Verdict(SequenceOutcome.RESTART), NumberPlace.LATER),
    (Cursor(9, 8), Verdict(SequenceOutcome.RESTART, Gap(0, 7)), NumberPlace.LATER),
    (Cursor(2, 8), Verdict(SequenceOutcome.STALE), NumberPlace.EARLIER),
    (Cursor(2, 99), Verdict(SequenceOutcome.STALE), NumberPlace.EARLIER),
]


@pytest.mark.parametrize(("cursor", "verdict", "place"), NAMED)
def test_an_incarnation_that_each_batch_names_tells_a_restart(
    cursor: Cursor, verdict: Verdict, place: NumberPlace
) -> None:
    tracker = IncarnationTracker(Cursor(3, 7))
    assert tracker.observe(cursor) == verdict
    assert OUTCOMES[Evidence.NUMBER][place] is verdict.outcome
    is_dropped = verdict.outcome in (SequenceOutcome.DUPLICATE, SequenceOutcome.STALE)
    assert tracker.cursor == (Cursor(3, 7) if is_dropped else cursor)


NOTICED = [
    ([8, 9], NEXT, NumberPlace.NEXT),
    ([], NEXT, NumberPlace.NEXT),
    ([10, 11], Verdict(SequenceOutcome.GAP, Gap(8, 9)), NumberPlace.ABOVE),
    ([8, 12, 3], Verdict(SequenceOutcome.GAP, Gap(9, 11)), NumberPlace.ABOVE),
    ([7], Verdict(SequenceOutcome.BACKWARD), NumberPlace.BELOW),
    ([8, 8, 20], Verdict(SequenceOutcome.BACKWARD), NumberPlace.BELOW),
    ([0], Verdict(SequenceOutcome.BACKWARD), NumberPlace.BELOW),
]


@pytest.mark.parametrize(("numbers", "verdict", "place"), NOTICED)
def test_within_one_process_that_is_noticed_a_number_that_goes_back_is_a_loss(
    numbers: list[int], verdict: Verdict, place: NumberPlace
) -> None:
    tracker = ProcessTracker(7)
    assert tracker.observe_all(numbers) == verdict
    assert OUTCOMES[Evidence.NOTICE][place] is verdict.outcome
    assert tracker.sequence == (numbers[-1] if numbers else 7)


def test_each_case_of_the_table_is_tried() -> None:
    assert OUTCOMES[Evidence.NUMBER].keys() == {place for _, _, place in NAMED}
    assert OUTCOMES[Evidence.NOTICE].keys() == {place for _, _, place in NOTICED}
    assert set(OUTCOMES) == set(Evidence)


@pytest.mark.parametrize("kind", [NumberTracker, SequenceTracker, IncarnationTracker])
def test_the_next_incarnation_has_the_number_that_it_is_to_have(kind: type[NumberTracker]) -> None:
    tracker = kind(Cursor(3, 7))
    tracker.begin_incarnation(2)
    assert tracker.cursor == Cursor(4, -1)
    tracker.begin_incarnation(50)
    assert tracker.cursor == Cursor(50, -1)


@pytest.mark.parametrize("chunk", [1, 7, 1000, DUPLICATE_WINDOW, DUPLICATE_WINDOW + 5])
def test_many_at_once_are_remembered_as_one_by_one(chunk: int) -> None:
    one_by_one, at_once = SequenceTracker(), SequenceTracker()
    digests = [7 * number + 1 for number in range(2 * DUPLICATE_WINDOW + 100)]
    for number, digest in enumerate(digests):
        one_by_one.observe(number, digest)
    for start in range(0, len(digests), chunk):
        at_once.advance(digests[start : start + chunk])
    assert at_once.cursor == one_by_one.cursor
    for number, digest in enumerate(digests):
        known = one_by_one.recognises(number, digest)
        assert at_once.recognises(number, digest) is known
        assert known is (None if number < DUPLICATE_WINDOW + 100 else True)
        assert at_once.recognises(number, digest + 1) is (None if known is None else False)
