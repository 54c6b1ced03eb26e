"""What blocks are called: the prefix hashes of `/query_by_hash`, and what Dynamo asks by."""

import struct
from array import array
from typing import Final

import xxhash

from lab.benchmarks.index.blocks import TOKEN_BYTES
from lab.benchmarks.sizes import BLOCK_SIZE

HASH_SEED: Final = 1337
"""Of XXH3-64, by which both name blocks."""


def block_hashes(tokens: bytes) -> list[int]:
    """Of each block by itself; `tokens`: (n,) u32 LE."""
    size_bytes = TOKEN_BYTES * BLOCK_SIZE
    return [
        xxhash.xxh3_64_intdigest(tokens[start : start + size_bytes], HASH_SEED)
        for start in range(0, len(tokens), size_bytes)
    ]


def prefix_hashes(tokens: bytes) -> bytes:
    """Of each block with all before it, (n,) u64 LE."""
    before, hashes = 0, array("Q")
    for block in block_hashes(tokens):
        pair = struct.pack("<QQ", before, block)
        before = xxhash.xxh3_64_intdigest(pair, HASH_SEED) if hashes else block
        hashes.append(before)
    return hashes.tobytes()
