"""Each token of a prompt is had, or lost to one of three."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.observed.promises import IndexCause, Promise, PromiseTokens, kept, promise_of
from schemas.routing_records import CandidateRecord, Refusal
from tests.unit.routing.observed.records import RUN, SCOPE, a_decision, an_outcome


def promised(cached: int = 0, **given: Any) -> Promise:
    """Of a decision for a prompt of 1000 tokens, 62 blocks of 16 and 8 tokens."""
    found = promise_of(RUN, 0.0, a_decision(cached=cached, **given))
    assert found is not None
    return found


def shares(tokens: PromiseTokens) -> tuple[int, int, int]:
    return tokens.workload, tokens.routing, tokens.index


def test_all_three_stand_side_by_side() -> None:
    assert shares(kept(promised(480, held=800), 160)) == (200, 320, 320)


def test_an_engine_that_has_more_than_anybody_was_said_to_lost_nothing() -> None:
    tokens = kept(promised(160, held=320), 640)
    assert shares(tokens) == (360, 0, 0)
    assert tokens.unpromised == 480


def test_the_last_block_of_a_prompt_is_the_workloads_since_engines_compute_it() -> None:
    whole = promised(960, prompt=960, held=960)
    assert shares(kept(whole, 944)) == (16, 0, 0)
    assert shares(kept(whole, 959)) == (1, 0, 0)
    assert shares(kept(whole, 960)) == (0, 0, 0)
    assert shares(kept(whole, 0)) == (16, 0, 944)


def test_a_prompt_of_no_tokens_loses_none() -> None:
    tokens = kept(promised(0, prompt=0, held=0), 5)
    assert tokens == PromiseTokens(*[0] * 11)


def test_fetched_tokens_are_no_promise_and_come_on_top() -> None:
    one = CandidateRecord("a", 0, cached=160, prefix=800, fetch_from="b")
    tokens = kept(promised(candidates=[one], held=800), 800)
    assert (tokens.promised, tokens.fetched, tokens.unpromised) == (160, 640, 0)
    assert shares(tokens) == (200, 0, 0)


def test_what_was_to_be_fetched_and_did_not_come_is_lost_to_routing() -> None:
    one = CandidateRecord("a", 0, cached=160, prefix=480, fetch_from="b")
    tokens = kept(promised(candidates=[one], held=800), 160)
    assert shares(tokens) == (200, 640, 0)
    assert tokens.not_fetched == 320


def test_what_only_decisions_said_is_told_apart_in_the_loss_of_the_index() -> None:
    one = CandidateRecord("a", 0, cached=480, predicted=160, prefix=480)
    of_prediction = kept(promised(candidates=[one], held=480), 320)
    assert (of_prediction.index, of_prediction.not_predicted) == (160, 160)
    of_both = kept(promised(candidates=[one], held=480), 160)
    assert (of_both.index, of_both.not_predicted) == (320, 160)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("stale", IndexCause.STALE),
        ("degraded", IndexCause.DEGRADED),
        ("unconfirmed", IndexCause.UNCONFIRMED),
        ("exact", IndexCause.EVICTED),
        ("of a later version", IndexCause.UNCONFIRMED),
    ],
)
def test_the_state_of_the_answer_says_why_the_index_was_wrong(
    state: str, cause: IndexCause
) -> None:
    assert promised(480, state=state).cause is cause


def test_nobody_chosen_for_the_prompt_promises_nothing() -> None:
    refused = a_decision(chosen=-1, refused=Refusal.OVERLOADED)
    assert promise_of(RUN, 0.0, refused) is None
    assert promise_of(RUN, 0.0, a_decision(chosen=-1, decode=0)) is None


def test_a_request_that_went_elsewhere_has_no_promise() -> None:
    one = promised(480, held=480)
    assert one.note_place(an_outcome(instance_id="b"))
    assert not one.note_place(an_outcome(instance_id="b")), "it is told once"
    assert shares(kept(one, 0)) == (520, 480, 0)


def test_a_request_at_its_target_or_where_it_is_decoded_went_where_told() -> None:
    pair = [CandidateRecord("a", 0), CandidateRecord("d", 1)]
    one = promised(candidates=pair, decode=1)
    assert one.note_place(an_outcome()) is False
    assert not one.note_place(an_outcome(instance_id="a"))
    assert not one.note_place(an_outcome(instance_id="d", dp_rank=1))
    assert one.note_place(an_outcome(instance_id="a", dp_rank=1))


def test_the_only_token_of_a_prompt_is_computed_whatever_is_held() -> None:
    one = promised(1, prompt=1, held=1, scope=SCOPE._replace(block_size=1))
    assert shares(kept(one, 0)) == (1, 0, 0)


def test_the_first_index_beyond_the_candidates_is_of_nobody() -> None:
    assert promise_of(RUN, 0.0, a_decision(chosen=1)) is None
    assert promised(decode=1).decode is None


def test_where_it_is_decoded_is_told_only_where_that_is_elsewhere() -> None:
    pair = [CandidateRecord("a", 0), CandidateRecord("d", 0)]
    apart = promised(candidates=pair, chosen=1, decode=0).decode
    assert apart is not None
    assert apart.instance_id == "a"
    assert promised(candidates=pair, chosen=1, decode=1).decode is None
    assert promised(candidates=pair, chosen=0, decode=-1).decode is None


def test_a_fetch_of_less_than_is_held_fetches_nothing() -> None:
    one = CandidateRecord("a", 0, cached=160, prefix=80, fetch_from="b")
    assert promised(candidates=[one]).fetched == 0
    alone = CandidateRecord("a", 0, cached=160, prefix=480)
    assert promised(candidates=[alone]).fetched == 0, "nobody is to be fetched from"


def test_the_90th_percentile_is_so_many_times_what_was_expected() -> None:
    assert promised(predicted_s=2.0, p90=1.5).p90_s == 3.0


def test_predicted_and_fetched_tokens_are_counted_as_far_as_they_were_there() -> None:
    one = CandidateRecord("a", 0, cached=480, predicted=160, prefix=800, fetch_from="b")
    tokens = kept(promised(candidates=[one], held=800), 640)
    assert (tokens.promised, tokens.predicted, tokens.fetched) == (480, 160, 160)
    assert (tokens.routing, tokens.not_fetched, tokens.unpromised) == (160, 160, 0)


tokens_of_prompts = st.integers(0, 3000)


@given(
    prompt=tokens_of_prompts,
    cached=tokens_of_prompts,
    predicted=tokens_of_prompts,
    prefix=tokens_of_prompts,
    held=tokens_of_prompts,
    actual=tokens_of_prompts,
    block_size=st.sampled_from([1, 16, 512]),
    fetches=st.booleans(),
    moved=st.booleans(),
)
def test_every_computed_token_has_one_cause(
    prompt: int,
    cached: int,
    predicted: int,
    prefix: int,
    held: int,
    actual: int,
    block_size: int,
    fetches: bool,
    moved: bool,
) -> None:
    one = CandidateRecord(
        "a",
        0,
        cached=cached,
        predicted=predicted,
        prefix=prefix,
        fetch_from="b" if fetches else "",
    )
    promise = promised(
        prompt=prompt,
        candidates=[one],
        held=held,
        scope=SCOPE._replace(block_size=block_size),
    )
    promise.moved = moved
    tokens = kept(promise, actual)
    assert all(count >= 0 for count in msgspec.structs.astuple(tokens))
    assert tokens.workload + tokens.routing + tokens.index == prompt - tokens.actual
    assert tokens.not_predicted <= min(tokens.index, tokens.predicted)
    assert tokens.not_fetched <= tokens.routing
    assert tokens.promised <= prompt
    # The formulas, where no prompt is cached to its end.
    usable = max(prompt - 1, 0) // block_size * block_size
    p = 0 if moved else min(cached, usable)
    h, a = max(min(max(held, min(cached, prompt)), usable), p), min(actual, prompt)
    assert tokens.index == max(p - a, 0)
    assert tokens.routing == max(h - max(p, a), 0)
    assert tokens.workload == prompt - max(p, h, a)
