"""What is kept of decisions is bounded in bytes: by long names and many candidates, too."""

from collections import Counter

import pytest

from routing.bounds import BOOKINGS_BYTES_MAX
from routing.decisions import answers as answers_module
from routing.decisions import queue as queue_module
from routing.decisions.answers import KeptAnswers
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.decisions.queue import RoutingQueue
from routing.fold import bookings as bookings_module
from routing.fold.bookings import Bookings
from routing.observed.open_promises import OpenPromises
from routing.observed.predicted_blocks import PredictedHolders
from routing.observed.promises import promise_of
from routing.observed.sessions import Sessions
from routing.sizes import OBJECT_SIZE, decision_bytes, text_bytes
from schemas.identities import PrefixScope
from schemas.routing_records import DecisionsRecord, OutcomeEvent, PrefixMark
from tests.unit.routing.sample_decisions import SCOPE, A, candidate, decision, outcome

LONG = "x" * 1000
RUN = 7


def test_names_count_as_what_they_take() -> None:
    assert (text_bytes("ab", "c"), text_bytes("\u20ac")) == (3, 4)
    short, many = decision(0), decision(0, candidates=(candidate(LONG),) * 100)
    assert decision_bytes(many) - decision_bytes(short) > 98 * (OBJECT_SIZE + 1000)


def test_the_queue_drops_what_has_no_room_and_counts_it() -> None:
    queue = RoutingQueue(bytes_max=1_000_000)
    for number in range(100):
        queue.push_decision(RUN, decision(number, candidates=(candidate(LONG),) * 100))
    assert 0 < queue.kept < 10
    assert queue.kept + queue.dropped == 100
    kept, taken = queue.kept, queue.take(0.0)
    assert len(taken) > 0
    queue.push_decision(RUN, decision(100))  # there is room again
    assert (len(queue), queue.kept + queue.dropped) == (kept + 1, 101)
    queue.take(0.0)  # who takes again has written what it took before
    assert len(queue) == 1


def test_one_that_is_larger_than_the_queue_is_written_alone() -> None:
    queue = RoutingQueue(bytes_max=1000)
    queue.push_decision(RUN, decision(0, candidates=(candidate(LONG),) * 100))
    assert (queue.kept, queue.dropped) == (1, 0)


def test_records_of_large_decisions_have_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "ROUTING_RECORD_BYTES", 300_000)
    queue = RoutingQueue()
    for number in range(10):
        queue.push_decision(RUN, decision(number, candidates=(candidate(LONG),) * 64))
    queue.push_outcomes([(RUN, outcome(0, OutcomeEvent.COMPLETED))])
    records = queue.take(0.0)
    made = [len(one.decisions) for one in records if isinstance(one, DecisionsRecord)]
    assert made == [3, 3, 3, 1]
    assert len(records) == 5
    numbers = [d.number for one in records[:4] for d in one.decisions]  # type: ignore[union-attr]
    assert numbers == list(range(10))


def test_bookings_are_refused_beyond_their_bytes_and_again_taken_once_some_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bookings_module, "BOOKINGS_BYTES_MAX", 20_000)
    bookings = Bookings()
    for number in range(50):
        bookings.book(RUN, decision(number, request_id=f"{number}{LONG}"))
    booked = len(bookings)
    assert 5 < booked < 20
    assert bookings.overflowed == 50 - booked
    for number in range(booked):
        moved = outcome(number, OutcomeEvent.DISPATCHED, instance_id=LONG)
        bookings.report(RUN, moved)  # to a longer name, of which the end gives all back
        bookings.report(RUN, outcome(number, OutcomeEvent.COMPLETED))
    assert (len(bookings), bookings._bytes) == (0, 0)
    bookings.book(RUN, decision(50))
    assert len(bookings) == 1


def test_bookings_that_are_restored_count_their_bytes() -> None:
    one, other = Bookings(), Bookings()
    for number in range(5):
        one.book(RUN, decision(number))
    other.restore(one.state())
    assert other._bytes == one._bytes > 5 * OBJECT_SIZE
    assert one._bytes < BOOKINGS_BYTES_MAX


def test_open_promises_lose_the_oldest_beyond_their_bytes() -> None:
    promises = OpenPromises(bytes_most=20_000)
    gone = []
    for number in range(50):
        promise = promise_of(RUN, 0.0, decision(number, policy=LONG))
        assert promise is not None
        gone += promises.add(promise)
    assert [one.number for one in gone] == list(range(50 - len(promises)))
    assert 5 < len(promises) < 20
    assert promises.forgotten == len(gone)
    again = OpenPromises()
    again.restore(promises.state())
    assert again._bytes == promises._bytes
    promises.expire(1e9, lambda run, number: False)
    assert promises._bytes == 0


def test_sessions_lose_the_least_recent_beyond_their_bytes() -> None:
    sessions = Sessions(bytes_most=20_000)
    for number in range(50):
        sessions.decided(0.0, decision(number, session_id=f"{number}{LONG}"))
    assert 5 < len(sessions) < 20
    assert sessions.forgotten == 50 - len(sessions)
    assert sessions.last("default", f"49{LONG}", 0.0) is not None
    sessions.decided(1e9, decision(50, session_id="s"))
    again = Sessions()
    again.restore(sessions.state())
    again.restore(sessions.state())  # as a service does whose log is read again
    assert again._bytes == sessions._bytes < 2 * OBJECT_SIZE


def test_predictions_lose_the_first_to_end_beyond_their_bytes() -> None:
    predicted = PredictedHolders(bytes_most=20_000)
    scope = SCOPE._replace(model_name=LONG)
    for number in range(50):
        predicted.decided(0.0, A, scope, (PrefixMark(1, number + 1),), lasts_s=2.0)
    assert 5 < len(predicted) < 20
    assert predicted.forgotten == 50 - len(predicted)
    predicted.decided(1e9, A, SCOPE, (PrefixMark(1, 99),), lasts_s=2.0)
    assert predicted._index.size_bytes < 2 * OBJECT_SIZE


def test_answers_are_given_up_beyond_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_module, "ROUTE_ANSWERS_BYTES_MAX", 20_000)
    counts: Counter[str] = Counter()
    answers = KeptAnswers(counts)
    for number in range(50):
        asked = RouteRequest(f"r{number}", PrefixScope(*SCOPE), 1000, [], policy=LONG)
        routed = RoutedDecision(RUN, decision(number, policy=LONG), 0.0, None, (LONG, LONG))
        answers.keep(asked, routed)
    assert 30 < counts["answers"] < 50
    assert answers.has("r49")
