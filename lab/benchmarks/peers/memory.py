"""Resident memory of whole services for each block that an instance holds: of us and of Dynamo's
indexer, by the same publishers.

It is read before the first block and once all of them are visible and nothing is under way. Ours
has the log and its inbox in it; `memory` has the index alone, of a larger table.
"""

import time
from typing import Final

from lab.benchmarks.embedded.publishers import Publishers
from lab.benchmarks.embedded.service import resident_bytes
from lab.benchmarks.peers.indexers import Indexer, checked_prompts, describe, kinds
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.traffic.event_load import LoadPlan

HOLDERS: Final = {1: "one instance", 8: "8 instances share the blocks"}
PAIRS_MAX: Final = 2_000_000
RATE: Final = 400_000.0
"""Blocks a second: what waits to be folded would be measured, too."""

SETTLE_S: Final = 3.0


def measure(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    for holders, case in HOLDERS.items():
        blocks = min(PAIRS_MAX, sizes.memory_pairs) // holders // 512 * 512
        plan = LoadPlan(blocks=blocks, block_size=BLOCK_SIZE, seed=SEED)
        for kind in kinds():
            with kind() as indexer:
                resident = _run_once(indexer, plan, holders)
            pairs = f"{blocks:,} blocks, {blocks * holders:,} pairs"
            name = f"{kind.prefix or 'Reprise, '}{case}: resident"
            note = describe() if kind.prefix else pairs
            figures.append(Figure(name=name, unit="B/pair", runs=[resident], note=note))
    return figures


def _run_once(indexer: Indexer, plan: LoadPlan, holders: int) -> float:
    """Bytes for each (block, instance)."""
    with Publishers(plan, publishers=holders, blocks_per_s=RATE) as publishers:
        publishers.connect(indexer)
        time.sleep(SETTLE_S)
        before = resident_bytes(indexer.server.pid)
        publishers.send()
        indexer.wait_held(checked_prompts(plan), holders, poll_s=0.2)
        time.sleep(SETTLE_S)
        return (resident_bytes(indexer.server.pid) - before) / (plan.blocks * holders)
