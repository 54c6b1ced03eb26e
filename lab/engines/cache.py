"""A paged KV cache as an engine keeps it: hashes, a GPU tier, a CPU tier, and their events.

The model follows vLLM's block pool and its offloading connector, with one request at a time:

- Only full blocks are cached. A block's hash chains over all tokens before it and over a root that
  is random in each process, so that a hash says nothing to anybody else.
- A request reuses the longest leading run of blocks that are on the GPU, then those on the CPU. At
  least one token is always computed, so a prompt that is held whole reuses one block less where it
  ends on a block.
- Blocks that the request uses are not evicted for it; all others are, least recently used first.
  When the request ends its blocks become the most recent, the first block last: tails go before
  the heads they hang on.
- The CPU tier takes blocks when they are computed (`WRITE_THROUGH`) or when the GPU evicts them
  (`ON_EVICTION`), evicts by the same rule, and announces blocks by a placeholder: hash only, no
  tokens.

Not modelled: the engine's second physical copy of a block that it had to compute again.
"""

import hashlib
import secrets
import sys
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from lab.engines.wire import (
    CPU,
    GPU,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
)

SPEC_KIND: Final = "full_attention"


class Offload(Enum):
    """When blocks enter the CPU tier."""

    WRITE_THROUGH = "write-through"
    ON_EVICTION = "on-eviction"


class CacheSizes(NamedTuple):
    """Tokens per block, and blocks per tier; `cpu_blocks` 0 means that there is no CPU tier."""

    block_size: int = 16
    gpu_blocks: int = 4096
    cpu_blocks: int = 0


class CacheRun(NamedTuple):
    """What one request did.

    Attributes:
        cached_tokens: of the prompt, reused.
        events: in the order in which the engine announces them.
    """

    cached_tokens: int
    events: list[EngineEvent]


class Snapshot(NamedTuple):
    """The truth about one cache: which blocks are where."""

    held: frozenset[tuple[int, str]]


class BlockChain:
    """Hashes prompts block by block. Caches that share a chain hash equal prefixes alike."""

    def __init__(self, block_size: int, root: bytes | None = None) -> None:
        if block_size < 1:
            raise ValueError(f"Expected a block size of 1 or more, got: {block_size}")
        self.block_size = block_size
        self._root = secrets.token_bytes(32) if root is None else root

    def hashes(self, tokens: Sequence[int]) -> list[int]:
        """One u64 a full block: the last 8 bytes of SHA-256(parent digest || tokens as u32 LE)."""
        packed = array("I", tokens)
        if sys.byteorder == "big":
            packed.byteswap()
        view = memoryview(packed).cast("B")
        step = 4 * self.block_size
        digest = self._root
        hashes = []
        for end in range(step, len(view) + 1, step):
            digest = hashlib.sha256(digest + view[end - step : end]).digest()
            hashes.append(int.from_bytes(digest[-8:], "big"))
        return hashes


