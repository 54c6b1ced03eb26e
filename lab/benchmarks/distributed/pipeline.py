"""Blocks through bridge, Kafka, worker and replica, one of each on one machine.

Wall time runs from the first publish until the replica's `/services` shows every publisher's last
batch. CPU time is that of each process until then, what it does while idle included.
"""

import time
from typing import Final, NamedTuple

from lab.benchmarks.distributed.cluster import Cluster, Role
from lab.benchmarks.distributed.fleet import Fleet
from lab.benchmarks.distributed.fleet_process import FleetJob
from lab.benchmarks.embedded.service import cpu_seconds, until
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

POLL_S: Final = 0.05
EVENT_BLOCKS: Final = (64, 1)
BOUND_SHARE: Final = 0.9
"""Where sending took at least this share of the time, the publishers set the rate."""

_MILLION: Final = 1e6
BROKER: Final = "broker"


class Shape(NamedTuple):
    """How many publish into how many partitions of `events`."""

    publishers: int
    partitions: int

    def __str__(self) -> str:
        many = "s" if self.publishers > 1 else ""
        return f"{self.publishers:,} publisher{many}, {self.partitions} partition" + (
            "s" if self.partitions > 1 else ""
        )


class _Run(NamedTuple):
    seconds: float
    blocks: int
    messages: int
    records: float
    cpu_s: dict[str, float]
    publisher_bound: bool


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with Cluster(kernel) as cluster:
        for publishers, partitions in sizes.pipeline_shapes:
            shape = Shape(publishers, partitions)
            cluster.deploy(partitions=partitions)
            roles = start_roles(cluster)
            for per_event in EVENT_BLOCKS:
                blocks = sizes.pipeline_blocks if per_event > 1 else sizes.pipeline_single_blocks
                name = f"{shape}, {per_event}-block events"
                try:
                    run = run_once(cluster, roles, shape, blocks=blocks, per_event=per_event)
                except TimeoutError as error:  # what was measured before is worth having
                    figures.append(
                        Figure(name=name, unit="M blocks/s", runs=[0.0], note=str(error))
                    )
                    break
                figures += _figures(name, run)
    return figures


def start_roles(
    cluster: Cluster, *, bridge: tuple[str, ...] = (), worker: tuple[str, ...] = ()
) -> dict[str, Role]:
    """One of each; returns once the replica is ready and the worker has its partitions."""
    roles = {
        "bridge": cluster.start("bridge", *bridge),
        "worker": cluster.start("streams", *worker),
        "replica": cluster.start("serve"),
    }
    until(roles["replica"].is_ready, poll_s=POLL_S)
    cluster.wait_settled(roles["worker"])
    return roles


def run_once(
    cluster: Cluster, roles: dict[str, Role], shape: Shape, *, blocks: int, per_event: int
) -> _Run:
    """Publishes about so many blocks, shared out among the publishers.

    Raises:
        RuntimeError: something was lost.
    """
    events = max(1, blocks // shape.publishers // per_event)
    plan = LoadPlan(
        blocks=events * per_event, blocks_per_event=per_event, block_size=BLOCK_SIZE, seed=SEED
    )
    job = FleetJob(plan=plan, publishers=shape.publishers)
    replica = roles["replica"]
    with Fleet(job, name=f"e{per_event}-") as fleet:
        fleet.connect(replica.register)
        entries = replica.entries()
        until(lambda: set(fleet.instances) <= replica.sequences().keys(), poll_s=POLL_S)
        cpu_s, records = _cpu(cluster, roles), _records(roles)
        fleet.begin()
        sent = fleet.finish()

        def visible() -> bool:
            known = replica.sequences()
            return all(known[one] >= sent.last_sequence for one in fleet.instances)

        until(visible, poll_s=POLL_S)
        seconds = time.monotonic() - sent.started
        used = {name: now - cpu_s[name] for name, now in _cpu(cluster, roles).items()}
    found = replica.entries() - entries
    if found != sent.blocks:
        raise RuntimeError(f"Expected {sent.blocks} entries and no loss, got: {found}")
    for instance in fleet.instances:  # another one may get its port
        replica.unregister(instance)
    until(lambda: replica.entries() == entries, poll_s=POLL_S)
    return _Run(
        seconds=seconds,
        blocks=sent.blocks,
        messages=sent.messages,
        records=_records(roles) - records,
        cpu_s=used,
        publisher_bound=sent.seconds >= BOUND_SHARE * seconds,
    )


def _cpu(cluster: Cluster, roles: dict[str, Role]) -> dict[str, float]:
    return {name: role.cpu_s() for name, role in roles.items()} | {
        BROKER: cpu_seconds(cluster.broker.pid)
    }


def _records(roles: dict[str, Role]) -> float:
    return roles["bridge"].metrics()["reprise_bridge_written_records_total"]


def _figures(name: str, run: _Run) -> list[Figure]:
    note = f"{run.blocks:,} blocks in {run.messages:,} messages, {run.records:,.0f} records"
    millions = run.blocks / _MILLION
    rates = [
        Figure(
            name=name,
            unit="M blocks/s",
            runs=[millions / run.seconds],
            note=note,
            limited=int(run.publisher_bound),
        ),
        Figure(name=f"{name}: records", unit="/s", runs=[run.records / run.seconds]),
    ]
    ours = sum(used for role, used in run.cpu_s.items() if role != BROKER)
    return [
        *rates,
        Figure(name=f"{name}: bridge, worker and replica", unit="CPU s/M", runs=[ours / millions]),
        *(
            Figure(name=f"{name}: {role}", unit="CPU s/M", runs=[used / millions])
            for role, used in run.cpu_s.items()
        ),
    ]
