"""What-if: CPU of one core for a trace of the shape of Mooncake's conversation trace.

Conversations of some turns over one system prompt, 24 blocks of 512 tokens a request on average, as
many requests at a time as ten nodes of 3M tokens can just serve. `REPRISE_TRACE` names a real trace
to take in its place.
"""

import os
import random
from pathlib import Path
from time import process_time
from typing import Final

from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, Sizes
from lab.whatif.run import SimulationRun
from lab.whatif.setup import Setup
from lab.whatif.workload import Workload
from replay.traces.reader import DEFAULT_BLOCK_SIZE, read_trace
from replay.traces.request import TraceRequest

POLICIES: Final = ("weighted", "algorithm-1")
ACTIVE: Final = 400
"""Conversations that go on beside one another."""

REQUESTS_PER_S: Final = 3.4


def measure(sizes: Sizes) -> list[Figure]:
    path = os.environ.get("REPRISE_TRACE")
    started = process_time()
    requests = (
        conversations(sizes.simulated_requests) if path is None else read_trace(Path(path)).requests
    )
    workload = Workload("benchmark", DEFAULT_BLOCK_SIZE, requests)
    prepared = process_time() - started
    blocks = workload.block_count / len(workload)
    figures = []
    for policy in POLICIES:
        runs = []
        hit_rate = 0.0
        for _ in range(sizes.runs):
            started = process_time()
            outcome = SimulationRun(Setup(policy=policy), workload).outcome()
            runs.append(len(workload) / (process_time() - started))
            hit_rate = outcome.block_hit_rate
        figures.append(
            Figure(
                name=f"simulate, ten nodes, {policy}",
                unit="requests/s",
                runs=runs,
                note=f"of CPU; {blocks:.0f} blocks a request, {hit_rate:.1%} of them hits",
            )
        )
    what = "make the trace" if path is None else "read the trace"
    figures.append(
        Figure(
            name=f"simulate, {what}",
            unit="requests/s",
            runs=[len(workload) / prepared],
            note=f"of CPU; {len(workload):,} requests, their blocks numbered",
        )
    )
    return figures


def conversations(count: int) -> list[TraceRequest]:
    """So many requests of conversations that grow turn by turn; block 0 is in all of them."""
    chance = random.Random(SEED)
    fresh = iter(range(1, 10**9))
    open_ones: list[list[int]] = []
    requests = []
    for number in range(count):
        if len(open_ones) < ACTIVE or chance.random() < 0.55:
            prompt = [0, *(next(fresh) for _ in range(int(chance.expovariate(1 / 16))))]
            if len(open_ones) >= ACTIVE:
                open_ones[chance.randrange(ACTIVE)] = prompt
            else:
                open_ones.append(prompt)
        else:
            prompt = chance.choice(open_ones)
        prompt += [next(fresh) for _ in range(1 + int(chance.expovariate(1 / 4)))]
        length = len(prompt) * DEFAULT_BLOCK_SIZE - chance.randrange(DEFAULT_BLOCK_SIZE)
        at = number / REQUESTS_PER_S * 1000.0
        requests.append(TraceRequest(at, length, 100, list(prompt)))
    return requests
