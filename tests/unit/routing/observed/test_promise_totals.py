"""Sums by minute, bounded, and the same in parts as in one."""

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from routing.observed.promise_totals import (
    RATIO_BOUNDS,
    SHARE_BOUNDS,
    GroupBy,
    PromiseKey,
    PromiseTotals,
    Totals,
    TotalsState,
    grouped,
    key_of,
)
from routing.observed.promises import Promise, kept, promise_of
from schemas.routing_records import OutcomeEvent
from tests.unit.routing.observed.records import RUN, a_decision, scope_of

KEY = PromiseKey("default", "llama", "wait-and-work", "a")


def a_promise(model: str = "llama", cached: int = 0, **given: object) -> Promise:
    promise = promise_of(RUN, 0.0, a_decision(cached=cached, scope=scope_of(model), **given))  # type: ignore[arg-type]
    assert promise is not None
    return promise


def noted(promise: Promise, actual: int, time: float = 0.0) -> Totals:
    totals = PromiseTotals()
    totals.note_cached(time, promise, kept(promise, actual), None)
    return totals.rows()[key_of(promise)]


def test_the_loss_of_the_index_is_put_down_to_the_state_of_its_answer() -> None:
    for state, field in [
        ("stale", "stale"),
        ("degraded", "degraded"),
        ("unconfirmed", "unconfirmed"),
        ("exact", "evicted"),
    ]:
        row = noted(a_promise(cached=480, state=state), 160)
        assert (row.index, getattr(row, field)) == (320, 320)
        assert row.stale + row.degraded + row.unconfirmed + row.evicted == 320


def test_an_over_promise_is_in_the_bucket_of_its_share_of_the_prompt() -> None:
    assert noted(a_promise(cached=480), 480).over_promises[0] == 1
    assert noted(a_promise(cached=480), 464).over_promises[SHARE_BOUNDS.index(0.02)] == 1
    assert noted(a_promise(cached=992), 0).over_promises[-1] == 1


def test_a_time_that_was_longer_than_promised_is_in_a_bucket_above_one() -> None:
    totals, promise = PromiseTotals(), a_promise(predicted_s=2.0, p90=1.5)
    for seconds in (1.0, 2.0, 3.0, 30.0):
        totals.note_ttft(0.0, promise, seconds)
    row = totals.rows()[KEY]
    found = [row.ttft_ratios[RATIO_BOUNDS.index(ratio)] for ratio in (0.5, 1.0, 1.5)]
    assert (*found, row.ttft_ratios[-1]) == (1, 1, 1, 1)
    assert (row.timed, row.in_p90) == (4, 3)
    assert (row.ttft_promised_us, row.ttft_actual_us) == (8_000_000, 36_000_000)
    assert row.ttft_error_us == 1_000_000 + 0 + 1_000_000 + 28_000_000


def test_a_time_beyond_all_reason_leaves_the_sums_numbers() -> None:
    totals = PromiseTotals()
    totals.note_ttft(0.0, a_promise(predicted_s=1.0), 1e308)
    msgspec.msgpack.encode(totals.state())
    assert totals.rows()[KEY].ttft_ratios[-1] == 1


def test_another_length_of_the_prompt_is_counted() -> None:
    totals, promise = PromiseTotals(), a_promise()
    for length in (None, 1000, 999):
        totals.note_cached(0.0, promise, kept(promise, 0), length)
    assert totals.rows()[KEY].miscounted == 1


def test_a_request_that_ended_without_its_hits_is_unreported() -> None:
    totals, promise = PromiseTotals(), a_promise()
    totals.note_end(0.0, promise, None)
    totals.note_end(0.0, promise, OutcomeEvent.FAILED)
    totals.note_end(0.0, promise, OutcomeEvent.CANCELLED)
    promise.has_cached = True
    totals.note_end(0.0, promise, OutcomeEvent.COMPLETED)
    row = totals.rows()[KEY]
    assert (row.unreported, row.failed, row.cancelled) == (3, 1, 1)


