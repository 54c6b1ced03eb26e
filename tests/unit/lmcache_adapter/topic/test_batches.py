"""Values of LMCache's topic: those that its own code has written, and anything else."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmcache_adapter.bounds import LMCACHE_OPERATIONS_MAX
from lmcache_adapter.topic.batches import (
    LMCACHE_TOPIC_BATCHES_MAX,
    Batch,
    BatchError,
    BatchHead,
    ChunkKey,
    UnreadableBatch,
    decode,
)

VECTORS = Path(__file__).parents[3] / "vectors" / "lmcache" / "topic-0.5.6.jsonl"
CAPTURED = [
    (one["case"], one["kafka_value"]) for one in map(json.loads, VECTORS.read_text().splitlines())
]
KEY = {"chunk_hash_hex": "aa" * 16, "model_name": "m"}
BATCH: dict[str, Any] = {
    "instance_id": "i",
    "incarnation": 1,
    "seq": 2,
    "event_type": "store",
    "tier": "l1",
    "backend": "dram",
    "entries": [{"key": KEY}],
}


@pytest.mark.parametrize(("case", "value"), CAPTURED)
def test_what_lmcache_has_written_is_read(case: str, value: dict[str, Any]) -> None:
    [expected] = value["batches"]
    [found] = decode(json.dumps(value).encode())
    assert isinstance(found, Batch), case
    for name in ("instance_id", "incarnation", "seq", "event_type", "tier", "backend", "shared"):
        assert getattr(found, name) == expected[name]
    assert [one.key.chunk_hash_hex for one in found.entries] == [
        one["key"]["chunk_hash_hex"] for one in expected["entries"]
    ]


def test_a_chunk_is_the_last_8_bytes_of_its_hash_and_a_rank_one_of_four_numbers() -> None:
    key = ChunkKey(chunk_hash_hex="ff" * 8 + "0123456789abcdef", model_name="m", kv_rank=0x08050401)
    assert key.chunk == 0x0123456789ABCDEF
    assert key.rank == 5
    assert ChunkKey(chunk_hash_hex="01", model_name="m").chunk == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"event_type": "renamed"},
        {"tier": "all"},
        {"entries": [{"key": KEY | {"chunk_hash_hex": "xy"}}]},
        {"entries": [{"key": KEY | {"chunk_hash_hex": "abc"}}]},
        {"entries": [{"key": KEY | {"chunk_hash_hex": ""}}]},
        {"entries": [{"key": KEY | {"chunk_hash_hex": "ab" * 1000}}]},
        {"entries": [{"key": KEY | {"model_name": ""}}]},
        {"entries": [{"key": KEY}] * (LMCACHE_OPERATIONS_MAX + 1)},
        {"entries": [{}]},
        {"shared": 7},
    ],
)
def test_a_bad_batch_says_whose_it_is_and_leaves_its_neighbours(changed: dict[str, Any]) -> None:
    bad, good = decode(json.dumps({"batches": [BATCH | changed, BATCH]}).encode())
    assert isinstance(bad, UnreadableBatch)
    assert bad.head == BatchHead(instance_id="i", incarnation=1, seq=2)
    assert bad.detail
    assert isinstance(good, Batch)


@pytest.mark.parametrize("changed", [{"seq": 0}, {"incarnation": -1}, {"instance_id": ""}])
def test_a_batch_without_a_place_is_nobodys(changed: dict[str, Any]) -> None:
    [bad] = decode(json.dumps({"batches": [BATCH | changed]}).encode())
    assert isinstance(bad, UnreadableBatch)
    assert bad.head is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"batches": 1}',
        b"\xff",
        b'{"batches": [' + b"0," * LMCACHE_TOPIC_BATCHES_MAX + b"0]}",
    ],
)
def test_what_is_no_such_value_is_refused_in_words(value: bytes) -> None:
    with pytest.raises(BatchError) as raised:
        decode(value)
    assert raised.value.reason == "malformed"