class EngineCache:
    """One cache: that of one engine, or of one data-parallel rank of it."""

    def __init__(
        self,
        sizes: CacheSizes,
        *,
        offload: Offload = Offload.WRITE_THROUGH,
        chain: BlockChain | None = None,
    ) -> None:
        if sizes.gpu_blocks < 1 or sizes.cpu_blocks < 0:
            raise ValueError(f"Expected room for blocks, got: {sizes}")
        self.sizes = sizes
        self.chain = BlockChain(sizes.block_size) if chain is None else chain
        if self.chain.block_size != sizes.block_size:
            raise ValueError(
                f"Expected a chain of block size {sizes.block_size}, got: {self.chain.block_size}"
            )
        self._offload = offload
        # Keys are block hashes, the least recently used first.
        self._gpu: OrderedDict[int, None] = OrderedDict()
        self._cpu: OrderedDict[int, None] = OrderedDict()

    def run(self, prompt: Sequence[int], answer: Sequence[int] = ()) -> CacheRun:
        """Serve one request.

        Args:
            prompt: tokens sent to the engine; what is reused is counted on them.
            answer: tokens that the engine generates; their full blocks are cached too.
        """
        return self.run_hashes(self.chain.hashes([*prompt, *answer]), prompt, answer)

    def run_hashes(
        self, hashes: Sequence[int], prompt: Sequence[int], answer: Sequence[int] = ()
    ) -> CacheRun:
        """`run` with the hashes of prompt and answer at hand: several caches share one chain."""
        cached_tokens = self.reusable_tokens(hashes, len(prompt))
        own = hashes[: self.sizes.gpu_blocks]
        events: list[EngineEvent] = []
        missing = [block for block in own if block not in self._gpu]
        for block in own:
            if block in self._gpu:
                self._gpu.move_to_end(block)
        events += self._make_room(len(missing))
        if missing:
            events += self._store(own, missing, [*prompt, *answer])
        if self._offload is Offload.WRITE_THROUGH:
            events += self._copy_to_cpu(own)
        for block in reversed(own):
            self._gpu.move_to_end(block)
            if block in self._cpu:
                self._cpu.move_to_end(block)
        return CacheRun(cached_tokens, events)

    def reusable_tokens(self, hashes: Sequence[int], prompt_tokens: int) -> int:
        """What `run_hashes` would reuse now, of a prompt of so many tokens."""
        return self._hits(hashes[: self._reusable_blocks(prompt_tokens)]) * self.sizes.block_size

    def clear(self) -> list[EngineEvent]:
        """Forget every block of both tiers."""
        self._gpu.clear()
        self._cpu.clear()
        return [AllBlocksCleared()]

    def snapshot(self) -> Snapshot:
        """What is held now."""
        gpu = {(block, GPU) for block in self._gpu}
        return Snapshot(frozenset(gpu | {(block, CPU) for block in self._cpu}))

    def longest_held(self, tokens: Sequence[int], medium: str | None = None) -> int:
        """Tokens of the longest prefix of full blocks held on `medium`, or (None) on any."""
        length = 0
        for block in self.chain.hashes(tokens):
            on_gpu = medium != CPU and block in self._gpu
            if not on_gpu and not (medium != GPU and block in self._cpu):
                break
            length += self.sizes.block_size
        return length

    def _reusable_blocks(self, prompt_tokens: int) -> int:
        return max(prompt_tokens - 1, 0) // self.sizes.block_size

    def _hits(self, hashes: Sequence[int]) -> int:
        count = 0
        for block in hashes:
            if block not in self._gpu:
                break
            count += 1
        for block in hashes[count : self.sizes.gpu_blocks]:
            if block not in self._cpu:
                break
            count += 1
        return count

    def _make_room(self, blocks: int) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while len(self._gpu) + blocks > self.sizes.gpu_blocks:
            victim, _ = self._gpu.popitem(last=False)
            if self._offload is Offload.ON_EVICTION:
                # Announced before the removal: followers still know what the hash stands for.
                events += self._copy_to_cpu([victim])
            events.append(BlockRemoved(block_hashes=[victim], medium=GPU, group_idx=0))
        return events

    def _store(
        self, own: Sequence[int], missing: Sequence[int], tokens: Sequence[int]
    ) -> list[EngineEvent]:
        """Put the missing blocks, the tail of the request's own, on the GPU."""
        first = len(own) - len(missing)
        assert own[first] == missing[0], "a block outlived the one that it hangs on"
        size = self.sizes.block_size
        self._gpu.update(dict.fromkeys(missing))
        stored = BlockStored(
            block_hashes=missing,
            parent_block_hash=own[first - 1] if first else None,
            token_ids=tokens[first * size : len(own) * size],
            block_size=size,
            medium=GPU,
            group_idx=0,
            kv_cache_spec_kind=SPEC_KIND,
        )
        return [stored]

    def _copy_to_cpu(self, blocks: Sequence[int]) -> list[EngineEvent]:
        if not self.sizes.cpu_blocks:
            return []
        kept = blocks[: self.sizes.cpu_blocks]
        for block in kept:
            if block in self._cpu:
                self._cpu.move_to_end(block)
        added = [block for block in kept if block not in self._cpu]
        evicted = []
        while len(self._cpu) + len(added) > self.sizes.cpu_blocks:
            evicted.append(self._cpu.popitem(last=False)[0])
        self._cpu.update(dict.fromkeys(added))
        events: list[EngineEvent] = []
        if evicted:
            events.append(BlockRemoved(block_hashes=evicted, medium=CPU))
        if added:
            events.append(BlockStored(block_hashes=added, medium=CPU))
        return events