def test_since_takes_the_minute_in_which_it_lies() -> None:
    totals = PromiseTotals()
    for second in (59.0, 60.0, 119.9, 120.0):
        totals.note_decision(second, KEY)
    assert totals.rows(since=100.0)[KEY].decisions == 3
    assert totals.rows(since=120.0)[KEY].decisions == 1
    minutes = [(minute, rows[0][1].decisions) for minute, rows in totals.state().minutes]
    assert minutes == [(0, 1), (1, 2), (2, 1)]


def test_the_oldest_minutes_go_first_and_are_counted() -> None:
    totals = PromiseTotals(rows_max=3)
    for minute in range(5):
        totals.note_decision(60.0 * minute, KEY)
    assert (len(totals), totals.forgotten) == (3, 2)
    assert [minute for minute, _ in totals.state().minutes] == [2, 3, 4]


def test_a_minute_of_thousands_of_models_keeps_its_first_rows_and_counts_the_rest() -> None:
    totals = PromiseTotals(rows_max=100)
    totals.note_decision(0.0, KEY)
    for number in range(5000):
        totals.note_decision(60.0, KEY._replace(model_name=f"m{number}"))
    assert (len(totals), totals.forgotten, totals.crowded_out) == (100, 1, 4900)
    totals.note_decision(120.0, KEY)
    assert len(totals) == 1, "the next minute has room again"


def test_rows_are_grouped_by_one_of_three_within_a_tenant() -> None:
    totals = PromiseTotals()
    for tenant, model, instance in [("x", "m", "a"), ("x", "n", "a"), ("y", "m", "a")]:
        totals.note_decision(0.0, PromiseKey(tenant, model, "p", instance))
    names = {
        by: [(key, row.decisions) for key, row in grouped(totals.rows(), by)] for by in GroupBy
    }
    assert names[GroupBy.INSTANCE] == [(("x", "a"), 2), (("y", "a"), 1)]
    assert names[GroupBy.MODEL] == [(("x", "m"), 1), (("x", "n"), 1), (("y", "m"), 1)]
    assert names[GroupBy.POLICY] == [(("x", "p"), 2), (("y", "p"), 1)]


notes = st.lists(
    st.tuples(
        st.integers(0, 400),  # second
        st.sampled_from(["llama", "qwen"]),
        st.integers(0, 1000),  # promised
        st.integers(0, 1000),  # had
        st.floats(0.0, 10.0, allow_nan=False),  # to the first token
    ),
    max_size=40,
)
Note = tuple[int, str, int, int, float]


def folded(history: Sequence[Note]) -> PromiseTotals:
    totals = PromiseTotals()
    for second, model, promised, had, ttft in history:
        promise = a_promise(model, promised, predicted_s=1.0)
        totals.note_decision(second, key_of(promise))
        totals.note_cached(second, promise, kept(promise, had), None)
        totals.note_ttft(second, promise, ttft)
    return totals


@given(notes)
def test_a_state_comes_back_from_its_bytes_and_goes_on_alike(history: list[Note]) -> None:
    half = len(history) // 2
    totals = PromiseTotals()
    totals.restore(
        msgspec.msgpack.decode(
            msgspec.msgpack.encode(folded(history[:half]).state()), type=TotalsState
        )
    )
    assert totals.state() == folded(history[:half]).state()
    assert len(totals) == len(folded(history[:half]))


@given(notes)
def test_the_three_shares_of_all_rows_are_what_was_computed(history: list[Note]) -> None:
    for row in folded(history).rows().values():
        assert row.workload + row.routing + row.index == row.prompt - row.actual
        certain = row.stale + row.degraded + row.unconfirmed + row.evicted
        assert row.index == certain + row.not_predicted
        assert sum(row.over_promises) == row.reported
        assert sum(row.ttft_ratios) == row.timed
