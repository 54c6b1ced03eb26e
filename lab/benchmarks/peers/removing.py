"""A table of blocks that eight instances hold each, while they are removed: how long an answer
takes, and what a removed block costs; of us and, where it is installed, of Dynamo's indexer.

One of the eight removes all of its blocks at 200,000 a second in 64-block events, while a client
asks for 8K tokens every 2 ms, of the same blocks. Then the others remove theirs as fast as they
can, and CPU is that of the indexer's process until nothing of them is left.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lab.benchmarks.embedded.http_client import INSTANCES
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.peers.beside import RATE, ROW, TOKENS, ask, sustained
from lab.benchmarks.peers.indexers import DynamoIndexer, Indexer, checked_prompts, describe, kinds
from lab.benchmarks.report.figures import Figure, percentile, times
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

EVENT_BLOCKS: Final = 64
POLL_S: Final = 0.02
ALONE_S: Final = 3.0


class RemovingPass(NamedTuple):
    """The milliseconds of each answer, alone and beside removals; millions of blocks removed for
    each second of CPU; whether the publisher kept its rate.
    """

    alone: list[float]
    beside: list[float]
    removed: float
    sustained: bool


def measure(sizes: Sizes) -> list[Figure]:
    chain_blocks = TOKENS // BLOCK_SIZE
    plan = LoadPlan(
        blocks=max(1, sizes.resident_blocks // chain_blocks) * chain_blocks,
        blocks_per_event=EVENT_BLOCKS,
        block_size=BLOCK_SIZE,
        chain_events=chain_blocks // EVENT_BLOCKS,
        pattern="removed",
        seed=SEED,
    )
    prompts = checked_prompts(plan)
    passes: dict[str, list[RemovingPass]] = {}
    for _ in range(sizes.real_time_runs):
        for kind in kinds():
            with kind() as indexer:
                one = _run_once(indexer, plan, prompts)
            passes.setdefault(kind.prefix, []).append(one)
    return figures_of(passes, f"{plan.blocks:,} blocks, {INSTANCES} hold each")


def _run_once(indexer: Indexer, plan: LoadPlan, prompts: Sequence[list[int]]) -> RemovingPass:
    with (
        Publishers(plan, publishers=INSTANCES - 1) as others,
        Publishers(plan, blocks_per_s=float(RATE), first=INSTANCES - 1) as removing,
    ):
        others.connect(indexer)
        others.send()
        removing.connect(indexer)
        removing.send()
        indexer.wait_held(prompts, INSTANCES, poll_s=POLL_S)
        indexer.settle()
        requests = [indexer.request(prompt) for prompt in prompts]
        alone = ask(indexer.server, requests, ALONE_S, lambda: True)
        goes_on = time.monotonic() + plan.blocks / RATE
        removing.begin()
        beside = ask(
            indexer.server, requests, plan.blocks / RATE, lambda: time.monotonic() < goes_on
        )
        sent = removing.finish()
        indexer.wait_held(prompts, INSTANCES - 1, poll_s=POLL_S)
        indexer.settle()
        before_s = indexer.cpu_s
        removed = others.send()
        indexer.wait_held(prompts, 0, poll_s=POLL_S)
        indexer.settle()
        rate = removed.blocks / (indexer.cpu_s - before_s) / 1e6
    return RemovingPass(alone, beside, rate, sustained(sent, RATE))


def figures_of(passes: Mapping[str, Sequence[RemovingPass]], note: str) -> list[Figure]:
    """Of all passes, by indexer."""
    figures = []
    removed = f"removed, {EVENT_BLOCKS}-block events, of blocks held by {INSTANCES}: per CPU-second"
    rates = {}
    for prefix, of_one in passes.items():
        row = f"{prefix}{ROW}"
        late = sum(not one.sustained for one in of_one)
        alone = [percentile(one.alone, 99) for one in of_one]
        beside = [percentile(one.beside, 99) for one in of_one]
        rates[prefix] = [one.removed for one in of_one]
        said = f"{note}; {describe()}" if prefix else note
        figures += [
            Figure(name=f"{row}, alone: p99", unit="ms", runs=alone, note=said),
            Figure(name=f"{row}, beside removals: p99", unit="ms", runs=beside, limited=late),
            times(f"{row}, beside removals: p99, times alone", beside, alone, late),
            Figure(name=f"{prefix}{removed}", unit="M blocks", runs=rates[prefix]),
        ]
    if DynamoIndexer.prefix in rates:
        theirs = rates[DynamoIndexer.prefix]
        figures.append(times(f"{removed}, times Dynamo's", rates[""], theirs))
    return figures
