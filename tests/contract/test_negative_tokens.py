"""A token is its 32 bits on every way in: engines and clients may write them as i32 or as u32."""

import struct

import msgspec
import pytest
import xxhash

from bridge.wire import open_source
from query_api.http.requests.queries import answer_query, read_query, scan_query
from query_api.http.wire import Wire
from schemas.arrays import PythonArrayPacker
from schemas.events import encode_events
from schemas.identities import PrefixScope
from streams.kernel import Kernel, array_packer
from tests.contract.kernels import BOTH, kernel_of
from tests.fakes import SEED, registration

SIGNED = [-1, -(2**31), 2**31 - 1, -100_352]
UNSIGNED = [2**32 - 1, 2**31, 2**31 - 1, 2**32 - 100_352]
PACKED = struct.pack("<4i", *SIGNED)
SCOPE = PrefixScope("default", "m", "", 4, "")


@pytest.fixture(params=BOTH)
def kernel(request: pytest.FixtureRequest) -> Kernel:
    return kernel_of(request, SEED)


def publish(kernel: Kernel, tokens: list[int]) -> None:
    """One block, from a vLLM engine's message into the kernel."""
    packer = PythonArrayPacker() if kernel.name == "reference" else array_packer()
    event = {"type": "BlockStored", "block_hashes": [7], "parent_block_hash": None,
             "token_ids": tokens, "block_size": 4, "lora_id": None, "medium": "GPU"}  # fmt: skip
    payload = msgspec.msgpack.encode([1.0, [event], 0])
    batch = open_source(registration(), packer).decode([b"", bytes(8), payload])
    assert not batch.dropped
    opened = kernel.open_publisher(*registration().publisher)
    kernel.apply(opened, encode_events(batch.events), -1)


def longest(kernel: Kernel, token_ids: list[int] | bytes, wire: Wire) -> int:
    """The match of a client's query, by the scanner where it takes the body."""
    document = {"model": "m", "block_size": 4, "token_ids": token_ids}
    module = msgspec.json if wire is Wire.JSON else msgspec.msgpack
    body = module.encode(document)
    query = (scan_query(kernel, body) if wire is Wire.JSON else None) or read_query(body, wire)
    assert query == read_query(body, wire)
    _, matches = answer_query(kernel, query)
    return max(match.longest for match in matches)


@pytest.mark.parametrize("published", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_every_form_of_a_token_finds_every_other(kernel: Kernel, published: list[int]) -> None:
    publish(kernel, published)
    for wire in Wire:
        assert longest(kernel, SIGNED, wire) == longest(kernel, UNSIGNED, wire) == 4
        assert longest(kernel, [*SIGNED[:3], 100_352], wire) == 0
    assert longest(kernel, PACKED, Wire.MSGPACK) == 4


def test_the_hash_is_that_of_the_int32_bytes(kernel: Kernel) -> None:
    publish(kernel, SIGNED)
    golden = xxhash.xxh3_64_intdigest(
        b"\xff\xff\xff\xff\x00\x00\x00\x80\xff\xff\xff\x7f\x00\x78\xfe\xff", SEED
    )
    [match] = kernel.query_by_hash(SCOPE, golden.to_bytes(8, "little"), None)
    assert match.longest == 4
