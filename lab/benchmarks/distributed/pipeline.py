"""Blocks through bridge, Kafka, worker and replica, one of each on one machine.

Wall time runs from the first publish until the replica's `/services` shows every publisher's last
batch, asked five times a second. CPU time is that of each process until then, what it does while
idle and those answers included: of these each takes a millisecond or two.
"""

import time
from typing import Final, NamedTuple

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import Service, cpu_seconds, until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

POLL_S: Final = 0.2
PARTITIONS: Final = 4
EVENT_BLOCKS: Final = (64, 1)
BOUND_SHARE: Final = 0.9
"""Where sending took at least this share of the time, the publishers set the rate."""

_MILLION: Final = 1e6
BROKER: Final = "broker"


class PipelineRun(NamedTuple):
    """What one load took."""

    seconds: float
    blocks: int
    messages: int
    records: float
    cpu_s: dict[str, float]
    publisher_bound: bool


def measure(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with Cluster() as cluster:
        for publishers in sizes.pipeline_publishers:
            cluster.deploy(partitions=PARTITIONS)
            roles = cluster.start_all()
            for per_event in EVENT_BLOCKS:
                blocks = sizes.pipeline_blocks if per_event > 1 else sizes.pipeline_single_blocks
                events = max(1, blocks // publishers // per_event)
                plan = LoadPlan(
                    blocks=events * per_event,
                    blocks_per_event=per_event,
                    block_size=BLOCK_SIZE,
                    seed=SEED,
                )
                run = run_once(cluster, roles, plan, publishers)
                figures += figures_of(publishers, per_event, run)
    return figures


def run_once(
    cluster: Cluster, roles: dict[str, Service], plan: LoadPlan, publishers: int
) -> PipelineRun:
    """Publishes the plan from so many.

    Raises:
        RuntimeError: something was lost.
    """
    replica = roles["replica"]
    name = f"e{plan.blocks_per_event}-"
    with Publishers(plan, name=name, publishers=publishers, own_prompts=True) as fleet:
        fleet.connect(replica)
        entries = replica.entries()
        replica.wait_folded(-1, *fleet.instances)
        cpu_s, records = _cpu(cluster, roles), _records(roles)
        sent = fleet.send()
        replica.wait_folded(sent.last_sequence, *fleet.instances, poll_s=POLL_S)
        seconds = time.monotonic() - sent.started
        used = {name: now - cpu_s[name] for name, now in _cpu(cluster, roles).items()}
    found = replica.entries() - entries
    if found != sent.blocks:
        raise RuntimeError(f"Expected {sent.blocks} entries and no loss, got: {found}")
    for instance in fleet.instances:  # another one may get its port
        replica.unregister(instance)
    until(lambda: replica.entries() == entries, poll_s=POLL_S)
    return PipelineRun(
        seconds=seconds,
        blocks=sent.blocks,
        messages=sent.messages,
        records=_records(roles) - records,
        cpu_s=used,
        publisher_bound=sent.seconds >= BOUND_SHARE * seconds,
    )


def _cpu(cluster: Cluster, roles: dict[str, Service]) -> dict[str, float]:
    return {name: role.cpu_s() for name, role in roles.items()} | {
        BROKER: cpu_seconds(cluster.broker.pid)
    }


def _records(roles: dict[str, Service]) -> float:
    return roles["bridge"].metrics()["reprise_bridge_written_records_total"]


def figures_of(publishers: int, per_event: int, run: PipelineRun) -> list[Figure]:
    """Of one load."""
    name = f"{publishers:,} publishers, {per_event}-block events"
    note = f"{run.blocks:,} blocks in {run.messages:,} messages, {run.records:,.0f} records"
    millions = run.blocks / _MILLION
    ours = sum(used for role, used in run.cpu_s.items() if role != BROKER)
    cpu = {"bridge, worker and replica": ours, **run.cpu_s}
    return [
        Figure(
            name=name,
            unit="M blocks/s",
            runs=[millions / run.seconds],
            note=note,
            limited=int(run.publisher_bound),
        ),
        *(
            Figure(name=f"{name}: {role}", unit="CPU s/M", runs=[used / millions])
            for role, used in cpu.items()
        ),
    ]
