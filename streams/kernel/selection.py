"""Of changes those that are of some blocks: what a past answer about one prompt needs of a
context's rows (`streams.history.past_fold`).
"""

import struct
from typing import Protocol

from streams.kernel.changes import CHANGE_BYTES, CHANGE_FORMAT, Op


class ChangeSelection(Protocol):
    """Blocks by their prefix hashes, entries by their keys."""

    def of(self, changes: bytes, /) -> bytes:
        """The changes that are of one of them, and all that clear; in order. Cost O(changes).

        Raises:
            ValueError: the length is no multiple of a change's.
        """
        ...


class PythonChangeSelection:
    """The specification."""

    def __init__(self, prefixes: bytes, keys: bytes, /) -> None:
        """Both as (n,) u64 LE."""
        self._prefixes = _numbers(prefixes)
        self._keys = _numbers(keys)

    def of(self, changes: bytes, /) -> bytes:
        """See `ChangeSelection`."""
        if len(changes) % CHANGE_BYTES:
            raise ValueError(f"Expected a multiple of {CHANGE_BYTES} bytes, got {len(changes)}")
        selected = bytearray()
        for place, change in enumerate(CHANGE_FORMAT.iter_unpack(changes)):
            key, prefix, _, _, op, _ = change
            if op == Op.CLEAR or prefix in self._prefixes or key in self._keys:
                selected += changes[CHANGE_BYTES * place : CHANGE_BYTES * (place + 1)]
        return bytes(selected)


def _numbers(packed: bytes) -> frozenset[int]:
    return frozenset(struct.unpack(f"<{len(packed) // 8}Q", packed))
