"""A node: its tiers, and the events that tell what a request has changed in them."""

from array import array
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from lab.whatif.caches.node_cache import BlockCache
from lab.whatif.queue import WorkQueue
from schemas.arrays import to_little_endian
from schemas.events import BlockEvent, RemovedBlocks, StoredBlocks
from schemas.identities import Medium

KERNEL_BLOCK_SIZE: Final = 1
"""Tokens per block in the index: one, the block's number, which stands for all tokens that the
trace's block has."""


class HeldPrefix(NamedTuple):
    """A continuous prefix, in blocks, by the fastest tier that has each of them."""

    gpu: int = 0
    cpu: int = 0
    pool: int = 0

    @property
    def blocks(self) -> int:
        """Of all tiers."""
        return self.gpu + self.cpu + self.pool


class CacheChange(NamedTuple):
    """What a request has changed: the events, and how many blocks came, went, or had no room."""

    events: list[BlockEvent]
    stored: int = 0
    evicted: int = 0
    refused: int = 0


class Node:
    """Computes one prompt after the other, and keeps their blocks.

    Attributes:
        name: its instance.
        queue: what it was given and has not computed.
        busy_s: how long it has computed, loaded and fetched.
        requests: how many it was given.
        sequence: of its next batch of events; `told_at`: when it sent the last one.
    """

    def __init__(
        self, name: str, gpu: BlockCache | None, cpu: BlockCache | None, pool: "Pool | None"
    ) -> None:
        self.name = name
        self.queue = WorkQueue()
        self.busy_s = 0.0
        self.requests = 0
        self.sequence = 0
        self.told_at = 0.0
        self._gpu = gpu
        self._cpu = cpu
        nothing: Container[int] = ()
        self._on_gpu = nothing if gpu is None else gpu.held
        self._on_cpu = nothing if cpu is None else cpu.held
        self._has_slower = cpu is not None or pool is not None
        self._in_pool = nothing if pool is None else pool.held

    def held(self, chain: Sequence[int]) -> HeldPrefix:
        """The prefix that it can read without computing. Cost O(blocks held)."""
        gpu = 0
        on_gpu = self._on_gpu
        for block in chain:
            if block not in on_gpu:
                break
            gpu += 1
        cpu = pool = 0
        if gpu < len(chain) and self._has_slower:
            for block in chain[gpu:]:
                if block in on_gpu:
                    gpu += 1
                elif block in self._on_cpu:
                    cpu += 1
                elif block in self._in_pool:
                    pool += 1
                else:
                    break
        return HeldPrefix(gpu, cpu, pool)

    def own(self, chain: Sequence[int]) -> int:
        """Blocks of the prefix that others can fetch from it: those of a pool are everybody's."""
        on_gpu, on_cpu = self._on_gpu, self._on_cpu
        count = 0
        for block in chain:
            if block not in on_gpu and block not in on_cpu:
                break
            count += 1
        return count

    def keep(self, chain: Sequence[int], held: HeldPrefix, now: float) -> CacheChange:
        """Stores the blocks of a prompt that it computes now.

        Args:
            chain: all blocks of the prompt.
            held: what `held` said of it.
            now: seconds.
        """
        if self._gpu is None:
            return CacheChange([])
        loaded = self._loaded(chain, held)
        gpu = self._gpu.use(chain, now)
        events: list[BlockEvent] = []
        stored, evicted, refused = len(gpu.stored), len(gpu.evicted), gpu.refused
        if gpu.evicted:
            events.append(RemovedBlocks(sequence=self.sequence, hashes=packed(gpu.evicted)))
        if self._cpu is not None and (loaded or gpu.evicted):
            # The one that the GPU evicted first stays the first to go.
            cpu = self._cpu.use([*loaded, *reversed(gpu.evicted)], now)
            if cpu.stored:
                hashes = packed(cpu.stored)
                events.append(
                    StoredBlocks(sequence=self.sequence, hashes=hashes, medium=Medium.CPU)
                )
            if cpu.evicted:
                hashes = packed(cpu.evicted)
                events.append(
                    RemovedBlocks(sequence=self.sequence, hashes=hashes, medium=Medium.CPU)
                )
            evicted += len(cpu.evicted)
            refused += cpu.refused
        events += stored_events(self.sequence, chain, gpu.stored, Medium.GPU, shared=False)
        return CacheChange(events, stored, evicted, refused)

    def _loaded(self, chain: Sequence[int], held: HeldPrefix) -> list[int]:
        """The blocks that are read from the CPU tier."""
        if not held.cpu:
            return []
        on_gpu, on_cpu = self._on_gpu, self._on_cpu
        prefix = chain[: held.blocks]
        return [block for block in prefix if block not in on_gpu and block in on_cpu]


class Pool:
    """A cache that all nodes read and write, with a publisher of its own."""

    def __init__(self, name: str, cache: BlockCache) -> None:
        self.name = name
        self.sequence = 0
        self.told_at = 0.0
        self._cache = cache

    @property
    def held(self) -> Container[int]:
        """The blocks that it has."""
        return self._cache.held

    def keep(self, chain: Sequence[int], now: float) -> CacheChange:
        """As `Node.keep`."""
        use = self._cache.use(chain, now)
        events: list[BlockEvent] = []
        if use.evicted:
            events.append(
                RemovedBlocks(
                    sequence=self.sequence,
                    hashes=packed(use.evicted),
                    medium=Medium.CPU,
                    shared=True,
                )
            )
        events += stored_events(self.sequence, chain, use.stored, Medium.CPU, shared=True)
        return CacheChange(events, len(use.stored), len(use.evicted), use.refused)


def stored_events(
    sequence: int, chain: Sequence[int], stored: Sequence[int], medium: Medium, *, shared: bool
) -> list[BlockEvent]:
    """One event for each run of blocks that follow one another in the chain. Cost O(chain)."""
    events: list[BlockEvent] = []
    if not stored:
        return events
    first = len(chain) - len(stored)
    if chain[first] == stored[0]:  # the end of the prompt, as it is but for holes
        return [_run_event(sequence, chain, first, len(chain), medium, shared)]
    new = set(stored)
    start, end = 0, 0
    while end < len(chain):
        start = end
        while start < len(chain) and chain[start] not in new:
            start += 1
        end = start
        while end < len(chain) and chain[end] in new:
            end += 1
        if start < end:
            events.append(_run_event(sequence, chain, start, end, medium, shared))
    return events


def _run_event(
    sequence: int, chain: Sequence[int], start: int, end: int, medium: Medium, shared: bool
) -> StoredBlocks:
    run = chain[start:end]
    return StoredBlocks(
        sequence=sequence,
        hashes=packed(run),
        tokens=to_little_endian(array("I", run)),
        parent=chain[start - 1] if start else None,
        block_size=KERNEL_BLOCK_SIZE,
        medium=medium,
        shared=shared,
    )


def packed(blocks: Sequence[int]) -> bytes:
    """Engine hashes of blocks, (n,) u64 LE."""
    return to_little_endian(array("Q", blocks))
