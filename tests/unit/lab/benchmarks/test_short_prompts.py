"""The load of short prompts, and the figures that are made of it."""

import pytest

from lab.benchmarks.embedded.short_prompts import COSTS, ENGINES, load_of, short_prompt_figures
from lab.benchmarks.routing.outcomes import Drive, SentRequest


def test_engines_are_busy_for_60_percent_of_the_time() -> None:
    load = load_of(1, 2_000)
    work_s = sum(COSTS.prefill_s(len(turn.prompt), 0) for turn in load.turns)
    assert work_s / ENGINES / load.at_s[-1] == pytest.approx(0.6, rel=0.05)


def test_no_prompt_begins_like_another() -> None:
    load = load_of(1, 200)
    assert load.warmup == 200
    assert len({tuple(turn.prompt[:16]) for turn in load.turns}) == len(load.turns) == 400
    assert [turn.prompt for turn in load_of(1, 200).turns] == [turn.prompt for turn in load.turns]


def test_a_run_is_a_seed() -> None:
    def sent(instance: str, ttft_s: float) -> SentRequest:
        return SentRequest(
            number=0, prompt_tokens=1, at=0.0, instance_id=instance, ttft_s=ttft_s, is_done=True
        )

    seeds = [
        Drive([sent("engine-0", 0.1), sent("engine-1", 0.3)], [0.001], 0.0),
        Drive([sent("engine-1", 0.2)], [0.001], 0.0),
    ]
    share, mean, p99 = short_prompt_figures("all", seeds)
    assert share.runs == [50.0, 0.0]
    assert mean.runs == pytest.approx([200.0, 200.0])
    assert p99.runs[1] == pytest.approx(200.0)
