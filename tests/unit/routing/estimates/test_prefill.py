"""The time to compute a prompt, by model and class."""

import math
import random

import pytest

from routing.bounds import ESTIMATED_CLASSES_MAX
from routing.costs import Costs
from routing.estimates import prefill
from routing.estimates.classes import ClassKey
from routing.estimates.prefill import PrefillFits

KEY = ClassKey("t", "m", "a100")
TRUTH = Costs(fixed_s=0.03, prefill_tokens_per_s=5_000, token_squared_s=2e-9)


def teach(fits: PrefillFits, key: ClassKey, truth: Costs, count: int, seed: int = 1) -> None:
    chance = random.Random(seed)
    for _ in range(count):
        prompt = int(math.exp(chance.uniform(5, 11)))
        cached = chance.choice((0, prompt // 2))
        seconds = truth.prefill_s(prompt, cached) * math.exp(chance.gauss(0, 0.05))
        fits.note(key, Costs(), prompt, cached, seconds)


def test_the_prior_holds_until_outcomes_are_believed() -> None:
    fits = PrefillFits()
    prior = Costs(prefill_tokens_per_s=123)
    assert fits.costs(KEY, prior) is prior
    teach(fits, KEY, TRUTH, 29)
    assert fits.costs(KEY, prior) is prior
    (row,) = fits.rows()
    assert (row.outcomes, row.is_believed, row.token_s) == (29, False, None)


def test_costs_are_learnt_and_speeds_are_those_of_the_prior() -> None:
    fits = PrefillFits()
    teach(fits, KEY, TRUTH, 400)
    costs = fits.costs(KEY, Costs(fetch_tokens_per_s=77.0))
    assert costs.prefill_s(20_000, 5_000) == pytest.approx(TRUTH.prefill_s(20_000, 5_000), rel=0.03)
    assert costs.fetch_tokens_per_s == 77.0
    (row,) = fits.rows()
    assert row.is_believed
    assert row.mape < 0.1
    assert (row.token_s or 0) == pytest.approx(1 / 5_000, rel=0.1)


def test_classes_are_apart() -> None:
    fits = PrefillFits()
    other = ClassKey("t", "m", "h100")
    teach(fits, KEY, TRUTH, 100)
    teach(fits, other, Costs(prefill_tokens_per_s=30_000), 100)
    assert fits.costs(KEY, Costs()).prefill_tokens_per_s < 6_000
    assert fits.costs(other, Costs()).prefill_tokens_per_s > 25_000
    assert [row.class_name for row in fits.rows()] == ["a100", "h100"]


def named(number: int) -> ClassKey:
    return ClassKey("t", "m", f"engine-{number}")


def test_equals_share_what_is_learnt_from_the_first_outcomes_on() -> None:
    """Whoever passed 30 outcomes first looked cheaper than the prior, and got all that followed."""
    fits = PrefillFits()
    for number in range(4):
        teach(fits, named(number), TRUTH, 10 + 30 * number, seed=number)
    costs = [fits.costs(named(number), Costs()).prefill_s(4_000, 0) for number in range(6)]
    assert len(set(costs)) == 1, "the last two are not known at all"
    assert costs[0] == pytest.approx(TRUTH.prefill_s(4_000, 0), rel=0.05)


def test_another_model_and_another_tenant_teach_nothing() -> None:
    fits = PrefillFits()
    teach(fits, KEY, TRUTH, 100)
    for key in (KEY._replace(model_name="n"), KEY._replace(tenant_id="u")):
        assert fits.costs(key, Costs()) == Costs()


@pytest.mark.parametrize("speed", [0.5, 0.7, 1.5, 3.0])
def test_whoever_differs_is_seen_to(speed: float) -> None:
    fits = PrefillFits()
    other = Costs(
        fixed_s=TRUTH.fixed_s / speed,
        prefill_tokens_per_s=TRUTH.prefill_tokens_per_s * speed,
        token_squared_s=TRUTH.token_squared_s / speed,
    )
    for turn in range(60):
        for number in range(4):
            teach(fits, named(number), other if number == 3 else TRUTH, 5, seed=10 * turn + number)
    for number in range(4):
        truth = other if number == 3 else TRUTH
        costs = fits.costs(named(number), Costs())
        rel = 0.05 if number == 3 else 0.3  # of the others it holds what is learnt of all
        assert costs.prefill_s(4_000, 0) == pytest.approx(truth.prefill_s(4_000, 0), rel=rel)


def test_a_prior_that_takes_no_time_can_be_learnt_away() -> None:
    fits = PrefillFits()
    free = Costs(prefill_tokens_per_s=float("inf"), token_squared_s=0.0)
    for _ in range(100):
        fits.note(KEY, free, 1000, 0, 0.125)
    assert fits.costs(KEY, free).prefill_s(1000, 0) == pytest.approx(0.125, rel=0.01)


def test_promises_move_the_90th_percentile_and_not_the_fit() -> None:
    fits = PrefillFits()
    before = fits.p90(KEY)
    for _ in range(100):
        fits.note_promise(KEY, Costs(), 1.0, 3.0)
    assert before == 1.3
    assert 2.5 < fits.p90(KEY) < 3.5
    (row,) = fits.rows()
    assert (row.outcomes, row.promises) == (0, 100)
    assert row.promise_mape == pytest.approx(2 / 3, abs=1e-4)


def test_impossible_numbers_are_counted_and_change_nothing() -> None:
    fits = PrefillFits()
    fits.note(KEY, Costs(), 0, 0, 1.0)
    fits.note(KEY, Costs(), 100, 0, -1.0)
    fits.note(KEY, Costs(), 100, 0, float("nan"))
    fits.note(KEY, Costs(), 100, 0, 1e9)
    fits.note_promise(KEY, Costs(), 0.0, 1.0)
    fits.note_promise(KEY, Costs(), 1.0, 1e9)
    assert (fits.unusable, fits.rows()) == (6, [])


def test_more_cached_than_there_is_counts_as_all_of_it() -> None:
    fits = PrefillFits()
    for _ in range(100):
        fits.note(KEY, Costs(), 100, 5_000, 0.02)
    assert fits.unusable == 0
    assert fits.costs(KEY, Costs()).prefill_s(100, 100) == pytest.approx(0.02, rel=0.05)


def test_the_class_without_outcomes_for_the_longest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ESTIMATED_CLASSES_MAX > 4
    monkeypatch.setattr(prefill, "ESTIMATED_CLASSES_MAX", 3)  # all of the model are one
    fits = PrefillFits()
    for name in ("a", "b", "a", "c"):
        fits.note(ClassKey("t", "m", name), Costs(), 100, 0, 1.0)
        fits.costs(ClassKey("t", "m", "b"), Costs())  # reading is no use
    assert [row.class_name for row in fits.rows()] == ["a", "c"]
    assert fits.forgotten == 1
