from typing import Any

import msgspec
import pytest
import xxhash

from query_api.grpc.counts import GrpcCounts
from query_api.grpc.grpc_settings import GrpcSettings, ListenAddress
from query_api.grpc.holders import Holders
from query_api.grpc.kv_indexer import KvIndexer
from query_api.grpc.radix_index import RadixIndex
from schemas.events import TOKEN_HASH_SEED
from streams.kernel.reference import ReferenceKernel
from tests.fakes import FakeTable, registration

BLOCK_SIZE = 4
PROMPT = list(range(100, 132))
NAMES = [5, 2**63, 7, 2**64 - 1, 9, 10, 11, 12]
"""What every engine calls the blocks of the prompt."""


def content_hashes(tokens: list[int] = PROMPT) -> list[int]:
    """Of each block alone, as SMG's gateway has them."""
    blocks = [tokens[at : at + BLOCK_SIZE] for at in range(0, len(tokens), BLOCK_SIZE)]
    encoded = [b"".join(token.to_bytes(4, "little") for token in block) for block in blocks]
    return [xxhash.xxh3_64_intdigest(block, TOKEN_HASH_SEED) for block in encoded]


class Index:
    """A table, and both services over it."""

    def __init__(self) -> None:
        self.table = FakeTable(ReferenceKernel(TOKEN_HASH_SEED))
        self.counts = GrpcCounts()
        self.now = 0.0
        self.holders = Holders(self.table, clock=lambda: self.now)

    def kv_indexer(self, *, only_exact: bool = False, **settings: Any) -> KvIndexer:
        asked = GrpcSettings(listen=ListenAddress(), **settings)
        return KvIndexer(self.table, self.holders, self.counts, asked, only_exact=only_exact)

    def radix_index(self, *, only_exact: bool = False, **settings: Any) -> RadixIndex:
        asked = GrpcSettings(listen=ListenAddress(), **settings)
        return RadixIndex(self.table, self.holders, self.counts, asked, only_exact=only_exact)

    def add(
        self, instance: str, blocks: int, *, url: str = "", rank: int = 0, **fields: str
    ) -> None:
        """An engine that holds the first blocks of the prompt."""
        known = registration(instance, dp_rank=rank, block_size=BLOCK_SIZE, **fields)
        publisher = self.table.add(msgspec.structs.replace(known, url=url))
        if blocks:
            tokens = PROMPT[: blocks * BLOCK_SIZE]
            self.table.store(publisher, tokens, hashes=NAMES[:blocks], block_size=BLOCK_SIZE)


@pytest.fixture
def index() -> Index:
    return Index()
