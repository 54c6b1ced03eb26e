"""The table topic's size against the live state, under steady churn.

A table of one partition keeps its size while all of its blocks are replaced several times over,
oldest first, 4,096 blocks to a flush. The live state is 24 bytes an entry. Sizes are looked at
after each flush of the last two turns.
"""

import asyncio
from collections import deque
from typing import Final

from lab.benchmarks.distributed.cluster import Cluster
from lab.benchmarks.distributed.table_rows import TableRows, opened_topic
from lab.benchmarks.index.blocks import Chain, chains, removed_events, stored_events
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, Sizes
from streams.kernel.changes import CHANGE_BYTES

FLUSH_BLOCKS: Final = 4_096
EVENT_BLOCKS: Final = 64
SETTLED_TURNS: Final = 2


def measure(sizes: Sizes) -> list[Figure]:
    with Cluster() as cluster:
        cluster.deploy(partitions=1)
        return asyncio.run(_churned(cluster, sizes))


async def _churned(cluster: Cluster, sizes: Sizes) -> list[Figure]:
    table = TableRows(0)
    name = cluster.kafka.topics.table.name
    live: deque[Chain] = deque()
    row_bytes: dict[bytes, int] = {}
    rows_total = 0
    rows: list[int] = []
    disk: list[int] = []
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
                row_bytes[row.key] = size
            if number >= total - SETTLED_TURNS * full:
                rows.append(rows_total)
                disk.append(cluster.topic_bytes(name))
    entries = table.fold.kernel.stats()["entries"]
    state = entries * CHANGE_BYTES
    note = f"{entries:,} live blocks, {state / 1e6:.1f} MB"
    return [
        Figure(name=f"{what}: {which}", unit="x live", runs=[size / state], note=note)
        for what, sizes_seen in (
            ("rows that are not superseded", rows),
            ("on disk, while it churns", disk),
        )
        for which, size in (("mean", sum(sizes_seen) / len(sizes_seen)), ("most", max(sizes_seen)))
    ]
