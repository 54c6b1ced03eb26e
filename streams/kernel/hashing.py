"""Prefix hashes, the published standard of Mooncake and Dynamo: XXH3-64 with a seed.

local[i]  = XXH3(tokens of block i, u32 LE)
prefix[0] = local[0]
prefix[i] = XXH3(prefix[i-1] LE || local[i] LE)

A block of pairs, which the token behind it is of, too, is another block than that of its tokens:

local[i]  = XXH3(tokens of block i || 0xC1 || the token behind it, u32 LE)
"""

from collections.abc import Iterator, Sequence

import xxhash

from schemas.events import paired_key


def prefix_hashes(
    tokens: bytes,
    block_size: int,
    *,
    seed: int,
    keys: Sequence[bytes] = (),
    pairs: bool = False,
) -> Iterator[int]:
    """Of each whole block of a prompt. Cost O(tokens), some us a block.

    Args:
        tokens: (n,) u32 LE; a trailing partial block does not count.
        block_size: tokens of a block.
        seed: u64.
        keys: `schemas.events.extra_key` of the first blocks; the others have none.
        pairs: of blocks of pairs, each of which needs the token behind it.
    """
    block_bytes = 4 * block_size
    previous = None
    needed = block_bytes + 4 * pairs
    for block, start in enumerate(range(0, len(tokens) - needed + 1, block_bytes)):
        content = tokens[start : start + block_bytes]
        key = keys[block] if block < len(keys) else b""
        if pairs:
            key = paired_key(key, tokens[start + block_bytes : start + needed])
        content += key
        previous = chained(previous, xxhash.xxh3_64_intdigest(content, seed), seed)
        yield previous


def chained(previous: int | None, local: int, seed: int) -> int:
    """The prefix hash of a block behind another one; None for the first."""
    if previous is None:
        return local
    pair = previous.to_bytes(8, "little") + local.to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(pair, seed)
