"""The figures of docs/offline.md, of the conversation trace, where `REPRISE_TRACE` names it:

REPRISE_TRACE=conversation_trace.jsonl python -m pytest tests/unit/lab/whatif
"""

import os
from pathlib import Path

import pytest

from lab.whatif.outcome import RunOutcome
from lab.whatif.run import SimulationRun
from lab.whatif.setup import RouterKnowledge, Setup
from lab.whatif.workload import Workload
from replay.traces.reader import DEFAULT_BLOCK_SIZE, read_trace

PATH = os.environ.get("REPRISE_TRACE")

pytestmark = pytest.mark.skipif(PATH is None, reason="REPRISE_TRACE names no trace")


@pytest.fixture(scope="module")
def workload() -> Workload:
    assert PATH is not None
    trace = read_trace(Path(PATH))
    workload = Workload(trace.name, DEFAULT_BLOCK_SIZE, trace.requests)
    counts = (len(workload), workload.block_count, workload.distinct, trace.notes)
    assert counts == (12_031, 288_500, 182_790, []), "the conversation trace of the paper"
    return workload


def run(workload: Workload, **setup: object) -> RunOutcome:
    return SimulationRun(Setup(**setup), workload).outcome()  # type: ignore[arg-type]


HERD = {"policy": "algorithm-1:fetch=off", "bookings": False}
POOLED = {"policy": "least-loaded", "gpu_blocks": 0}


@pytest.mark.parametrize(
    ("setup", "percent", "ttft_s"),
    [
        ({**POOLED, "pool_blocks": None}, 36.6, 1.24),
        ({**POOLED, "pool_blocks": 58_590}, 35.9, 1.25),
        ({"policy": "round-robin"}, 10.4, 3.87),
        ({"policy": "weighted"}, 34.6, 1.40),
        ({"policy": "algorithm-1:fetch=off"}, 31.7, 1.29),
        ({"policy": "algorithm-1"}, 35.5, 1.20),
        ({"policy": "least-delay"}, 32.7, 1.29),
        ({"policy": "wait-and-work"}, 33.3, 1.30),
        ({"policy": "blocks"}, 30.2, 1.33),
        ({"policy": "lmetric:guard=off"}, 34.8, 1.70),
        ({"policy": "sticky"}, 31.2, 1.34),
        ({"policy": "two-tier"}, 34.1, 1.78),
        ({"policy": "loadaware"}, 25.2, 1.85),
        ({"policy": "kvaware"}, 30.0, 2.05),
        ({"policy": "aibrix"}, 29.6, 2.30),
        ({"policy": "algorithm-1:fetch=off", "estimate_error": 0.3}, 29.4, 1.34),  # 29.1 to 29.6
        ({**HERD, "load_age_s": 1.0}, 32.2, 2.29),
        ({**HERD, "load_age_s": 1.0, "bookings": True}, 31.7, 1.29),
        ({**HERD, "load_age_s": 5.0, "bookings": True}, 31.7, 1.29),
        ({"policy": "weighted", "index_delay_s": 1.0}, 34.5, 1.40),
        ({"policy": "weighted", "index_delay_s": 120.0}, 28.4, 1.46),
        ({"policy": "algorithm-1", "index_delay_s": 120.0}, 28.7, 1.34),
        ({"nodes": 1, "gpu_blocks": 5_859}, 13.6, 7656),
        ({"nodes": 1, "gpu_blocks": 97_656}, 36.4, 5334),
    ],
)
def test_a_figure_is_reproduced(
    workload: Workload, setup: dict[str, object], percent: float, ttft_s: float
) -> None:
    outcome = run(workload, **setup)
    assert 100 * outcome.block_hit_rate == pytest.approx(percent, abs=0.3)  # by ties
    assert outcome.ttft.mean == pytest.approx(ttft_s, rel=0.02)


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("index", [RouterKnowledge.DECISIONS, RouterKnowledge.CAPACITY])
def test_engines_without_events_are_within_three_points_of_those_with(
    workload: Workload, index: RouterKnowledge, sessions: bool
) -> None:
    known = run(workload, policy="wait-and-work")
    guessed = run(workload, policy="wait-and-work", index=index, sessions=sessions)
    assert guessed.block_hit_rate > known.block_hit_rate - 0.03
    assert guessed.ttft.mean < 1.03 * known.ttft.mean


def test_sessions_give_four_fifths_of_what_events_do_and_change_little_beside_them(
    workload: Workload,
) -> None:
    known = run(workload, policy="wait-and-work")
    beside = run(workload, policy="wait-and-work", sessions=True)
    alone = run(workload, policy="wait-and-work", sessions=True, index=RouterKnowledge.NOTHING)
    assert beside.block_hit_rate == pytest.approx(known.block_hit_rate, abs=0.01)
    assert alone.block_hit_rate >= 0.8 * known.block_hit_rate


def test_the_ideal_in_tokens(workload: Workload) -> None:
    outcome = run(workload, **POOLED, pool_blocks=None)
    assert 100 * outcome.token_hit_rate == pytest.approx(37.4, abs=0.05)


@pytest.mark.parametrize("error", [0.0, 0.3])
def test_refusals_keep_the_objective_and_are_rarely_needless(
    workload: Workload, error: float
) -> None:
    refusing = {"policy": "algorithm-1:fetch=off", "rate": 2.2, "slo_ttft_s": 5.0}
    outcome = run(workload, **refusing, estimate_error=error)
    assert outcome.within >= 0.93 * len(workload)
    assert outcome.needless <= 0.01 * len(workload)
    assert outcome.requests + outcome.refused == len(workload)
