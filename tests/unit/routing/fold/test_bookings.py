"""What is under way where, and when it ends."""

import pytest

from routing.bounds import EARLY_OUTCOME_S, RECORD_STEP_S
from routing.fold import bookings as module
from routing.fold import target_bookings
from routing.fold.booking import BOOKING_EXPIRY_MAX_S, BOOKING_EXPIRY_S
from routing.fold.bookings import EXPIRIES_KEPT, ROUTING_RUNS_MAX, Bookings
from routing.fold.target_bookings import NO_LOAD, Load
from routing.overlay.bookings import OverlaidBookings
from routing.overlay.own_records import OwnRecords
from schemas.routing_records import OutcomeEvent, Target, UnregisteredEngine
from tests.unit.routing.sample_decisions import SCOPE, A, B, candidate, decision, outcome

RUN = 7
OTHER_RUN = 8
FIRST, END = OutcomeEvent.FIRST_TOKEN, OutcomeEvent.COMPLETED


def booked(*numbers: int, time: float = 100.0) -> Bookings:
    bookings = Bookings()
    bookings.advance(time)
    for number in numbers:
        bookings.book(RUN, decision(number, time))
    return bookings


def overlaid(bookings: Bookings) -> OverlaidBookings:
    """As a service asks them that knows nothing else."""
    found = OverlaidBookings(OwnRecords())
    found.rebase(bookings)
    return found


def test_a_decision_is_load_at_once() -> None:
    bookings = booked(0, 1)
    assert bookings.load(A, 100.0) == Load(2.0, 2, 2000, 2000, 0, 2200)
    assert bookings.load(A, 100.5).wait_s == 1.5
    assert bookings.load(A, 103.0).wait_s == 0.0
    assert bookings.load(B, 100.0) == NO_LOAD


def test_a_cached_prefix_is_not_computed_again() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    one = candidate("a", cached=600, prefix=600, prefill_s=0.4, load_s=0.1, transfer_s=0.2)
    bookings.book(RUN, decision(0, candidates=(one,)))
    load = bookings.load(A, 100.0)
    assert (load.pending, load.active, load.kv_tokens) == (400, 400, 1100)
    assert load.wait_s == pytest.approx(0.7)


def test_the_first_token_releases_what_was_to_be_computed() -> None:
    bookings = booked(0, 1)
    bookings.report(RUN, outcome(0, FIRST, 100.0))
    assert bookings.load(A, 100.0) == Load(1.0, 2, 1000, 2000, 1, 2200)


def test_the_end_releases_all() -> None:
    bookings = booked(0, 1)
    for number in (0, 1):
        bookings.report(RUN, outcome(number, END, 100.0))
    assert bookings.load(A, 100.0) == NO_LOAD
    assert len(bookings) == 0
    assert not list(bookings.places.targets())


@pytest.mark.parametrize("event", [OutcomeEvent.FAILED, OutcomeEvent.CANCELLED])
def test_whatever_ends_it_releases_all(event: OutcomeEvent) -> None:
    bookings = booked(0)
    assert bookings.report(RUN, outcome(0, event))
    assert bookings.load(A, 100.0) == NO_LOAD


def test_one_that_was_to_have_ended_keeps_nobody_waiting() -> None:
    """Its client reports nothing, or late."""
    bookings = booked(0, time=100.0)
    bookings.advance(105.0)
    bookings.book(RUN, decision(1, 105.0))
    bookings.advance(105.5)
    bookings.book(RUN, decision(2, 105.5))
    bookings.report(RUN, outcome(1, FIRST, 105.5))
    assert bookings.load(A, 105.5).wait_s == 1.0  # of the last one alone


def test_what_is_booked_at_an_engine_that_is_gone_is_released() -> None:
    bookings = booked(0, 1)
    bookings.book(RUN, decision(2, scope=SCOPE._replace(model_name="other")))
    bookings.book(RUN, decision(3, chosen=1, decode=0))
    bookings.book(RUN, decision(4, chosen=1))
    assert len(bookings.release([UnregisteredEngine(A, "m")])) == bookings.released == 3
    assert [bookings.load(one, 100.0).requests for one in (A, B)] == [1, 1]
    assert not bookings.report(RUN, outcome(0, END))
    assert bookings.repeated == 1


def test_a_report_counts_once() -> None:
    bookings = booked(0)
    assert bookings.report(RUN, outcome(0, FIRST))
    assert not bookings.report(RUN, outcome(0, FIRST))
    assert bookings.report(RUN, outcome(0, END))
    assert not bookings.report(RUN, outcome(0, END))
    assert bookings.repeated == 2
    assert len(bookings) == 0


def test_reports_in_another_order_end_the_same() -> None:
    bookings = booked(0)
    bookings.report(RUN, outcome(0, END))
    bookings.report(RUN, outcome(0, FIRST))
    assert bookings.load(A, 100.0) == NO_LOAD


