"""Advice that is carried out on simulated nodes, against fetching by the router.

Documents that come into fashion, of 32 blocks, ten minutes each; six in ten prompts ask of one.
"""

import csv
import io
import random

import pytest

from lab.whatif.outcome import RunOutcome
from lab.whatif.plan import parse_sweep, plan
from lab.whatif.report.document import document_of, facts_of
from lab.whatif.report.table import COPY_COLUMNS, text_lines, to_csv
from lab.whatif.run import SimulationRun
from lab.whatif.setup import Setup
from lab.whatif.sweep import run_all
from lab.whatif.workload import Workload
from replay.traces.request import TraceRequest

SEED = 7
SPAN_S, LIFE_S, PER_SECOND, HOT, DOCUMENTS, BLOCKS = 1200.0, 600.0, 3.4, 0.6, 25, 32


@pytest.fixture(scope="module")
def workload() -> Workload:
    chance = random.Random(SEED)
    starts = [chance.uniform(-LIFE_S / 2, SPAN_S) for _ in range(DOCUMENTS)]
    requests, now, own = [], 0.0, 10**6
    while now < SPAN_S:
        now += chance.expovariate(PER_SECOND)
        live = [one for one, at in enumerate(starts) if at <= now < at + LIFE_S]
        tail = chance.randint(1, 12)
        blocks: list[int] = []
        if live and chance.random() < HOT:
            document = chance.choice(live)
            blocks = [1000 * document + block for block in range(BLOCKS)]
        else:
            tail += chance.randint(0, 16)
        blocks += range(own, own + tail)
        own += tail
        requests.append(TraceRequest(int(1000 * now), 512 * len(blocks), 200, blocks))
    return Workload("fashion", 512, requests)


def run(
    workload: Workload, policy: str = "algorithm-1:fetch=off", act_s: float = 0.0
) -> RunOutcome:
    return SimulationRun(Setup(policy=policy, act_s=act_s), workload).outcome()


def test_copies_gain_at_least_half_of_what_fetches_do(workload: Workload) -> None:
    without, fetching = run(workload), run(workload, "algorithm-1")
    acting = run(workload, act_s=10.0)
    gained = without.ttft.mean - acting.ttft.mean
    assert gained >= 0.5 * (without.ttft.mean - fetching.ttft.mean) > 0.0
    assert acting.copies > 0
    assert 0 < acting.copied_blocks <= 0.1 * acting.blocks
    assert (without.copies, without.copied_blocks) == (0, 0)
    assert run(workload, act_s=10.0) == acting, "the same seed gives the same"


def test_what_was_copied_is_told_with_the_runs(workload: Workload) -> None:
    base = Setup(policy="algorithm-1:fetch=off")
    sweep = parse_sweep("act=0,10")
    jobs = plan(base, block_size=512, workloads=1, policies=[base.policy], sweeps=[sweep])
    outcomes = run_all(jobs, [workload], processes=1)
    document = document_of(jobs, outcomes, [facts_of(workload, [])])
    text = "\n".join(text_lines(document))
    assert all(name in text for name in COPY_COLUMNS)
    rows = list(csv.DictReader(io.StringIO(to_csv(document))))
    swept = [row for row in rows if row["group"] == "act"]
    assert [row["act_s"] for row in swept] == ["0.0", "10.0"]
    assert [int(row["copies"]) > 0 for row in swept] == [False, True]
    assert [int(row["copied_blocks"]) > 0 for row in swept] == [False, True]


def test_prompts_without_a_hot_prefix_are_not_touched() -> None:
    requests = [TraceRequest(1000 * n, 2048, 1, [4 * n + k for k in range(4)]) for n in range(600)]
    workload = Workload("apart", 512, requests)
    acting, without = run(workload, act_s=10.0), run(workload)
    assert (acting.copies, acting.ttft) == (0, without.ttft)
