"""Whole histories of records: one state, from the beginning or from a checkpoint."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.bounds import PROMISES_OPEN_MAX
from routing.observed.contradictions import OutcomeContradictions
from routing.observed.hot_prefixes import HotPrefixes
from routing.observed.observations import OBSERVATIONS_VERSION, Observations
from routing.observed.open_promises import PROMISE_OPEN_S, OpenPromises
from routing.observed.predicted_blocks import PredictedHolders
from routing.observed.promise_totals import PromiseKey, PromiseTotals, Totals
from routing.observed.promises import promise_of
from routing.observed.sessions import Sessions
from schemas.errors import NewerVersionError, RecordFormatError
from schemas.limits import APPROXIMATE_S, QUERY_TOKENS_MAX
from schemas.routing_records import (
    ENDS,
    CandidateRecord,
    Decision,
    FeedbackReport,
    OutcomeEvent,
    Target,
    UnregisteredEngine,
)
from tests.unit.routing.observed.records import (
    RUN,
    SCOPE,
    a_decision,
    an_outcome,
    marks_of,
    scope_of,
)

MARKS = marks_of((1, 11), (2, 12), (4, 14))
KEY = PromiseKey("default", "llama", "wait-and-work", "a")


def row_of(seen: Observations, key: PromiseKey = KEY) -> Totals:
    return seen.totals.rows().get(key, Totals())


def test_a_decision_and_its_outcome_are_joined_once() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision(cached=480, held=480, marks=MARKS, predicted_s=1.0))
    outcome = an_outcome(cached_tokens=160, prompt_tokens=1000, ttft_s=1.5)
    for event in (OutcomeEvent.FIRST_TOKEN, OutcomeEvent.FIRST_TOKEN, OutcomeEvent.COMPLETED):
        seen.reported(RUN, msgspec.structs.replace(outcome, event=event))
    row = row_of(seen)
    assert (row.decisions, row.reported, row.timed, row.unreported) == (1, 1, 1, 0)
    assert (row.workload, row.routing, row.index) == (520, 0, 320)
    assert len(seen.open) == 0


def test_the_hits_of_the_end_count_where_the_first_token_told_none() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision(cached=480))
    seen.reported(RUN, an_outcome(ttft_s=1.0))
    seen.reported(RUN, an_outcome(event=OutcomeEvent.COMPLETED, cached_tokens=480))
    assert (row_of(seen).reported, row_of(seen).actual) == (1, 480)
    assert row_of(seen).timed == 0, "nothing was promised of its time"


def test_an_outcome_of_another_run_or_of_nothing_is_passed_over() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision())
    before = seen.dump()
    seen.reported(RUN + 1, an_outcome(cached_tokens=5))
    seen.reported(RUN, an_outcome(5, cached_tokens=5))
    assert seen.dump() == before


def test_what_nobody_reports_of_expires_by_the_time_of_records() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision())
    seen.advance(PROMISE_OPEN_S - 1)
    assert len(seen.open) == 1
    seen.advance(PROMISE_OPEN_S)
    assert (len(seen.open), row_of(seen).unreported) == (0, 1)


def test_time_that_goes_back_changes_nothing() -> None:
    seen = Observations()
    seen.advance(100.0)
    before = seen.dump()
    seen.advance(50.0)
    seen.advance(-1e308)
    assert seen.dump() == before


def test_a_time_beyond_all_reason_ends_nothing() -> None:
    seen = Observations()
    for time in (1e308, 5.0):
        seen.advance(time)
        seen.decided(RUN, a_decision(int(time == 5.0), session_id="s", marks=MARKS))
    assert Observations.load(seen.dump()).dump() == seen.dump()
    assert row_of(seen).decisions == 2


def test_counts_and_times_beyond_all_reason_leave_a_checkpoint_that_can_be_written() -> None:
    seen = Observations()
    for number in range(10_000):
        seen.decided(
            RUN,
            a_decision(
                number, prompt=2**40, cached=2**40, held=2**40, predicted_s=1e308, marks=MARKS[:1]
            ),
        )
        seen.reported(
            RUN,
            an_outcome(
                number,
                OutcomeEvent.COMPLETED,
                cached_tokens=2**40,
                ttft_s=1e308,
                prompt_tokens=2**40,
            ),
        )
    assert Observations.load(seen.dump()).dump() == seen.dump()
    row = row_of(seen)
    assert row.prompt == row.actual == 10_000 * QUERY_TOKENS_MAX
    assert row.ttft_actual_us < 2**63 // 1000, "a thousand times as many fit, too"


def test_a_refusal_is_of_no_instance_and_its_prompt_was_asked_for() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision(chosen=-1, marks=MARKS))
    assert row_of(seen, KEY._replace(instance_id="")).refused == 1
    assert len(seen.hot) == 3
    assert len(seen.open) == len(seen.predicted) == 0


def test_a_request_that_went_elsewhere_or_failed_is_predicted_no_more() -> None:
    for outcome in (an_outcome(instance_id="b"), an_outcome(event=OutcomeEvent.FAILED)):
        seen = Observations()
        seen.decided(RUN, a_decision(marks=MARKS))
        assert len(seen.predicted) == 3
        seen.reported(RUN, outcome)
        assert len(seen.predicted) == 0


def test_the_time_of_a_request_that_went_elsewhere_was_not_promised() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision(predicted_s=1.0))
    seen.reported(RUN, an_outcome(instance_id="b", ttft_s=9.0))
    assert (row_of(seen).moved, row_of(seen).timed) == (1, 0)


def approximate(
    number: int, *prefixes: tuple[int, int], instance: str = "a", blocks: int = 0
) -> Decision:
    """For an engine without events, of a cache of so many blocks where that is known."""
    return a_decision(
        number,
        candidates=[CandidateRecord(instance, 0)],
        marks=marks_of(*prefixes),
        is_approximate=True,
        capacity_tokens=blocks * SCOPE.block_size,
    )


def holds(seen: Observations, prefix: int, now: float) -> bool:
    return bool(seen.predicted.longest(SCOPE, [prefix], now))


def test_a_prediction_lasts_longer_where_the_target_publishes_no_events() -> None:
    seen = Observations()
    seen.decided(RUN, approximate(0, (1, 11)))
    seen.decided(RUN, approximate(1, (1, 99), instance="b", blocks=4))
    seen.decided(RUN, a_decision(2, marks=marks_of((1, 77))))
    found = [holds(seen, prefix, now) for prefix in (11, 99, 77) for now in (1.0, 100.0, 1e6)]
    assert found == [True, True, False, True, True, True, True, False, False]


def test_a_completed_request_is_held_from_then_on_without_events_and_a_failed_one_is_not() -> None:
    seen = Observations()
    seen.advance(100.0)
    seen.decided(RUN, approximate(0, (1, 11)))
    seen.decided(RUN, a_decision(1, marks=marks_of((1, 22))))
    seen.decided(RUN, approximate(2, (1, 33)))
    assert [holds(seen, prefix, 101.0) for prefix in (11, 22, 33)] == [True, True, True]
    seen.advance(110.0)
    for number in range(2):
        seen.reported(RUN, an_outcome(number, OutcomeEvent.COMPLETED))
    seen.reported(RUN, an_outcome(2, OutcomeEvent.FAILED))
    late = 100.0 + APPROXIMATE_S + 5.0
    assert [holds(seen, prefix, late) for prefix in (11, 22, 33)] == [True, False, False]


def test_what_was_sent_to_an_engine_that_is_unregistered_is_forgotten_of_its_model() -> None:
    seen = Observations()
    seen.decided(RUN, approximate(0, (1, 11)))
    seen.decided(RUN, approximate(1, (1, 99), instance="b"))
    target = Target(SCOPE.tenant_id, "a", 0)
    seen.forget([UnregisteredEngine(target, "another-model")])
    assert holds(seen, 11, 1.0)
    seen.forget([UnregisteredEngine(target, SCOPE.model_name)])
    assert [holds(seen, prefix, 1.0) for prefix in (11, 99)] == [False, True]


def test_more_open_promises_than_there_is_room_for_lose_the_oldest() -> None:
    seen = Observations()
    seen.open = OpenPromises(most=2)
    for number in range(3):
        seen.decided(RUN, a_decision(number))
    assert (len(seen.open), seen.open.forgotten, row_of(seen).unreported) == (2, 1, 1)
    assert {reason: count for reason, count in seen.forgotten.items() if count} == {"promises": 1}
    seen.reported(RUN, an_outcome(0, cached_tokens=0))
    assert row_of(seen).reported == 0


def test_what_has_no_room_is_counted_by_its_reason() -> None:
    seen = Observations()
    seen.totals, seen.hot = PromiseTotals(rows_max=1), HotPrefixes(scopes_max=1)
    seen.contradictions = OutcomeContradictions(most=1)
    seen.predicted, seen.sessions = PredictedHolders(most=1), Sessions(most=1)
    for number, model in enumerate("mno"):
        seen.advance(60.0 * (number // 2))
        one = a_decision(number, scope=scope_of(model), marks=MARKS[:1], session_id=model)
        seen.decided(RUN, one)
    assert seen.forgotten == {
        "promises": 0,
        "promise_rows": 1,
        "promises_crowded": 1,
        "hot_scopes": 2,
        "predicted": 1,  # the third decision finds the others ended
        "sessions": 2,
        "outcome_windows": 2,
    }


def test_a_decision_that_comes_again_keeps_the_first_promise() -> None:
    open_promises = OpenPromises(most=1)
    one, two = (promise_of(RUN, 0.0, a_decision(cached=cached)) for cached in (1, 2))
    assert one is not None
    assert two is not None
    assert open_promises.add(one) == []
    assert open_promises.add(two) == []
    assert open_promises.find(RUN, 0) is one
    assert open_promises.forgotten == 0


def test_the_default_room_is_that_of_the_limits() -> None:
    open_promises = OpenPromises()
    promise = promise_of(RUN, 0.0, a_decision())
    assert promise is not None
    for number in range(PROMISES_OPEN_MAX + 5):
        open_promises.add(msgspec.structs.replace(promise, number=number))
    assert (len(open_promises), open_promises.forgotten) == (PROMISES_OPEN_MAX, 5)


def test_what_is_no_checkpoint_is_refused_with_what_is_wrong() -> None:
    state = msgspec.msgpack.decode(Observations().dump())
    newer = msgspec.msgpack.encode([OBSERVATIONS_VERSION + 1, *state[1:]])
    for what in (newer, msgspec.msgpack.encode([OBSERVATIONS_VERSION + 1, "another form"])):
        with pytest.raises(NewerVersionError, match="version `1` or older, got `2`: a newer"):
            Observations.load(what)
    for encoded in (b"", b"\xc1", msgspec.msgpack.encode([1, "x"]), newer[:-1]):
        with pytest.raises(RecordFormatError, match="no checkpoint"):
            Observations.load(encoded)


# Histories: decisions with time between them, and outcomes of any of them.

a_time = st.floats(0.0, 100.0) | st.just(PROMISE_OPEN_S)
tokens = st.integers(0, 300)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[float, Decision | FeedbackReport]]:
    found: list[tuple[float, Decision | FeedbackReport]] = []
    time = 1_700_000_000.0
    for number in range(draw(st.integers(0, 12))):
        time += draw(a_time)
        cached, name = draw(tokens), draw(st.sampled_from("abc"))
        first = draw(st.integers(1, 5))
        decision = a_decision(
            number,
            prompt=draw(tokens),
            candidates=[
                CandidateRecord(name, 0, cached=cached, prefix=cached, predicted=draw(tokens))
            ],
            chosen=draw(st.sampled_from([0, 0, 0, -1])),
            scope=scope_of(draw(st.sampled_from(["llama", "qwen"]))),
            state=draw(st.sampled_from(["exact", "stale", "degraded"])),
            session_id=draw(st.sampled_from(["", "s", "t"])),
            held=draw(tokens),
            predicted_s=draw(st.sampled_from([0.0, 1.0])),
            marks=marks_of((1, first), (2, first * 10), (4, first * 100)),
        )
        found.append((time, decision))
        for _ in range(draw(st.integers(0, 2))):
            time += draw(a_time)
            outcome = an_outcome(
                draw(st.integers(0, number)),
                draw(st.sampled_from(OutcomeEvent)),
                instance_id=draw(st.sampled_from([None, "a", "b"])),
                cached_tokens=draw(st.none() | tokens),
                prompt_tokens=draw(st.none() | tokens),
                ttft_s=draw(st.none() | st.floats(0.0, 10.0)),
            )
            found.append((time, outcome))
    return found


def fold(
    seen: Observations, history: Sequence[tuple[float, Decision | FeedbackReport]]
) -> Observations:
    for time, record in history:
        seen.advance(time)
        if isinstance(record, Decision):
            seen.decided(RUN, record)
        else:
            seen.reported(RUN, record)
    return seen


@given(histories(), st.integers(0, 25))
def test_from_a_checkpoint_anywhere_the_state_is_the_same_byte_for_byte(
    history: list[tuple[float, Decision | FeedbackReport]], at: int
) -> None:
    whole = fold(Observations(), history).dump()
    half = fold(Observations(), history[:at]).dump()
    assert fold(Observations.load(half), history[at:]).dump() == whole


@given(histories())
def test_every_decision_is_counted_and_ends_once(
    history: list[tuple[float, Decision | FeedbackReport]],
) -> None:
    seen = fold(Observations(), history)
    seen.advance(2e9)
    total = Totals()
    for row in seen.totals.rows().values():
        total.add(row)
    decisions = [record for _, record in history if isinstance(record, Decision)]
    assert total.decisions == len(decisions)
    assert total.refused == sum(one.chosen < 0 for one in decisions)
    assert total.decisions == total.refused + total.reported + total.unreported
    assert total.workload + total.routing + total.index == total.prompt - total.actual
    assert len(seen.open) == 0


@given(histories())
def test_the_sums_are_those_of_a_naive_join(
    history: list[tuple[float, Decision | FeedbackReport]],
) -> None:
    """From the formulas alone: decisions, each with the first outcome that tells its hits."""
    index = routing = workload = 0
    open_at: dict[int, tuple[float, Decision]] = {}
    for time, record in history:
        open_at = {key: one for key, one in open_at.items() if one[0] + PROMISE_OPEN_S > time}
        if isinstance(record, Decision):
            if record.chosen >= 0:
                open_at[record.number] = (time, record)
            continue
        found = open_at.get(record.number)
        if found is None:
            continue
        at, decision = found
        instance = decision.candidates[0].instance_id
        if record.instance_id not in (None, instance):  # a promise to somebody else
            one = msgspec.structs.replace(decision.candidates[0], cached=0)
            held = max(decision.held, decision.candidates[0].cached)
            decision = msgspec.structs.replace(decision, candidates=(one,), held=held)
            open_at[record.number] = (at, decision)
        if record.cached_tokens is not None:
            n = decision.prompt_tokens
            usable = max(n - 1, 0) // 16 * 16
            p = min(decision.candidates[0].cached, usable)
            h = max(min(decision.held, usable), p)
            told = n if record.prompt_tokens is None else record.prompt_tokens
            a = min(record.cached_tokens, told, n)
            index += max(p - a, 0)
            routing += max(h - max(p, a), 0)
            workload += n - max(p, h, a)
            del open_at[record.number]
        elif record.event in ENDS:
            del open_at[record.number]
    total = Totals()
    for row in fold(Observations(), history).totals.rows().values():
        total.add(row)
    assert (total.index, total.routing, total.workload) == (index, routing, workload)


def test_an_engine_had_no_more_of_a_prompt_than_it_says_there_was() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision(cached=480, held=480, marks=MARKS, predicted_s=1.0))
    seen.reported(RUN, an_outcome(cached_tokens=10**9, prompt_tokens=3))
    assert (row_of(seen).actual, row_of(seen).miscounted) == (3, 1)


def test_what_was_cancelled_before_anything_came_of_it_is_predicted_no_more() -> None:
    seen = Observations()
    seen.decided(RUN, a_decision(0, marks=MARKS, predicted_s=1.0))
    seen.reported(RUN, an_outcome(0, OutcomeEvent.CANCELLED))
    assert len(seen.predicted) == 0
    seen.decided(RUN, a_decision(1, marks=MARKS, predicted_s=1.0))
    seen.reported(RUN, an_outcome(1, OutcomeEvent.CANCELLED, ttft_s=1.0))
    assert len(seen.predicted) == len(MARKS)
