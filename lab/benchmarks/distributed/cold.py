"""Start of a cold replica until ready, and of a worker with a lost disk until its tables are open.

The table topic is filled with the rows that workers would have written, 4,096 blocks to a flush and
nothing removed, in as many transactions.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.distributed.table_rows import TableRows, fill_events, opened_topic
from lab.benchmarks.embedded.service import Service, until
from lab.benchmarks.index.blocks import chains, stored_events
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, Sizes

PARTITIONS: Final = 4
EVENT_BLOCKS: Final = 64
FLUSH_BLOCKS: Final = 4_096
POLL_S: Final = 0.02
START_S: Final = 240.0
BYTES_PER_BLOCK: Final = 600
"""What a machine must have free for each block: log, page cache, and two copies in memory."""


def measure(sizes: Sizes) -> list[Figure]:
    blocks = sizes.cold_blocks // PARTITIONS * PARTITIONS
    free, wanted = available_bytes(), blocks * BYTES_PER_BLOCK
    if wanted > free:
        raise RuntimeError(
            f"Expected {wanted / 2**30:.1f} GiB of memory for {blocks:,} blocks, got"
            f" {free / 2**30:.1f}"
        )
    with Cluster() as cluster:
        cluster.deploy(partitions=PARTITIONS)
        filled_s = asyncio.run(_fill(cluster, blocks))
        size = cluster.topic_bytes(cluster.kafka.topics.table.name)
        note = f"{PARTITIONS} partitions, {size / 1e6:,.0f} MB, written in {filled_s:.0f} s"
        runs = range(sizes.real_time_runs)
        replicas = [_start_replica(cluster, blocks) for _ in runs]
        workers = [_start_worker(cluster, blocks) for _ in runs]
    rows = {
        f"replica, {blocks:,} blocks: until ready": [one[0] for one in replicas],
        f"replica, {blocks:,} blocks: CPU": [one[1] for one in replicas],
        f"worker, {blocks:,} blocks: until open": [one[0] for one in workers],
        f"worker, {blocks:,} blocks: CPU": [one[1] for one in workers],
    }
    return [Figure(name=name, unit="s", runs=values, note=note) for name, values in rows.items()]


async def _fill(cluster: Cluster, blocks: int) -> float:
    """Fills one partition after the other, so that only one table is in memory; seconds of it."""
    started = time.monotonic()
    for partition in range(PARTITIONS):
        table = TableRows(partition)
        async with opened_topic(cluster.kafka, partition) as topic:
            for chain in chains(blocks // PARTITIONS, SEED + partition, FLUSH_BLOCKS):
                await topic.write(table.flush(stored_events(chain, EVENT_BLOCKS)))
        await fill_events(cluster.kafka, partition, table.records)
    return time.monotonic() - started


def _start_replica(cluster: Cluster, blocks: int) -> tuple[float, float]:
    """Wall and CPU seconds until `/ready`.

    Raises:
        RuntimeError: it does not hold the blocks.
    """
    started = time.monotonic()
    replica = cluster.start("serve")
    until(replica.is_ready, poll_s=POLL_S, timeout_s=START_S)
    return _finish(cluster, replica, started, found=replica.entries, wanted=blocks)


def _start_worker(cluster: Cluster, blocks: int) -> tuple[float, float]:
    """Wall and CPU seconds until it has every partition."""
    started = time.monotonic()
    worker = cluster.start("streams")
    cluster.wait_settled(worker, timeout_s=START_S)
    return _finish(
        cluster,
        worker,
        started,
        found=lambda: int(worker.metrics()["reprise_table_entries"]),
        wanted=blocks,
    )


def _finish(
    cluster: Cluster, role: Service, started: float, *, found: Callable[[], int], wanted: int
) -> tuple[float, float]:
    seconds, cpu_s = time.monotonic() - started, role.cpu_s()
    entries = found()
    if entries != wanted:
        raise RuntimeError(f"Expected {wanted} entries, got {entries}: {role.log()[-1000:]}")
    cluster.end(role)
    return seconds, cpu_s


def available_bytes() -> int:
    """Memory that could be used without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return 0