def test_a_decision_counts_once() -> None:
    bookings = booked(0, 1)
    bookings.book(RUN, decision(0))
    bookings.report(RUN, outcome(1, END))
    bookings.book(RUN, decision(1))
    assert bookings.load(A, 100.0).requests == 1


def test_a_report_may_come_before_its_decision() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    assert not bookings.report(RUN, outcome(0, FIRST))
    reported = bookings.book(RUN, decision(0))
    assert [one.outcome.event for one in reported] == [FIRST]
    assert bookings.load(A, 100.0).decoding == 1
    bookings.report(RUN, outcome(1, END))
    assert bookings.book(RUN, decision(1))
    assert bookings.load(A, 100.0).requests == 1


def test_a_report_of_no_decision_is_forgotten_and_counted() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    bookings.report(RUN, outcome(0, FIRST))
    bookings.advance(100.0 + EARLY_OUTCOME_S)
    assert bookings.unknown == 1
    assert not bookings.book(RUN, decision(0))


def test_a_decision_without_a_report_expires_by_the_time_of_records() -> None:
    bookings = booked(0)
    time = 100.0
    while time < 100.0 + BOOKING_EXPIRY_S:
        assert len(bookings) == 1
        time += RECORD_STEP_S
        bookings.advance(time)
    assert len(bookings) == 0
    assert bookings.expired == 1
    assert bookings.load(A, time) == NO_LOAD


def test_a_long_one_expires_later() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    bookings.book(RUN, decision(0, predicted_s=1000.0))
    for step in range(1, 12):
        bookings.advance(100.0 + step * RECORD_STEP_S)
    assert len(bookings) == 1


def test_the_whole_request_counts_output_included() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    bookings.book(RUN, decision(0, predicted_s=1.0, decode_s=99.0))
    bookings.advance(1099.0)
    assert len(bookings) == 1
    bookings.advance(1100.0)
    assert len(bookings) == 0


def test_a_report_that_it_lives_prolongs_it_and_counts_once() -> None:
    bookings = booked(0)
    for event in (OutcomeEvent.DISPATCHED, FIRST, FIRST, OutcomeEvent.DISPATCHED):
        bookings.advance(bookings.clock + BOOKING_EXPIRY_S - 1.0)
        assert bool(bookings.report(RUN, outcome(0, event))) is (bookings.prolonged < 3)
    assert (bookings.prolonged, bookings.repeated, len(bookings)) == (4, 0, 1)
    bookings.report(RUN, outcome(0, FIRST))
    assert bookings.repeated == 1, "that it lives was known"
    bookings.advance(bookings.clock + BOOKING_EXPIRY_S)
    assert (len(bookings), bookings.expired) == (0, 1)


def test_a_clock_that_leaps_ends_nothing_at_once_and_is_led_back() -> None:
    bookings = booked(0)
    bookings.advance(100.0, RUN)
    bookings.advance(100.0, OTHER_RUN)
    bookings.advance(1e9, RUN)
    assert len(bookings) == 1
    assert bookings.clock == 100.0 + RECORD_STEP_S
    bookings.advance(99.0, OTHER_RUN)
    assert bookings.clock == 99.0


def test_after_idleness_the_only_writer_is_believed() -> None:
    bookings = booked(0)
    bookings.advance(100.0, RUN)
    bookings.advance(100_000.0, RUN)
    assert (len(bookings), bookings.clock) == (0, 100_000.0)
    bookings.book(RUN, decision(1, 100_000.0))
    assert bookings.load(A, 100_000.0).requests == 1


def test_after_idleness_a_service_that_has_begun_since_is_believed() -> None:
    bookings = booked(0)
    bookings.advance(100.0, RUN)
    bookings.advance(100.0, OTHER_RUN)
    bookings.advance(50_001.0, int(50_000 * 1e6))
    assert (len(bookings), bookings.clock) == (0, 50_001.0)


def test_a_decision_of_the_future_counts_from_now() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    bookings.book(RUN, decision(0, 1e9))
    assert bookings.load(A, 100.0).wait_s == 1.0


def test_a_request_that_went_elsewhere_is_load_there() -> None:
    bookings = booked(0)
    bookings.report(RUN, outcome(0, OutcomeEvent.DISPATCHED, instance_id="b"))
    assert bookings.load(A, 100.0) == NO_LOAD
    assert bookings.load(B, 100.0) == Load(1.0, 1, 1000, 1000, 0, 1100)
    bookings.report(RUN, outcome(0, END))
    assert bookings.load(B, 100.0) == NO_LOAD


def test_it_may_have_gone_to_another_rank_and_be_done_there() -> None:
    bookings = booked(0)
    bookings.report(RUN, outcome(0, FIRST, instance_id="a", dp_rank=3))
    there = Target("default", "a", 3)
    assert bookings.load(there, 100.0).decoding == 1
    assert bookings.load(A, 100.0) == NO_LOAD
    bookings.report(RUN, outcome(0, END))
    assert bookings.load(there, 100.0) == NO_LOAD


