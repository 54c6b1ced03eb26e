"""Chunk hashes of tokens, as LMCache's own token database makes them. Pure.

    hash[i] = H((hash[i - 1], tokens of chunk i, ()))        hash[-1] = NONE_HASH

H is vLLM's `sha256_cbor`, of whose digest the first 8 bytes count (big-endian), or Python's own
`hash` of a tuple, which is the same in every CPython of 64 bits. A last chunk that is not full is
hashed, too. NONE_HASH is what vLLM makes it (`init_none_hash`): H of PYTHONHASHSEED as a string, or
of `vllm-none-hash` since 0.29; before, random where no seed was set. Workers log its number.

Source: lmcache 0.5.6, `lmcache/v1/token_database.py`; vLLM 0.33, `vllm/utils/hashing.py` and
`vllm/v1/core/kv_cache_utils.py`.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from query_api.http.errors import RequestError
from schemas.registration import HashProfile

SHA256_CBOR: Final = "sha256_cbor"
BUILTIN: Final = "builtin"
NONE_HASH: Final = "none_hash:"
"""How a seed begins that is not hashed: the number follows."""

VLLM_SEED: Final = "vllm-none-hash"
_U64_MASK: Final = 2**64 - 1

_Hashed = tuple[int, tuple[int, ...], tuple[()]]


def chunk_hashes(tokens: Sequence[int], chunk_tokens: int, profile: HashProfile) -> list[int]:
    """The hashes of a prompt's chunks, u64, the last one of a chunk that may not be full.

    Raises:
        RequestError: tokens cannot be hashed so; says what is missing.
    """
    return [one & _U64_MASK for one in _chained(tokens, chunk_tokens, profile)]


def _chained(tokens: Sequence[int], chunk_tokens: int, profile: HashProfile) -> Iterator[int]:
    hash_of = _FUNCTIONS.get(profile.algorithm)
    if hash_of is None:
        known = " or ".join(_FUNCTIONS)
        raise unknown(f"Expected a hash_algorithm of {known}, got: {profile.algorithm}")
    previous = _none_hash(profile)
    for start in range(0, len(tokens), chunk_tokens):
        previous = hash_of((previous, tuple(tokens[start : start + chunk_tokens]), ()))
        yield previous


def _none_hash(profile: HashProfile) -> int:
    seed = profile.python_hash_seed
    if seed.startswith(NONE_HASH):
        try:
            return int(seed.removeprefix(NONE_HASH)[:20])
        except ValueError as error:
            raise unknown(f"Expected a number behind {NONE_HASH}, got: {seed[:40]}") from error
    if profile.algorithm == SHA256_CBOR:
        return _first_bytes(_cbor(seed or VLLM_SEED))
    if not seed:
        return 0  # LMCache's own, where it finds no vLLM
    raise unknown(
        f"Expected hash_seed to be {NONE_HASH} and the number that LMCache logs as NONE_HASH: of"
        " Python's own hash the seed does not tell it"
    )


def unknown(message: str) -> RequestError:
    """Tokens cannot be hashed as LMCache does it."""
    return RequestError("unknown_hash", message, field="tokens")


def _sha256_cbor(hashed: _Hashed) -> int:
    return _first_bytes(_cbor(hashed))


def _first_bytes(encoded: bytes) -> int:
    return int.from_bytes(hashlib.sha256(encoded).digest()[:8], "big")


_FUNCTIONS: Final[dict[str, Callable[[_Hashed], int]]] = {
    SHA256_CBOR: _sha256_cbor,
    BUILTIN: hash,
}


def _cbor(value: object) -> bytes:
    """Canonical CBOR (RFC 7049, section 3.9) of integers, strings and tuples of them."""
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, str):
        text = value.encode()
        return _head(3, len(text)) + text
    assert isinstance(value, tuple), "nothing else is hashed"
    return _head(4, len(value)) + b"".join(map(_cbor, value))


def _head(major: int, number: int) -> bytes:
    """The type and the shortest form of the number."""
    kind = major << 5
    if number < 24:
        return bytes([kind | number])
    for code, form in ((24, ">BB"), (25, ">BH"), (26, ">BI")):
        if number < 2 ** (8 * (struct.calcsize(form) - 1)):
            return struct.pack(form, kind | code, number)
    return struct.pack(">BQ", kind | 27, number)
