"""What a publisher's hashes are: whether each names one prefix, as answers take it to.

An engine chains its hashes where equal tokens behind another block have another hash. What it
stores is compared with a chain of our own (`replay.chains`).
"""

from collections import Counter

from doctor.publishers.bounds import CHECK_BLOCKS_MAX
from replay.chains import Chains, numbers_of
from schemas.events import (
    SPARSE_SPEC_KINDS,
    TOKEN_HASH_SEED,
    BlockEvent,
    RemovedBlocks,
    StoredBlocks,
)
from schemas.identities import PublisherKey

_Place = tuple[str, bool, int, int]
"""Medium, whether all instances read it, group, hash."""


class BlockNames:
    """The blocks of one publisher, as its events name them; one owner.

    Attributes:
        stored, removed: blocks that events named; cleared: events.
        placeholders: blocks that were stored without tokens.
        sizes: tokens of a block, by how many blocks.
        media, groups, adapters: by how many stored blocks.
        keyed: blocks that more than their tokens enters, as a salt or an image.
        roots: chains that begin a prompt.
        found_parents, unknown_parents: of the other ones, by whether the block before had come.
        again: blocks that were stored while they were held, on the same medium.
        unheld: removed blocks that were not held there.
        shared_names: hashes that name several prefixes: they are not chained, or collide.
        second_names: prefixes that have several hashes.
        page_names: hashes that equal tokens have behind different blocks, too.
        chained_names: equal tokens that have another hash behind another block.
    """

    def __init__(self, publisher: PublisherKey) -> None:
        self.stored = self.removed = self.cleared = self.placeholders = self.keyed = 0
        self.roots = self.found_parents = self.unknown_parents = 0
        self.again = self.unheld = 0
        self.shared_names = self.second_names = self.page_names = self.chained_names = 0
        self.sizes: Counter[int] = Counter()
        self.media: Counter[str] = Counter()
        self.groups: Counter[str] = Counter()
        self.adapters: Counter[str] = Counter()
        self._publisher = publisher
        self._chains = Chains(TOKEN_HASH_SEED, blocks_max=CHECK_BLOCKS_MAX)
        self._held: Counter[_Place] = Counter()
        self._prefixes: dict[int, tuple[int, str]] = {}  # by hash: the prefix, and its adapter
        self._hashes: dict[tuple[int, str], int] = {}  # the other way round
        self._pages: dict[bytes, tuple[int, int | None]] = {}  # by content: hash, block before

    def note(self, event: BlockEvent) -> None:
        """What an event says. Cost O(its blocks)."""
        if isinstance(event, StoredBlocks):
            self._note_stored(event)
        elif isinstance(event, RemovedBlocks):
            self._note_removed(event)
        else:
            self.cleared += 1
            for place in list(self._held):
                if event.medium in (None, place[0]):
                    del self._held[place]

    def _note_stored(self, event: StoredBlocks) -> None:
        hashes = numbers_of(event.hashes)
        self.stored += len(hashes)
        self.media[event.medium + (", for all instances" if event.shared else "")] += len(hashes)
        self.groups[f"{event.group} {event.spec_kind}".strip()] += len(hashes)
        self.adapters[event.lora_name] += len(hashes) if event.lora_name else 0
        for one in hashes:
            place = (event.medium, event.shared, event.group, one)
            self.again += place in self._held
            if len(self._held) < CHECK_BLOCKS_MAX:
                self._held[place] += 1
        if event.left_out or event.spec_kind in SPARSE_SPEC_KINDS or not hashes:
            return
        if not (event.tokens or event.token_hashes):
            self.placeholders += len(hashes)
            return
        self.keyed += sum(map(bool, event.extra_keys))
        self.sizes[event.block_size] += len(hashes)
        unknown = self._chains.counters["unknown_parent"]
        links = self._chains.stored(self._publisher, event)
        if event.parent is None:
            self.roots += 1
        elif self._chains.counters["unknown_parent"] > unknown:
            self.unknown_parents += 1
        else:
            self.found_parents += 1
        before = event.parent
        for place_in_event, (one, link) in enumerate(zip(hashes, links, strict=True)):
            if link is not None and len(self._prefixes) < CHECK_BLOCKS_MAX:
                self._compare(one, (link.prefix, event.lora_name))
                self._compare_page(one, before, _content_of(event, place_in_event))
            before = one

    def _compare(self, one: int, prefix: tuple[int, str]) -> None:
        self.shared_names += self._prefixes.setdefault(one, prefix) != prefix
        self.second_names += self._hashes.setdefault(prefix, one) != one

    def _compare_page(self, one: int, before: int | None, content: bytes) -> None:
        known, known_before = self._pages.setdefault(content, (one, before))
        if known_before != before:
            self.page_names += known == one
            self.chained_names += known != one

    def _note_removed(self, event: RemovedBlocks) -> None:
        hashes = numbers_of(event.hashes)
        self.removed += len(hashes)
        for one in hashes:
            place = (event.medium, event.shared, event.group, one)
            if place not in self._held:
                self.unheld += 1
                continue
            self._held[place] = event.left if event.whole or event.left else self._held[place] - 1
            if self._held[place] <= 0:
                del self._held[place]

    def forget(self) -> None:
        """Its process has restarted, and holds nothing."""
        self._held.clear()
        self._chains.forget(self._publisher)


def _content_of(event: StoredBlocks, place: int) -> bytes:
    """All that enters one block, but for what is before it."""
    width = 4 * event.block_size if event.tokens else 8
    content = event.tokens or event.token_hashes
    key = event.extra_keys[place] if place < len(event.extra_keys) else b""
    return content[width * place : width * (place + 1)] + key + event.lora_name.encode()
