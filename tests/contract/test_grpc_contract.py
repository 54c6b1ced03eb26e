"""SGLang's router and SMG's gateway, as both forms of the service answer them."""

import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
import xxhash

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import AllBlocksCleared, BlockRemoved, BlockStored
from tests.contract.deployments import GRPC_TENANT, WAIT_S, Deployment, Tenant, tenant_of
from tests.processes import until
from tests.router_protos import PACKED, RADIX, TEXT

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(2000, 2064))
BLOCK_SIZE = 16


def sglang_hashes(tokens: list[int]) -> list[int]:
    """As SGLang calls the blocks: SHA-256 over the digest of the block before and its own tokens,
    of which the first eight bytes are a signed number.
    """
    digest, found = b"", []
    for at in range(0, len(tokens), BLOCK_SIZE):
        packed = b"".join(token.to_bytes(4, "little") for token in tokens[at : at + BLOCK_SIZE])
        digest = hashlib.sha256(digest + packed).digest()
        found.append(int.from_bytes(digest[:8], "big", signed=True))
    return found


HASHES = sglang_hashes(TOKENS)


def stored(blocks: int) -> BlockStored:
    return BlockStored(
        block_hashes=[value % 2**64 for value in HASHES[:blocks]],
        parent_block_hash=None,
        token_ids=TOKENS[: BLOCK_SIZE * blocks],
        block_size=BLOCK_SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


class Routers:
    """Both routers over one channel."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def sglang(self, *, text: bool = False) -> list[tuple[str, int]]:
        call: Any = self._channel.unary_unary("/kv_indexer.v1.KVIndexer/MatchExternalKvPrefix")
        if text:
            request = TEXT.MatchExternalKvPrefixRequest(hashes=[str(value) for value in HASHES])
        else:
            request = PACKED.MatchExternalKvPrefixRequest(hashes=HASHES)
        reply = call(request.SerializeToString(), timeout=WAIT_S)
        matches = PACKED.MatchExternalKvPrefixResponse.FromString(reply).matches
        return [(one.worker_address, one.matched_prefix_blocks) for one in matches]

    def smg(self) -> list[tuple[str, int]]:
        call: Any = self._channel.stream_stream("/radix_index.RadixIndex/Subscribe")
        blocks = [TOKENS[at : at + BLOCK_SIZE] for at in range(0, len(TOKENS), BLOCK_SIZE)]
        packed = [b"".join(token.to_bytes(4, "little") for token in block) for block in blocks]
        query = RADIX.Query(
            query_id=1,
            keyspace=RADIX.Keyspace(model="m", symbol_kind=1, block_size=BLOCK_SIZE),
            content_hashes=[xxhash.xxh3_64_intdigest(block, 1337) for block in packed],
        )
        [reply] = call(iter([query.SerializeToString()]), timeout=WAIT_S)
        return [(one.holder, one.matched_blocks) for one in RADIX.Match.FromString(reply).scores]

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def routed(deployment: Deployment) -> Iterator[Tenant]:
    with tenant_of(deployment, GRPC_TENANT) as tenant:
        yield tenant


@pytest.fixture
def routers(deployment: Deployment) -> Iterator[Routers]:
    with closing(Routers(deployment.grpc)) as opened:
        yield opened


@pytest.mark.both_forms
def test_both_routers_are_told_what_engines_hold_by_the_urls_that_they_know(
    routed: Tenant, routers: Routers, publisher: Publisher
) -> None:
    with closing(Publisher(PublisherOptions())) as other:
        routed.connect(publisher, instance_id="a", url="http://10.0.0.1:30000", type="SGLang")
        routed.connect(other, instance_id="b", http_endpoint="http://127.0.0.1:1", type="SGLang")
        publisher.publish([stored(4)])
        other.publish([stored(2)])
        expected = [("http://10.0.0.1:30000", 4), ("http://127.0.0.1:1", 2)]
        until(lambda: routers.sglang() == expected, what="the answer", timeout_s=WAIT_S)
        assert routers.sglang(text=True) == expected
        assert routers.smg() == expected
        publisher.publish([BlockRemoved(block_hashes=[HASHES[1] % 2**64], medium="GPU")])
        other.publish([AllBlocksCleared()])
        expected = [("http://10.0.0.1:30000", 1)]
        until(lambda: routers.sglang() == expected, what="the answer", timeout_s=WAIT_S)
        assert routers.smg() == expected
        assert routed.services()[0]["Url"] == "http://10.0.0.1:30000"


def test_what_routers_cost_is_counted(deployment: Deployment, routers: Routers) -> None:
    before = deployment.api.metric("reprise_grpc_calls_total", status="OK")
    routers.sglang()
    routers.smg()
    assert deployment.api.metric("reprise_grpc_calls_total", status="OK") == before + 2
    assert deployment.api.metric("reprise_grpc_query_seconds_count") > 0


def test_a_service_that_comes_back_answers_again(
    deployment: Deployment, routed: Tenant, publisher: Publisher
) -> None:
    routed.connect(publisher, url="http://a/", type="SGLang")
    publisher.publish([stored(3)])
    routed.await_longest(TOKENS, 48)
    deployment.restart()
    with closing(Routers(deployment.grpc)) as routers:
        until(lambda: routers.sglang() == [("http://a/", 3)], what="the answer", timeout_s=WAIT_S)
