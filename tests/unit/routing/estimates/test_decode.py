"""The time between two tokens, and how long outputs are."""

import random

import pytest

from routing.estimates.classes import ClassKey, ModelKey
from routing.estimates.decode import (
    DECODE_S_FIRST,
    OUTPUT_TOKENS_FIRST,
    DecodeFits,
    DecodeTerms,
)

KEY = ClassKey("t", "m", "d")
MODEL = ModelKey("t", "m")
TRUTH = DecodeTerms(0.008, 0.0004, 30e-9)


def teach(fits: DecodeFits, count: int) -> None:
    chance = random.Random(1)
    for _ in range(count):
        running, kv, prompt = chance.randrange(64), chance.randrange(400_000), 2_000
        fits.note_tbt(KEY, DecodeTerms(), running, kv, prompt, TRUTH.tbt_s(running, kv, prompt))


def test_the_prior_by_hand() -> None:
    # 32 requests at 0.2 ms, 200,000 tokens at 15 ns
    assert DecodeTerms().tbt_s(31, 190_000, 10_000) == pytest.approx(0.0064 + 0.003)


def test_terms_are_learnt_of_thirty_outcomes_on() -> None:
    fits = DecodeFits()
    teach(fits, 29)
    prior = DecodeTerms(fixed_s=0.5)
    assert fits.terms(KEY, prior) is prior
    (row,) = fits.rows()
    assert (row.is_believed, row.fixed_s, row.request_s, row.token_s) == (False, None, None, None)
    teach(fits, 300)
    terms = fits.terms(KEY, prior)
    assert terms.tbt_s(20, 100_000, 500) == pytest.approx(TRUTH.tbt_s(20, 100_000, 500), rel=0.02)
    assert terms == pytest.approx(TRUTH, rel=0.1)
    (row,) = fits.rows()
    assert row.is_believed
    assert (row.fixed_s, row.request_s, row.token_s) == terms
    assert row.mape < 0.15


def test_outputs_are_the_means_of_the_last_ones() -> None:
    fits = DecodeFits()
    assert (fits.output_tokens(MODEL), fits.known_decode_s(MODEL)) == (OUTPUT_TOKENS_FIRST, None)
    assert fits.output_token_s(MODEL) == DECODE_S_FIRST / OUTPUT_TOKENS_FIRST
    fits.note_output(MODEL, 100, None)
    fits.note_output(MODEL, 300, 4.0)
    assert (fits.output_tokens(MODEL), fits.known_decode_s(MODEL)) == (200.0, 4.0)
    assert fits.output_tokens(ModelKey("t", "other")) == OUTPUT_TOKENS_FIRST
    for _ in range(5_000):
        fits.note_output(MODEL, 50, 1.0)
    assert fits.output_tokens(MODEL) == pytest.approx(50, rel=0.01)
    (row,) = fits.output_rows()
    assert (row.model_name, row.outputs) == ("m", 5_002)


def test_impossible_numbers_are_counted() -> None:
    fits = DecodeFits()
    for running, kv, tbt in ((-1, 0, 0.1), (0, -1, 0.1), (0, 0, -0.1), (2**50, 0, 0.1)):
        fits.note_tbt(KEY, DecodeTerms(), running, kv, 10, tbt)
    fits.note_output(MODEL, -5, float("nan"))
    assert (fits.unusable, fits.items()) == (4, [])
    assert fits.output_tokens(MODEL) == OUTPUT_TOKENS_FIRST
