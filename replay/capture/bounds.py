"""Bounds that several modules of `replay/capture/` rely on, and how they are related."""

from typing import Final

from schemas.limits import KIB, MESSAGE_BYTES_MAX, MIB, PACKED_BATCH_BYTES_MAX

# A block is what an interruption may cost, and what is compressed at once.
CAPTURE_BLOCK_BYTES: Final = 1 * MIB  # of entries, before it is compressed
CAPTURE_BLOCK_ENTRIES_MAX: Final = 16_384  # of a block: what its index may hold
CAPTURE_ENTRY_BYTES_MAX: Final = 64 * MIB  # above every message and every record
CAPTURE_BLOCK_RAW_BYTES_MAX: Final = 80 * MIB  # of a block that is read: memory
CAPTURE_LANES_MAX: Final = 65_536  # partitions, or publishers

assert MESSAGE_BYTES_MAX + KIB <= CAPTURE_ENTRY_BYTES_MAX, "the largest message fits an entry"
assert PACKED_BATCH_BYTES_MAX + KIB <= CAPTURE_ENTRY_BYTES_MAX, "the largest record fits an entry"
assert (
    CAPTURE_BLOCK_BYTES + CAPTURE_ENTRY_BYTES_MAX + 21 * CAPTURE_BLOCK_ENTRIES_MAX
    <= CAPTURE_BLOCK_RAW_BYTES_MAX
), "what is written can be read"
