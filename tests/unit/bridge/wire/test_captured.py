"""Every captured message is used, and those of vLLM and SGLang against an independent reading of
what their publishers meant.
"""

import math
import struct
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from bridge.wire import KINDS, DecodedBatch, mooncake, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.errors import LeftOutError, PassedOverError, WireError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from tests.unit.bridge.messages import Captured, captured_messages, registration

CAPTURED = list(captured_messages())
FIRST = {mooncake.KIND: mooncake.FIRST_NUMBER}
LIKE_VLLM = [captured for captured in CAPTURED if captured.kind in ("vLLM", "SGLang")]

VLLM_STORED = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
]
VLLM_REMOVED = ["block_hashes", "medium", "group_idx"]

MEDIA = {
    None: Medium.GPU,
    "GPU": Medium.GPU,
    "CPU": Medium.CPU,
    "CPU_PINNED": Medium.CPU,
    "STORAGE": Medium.DISK,
}


def fields_of(event: object) -> tuple[str, Mapping[str, object]]:
    """Tag and fields by name, whichever form the event has; SGLang's arrays are vLLM's, shorter."""
    if isinstance(event, dict):
        return event["type"], event
    assert isinstance(event, list)
    names = VLLM_STORED if event[0] == "BlockStored" else VLLM_REMOVED
    return event[0], dict(zip(names, event[1:], strict=False))


def u64(value: object) -> int:
    """The decoded file holds binary hashes in hex."""
    if isinstance(value, str):
        return int(value[-16:], 16)
    assert isinstance(value, int)
    return value % 2**64


def u64s(values: object) -> bytes:
    assert isinstance(values, list)
    return b"".join(struct.pack("<Q", u64(value)) for value in values)


def u32s(values: object) -> bytes:
    firsts = [value[0] if isinstance(value, list) else value for value in _list(values)]
    return struct.pack(f"<{len(firsts)}I", *firsts)


def _list(value: object) -> Sequence[object]:
    assert isinstance(value, list)
    return value


def extra_keys(fields: Mapping[str, object], lora_name: str) -> tuple[bytes, ...]:
    keys = []
    for row in _list(fields.get("extra_keys") or []):
        left = [key for key in _list(row or []) if key != lora_name]
        keys.append(msgspec.msgpack.encode(left) if left else b"")
    salt = fields.get("cache_salt")
    if salt and fields["parent_block_hash"] is None:
        others = len(_list(fields["block_hashes"])) - 1
        keys = [msgspec.msgpack.encode([salt]), *[b""] * others]
    tokens = _list(fields["token_ids"])
    size = fields["block_size"]
    assert isinstance(size, int)
    if tokens and isinstance(tokens[0], list):  # pairs: a block is of the token behind it, too
        ends = [_list(pair)[1] for pair in tokens[size - 1 :: size]]
        keys = keys or [b""] * len(ends)
        keys = [key + b"\xc1" + u32s([end]) for key, end in zip(keys, ends, strict=True)]
    return tuple(keys) if any(keys) else ()


def expected_event(event: object, sequence: int) -> BlockEvent:
    tag, fields = fields_of(event)
    if tag == "AllBlocksCleared":
        return ClearedBlocks(sequence=sequence)
    medium = fields.get("medium")
    assert medium is None or isinstance(medium, str)
    group = fields.get("group_idx") or 0
    assert isinstance(group, int)
    hashes = u64s(fields["block_hashes"])
    if fields.get("lookahead_token_ids"):
        return StoredBlocks(
            sequence=sequence,
            hashes=hashes,
            medium=MEDIA[medium],
            group=group,
            left_out=DropReason.LOOKAHEAD,
        )
    if tag == "BlockRemoved":
        return RemovedBlocks(sequence=sequence, hashes=hashes, medium=MEDIA[medium], group=group)
    assert tag == "BlockStored"
    lora_name = fields.get("lora_name")
    if lora_name is None:
        lora_name = "" if fields["lora_id"] is None else f"lora_id:{fields['lora_id']}"
    parent = fields["parent_block_hash"]
    block_size = fields["block_size"]
    assert isinstance(lora_name, str)
    assert isinstance(block_size, int)
    return StoredBlocks(
        sequence=sequence,
        hashes=hashes,
        tokens=u32s(fields["token_ids"]),
        parent=None if parent is None else u64(parent),
        block_size=block_size,
        medium=MEDIA[medium],
        lora_name=lora_name,
        group=group,
        spec_kind=str(fields.get("kv_cache_spec_kind") or ""),
        last_blocks=last_blocks(fields),
        extra_keys=extra_keys(fields, lora_name),
    )


def last_blocks(fields: Mapping[str, object]) -> int:
    """Of a sliding window, as vLLM has it."""
    window, block_size = fields.get("kv_cache_spec_sliding_window"), fields["block_size"]
    assert isinstance(block_size, int)
    return math.ceil((window - 1) / block_size) if isinstance(window, int) else 0


def decoded(captured: Captured) -> DecodedBatch:
    """By a decoder that expects the rank that the message names."""
    one = registration(kind=captured.kind, dp_rank=captured.rank)
    # Marks of what may be reports of hits: tests/unit/bridge/wire/test_hit_reports.py
    registered = msgspec.structs.replace(one, kv_cache_report_mode="incremental")
    source = open_source(registered, PythonArrayPacker())
    return source.decode(captured.frames)


def are_used(dropped: Sequence[WireError]) -> bool:
    """Whether all events were: blocks that depend on later tokens are left out, and known to be."""
    left_out = [error for error in dropped if isinstance(error, LeftOutError)]
    others = [error for error in dropped if error not in left_out]
    return all(error.reason == DropReason.LOOKAHEAD for error in left_out) and all(
        isinstance(error, PassedOverError) for error in others
    )


@pytest.mark.parametrize("captured", CAPTURED, ids=[captured.name for captured in CAPTURED])
def test_every_captured_message_is_used_and_means_what_its_publisher_meant(
    captured: Captured,
) -> None:
    batch = decoded(captured)
    assert are_used(batch.dropped)
    if captured.kind == mooncake.KIND:
        assert batch.event_count + len(batch.dropped) == len(_list(captured.decoded[1]))
    sequence = int.from_bytes(captured.frames[-2], "big") - FIRST.get(captured.kind, 0)
    assert batch.sequence == sequence
    if captured in LIKE_VLLM:
        meant = [expected_event(event, sequence) for event in _list(captured.decoded[1])]
        assert (batch.engine_time, batch.events) == (captured.decoded[0], meant)


def test_the_captures_cover_arrays_and_maps_of_both_engines() -> None:
    forms = {
        (captured.kind, type(event))
        for captured in LIKE_VLLM
        for event in _list(captured.decoded[1])
    }
    assert forms == {("vLLM", list), ("vLLM", dict), ("SGLang", list), ("SGLang", dict)}


def test_one_source_reads_every_version_in_turn() -> None:
    """An engine is upgraded behind the same endpoint."""
    for kind in KINDS:
        source = open_source(registration(kind=kind), PythonArrayPacker())
        for captured in CAPTURED:
            if captured.kind == kind and "dp3" not in captured.name:
                dropped = source.decode(captured.frames).dropped
                assert are_used(dropped)
