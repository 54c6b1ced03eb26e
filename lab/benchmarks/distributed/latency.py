"""From an event's publish until the replica shows it, at rates that the roles keep up with.

Ten publishers send the load. One more sends a single-block event every 10 ms; each answer of the
replica's `/services`, asked every 5 ms, makes all sequences up to that publisher's last one visible
then. Times are those of one process on the system's monotonic clock.
"""

import time
from typing import Final

from lab.benchmarks.distributed.cluster import Cluster, Role
from lab.benchmarks.distributed.fleet import Fleet
from lab.benchmarks.distributed.fleet_process import LATE_S, FleetJob, FleetSent
from lab.benchmarks.distributed.pipeline import start_roles
from lab.benchmarks.embedded.marker import Marker
from lab.benchmarks.embedded.service import until
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.traffic.event_load import LoadPlan

PARTITIONS: Final = 4
PUBLISHERS: Final = 10
EVENT_BLOCKS: Final = 64
MARK_S: Final = 0.01
POLL_S: Final = 0.005
WARM_S: Final = 1.0
MARKER: Final = "marker"
WINDOWS_MS: Final = ((50, 20), (0, 10))
"""The bridge's --window-ms and the worker's --flush-ms: the defaults, and those for low latency.

A shorter flush time comes later where processors are few: each flush of each partition is a request
of its own to the broker.
"""


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures = []
    with Cluster(kernel) as cluster:
        for window_ms, flush_ms in WINDOWS_MS:
            for rate in sizes.latency_rates:
                cluster.deploy(partitions=PARTITIONS)
                roles = start_roles(
                    cluster,
                    bridge=("--set", f"bridge.window_ms={window_ms}"),
                    worker=("--set", f"streams.flush_ms={flush_ms}"),
                )
                sent, waits_ms = run_once(roles["replica"], rate=rate, seconds=sizes.latency_s)
                name = f"window {window_ms} ms, flush {flush_ms} ms, {rate:,} blocks/s"
                figures += _figures(name, sent, waits_ms)
    return figures


def _figures(name: str, sent: FleetSent, waits_ms: list[float]) -> list[Figure]:
    note = f"{len(waits_ms):,} events watched"
    if sent.late_s > LATE_S:
        note += f"; the publishers did not keep the rate, {sent.late_s * 1000:.0f} ms late"
    late = int(sent.late_s > LATE_S)
    p50, p99 = percentile(waits_ms, 50), percentile(waits_ms, 99)
    return [
        Figure(name=f"{name}: p50", unit="ms", runs=[p50], note=note, limited=late),
        Figure(name=f"{name}: p99", unit="ms", runs=[p99], limited=late),
    ]


def run_once(replica: Role, *, rate: int, seconds: float) -> tuple[FleetSent, list[float]]:
    """What the load sent, and the milliseconds until each marker was visible."""
    events = max(1, round(rate * seconds / EVENT_BLOCKS / PUBLISHERS))
    plan = LoadPlan(
        blocks=events * EVENT_BLOCKS,
        blocks_per_event=EVENT_BLOCKS,
        block_size=BLOCK_SIZE,
        seed=SEED,
    )
    job = FleetJob(plan=plan, publishers=PUBLISHERS, rate_blocks_per_s=rate)
    with Fleet(job, name="load") as fleet:
        fleet.connect(replica.register)
        marker = Marker(round((seconds - WARM_S) / MARK_S), every_s=MARK_S)
        try:
            replica.register(marker.endpoint, MARKER)
            marker.wait_for_subscriber()
            until(lambda: MARKER in replica.sequences(), poll_s=POLL_S)
            fleet.begin()
            time.sleep(WARM_S)
            waits_ms = marker.watch(lambda: replica.sequences()[MARKER], poll_s=POLL_S)
            return fleet.finish(), waits_ms
        finally:
            marker.close()
