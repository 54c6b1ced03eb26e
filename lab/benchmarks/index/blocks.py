"""Blocks made from a seed, as canonical events and as prompts, for measurements without a
socket.
"""

from array import array
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from lab.benchmarks.sizes import BLOCK_SIZE, CHAIN_BLOCKS
from schemas.events import RemovedBlocks, StoredBlocks, encode_events
from schemas.identities import PrefixScope, StreamKey

MODEL = "bench"
SCOPE = PrefixScope("default", MODEL, "", BLOCK_SIZE, "")
EVENTS_PER_CALL_BLOCKS = 4096
"""A record of the service under load holds about this many blocks."""

TOKEN_BYTES = 4
_TOKEN_MASK = (1 << 17) - 1


def stream_of(instance_id: str) -> StreamKey:
    """The stream of one instance in `SCOPE`."""
    return StreamKey("default", MODEL, BLOCK_SIZE, "", instance_id)


class Chain(NamedTuple):
    """One prompt: `hashes` (n,) u64 LE, `tokens` (n * BLOCK_SIZE,) u32 LE."""

    hashes: bytes
    tokens: bytes

    @property
    def blocks(self) -> int:
        """How many."""
        return len(self.hashes) // 8

    def prompt(self, tokens: int) -> bytes:
        """The first tokens, (tokens,) u32 LE."""
        return self.tokens[: TOKEN_BYTES * tokens]


def chains(blocks: int, seed: int, chain_blocks: int = CHAIN_BLOCKS) -> Iterator[Chain]:
    """Random prompts of `chain_blocks` blocks, the last one maybe shorter."""
    random = Random(seed)
    mask = int.from_bytes(_TOKEN_MASK.to_bytes(4, "little") * (chain_blocks * BLOCK_SIZE), "little")
    for start in range(0, blocks, chain_blocks):
        count = min(chain_blocks, blocks - start)
        size_bytes = 4 * BLOCK_SIZE * count
        bits = random.getrandbits(8 * size_bytes) & mask
        yield Chain(random.randbytes(8 * count), bits.to_bytes(size_bytes, "little"))


def stored_events(chain: Chain, per_event: int) -> list[StoredBlocks]:
    """The chain as stored events of `per_event` blocks, each hanging on the one before."""
    events = []
    for start in range(0, chain.blocks, per_event):
        hashes = chain.hashes[8 * start : 8 * (start + per_event)]
        width = 4 * BLOCK_SIZE
        parent = chain.hashes[8 * (start - 1) : 8 * start] if start else b""
        events.append(
            StoredBlocks(
                sequence=0,
                hashes=hashes,
                tokens=chain.tokens[width * start : width * (start + per_event)],
                parent=int.from_bytes(parent, "little") if parent else None,
                block_size=BLOCK_SIZE,
            )
        )
    return events


def removed_events(chain: Chain, per_event: int) -> list[RemovedBlocks]:
    """Removes the chain from its tail on, as engines do."""
    newest_first = array("Q", chain.hashes)[::-1].tobytes()
    width = 8 * per_event
    return [
        RemovedBlocks(sequence=0, hashes=newest_first[start : start + width])
        for start in range(0, len(newest_first), width)
    ]


def encoded_calls(
    events: list[StoredBlocks] | list[RemovedBlocks],
    per_event: int,
    *,
    call_blocks: int = EVENTS_PER_CALL_BLOCKS,
) -> Iterator[bytes]:
    """The events as arguments of `Kernel.apply`, some `call_blocks` blocks each."""
    events_per_call = max(1, call_blocks // per_event)
    for start in range(0, len(events), events_per_call):
        yield encode_events([*events[start : start + events_per_call]])
