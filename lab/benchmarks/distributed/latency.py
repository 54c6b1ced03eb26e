"""From an event's publish until the replica shows it, at a rate that the roles keep up with.

Ten publishers send the load. One more sends a single-block event every 10 ms; each answer of the
replica's `/services`, asked every 5 ms, makes all sequences up to that publisher's last one visible
then. Times are those of one process on the system's monotonic clock.
"""

import time
from typing import Final

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.embedded.marker import MARK_S, Marker
from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.publishers_process import SentPhase
from lab.benchmarks.embedded.service import Service
from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

PARTITIONS: Final = 4
PUBLISHERS: Final = 10
EVENT_BLOCKS: Final = 64
POLL_S: Final = 0.005
WARM_S: Final = 1.0
LATE_S: Final = 0.1
"""The rate counts as kept where no message left later than this after its time."""

WINDOWS_MS: Final = ((50, 20), (0, 10))
"""The bridge's --window-ms and the worker's --flush-ms: the defaults, and those for low latency.

A shorter flush time comes later where processors are few: each flush of each partition is a request
of its own to the broker.
"""


def measure(sizes: Sizes) -> list[Figure]:
    figures = []
    with Cluster() as cluster:
        for window_ms, flush_ms in WINDOWS_MS:
            cluster.deploy(partitions=PARTITIONS)
            roles = cluster.start_all(
                bridge=("--set", f"bridge.window_ms={window_ms}"),
                worker=("--set", f"streams.flush_ms={flush_ms}"),
            )
            sent, waits_ms = run_once(roles["replica"], sizes.latency_rate, sizes.latency_s)
            name = f"window {window_ms} ms, flush {flush_ms} ms, {sizes.latency_rate:,} blocks/s"
            figures += figures_of(name, sent, waits_ms)
    return figures


def figures_of(name: str, sent: SentPhase, waits_ms: list[float]) -> list[Figure]:
    """Of one window."""
    note = f"{len(waits_ms):,} events watched"
    late = int(sent.late_s > LATE_S)
    if late:
        note += f"; the publishers did not keep the rate, {sent.late_s * 1000:.0f} ms late"
    p50, p99 = percentile(waits_ms, 50), percentile(waits_ms, 99)
    return [
        Figure(name=f"{name}: p50", unit="ms", runs=[p50], note=note, limited=late),
        Figure(name=f"{name}: p99", unit="ms", runs=[p99], limited=late),
    ]


def run_once(replica: Service, rate: int, seconds: float) -> tuple[SentPhase, list[float]]:
    """What the load sent, and the milliseconds until each marker was visible."""
    events = max(1, round(rate * seconds / EVENT_BLOCKS / PUBLISHERS))
    plan = LoadPlan(
        blocks=events * EVENT_BLOCKS,
        blocks_per_event=EVENT_BLOCKS,
        block_size=BLOCK_SIZE,
        seed=SEED,
    )
    with (
        Publishers(
            plan,
            name="load",
            publishers=PUBLISHERS,
            own_prompts=True,
            blocks_per_s=float(rate),
        ) as fleet,
        Marker(round((seconds - WARM_S) / MARK_S)) as marker,
    ):
        fleet.connect(replica)
        marker.connect(replica)
        fleet.begin()
        time.sleep(WARM_S)
        waits_ms = marker.watch(poll_s=POLL_S)
        return fleet.finish(), waits_ms
