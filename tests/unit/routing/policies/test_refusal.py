"""Whether a request is refused, by hand."""

import pytest

from routing.estimates.decode import DecodeTerms
from routing.policies.refusal import (
    DecodingRequest,
    Population,
    Prediction,
    PromptInProgress,
    RefusalRule,
    decode_time_s,
    is_refused_at_decoding,
    population_in,
    refuse_at_arrival,
    times_ahead,
)
from schemas.routing_records import Refusal

NOW, EARLY, PREDICT = RefusalRule
FINE = Prediction(ttft_s=1.0, ttft_slo_s=5.0, tbt_now_s=0.03, tbt_then_s=0.03, tbt_slo_s=0.1)


@pytest.mark.parametrize(
    ("changed", "rules"),
    [
        ({"ttft_s": 5.0}, ()),
        ({"ttft_s": 5.1}, (NOW, EARLY, PREDICT)),
        ({"tbt_now_s": 0.11}, (EARLY,)),
        ({"tbt_then_s": 0.11}, (PREDICT,)),
        ({"ttft_s": 99.0, "ttft_slo_s": 0.0}, ()),
        ({"tbt_then_s": 99.0, "tbt_now_s": 99.0, "tbt_slo_s": 0.0}, ()),
    ],
)
def test_which_rule_refuses_at_arrival(
    changed: dict[str, float], rules: tuple[RefusalRule, ...]
) -> None:
    one = FINE._replace(**changed)  # type: ignore[arg-type]
    refused = [rule for rule in RefusalRule if refuse_at_arrival(rule, one) is not Refusal.NO]
    assert refused == list(rules)


def test_a_refusal_says_which_side_it_is_for() -> None:
    late, slow = FINE._replace(ttft_s=9.0), FINE._replace(tbt_then_s=9.0)
    assert refuse_at_arrival(PREDICT, late) is Refusal.SLO_UNREACHABLE
    assert refuse_at_arrival(PREDICT, slow) is Refusal.DECODE_PREDICTED


def test_only_now_refuses_what_has_been_computed() -> None:
    assert [rule for rule in RefusalRule if is_refused_at_decoding(rule, 0.2, 0.1)] == [NOW]
    assert not is_refused_at_decoding(NOW, 0.1, 0.1)
    assert not is_refused_at_decoding(NOW, 9.9, 0.0)


def test_priorities_below_zero_go_first_unless_somebody_is_idle() -> None:
    near = FINE._replace(ttft_s=4.5)
    assert refuse_at_arrival(NOW, near) is Refusal.NO
    assert refuse_at_arrival(NOW, near._replace(priority=-1)) is Refusal.SLO_UNREACHABLE
    assert refuse_at_arrival(NOW, near._replace(priority=-1, is_idle=True)) is Refusal.NO
    assert refuse_at_arrival(NOW, near._replace(priority=3)) is Refusal.NO


def test_who_will_be_decoded_then() -> None:
    decoding = [DecodingRequest(0.0, 10), DecodingRequest(5.0, 20), DecodingRequest(7.5, 40)]
    computing = [PromptInProgress(1.0, 100), PromptInProgress(2.5, 200), PromptInProgress(3.0, 400)]
    # In 2.5 s the third has been decoded for 10 s, and the last prompt is not ready.
    assert population_in(decoding, computing, 2.5, 10.0) == Population(4, 330)
    assert population_in(decoding, computing, 0.0, 10.0) == Population(3, 70)
    assert population_in(decoding, computing, 11.0, 10.0) == Population(2, 600)
    assert population_in([], [], 1.0, 10.0) == Population(0, 0)


def test_of_those_that_are_decoded_for_longer_than_the_mean_a_part_ends() -> None:
    decoding = [DecodingRequest(30.0, 100), DecodingRequest(10.0, 20)]
    assert population_in(decoding, [], 0.0, 10.0) == Population(2, 120)
    assert population_in(decoding, [], 2.5, 10.0) == Population(1.5, 90)
    assert population_in(decoding, [], 10.0, 10.0) == Population(0, 0)


def test_room_is_needed_until_the_last_prompt_before_it_comes() -> None:
    computing = [PromptInProgress(1.0, 100), PromptInProgress(6.0, 200)]
    assert times_ahead([], 2.0, 10.0) == [2.0]
    assert times_ahead(computing[:1], 2.0, 10.0) == [2.0]
    assert times_ahead(computing, 2.0, 10.0) == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert times_ahead(computing, 2.0, 2.0) == [2.0, 2.5, 3.0, 3.5, 4.0]


def test_a_decode_takes_no_less_than_at_the_objective() -> None:
    assert decode_time_s(10.0, 300.0, 0.1) == pytest.approx(30.0)
    assert decode_time_s(40.0, 300.0, 0.1) == 40.0


def test_room_that_is_left_is_a_share_of_the_objective_for_decoding_alone() -> None:
    near = FINE._replace(ttft_s=4.9, tbt_then_s=0.095)
    assert refuse_at_arrival(PREDICT, near) is Refusal.NO
    assert refuse_at_arrival(PREDICT, near, 0.9) is Refusal.DECODE_PREDICTED
    assert refuse_at_arrival(NOW, near, 0.9) is Refusal.NO


def test_a_population_is_spread_evenly() -> None:
    terms = DecodeTerms(0.001, 0.01, 1e-6)
    assert Population(8, 40_000).tbt_s(terms, 4, 1_000) == pytest.approx(0.001 + 0.03 + 0.011)
