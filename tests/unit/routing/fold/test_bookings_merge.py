"""Two folds of the same decisions, of which each knows something that the other does not."""

from msgspec import structs

from routing.fold.bookings import Bookings
from routing.fold.fold import RoutingFold
from tests.routing import NOW, RUN, TARGET, decision, decisions, outcome, outcomes

OTHER = RUN + 1


def of(*numbers: int, run: int = RUN) -> Bookings:
    """What a service has that has decided these, or heard of them."""
    bookings = Bookings()
    bookings.advance(NOW)
    for number in numbers:
        bookings.book(run, decision(number))
    return bookings


def test_what_others_decided_is_taken_and_what_was_decided_here_stays() -> None:
    here, log = of(0, 1), of(0, run=OTHER)
    here.merge(log.state())
    assert len(here) == 3
    assert here.load(TARGET, NOW).requests == 3
    assert here.knows_run(OTHER)


def test_what_has_ended_here_is_not_taken_again_though_the_log_has_yet_to_say_so() -> None:
    here = of(0)
    here.report(RUN, outcome(0))
    here.merge(of(0).state())
    assert (len(here), here.load(TARGET, NOW).requests) == (0, 0)


def test_what_has_ended_there_ends_here() -> None:
    here, log = of(0, 1), of(0, 1)
    log.report(RUN, outcome(0))
    here.merge(log.state())
    assert (len(here), here.load(TARGET, NOW).requests) == (1, 1)
    assert here.named("r-0") is None


def test_a_decision_that_the_merged_log_brings_again_is_booked_once() -> None:
    here = of()
    here.merge(of(0).state())
    here.book(RUN, decision(0))
    assert len(here) == 1


def test_to_merge_twice_changes_nothing() -> None:
    here, log = of(5), of(0, 1, run=OTHER)
    here.merge(log.state())
    before = here.state()
    here.merge(log.state())
    assert here.state() == before


def test_a_report_that_waits_for_its_decision_waits_here_too() -> None:
    here, log = of(), of()
    log.report(OTHER, outcome(3))
    here.merge(log.state())
    here.book(OTHER, decision(3))
    assert len(here) == 0


def test_what_both_were_told_before_the_decision_is_put_together() -> None:
    here, log = of(), of()
    here.report(OTHER, outcome(3, "first_token"))
    for event in ("first_token", "completed"):
        log.report(OTHER, outcome(3, event))
    here.merge(log.state())
    here.book(OTHER, decision(3))
    assert (len(here), here.load(TARGET, NOW).requests) == (0, 0)


def test_what_was_told_here_before_the_decision_came_with_the_log_is_of_it() -> None:
    here = of()
    here.report(OTHER, outcome(0))
    (found,) = here.merge(of(0, run=OTHER).state())
    assert (found.booking.key, found.outcome) == ((OTHER, 0), outcome(0))
    assert (len(here), here.load(TARGET, NOW).requests) == (0, 0)


def test_a_first_token_that_the_log_has_releases_what_is_booked_of_computing() -> None:
    here, log = of(0, 1), of(0, 1)
    log.report(RUN, outcome(0, "first_token"))
    here.merge(log.state())
    assert here.load(TARGET, NOW) == log.load(TARGET, NOW)
    assert here.load(TARGET, NOW).decoding == 1
    here.report(RUN, outcome(0))
    assert here.load(TARGET, NOW).requests == 1


def test_a_request_that_went_elsewhere_by_the_log_is_booked_there() -> None:
    here, log = of(0, 1), of(0, 1)
    moved = structs.replace(outcome(0, "first_token"), instance_id="elsewhere")
    log.report(RUN, moved)
    here.merge(log.state())
    for target in (TARGET, TARGET._replace(instance_id="elsewhere")):
        assert here.load(target, NOW).requests == log.load(target, NOW).requests == 1
        assert here.load(target, NOW).decoding == log.load(target, NOW).decoding


def test_a_report_here_changes_nothing_in_the_fold_that_was_merged() -> None:
    fold = RoutingFold()
    fold.apply(0, decisions(0))
    here = Bookings()
    here.merge(fold.bookings.state())
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
