"""The tokens of a few prefixes, taken from prompts as they come: commands need them, and nothing
else keeps any. What is wanted says whoever acts on advice; a hot prefix comes again soon.
"""

import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from schemas.identities import PrefixScope
from schemas.limits import COMMAND_TOKENS_MAX
from schemas.routing_records import DecidedScope

# What a bound holds back is counted by reprise_acting_suppressed_total with the reason that is
# given.
ACT_PREFIXES_MAX: Final = 64  # whose tokens are waited for or kept: reason="no_tokens"
ACT_TOKENS_MAX: Final = 4_194_304  # of all of them, 4 bytes each: the same reason

assert COMMAND_TOKENS_MAX <= ACT_TOKENS_MAX, "the longest prefix of a command has room"

PrefixKey = tuple[DecidedScope, int]
"""A scope, and the hash of a prefix."""


class _Missing(NamedTuple):
    key: PrefixKey
    scope: PrefixScope
    blocks: int
    packed: bytes


class WantedTokens:
    """See the module. One thread asks for them, one that routes has them; at most ACT_PREFIXES_MAX
    prefixes, of ACT_TOKENS_MAX tokens together.
    """

    def __init__(self) -> None:
        self._missing: tuple[_Missing, ...] = ()
        self._found: dict[PrefixKey, bytes] = {}
        self._lock: Final = threading.Lock()

    @property
    def is_waiting(self) -> bool:
        """Whether the tokens of any are to come yet."""
        return bool(self._missing)

    def want(self, wanted: Mapping[PrefixKey, int]) -> None:
        """These and no others, each with its number of blocks; the first ones that find room."""
        kept: dict[PrefixKey, int] = {}
        tokens = 0
        for key, blocks in wanted.items():
            tokens += blocks * key[0].block_size
            if len(kept) >= ACT_PREFIXES_MAX or tokens > ACT_TOKENS_MAX:
                break
            kept[key] = blocks
        with self._lock:
            self._found = {key: one for key, one in self._found.items() if key in kept}
            self._missing = tuple(
                _Missing(key, PrefixScope(*key[0]), blocks, key[1].to_bytes(8, "little"))
                for key, blocks in kept.items()
                if key not in self._found
            )

    def find(self, key: PrefixKey) -> bytes | None:
        """Its tokens, u32 LE; None while no prompt has had them."""
        return self._found.get(key)

    def note(self, scope: PrefixScope, prefixes: bytes, tokens: bytes) -> None:
        """A prompt came. Cost O(1) while nothing is missing, else O(prefixes that are).

        Args:
            prefixes: hashes of its blocks, u64 LE.
            tokens: its own, u32 LE; none where they did not come, or where their hashes are salted.
        """
        if not self._missing or not tokens:
            return
        found = [
            one
            for one in self._missing
            if one.scope == scope and prefixes[8 * one.blocks - 8 : 8 * one.blocks] == one.packed
        ]
        if not found:
            return
        with self._lock:
            for one in found:
                self._found[one.key] = tokens[: 4 * one.blocks * scope.block_size]
            names = {one.key for one in found}
            self._missing = tuple(one for one in self._missing if one.key not in names)