def test_the_one_that_decodes_is_booked_too() -> None:
    bookings = Bookings()
    bookings.advance(100.0)
    bookings.book(RUN, decision(0, decode=1))
    assert bookings.load(B, 100.0) == Load(0.0, 1, 0, 1000, 1, 1100)
    bookings.report(RUN, outcome(0, END))
    assert bookings.load(A, 100.0) == bookings.load(B, 100.0) == NO_LOAD


def test_a_refused_request_books_nothing() -> None:
    bookings = Bookings()
    bookings.book(RUN, decision(0, chosen=-1))
    assert len(bookings) == 0
    assert bookings.has_seen(RUN, 0)


def test_what_finds_no_room_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BOOKINGS_MAX", 2)
    bookings = booked(0, 1, 2)
    assert (len(bookings), bookings.overflowed) == (2, 1)
    assert not bookings.report(RUN, outcome(2, END))


def test_bookings_that_have_ended_take_no_room() -> None:
    """Each left when it would have expired, which may be hours away: 128 MB of a million."""
    bookings = booked(0)
    for number in range(1, 20 * EXPIRIES_KEPT):
        bookings.book(RUN, decision(number))
        bookings.report(RUN, outcome(number, END))
    assert len(bookings._expiry) <= EXPIRIES_KEPT + 4
    (gone,) = bookings.advance(10.0 * BOOKING_EXPIRY_MAX_S)
    assert gone.key == (RUN, 0), "what is open expires all the same"


def test_early_reports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EARLY_OUTCOMES_MAX", 2)
    bookings = Bookings()
    for number in range(5):
        bookings.report(RUN, outcome(number, FIRST))
    assert bookings.unknown == 3
    for _ in range(100):
        bookings.report(RUN, outcome(4, FIRST))
    assert bookings.repeated == 100


def test_an_early_report_that_comes_again_waits_anew_for_its_decision() -> None:
    """It was told here first; the log brings it a minute later, and its decision behind it."""
    bookings = Bookings()
    bookings.advance(100.0)
    bookings.report(RUN, outcome(0, END))
    bookings.advance(100.0 + EARLY_OUTCOME_S - 1.0)
    bookings.report(RUN, outcome(0, END))
    bookings.advance(100.0 + EARLY_OUTCOME_S + 1.0)
    assert bookings.book(RUN, decision(0)), "it has ended"
    assert len(bookings) == 0


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTING_RUNS_MAX", 2)
    bookings = Bookings()
    for run in range(5):
        bookings.book(run, decision(0))
    assert [bookings.knows_run(run) for run in range(5)] == [False, False, False, True, True]
    assert ROUTING_RUNS_MAX > 2


def test_a_request_has_its_decision_while_it_is_under_way() -> None:
    bookings = booked(0)
    assert overlaid(bookings).named("r0") == (RUN, 0)
    bookings.report(RUN, outcome(0, END))
    assert overlaid(bookings).named("r0") is None


def test_sums_stay_within_what_a_record_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_bookings, "LOAD_SUM_MAX", 1500)
    bookings = booked(0, 1)
    assert bookings.load(A, 100.0) == Load(2.0, 2, 1500, 1500, 0, 1500)
    bookings.report(RUN, outcome(0, END))
    assert bookings.load(A, 100.0).pending == 1000, "what is summed is not cut, what is told is"


def test_a_report_from_before_its_decision_is_of_the_decision() -> None:
    bookings = booked(0, 1)
    bookings.report(RUN, outcome(0, FIRST, 1.0))
    assert bookings.load(A, 100.0).wait_s == 1.0


def test_requests_of_one_id_are_each_tenants_own() -> None:
    bookings = booked(0)
    tenant = A.tenant_id
    assert overlaid(bookings).named("r0") == overlaid(bookings).named("r0", tenant) == (RUN, 0)
    assert overlaid(bookings).named("r0", "another") is None


def test_how_many_were_queued_at_a_time() -> None:
    bookings = booked(0)  # it takes a second
    bookings.advance(100.5)
    bookings.book(RUN, decision(1, 100.5))
    there = [overlaid(bookings).queued_at(A, at) for at in (99.0, 100.0, 100.5)]
    assert there == [(0, 0), (1, 1000), (2, 2000)]
    assert overlaid(bookings).queued_at(A, 102.0) == (
        1,
        1000,
    )  # one should have been done a second ago
    assert overlaid(bookings).queued_at(A, 105.0) == (
        0,
        0,
    )  # both should be done, though nobody says so
    assert overlaid(bookings).queued_at(B, 100.0) == (0, 0)
    bookings.report(RUN, outcome(0, FIRST, 100.6))
    assert overlaid(bookings).queued_at(A, 100.5)[0] == 1
