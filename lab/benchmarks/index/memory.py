"""Memory of the kernel for each block that an instance holds, each case in a new process.

Resident memory is that after what is free was given back, as the service does when it has grown.
"""

import ctypes
import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, NamedTuple

from lab.benchmarks.embedded.service import resident_bytes
from lab.benchmarks.index.blocks import chains, encoded_calls, stored_events, stream_of
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, Sizes
from streams.kernel import Kernel, open_kernel

_WARM_BLOCKS: Final = 256


class Case(NamedTuple):
    """Who holds the blocks.

    Attributes:
        name: of the row.
        instances: that hold each block.
    """

    name: str
    instances: int


CASES: Final = (
    Case("one instance", 1),
    Case("8 instances share the blocks", 8),
    Case("256 instances share the blocks", 256),
)


def measure(sizes: Sizes) -> list[Figure]:
    figures = []
    for case in CASES:
        blocks = sizes.memory_pairs // case.instances
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            resident, told = process.submit(measure_one, blocks, case).result()
        note = f"{blocks:,} blocks, {blocks * case.instances:,} (block, instance) pairs"
        figures += [
            Figure(
                name=f"{case.name}: resident",
                unit="B/pair",
                runs=[resident],
                note=note,
            ),
            Figure(name=f"{case.name}: told by the kernel", unit="B/pair", runs=[told]),
        ]
    return figures


def measure_one(blocks: int, case: Case) -> tuple[float, float]:
    """Bytes for each (block, instance) pair: by resident memory, and as the kernel tells."""
    _fill(open_kernel(1337), _WARM_BLOCKS, case)  # what is allocated once
    before = resident_bytes(os.getpid())
    index = open_kernel(1337)
    _fill(index, blocks, case)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pairs = blocks * case.instances
    return (resident_bytes(os.getpid()) - before) / pairs, index.stats()["memory_bytes"] / pairs


def _fill(index: Kernel, blocks: int, case: Case) -> None:
    publishers = [index.open_publisher(stream_of(f"i{n}"), 0) for n in range(case.instances)]
    for chain in chains(blocks, SEED):
        for publisher in publishers:
            for call in encoded_calls(stored_events(chain, 64), 64):
                index.apply(publisher, call, -1)
            index.take_changes()
