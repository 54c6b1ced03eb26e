"""The unit of a table row: one change to one entry, 24 bytes. Format version 1.

An *entry* says that a publisher holds a block on a tier. A kernel writes a change for each entry
that an apply touched, in order; a full dump of a context is a sequence of SET changes. Applying
changes is idempotent: they carry the new count, not a difference.

    bytes  field       type
    0-7    engine_key  u64 LE   engine hash, mixed with the cache group where that is not 0
    8-15   prefix      u64 LE   prefix hash of the block
    16-19  dp_rank     u32 LE
    20     tier        u8       place of the medium in `MEDIA`, + 3 for a shared pool; 6 and 7: CPU
                                and DISK of an owner beside the engine (`StoredBlocks.owned`)
    21     op          u8       0 SET, 1 CLEAR
    22-23  holds       u16 LE   SET: how often the block was announced; 0 removes the entry

CLEAR removes every entry of `dp_rank` in the context, on all tiers; its other fields are 0.

The *digest* of a context is the sum modulo 2**64 of XXH3-64 (seed 0) over the 24 bytes of each of
its live entries: independent of order, and cheap to keep up to date.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final, NamedTuple

import xxhash

from schemas.events import ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import MEDIA, Medium

CHANGE_FORMAT: Final = struct.Struct("<QQIBBH")
CHANGE_BYTES: Final = CHANGE_FORMAT.size
SHARED: Final = len(MEDIA)
"""Tiers from here up to `OWNED` are shared pools."""

OWNED: Final = 2 * SHARED
"""Tiers from here on have the blocks of an owner beside the engine: its CPU, and its DISK."""

TIER_COUNT: Final = OWNED + 2

assert CHANGE_BYTES == 24


class Op(IntEnum):
    """What a change does."""

    SET = 0
    CLEAR = 1


class Change(NamedTuple):
    """One decoded change; see the module for the fields."""

    engine_key: int
    prefix: int
    dp_rank: int
    tier: int
    op: int
    holds: int

    def encode(self) -> bytes:
        """The 24 bytes."""
        return CHANGE_FORMAT.pack(*self)


def tier_of(medium: Medium, *, shared: bool, owned: bool = False) -> int:
    """The code of a medium in rows and in digests."""
    place = MEDIA.index(medium)
    if shared:
        return SHARED + place
    return OWNED + place - 1 if owned and place else place


def tier_of_event(event: StoredBlocks | RemovedBlocks) -> int:
    """Where its blocks are."""
    return tier_of(event.medium, shared=event.shared, owned=event.owned)


def cleared_tiers(event: ClearedBlocks) -> tuple[int, ...]:
    """Those that it ends, unless it `is_whole`."""
    media = MEDIA if event.medium is None else (event.medium,)
    if event.owned:
        tiers = (tier_of(medium, shared=False, owned=True) for medium in media)
        return tuple(tier for tier in tiers if tier >= OWNED)
    return tuple(tier_of(medium, shared=shared) for medium in media for shared in (False, True))


def is_shared(tier: int) -> bool:
    """Whether it is a pool."""
    return SHARED <= tier < OWNED


def answered_tier(tier: int) -> int:
    """The one as which answers count it: what another owns, the engine can read like its own."""
    return tier - OWNED + 1 if tier >= OWNED else tier


def decode_changes(encoded: bytes) -> Iterator[Change]:
    """The changes in order.

    Raises:
        ValueError: the length is not a multiple of 24, or an op or a tier is unknown.
    """
    if len(encoded) % CHANGE_BYTES:
        raise ValueError(f"Expected a multiple of {CHANGE_BYTES} bytes, got {len(encoded)}")
    for fields in CHANGE_FORMAT.iter_unpack(encoded):
        change = Change(*fields)
        if change.op not in (Op.SET, Op.CLEAR) or change.tier >= TIER_COUNT:
            raise ValueError(f"Expected op 0..1 and tier 0..{TIER_COUNT - 1}, got {change}")
        yield change


def digest_of(entries: Iterable[Change]) -> int:
    """The digest of these live entries."""
    return sum(xxhash.xxh3_64_intdigest(entry.encode()) for entry in entries) % 2**64


def engine_key(engine_hash: int, group: int) -> int:
    """The key of a block within its publisher: engines use one hash for a block in each cache
    group.
    """
    if group == 0:
        return engine_hash
    return engine_hash ^ xxhash.xxh3_64_intdigest(group.to_bytes(4, "little"))
