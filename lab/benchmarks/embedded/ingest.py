"""Blocks through the whole embedded path, from a publisher over TCP until queries see them; and, in
turn, into Dynamo's indexer, where that is installed.

Wall time of ours runs from the first publish until `/services` shows the last batch as folded; that
is looked at every 50 ms. CPU time is all of the service's process, these answers included, until
the table has been flushed too. Dynamo's is until its own `/query` shows the last prompt.
"""

import time
from typing import Final, NamedTuple

from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.publishers_process import SentPhase
from lab.benchmarks.peers.indexers import (
    DynamoIndexer,
    OurIndexer,
    checked_prompts,
    describe,
    kinds,
)
from lab.benchmarks.report.figures import Figure, times
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

POLL_S: Final = 0.05
BOUND_SHARE: Final = 0.9
"""Where sending took at least this share of the time, the publisher set the rate."""

PHASES: Final = ("stored", "removed")


class IngestPhase(NamedTuple):
    """Millions of blocks a second, by the wall and by CPU; whether the publisher set the rate."""

    wall: float
    cpu: float
    publisher_bound: bool


def plan_of(blocks: int, blocks_per_event: int) -> LoadPlan:
    """The stream: one event a batch, prompts of 8 events, all of it removed in the end."""
    return LoadPlan(
        blocks=blocks - blocks % blocks_per_event,
        blocks_per_event=blocks_per_event,
        block_size=BLOCK_SIZE,
        pattern="removed",
        seed=SEED,
    )


def measure(sizes: Sizes) -> list[Figure]:
    figures = []
    for blocks, per_event in ((sizes.wide_blocks, 64), (sizes.single_blocks, 1)):
        plan = plan_of(blocks, per_event)
        prompts = checked_prompts(plan)
        runs: dict[str, list[list[IngestPhase]]] = {}
        for _ in range(sizes.runs):
            for kind in kinds():
                runs.setdefault(kind.prefix, []).append(run_once(kind(), plan, prompts))
        figures += figures_of(plan, runs)
    return figures


def run_once(
    indexer: OurIndexer | DynamoIndexer, plan: LoadPlan, prompts: list[list[int]]
) -> list[IngestPhase]:
    """Publishes the plan into a new indexer.

    Raises:
        RuntimeError: something was lost, or the table is not what was published.
        TimeoutError: its answers never became those of what was published.
    """
    found = []
    with indexer, Publishers(plan) as publishers:
        publishers.connect(indexer)
        for phase in PHASES:
            before_s = indexer.cpu_s
            sent = publishers.send()
            held = int(phase == "stored")
            if isinstance(indexer, OurIndexer):
                indexer.service.wait_folded(sent.last_sequence, poll_s=POLL_S)
            else:
                indexer.wait_held(prompts[-1:], held, poll_s=0.02)
            seconds = time.monotonic() - sent.started
            indexer.settle()
            cpu_s = indexer.cpu_s - before_s
            found.append(_phase_of(sent, seconds, cpu_s))
            indexer.wait_held(prompts, held)
            if isinstance(indexer, OurIndexer):
                _check(indexer, sent.blocks * held)
    return found


def _phase_of(sent: SentPhase, seconds: float, cpu_s: float) -> IngestPhase:
    millions = sent.blocks / 1e6
    return IngestPhase(millions / seconds, millions / cpu_s, sent.seconds >= BOUND_SHARE * seconds)


def _check(indexer: OurIndexer, entries: int) -> None:
    metrics = indexer.service.metrics()
    lost = {
        name: metrics.get(name, 0.0)
        for name in (
            "reprise_bridge_gaps_total",
            "reprise_bridge_dropped_total",
            "reprise_bridge_duplicates_total",
            "reprise_publisher_degraded",
        )
    }
    found = indexer.service.entries()
    if any(lost.values()) or found != entries:
        raise RuntimeError(f"Expected {entries} entries and no loss, got {found} and {lost}")


def figures_of(plan: LoadPlan, runs: dict[str, list[list[IngestPhase]]]) -> list[Figure]:
    """Of one shape, by indexer; a run has all phases."""
    figures = []
    for place, phase in enumerate(PHASES):
        shape = f"{phase}, {plan.blocks_per_event}-block events"
        cpu = {}
        for prefix, of_one in runs.items():
            phases = [one[place] for one in of_one]
            note = describe() if prefix else f"{plan.blocks:,} blocks, one event a message"
            cpu[prefix] = [one.cpu for one in phases]
            figures += [
                Figure(
                    name=f"{prefix}{shape}: wall",
                    unit="M blocks/s",
                    runs=[one.wall for one in phases],
                    note="" if place else note,
                    limited=sum(one.publisher_bound for one in phases),
                ),
                Figure(name=f"{prefix}{shape}: per CPU-second", unit="M blocks", runs=cpu[prefix]),
            ]
        if DynamoIndexer.prefix in cpu:
            name = f"{shape}: per CPU-second, times Dynamo's"
            figures.append(times(name, cpu[""], cpu[DynamoIndexer.prefix]))
    return figures
