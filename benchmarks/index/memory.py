"""Memory of the kernel for each block that an instance holds, each case in a new process."""

import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.index.blocks import chains, encoded_calls, stored_events, stream_of
from benchmarks.report.figures import Figure
from benchmarks.sizes import SEED, KernelName, Sizes
from streams.kernel import Kernel, open_kernel

SHARING: Final = 8
_WARM_BLOCKS: Final = 256


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures = []
    for blocks, instances in ((sizes.memory_blocks, 1), (sizes.shared_blocks, SHARING)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            resident, told = process.submit(measure_one, kernel, blocks, instances).result()
        held = "one instance" if instances == 1 else f"{instances} instances share the blocks"
        note = f"{blocks:,} blocks, {blocks * instances:,} (block, instance) pairs"
        figures += [
            Figure(name=f"{held}: resident", unit="B/pair", runs=[resident], note=note),
            Figure(name=f"{held}: told by the kernel", unit="B/pair", runs=[told]),
        ]
    return figures


def measure_one(kernel: KernelName, blocks: int, instances: int) -> tuple[float, float]:
    """Bytes for each (block, instance) pair: by resident memory, and as the kernel tells."""
    _fill(open_kernel(1337, name=kernel), _WARM_BLOCKS, instances)  # what is allocated once
    before = _rss_bytes()
    index = open_kernel(1337, name=kernel)
    _fill(index, blocks, instances)
    gc.collect()
    pairs = blocks * instances
    return (_rss_bytes() - before) / pairs, index.stats()["memory_bytes"] / pairs


def _fill(index: Kernel, blocks: int, instances: int) -> None:
    publishers = [index.open_publisher(stream_of(f"i{n}"), 0) for n in range(instances)]
    for chain in chains(blocks, SEED):
        for call in encoded_calls(stored_events(chain, 64), 64):
            for publisher in publishers:
                index.apply(publisher, call, -1)
        index.take_changes()


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
