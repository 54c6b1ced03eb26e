"""Engine hashes of a capture as prefixes: what an engine calls a block is known to it alone, while
its prefix hash is the same everywhere (XXH3-64, the standard that queries by hash use).

Cost O(1) for each block, and some 300 bytes for each that is known. The oldest are forgotten.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, Optional

from xxhash import xxh3_64_intdigest

from schemas.events import SPARSE_SPEC_KINDS, TOKEN_HASH_SEED, StoredBlocks, is_placeholder
from schemas.identities import PublisherKey

CHAINED_BLOCKS_MAX: Final = 2_097_152  # engine hashes that are known; the oldest go: `forgotten`

_U64: Final = 8
_U64S: Final = struct.Struct("<Q")


class Link(NamedTuple):
    """A block in its chain.

    Attributes:
        prefix: the hash of all tokens up to its end; of a chain whose beginning is not known, one
            that no other publisher has.
        blocks: how many the chain has up to it, as far as it is known; 1 of a block that was named
            by its prefix hash.
        before: the block before it; None of the first one that is known.
        is_whole: whether the chain is known from its beginning.
    """

    prefix: int
    blocks: int
    before: Optional["Link"]
    is_whole: bool


class Chains:
    """The blocks that publishers have named.

    Args:
        seed: of the prefix hash.
        blocks_max: that are known at a time.

    Attributes:
        counters: blocks that are no part of a chain that is known, by reason.
    """

    def __init__(self, seed: int, *, blocks_max: int = CHAINED_BLOCKS_MAX) -> None:
        self._seed = seed
        self._blocks_max = blocks_max
        self._known: dict[PublisherKey, dict[tuple[int, int], Link]] = {}
        self._count = 0
        self.counters: Counter[str] = Counter()

    def stored(self, publisher: PublisherKey, event: StoredBlocks) -> Sequence[Link | None]:
        """What each block of the event is; None of one of which nothing is known."""
        hashes = numbers_of(event.hashes)
        if event.spec_kind in SPARSE_SPEC_KINDS:
            self.counters["skipped_group"] += len(hashes)
            return [None] * len(hashes)
        known = self._known.setdefault(publisher, {})
        if event.aliases:
            prefixes = numbers_of(event.aliases) if event.by_hash else []
            self.counters["unresolved"] += len(hashes) - len(prefixes)
            return [Link(prefix, 1, None, is_whole=True) for prefix in prefixes] or [None] * len(
                hashes
            )
        if is_placeholder(event):
            found = [known.get((event.group, value)) for value in hashes]
            self.counters["unresolved"] += found.count(None)
            return found
        if not self._fits(event, len(hashes)):
            self.counters["mismatch"] += len(hashes)
            return [None] * len(hashes)
        block_bytes = 4 * event.block_size
        link = self._parent(publisher, event, known)
        links = []
        before = len(known)
        for number, value in enumerate(hashes):
            if event.by_hash:
                link = Link(value, 1, None, is_whole=True)
            elif event.token_hashes:
                local = int.from_bytes(event.token_hashes[8 * number : 8 * number + 8], "little")
                link = self._chained(link, local)
            else:
                content = event.tokens[number * block_bytes : (number + 1) * block_bytes]
                if event.extra_keys:
                    content += event.extra_keys[number]
                link = self._next(link, content)
            known[event.group, value] = link
            links.append(link)
        self._count += len(known) - before
        if self._count > self._blocks_max:
            self._forget_oldest()
        return links

    def _fits(self, event: StoredBlocks, blocks: int) -> bool:
        """Whether the event has as much of everything as a kernel asks for."""
        if event.token_hashes:
            is_ours = self._seed == TOKEN_HASH_SEED and not event.by_hash and not event.extra_keys
            return is_ours and not event.tokens and len(event.token_hashes) == _U64 * blocks
        block_bytes = 0 if event.by_hash else 4 * event.block_size
        return len(event.tokens) == block_bytes * blocks and (
            not event.extra_keys or len(event.extra_keys) == blocks
        )

    def forget(self, publisher: PublisherKey) -> None:
        """What it calls a block from now on is another one."""
        self._count -= len(self._known.pop(publisher, ()))

    def _parent(
        self, publisher: PublisherKey, event: StoredBlocks, known: dict[tuple[int, int], Link]
    ) -> Link | None:
        if event.parent is None or event.by_hash:
            return None
        link = known.get((event.group, event.parent))
        if link is None:
            self.counters["unknown_parent"] += len(event.hashes) // _U64
            place = f"{publisher!r}/{event.group}/{event.parent}"
            link = Link(xxh3_64_intdigest(place.encode(), self._seed), 0, None, is_whole=False)
        return link

    def _next(self, before: Link | None, content: bytes) -> Link:
        """prefix[0] = local[0]; prefix[i] = XXH3(prefix[i-1] LE || local[i] LE)."""
        return self._chained(before, xxh3_64_intdigest(content, self._seed))

    def _chained(self, before: Link | None, local: int) -> Link:
        if before is None:
            return Link(local, 1, None, is_whole=True)
        both = before.prefix.to_bytes(_U64, "little") + local.to_bytes(_U64, "little")
        prefix = xxh3_64_intdigest(both, self._seed)
        return Link(prefix, before.blocks + 1, before, before.is_whole)

    def _forget_oldest(self) -> None:
        """An eighth of each publisher's."""
        for known in self._known.values():
            oldest = list(known)[: (len(known) + 7) // 8]
            for key in oldest:
                del known[key]
            self._count -= len(oldest)
            self.counters["forgotten"] += len(oldest)


def numbers_of(encoded: bytes) -> list[int]:
    """(n,) u64 LE as integers."""
    return [number for (number,) in _U64S.iter_unpack(encoded[: len(encoded) // _U64 * _U64])]
