"""Memory of the kernel for each block that an instance holds, each case in a new process.

Resident memory is that after what is free was given back, as the service does when it has grown.
"""

import ctypes
import gc
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from lab.benchmarks.index.blocks import Chain, chains, encoded_calls, stored_events, stream_of
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.sizes import SEED, KernelName, Sizes
from streams.kernel import Kernel, open_kernel

_WARM_BLOCKS: Final = 256


class Case(NamedTuple):
    """Who holds the blocks.

    Attributes:
        name: of the row.
        instances: that hold each block.
        own_keys: each calls the blocks by hashes of its own, as engines do whose seeds differ.
    """

    name: str
    instances: int
    own_keys: bool = False


CASES: Final = (
    Case("one instance", 1),
    Case("8 instances share the blocks", 8),
    Case("the same, each with hashes of its own", 8, own_keys=True),
    Case("256 instances share the blocks", 256),
)


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    figures = []
    for case in CASES:
        blocks = sizes.memory_pairs // case.instances
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            resident, told = process.submit(measure_one, kernel, blocks, case).result()
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


def measure_one(kernel: KernelName, blocks: int, case: Case) -> tuple[float, float]:
    """Bytes for each (block, instance) pair: by resident memory, and as the kernel tells."""
    _fill(open_kernel(1337, name=kernel), _WARM_BLOCKS, case)  # what is allocated once
    before = _rss_bytes()
    index = open_kernel(1337, name=kernel)
    _fill(index, blocks, case)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pairs = blocks * case.instances
    return (_rss_bytes() - before) / pairs, index.stats()["memory_bytes"] / pairs


def _fill(index: Kernel, blocks: int, case: Case) -> None:
    publishers = [index.open_publisher(stream_of(f"i{n}"), 0) for n in range(case.instances)]
    for chain in chains(blocks, SEED):
        for number, publisher in enumerate(publishers):
            own = _renamed(chain, number) if case.own_keys else chain
            for call in encoded_calls(stored_events(own, 64), 64):
                index.apply(publisher, call, -1)
            index.take_changes()


def _renamed(chain: Chain, number: int) -> Chain:
    """The same blocks by other hashes."""
    hashes = Random(number).randbytes(len(chain.hashes))
    mixed = int.from_bytes(hashes, "little") ^ int.from_bytes(chain.hashes, "little")
    return chain._replace(hashes=mixed.to_bytes(len(hashes), "little"))


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
