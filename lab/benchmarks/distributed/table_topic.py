"""The table topic's size against the live state, under steady churn.

A table of one partition keeps its size while all of its blocks are replaced several times over,
oldest first, 4,096 blocks to a flush. The live state is 24 bytes an entry. Sizes are looked at
after each flush of the last turns; on disk also once the broker has compacted and is quiet.
"""

import asyncio
import time
from collections import deque
from typing import Final, NamedTuple

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.distributed.table_rows import TableRows, opened_topic
from lab.benchmarks.index.blocks import Chain, chains, removed_events, stored_events
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, KernelName, Sizes
from streams.kernel.changes import CHANGE_BYTES

FLUSH_BLOCKS: Final = 4_096
EVENT_BLOCKS: Final = 64
SETTLED_TURNS: Final = 2
QUIET_S: Final = 5.0
COMPACT_S: Final = 60.0


class _Churned(NamedTuple):
    """Bytes after each flush, and what there was in the end."""

    rows: list[int]
    disk: list[int]
    rewritten: int
    entries: int
    written: int


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    with Cluster(kernel) as cluster:
        cluster.deploy(partitions=1)
        churned = asyncio.run(_churn(cluster, kernel, sizes))
        compacted = _wait_compacted(cluster)
        closed = cluster.topic_bytes(cluster.kafka.topics.table.name, active=False)
    state = churned.entries * CHANGE_BYTES
    note = (
        f"{churned.entries:,} live blocks, {state / 1e6:.1f} MB; {churned.written / 1e6:.0f} MB"
        f" written in all, {churned.rewritten} rewritings"
    )

    def figure(name: str, size: float, note: str = "") -> Figure:
        return Figure(name=name, unit="x live", runs=[size / state], note=note)

    rows, disk = churned.rows, churned.disk
    return [
        figure("rows that are not superseded: mean", sum(rows) / len(rows), note),
        figure("rows that are not superseded: most", max(rows)),
        figure("on disk, while it churns: mean", sum(disk) / len(disk)),
        figure("on disk, while it churns: most", max(disk)),
        figure(
            "on disk, once compacted",
            compacted,
            f"{(compacted - closed) / 1e6:.1f} MB of it in the active segment, which Kafka never"
            " compacts; segments of 8 MiB",
        ),
        figure("on disk, once compacted, closed segments", closed),
    ]


async def _churn(cluster: Cluster, kernel: KernelName, sizes: Sizes) -> _Churned:
    table = TableRows(kernel, 0)
    name = cluster.kafka.topics.table.name
    live: deque[Chain] = deque()
    row_bytes: dict[bytes, int] = {}
    rows_total = written = 0
    rows_seen: list[int] = []
    disk_seen: list[int] = []
    full = sizes.churn_live_blocks // FLUSH_BLOCKS
    total = full * (1 + sizes.churn_turns)
    made = chains(total * FLUSH_BLOCKS, SEED, FLUSH_BLOCKS)
    async with opened_topic(cluster.kafka, 0) as topic:
        for number, chain in enumerate(made):
            events = [*stored_events(chain, EVENT_BLOCKS)]
            live.append(chain)
            gone = removed_events(live.popleft(), EVENT_BLOCKS) if len(live) > full else []
            flushed = table.flush([*gone, *events])
            await topic.write(flushed)
            for row in flushed:
                size = 0 if row.value is None else len(row.key) + len(row.value)
                rows_total += size - row_bytes.get(row.key, 0)
                written += size
                row_bytes[row.key] = size
            if number >= total - SETTLED_TURNS * full:
                rows_seen.append(rows_total)
                disk_seen.append(cluster.topic_bytes(name))
    entries = table.fold.kernel.stats()["entries"]
    return _Churned(rows_seen, disk_seen, table.rewritten, entries, written)


def _wait_compacted(cluster: Cluster) -> int:
    """The topic's bytes once they have not changed for a while, or after a minute."""
    name = cluster.kafka.topics.table.name
    size, since = cluster.topic_bytes(name), time.monotonic()
    end = since + COMPACT_S
    while time.monotonic() < min(end, since + QUIET_S):
        time.sleep(0.2)
        now = cluster.topic_bytes(name)
        if now != size:
            size, since = now, time.monotonic()
    return size
