"""A fold of the log, under what a service knows itself: each knows what the other does not."""

from msgspec import structs

from routing.fold.bookings import Bookings
from routing.fold.fold import BookingChanges, RoutingFold
from routing.overlay.bookings import OverlaidBookings
from routing.overlay.own_records import OwnRecords
from tests.routing import NOW, RUN, TARGET, decision, decisions, outcome, outcomes

OTHER = RUN + 1


def own(*numbers: int) -> OverlaidBookings:
    """What a service has that has decided these."""
    records = OwnRecords()
    bookings = OverlaidBookings(records)
    bookings.advance(NOW)
    for number in numbers:
        records.begin()
        bookings.book(RUN, decision(number))
    return bookings


def of(*numbers: int, run: int = RUN) -> Bookings:
    """What a fold of the log has that has these."""
    bookings = Bookings()
    bookings.advance(NOW)
    for number in numbers:
        bookings.book(run, decision(number))
    return bookings


def bring(here: OverlaidBookings, log: Bookings, number: int, *, run: int = OTHER) -> None:
    """The log brings a decision."""
    found = log.book(run, decision(number))
    here.come(decisions(number, run=run), BookingChanges(found, [], []))


def test_what_others_decided_is_taken_and_what_was_decided_here_stays() -> None:
    here, log = own(0, 1), of(0, run=OTHER)
    here.rebase(log)
    assert len(here) == 3
    assert here.load(TARGET, NOW).requests == 3
    assert here.knows_run(OTHER)


def test_what_has_ended_here_is_not_taken_again_though_the_log_has_yet_to_say_so() -> None:
    here = own(0)
    here.report(RUN, outcome(0))
    here.rebase(of(0))
    assert (len(here), here.load(TARGET, NOW).requests) == (0, 0)


def test_what_has_ended_there_ends_here() -> None:
    here, log = own(0, 1), of(0, 1)
    log.report(RUN, outcome(0))
    here.rebase(log)
    assert (len(here), here.load(TARGET, NOW).requests) == (1, 1)
    assert here.named("r-0") is None


def test_a_decision_that_the_log_brings_again_is_booked_once() -> None:
    here, log = own(), of(0)
    here.rebase(log)
    bring(here, log, 0, run=RUN)
    assert len(here) == 1


def test_to_go_on_over_the_same_fold_changes_nothing() -> None:
    here, log = own(5), of(0, 1, run=OTHER)
    here.report(OTHER, outcome(1, "first_token"))
    here.rebase(log)
    before = (len(here), here.load(TARGET, NOW), here.counts())
    here.rebase(log)
    assert (len(here), here.load(TARGET, NOW), here.counts()) == before


def test_a_report_that_waits_for_its_decision_waits_here_too() -> None:
    here, log = own(), of()
    log.report(OTHER, outcome(3))
    here.rebase(log)
    bring(here, log, 3)
    assert len(here) == 0


def test_what_both_were_told_before_the_decision_is_put_together() -> None:
    here, log = own(), of()
    here.report(OTHER, outcome(3, "first_token"))
    for event in ("first_token", "completed"):
        log.report(OTHER, outcome(3, event))
    here.rebase(log)
    bring(here, log, 3)
    assert (len(here), here.load(TARGET, NOW).requests) == (0, 0)


def test_what_was_told_here_before_the_decision_came_with_the_log_is_of_it() -> None:
    here = own()
    here.report(OTHER, outcome(0))
    (found,) = here.rebase(of(0, run=OTHER))
    assert (found.booking.key, found.outcome) == ((OTHER, 0), outcome(0))
    assert (len(here), here.load(TARGET, NOW).requests) == (0, 0)


def test_a_first_token_that_the_log_has_releases_what_is_booked_of_computing() -> None:
    here, log = own(0, 1), of(0, 1)
    log.report(RUN, outcome(0, "first_token"))
    here.rebase(log)
    assert here.load(TARGET, NOW) == log.load(TARGET, NOW)
    assert here.load(TARGET, NOW).decoding == 1
    here.report(RUN, outcome(0))
    assert here.load(TARGET, NOW).requests == 1


def test_a_request_that_went_elsewhere_by_the_log_is_booked_there() -> None:
    here, log = own(0, 1), of(0, 1)
    moved = structs.replace(outcome(0, "first_token"), instance_id="elsewhere")
    log.report(RUN, moved)
    here.rebase(log)
    for target in (TARGET, TARGET._replace(instance_id="elsewhere")):
        assert here.load(target, NOW).requests == log.load(target, NOW).requests == 1
        assert here.load(target, NOW).decoding == log.load(target, NOW).decoding


def test_a_report_here_changes_nothing_in_the_fold_below() -> None:
    fold = RoutingFold()
    fold.apply(0, decisions(0))
    here = own()
    here.rebase(fold.bookings)
    before = fold.digest
    here.report(RUN, outcome(0, "first_token"))
    assert fold.digest == before
    fold.apply(1, outcomes(0, event="first_token"))
    assert fold.bookings.load(TARGET, NOW).decoding == 1


def test_a_restored_fold_goes_on_as_the_one_whose_state_it_has() -> None:
    first = RoutingFold()
    first.apply(0, decisions(0, 1))
    second = RoutingFold.load(first.dump())
    third = RoutingFold()
    third.bookings.restore(first.bookings.state())
    third.offset = first.offset
    for fold in (first, second, third):
        fold.apply(1, outcomes(0, event="first_token"))
        fold.apply(2, outcomes(0))
    assert first.digest == second.digest
    assert first.bookings.state() == third.bookings.state()
    assert len(first.bookings) == 1


def test_an_end_is_known_again_though_the_log_has_lost_its_decision() -> None:
    here = own()
    here.rebase(of(0, run=OTHER))
    here.rebase(of())
    assert here.report(OTHER, outcome(0)) != []
    assert here.report(OTHER, outcome(0)) is None
    assert here.repeated == 1
