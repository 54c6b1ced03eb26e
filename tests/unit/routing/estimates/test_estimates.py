"""All of it as one fold: what an outcome teaches, and that the state is its bytes."""

import math

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from routing.costs import Costs
from routing.estimates.classes import ClassKey
from routing.estimates.decode import DecodeTerms
from routing.estimates.estimates import Estimates, EstimatesError, ObservedOutcome
from routing.estimates.links import LOAD, READ, LinkClass, TokenMove, fetch_path
from schemas.errors import NewerVersionError

KEY = ClassKey("t", "m", "a")
DECODER = ClassKey("t", "m", "d")

TIMES = st.one_of(
    st.none(), st.floats(), st.floats(0, 100), st.sampled_from((0.0, -1.0, 1e300, math.nan))
)
COUNTS = st.one_of(st.integers(0, 100_000), st.sampled_from((0, 1, -1, 2**40, 2**80)))
PATHS = st.sampled_from((LOAD, READ, fetch_path(LinkClass.RACK)))
PRIORS = st.sampled_from(  # what settings may be
    (
        Costs(),
        Costs(prefill_tokens_per_s=1e-305, token_squared_s=1e-300),
        Costs(prefill_tokens_per_s=math.inf, fixed_s=1e300, token_squared_s=0.0),
    )
)
DECODE_PRIORS = st.sampled_from((DecodeTerms(), DecodeTerms(0.0, 0.0, 0.0), DecodeTerms(1e300)))
OBSERVED = st.builds(
    ObservedOutcome,
    prior=PRIORS,
    decode_prior=DECODE_PRIORS,
    kv_bytes=st.integers(1, 2**40),
    key=st.sampled_from((KEY, ClassKey("t", "m", "b"), ClassKey("t", "n", "b"))),
    is_usable=st.sampled_from((True, True, True, False)),
    prompt_tokens=COUNTS,
    cached_tokens=COUNTS,
    expected_s=TIMES,
    expected_queue_s=st.sampled_from((0.0, 1.0)),
    queue_s=TIMES,
    prefill_s=TIMES,
    ttft_s=TIMES,
    moves=st.lists(st.builds(TokenMove, PATHS, st.integers(0, 10**6)), max_size=2).map(tuple),
    output_tokens=st.one_of(st.none(), COUNTS),
    decode_s=TIMES,
    decode_key=st.sampled_from((None, DECODER)),
    running=st.one_of(st.none(), COUNTS),
    kv_tokens=st.one_of(st.none(), COUNTS),
    tbt_s=TIMES,
)


def test_the_time_to_compute_is_what_is_left_of_the_first_token() -> None:
    estimates = Estimates()
    truth = Costs(prefill_tokens_per_s=2_000)
    for number in range(200):
        prompt = 1_000 + 97 * number
        computed = truth.prefill_s(prompt, 500)
        estimates.note(
            ObservedOutcome(
                KEY, prompt_tokens=prompt, cached_tokens=500, queue_s=3.0, ttft_s=3 + computed
            )
        )
    costs = estimates.costs(KEY, Costs())
    assert costs.prefill_s(9_000, 500) == pytest.approx(truth.prefill_s(9_000, 500), rel=0.02)


def test_a_queue_that_nobody_told_teaches_nothing_where_there_was_to_be_one() -> None:
    estimates = Estimates()
    estimates.note(ObservedOutcome(KEY, prompt_tokens=100, expected_queue_s=1.0, ttft_s=9.0))
    assert estimates.rows().prefill == []
    estimates.note(ObservedOutcome(KEY, prompt_tokens=100, ttft_s=9.0))
    assert [row.outcomes for row in estimates.rows().prefill] == [1]


def test_what_was_moved_corrects_speeds_and_does_not_count_as_computing() -> None:
    estimates = Estimates({READ: 1e9})
    moves = (TokenMove(READ, 20_000),)  # at 100,000 bytes: 2 s
    for _ in range(60):
        estimates.note(
            ObservedOutcome(
                KEY,
                prompt_tokens=40_000,
                cached_tokens=20_000,
                queue_s=0.0,
                prefill_s=5.0,
                ttft_s=9.0,  # so it took 4 s
                moves=moves,
                kv_bytes=100_000,
            )
        )
    assert estimates.links("t").bytes_per_s(READ) == pytest.approx(0.5e9, rel=0.01)
    assert estimates.costs(KEY, Costs()).prefill_s(40_000, 20_000) == pytest.approx(5.0, rel=0.02)


