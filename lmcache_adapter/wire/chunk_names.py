"""The chain of BLAKE3 digests by which servers of LMCache name their chunks. Pure.

    hash[i] = BLAKE3(hash[i - 1], tokens of chunk i as u32, big-endian)
    hash[-1] = BLAKE3(8 bytes of 0, token 0)

A last chunk that is not full has no name.

Source: lmcache 0.5.7rc2, `lmcache/v1/multiprocess/`, `token_hasher.py` and `token_codec.py`.
"""

from collections.abc import Iterator, Sequence
from struct import pack

from blake3 import blake3


def chunk_names(tokens: Sequence[int], chunk_tokens: int) -> Iterator[bytes]:
    """The names of a prompt's full chunks, 32 bytes each, in order."""
    name = blake3(bytes(12)).digest()
    for start in range(0, len(tokens) - chunk_tokens + 1, chunk_tokens):
        chunk = pack(f">{chunk_tokens}I", *tokens[start : start + chunk_tokens])
        name = blake3(name + chunk).digest()
        yield name
