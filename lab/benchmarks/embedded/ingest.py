"""Blocks through the whole embedded path, from a publisher over TCP until queries see them.

Wall time runs from the first publish until `/services` shows the last batch as folded; it is looked
at every 50 ms. CPU time is all of the service's process, these answers included, until the table
has been flushed too.

The same goes to Dynamo's indexer in turn, where that is installed; what it is sent is visible when
its own `/query` shows the last prompt.
"""

import time
from typing import Final

from lab.benchmarks.embedded.publisher import Publisher
from lab.benchmarks.embedded.service import Service, until
from lab.benchmarks.peers import ingest as peer_ingest
from lab.benchmarks.peers.dynamo import describe, missing
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

POLL_S: Final = 0.05
BOUND_SHARE: Final = 0.9
"""Where sending took at least this share of the time, the publisher set the rate."""

PHASES: Final = ("stored", "removed")


class IngestRun:
    """The figures of one service process, by phase: millions of blocks a second."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.publisher_bound: set[str] = set()


def plan_of(blocks: int, blocks_per_event: int) -> LoadPlan:
    """The stream: one event a batch, prompts of 8 events, all of it removed in the end."""
    return LoadPlan(
        blocks=blocks,
        blocks_per_event=blocks_per_event,
        block_size=BLOCK_SIZE,
        pattern="removed",
        seed=SEED,
    )


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures = []
    for blocks, per_event in ((sizes.wide_blocks, 64), (sizes.single_blocks, 1)):
        plan = plan_of(blocks - blocks % per_event, per_event)
        with_peer = kernel == "rust" and not missing()
        prompts = peer_ingest.checked_prompts(plan) if with_peer else []
        runs, their_runs = [], []
        for _ in range(sizes.runs):
            runs.append(run_once(kernel, plan))
            if with_peer:
                their_runs.append(_run_peer(plan, prompts))
        for phase in PHASES:
            figures += _figures(runs, phase, plan)
            if with_peer:
                figures += _figures(their_runs, phase, plan, peer="Dynamo, ")
    return figures


def _run_peer(plan: LoadPlan, prompts: list[list[int]]) -> IngestRun:
    run = IngestRun()
    found = peer_ingest.run_once(plan, prompts, PHASES)
    for phase, one in zip(PHASES, found, strict=True):
        run.wall[phase] = one.blocks / one.seconds / 1e6
        run.cpu[phase] = one.blocks / one.cpu_s / 1e6
        if one.sending_s >= BOUND_SHARE * one.seconds:
            run.publisher_bound.add(phase)
    return run


def _figures(runs: list[IngestRun], phase: str, plan: LoadPlan, *, peer: str = "") -> list[Figure]:
    shape = f"{peer}{phase}, {plan.blocks_per_event}-block events"
    note = f"{plan.blocks:,} blocks, one event a message" if phase == "stored" else ""
    if note and peer:
        note = describe()
    return [
        Figure(
            name=f"{shape}: wall",
            unit="M blocks/s",
            runs=[run.wall[phase] for run in runs],
            note=note,
            limited=sum(phase in run.publisher_bound for run in runs),
        ),
        Figure(
            name=f"{shape}: per CPU-second",
            unit="M blocks",
            runs=[run.cpu[phase] for run in runs],
        ),
    ]


def run_once(kernel: KernelName, plan: LoadPlan) -> IngestRun:
    """Publishes the plan into a new service.

    Raises:
        RuntimeError: something was lost, or the table is not what was published.
    """
    run = IngestRun()
    with Service(kernel) as service, Publisher(plan) as publisher:
        publisher.connect(service)
        for phase in PHASES:
            cpu_s = service.cpu_s()
            sent = publisher.send()
            until(lambda: service.folded_sequence() >= sent.last_sequence, poll_s=POLL_S)  # noqa: B023
            seconds = time.monotonic() - sent.started
            service.wait_flushed()
            run.wall[phase] = sent.blocks / seconds / 1e6
            run.cpu[phase] = sent.blocks / (service.cpu_s() - cpu_s) / 1e6
            if sent.seconds >= BOUND_SHARE * seconds:
                run.publisher_bound.add(phase)
            _check(service, sent.blocks if phase == "stored" else 0)
    return run


def _check(service: Service, entries: int) -> None:
    metrics = service.metrics()
    lost = {
        name: metrics.get(name, 0.0)
        for name in (
            "reprise_bridge_gaps_total",
            "reprise_bridge_dropped_total",
            "reprise_bridge_duplicates_total",
            "reprise_publisher_degraded",
        )
    }
    found = service.entries()
    if any(lost.values()) or found != entries:
        raise RuntimeError(f"Expected {entries} entries and no loss, got {found} and {lost}")