def test_an_outcome_that_failed_is_counted_and_teaches_nothing() -> None:
    estimates = Estimates()
    before = estimates.rows()
    estimates.note(
        ObservedOutcome(KEY, is_usable=False, prompt_tokens=10, ttft_s=1.0, output_tokens=5)
    )
    assert estimates.rows() == before
    assert estimates.counters()["outcomes_ignored"] == 1


def test_an_end_teaches_outputs_and_decoding() -> None:
    estimates = Estimates()
    estimates.note(
        ObservedOutcome(
            KEY,
            prompt_tokens=10,
            output_tokens=70,
            decode_s=7.0,
            decode_key=DECODER,
            running=3,
            kv_tokens=500,
            tbt_s=0.1,
        )
    )
    assert (estimates.output_tokens("t", "m"), estimates.known_decode_s("t", "m")) == (70.0, 7.0)
    assert [row.class_name for row in estimates.rows().decode] == ["d"]


def history(count: int) -> list[ObservedOutcome]:
    """Outcomes by a rule, without any chance or logarithm."""
    return [
        ObservedOutcome(
            ClassKey("t", "m", "ab"[number % 2]),
            prompt_tokens=300 + 7919 * number % 30_000,
            cached_tokens=(104_729 * number) % 300,
            expected_s=0.5 + number % 7 / 10,
            queue_s=0.125,
            ttft_s=0.2 + (7919 * number % 30_000) / 6_000 + number % 11 / 100,
            output_tokens=number % 400,
            decode_s=number % 13 / 3,
            decode_key=DECODER,
            running=number % 17,
            kv_tokens=1_000 * (number % 23),
            tbt_s=0.001 + number % 19 / 1_000,
        )
        for number in range(count)
    ]


def test_the_same_outcomes_give_the_same_bits_on_every_machine() -> None:
    estimates = Estimates()
    for one in history(2_000):
        estimates.note(one)
    assert f"{xxhash.xxh3_64_intdigest(estimates.dump()):016x}" == "a6d378ba60a934d0"


@given(st.lists(OBSERVED, max_size=60), st.lists(OBSERVED, max_size=30))
def test_a_state_that_was_stored_goes_on_bit_for_bit(
    before: list[ObservedOutcome], after: list[ObservedOutcome]
) -> None:
    whole, stored = Estimates(), Estimates()
    for one in before:
        whole.note(one)
    stored.load(whole.dump())
    assert stored.dump() == whole.dump()
    for one in after:
        whole.note(one)
        stored.note(one)
    assert stored.dump() == whole.dump()
    assert stored.rows() == whole.rows()
    for key in (KEY, ClassKey("t", "n", "b")):
        for seconds in (whole.costs(key, Costs()).prefill_s(5_000, 100), whole.p90(key)):
            assert 0.0 <= seconds < math.inf
    assert 0.0 <= whole.output_tokens("t", "m") < math.inf
    assert 0.0 <= (whole.known_decode_s("t", "m") or 0.0) < math.inf


@pytest.mark.parametrize("bad", [b"", Estimates().dump()[:-1]])
def test_a_state_that_is_none_is_refused_and_changes_nothing(bad: bytes) -> None:
    estimates = Estimates()
    for one in history(3):
        estimates.note(one)
    before = estimates.dump()
    with pytest.raises(EstimatesError, match="Expected a state"):
        estimates.load(bad)
    assert estimates.dump() == before


def test_a_newer_state_is_refused_by_its_version() -> None:
    newer = bytearray(Estimates().dump())
    newer[1] = 3
    with pytest.raises(NewerVersionError, match="version `2` or older, got `3`"):
        Estimates().load(bytes(newer))


def test_a_state_stays_small() -> None:
    estimates = Estimates()
    for one in history(3_000):
        estimates.note(one)
    assert len(estimates.dump()) < 3 * 4096
