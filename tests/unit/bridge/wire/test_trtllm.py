"""TensorRT-LLM: what its publisher's maps mean, and Dynamo's for it; both beside vLLM's rules."""

import pytest

from bridge.wire.batch import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.trtllm import KIND, open_source
from schemas.arrays import PythonArrayPacker
from schemas.errors import LeftOutError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, extra_key
from schemas.identities import Medium
from tests.unit.bridge.messages import frames_of, map_event, registration


def decode(*events: object, lora_name: str = "") -> DecodedBatch:
    source = open_source(registration(kind=KIND, lora_name=lora_name), PythonArrayPacker())
    return source.decode(frames_of([1.5, list(events), 0], sequence=9))


def only(event: object) -> BlockEvent:
    batch = decode(event)
    assert batch.dropped == []
    (decoded,) = batch.events
    return decoded


def stored(**fields: object) -> StoredBlocks:
    fields = {"block_hashes": [7], "token_ids": [1, 2, 3, 4], "block_size": 4, **fields}
    event = only(map_event("BlockStored", **fields))
    assert isinstance(event, StoredBlocks)
    return event


def reason_of(**fields: object) -> str:
    fields = {"block_hashes": [7], "token_ids": [1, 2, 3, 4], "block_size": 4, **fields}
    batch = decode(map_event("BlockStored", **fields), map_event("AllBlocksCleared"))
    *kept, cleared = batch.events
    assert cleared == ClearedBlocks(sequence=9)
    (error,) = batch.dropped
    left_out = StoredBlocks(sequence=9, hashes=(7).to_bytes(8, "little"), left_out=error.reason)
    assert kept == [left_out][: isinstance(error, LeftOutError)]
    return error.reason


def test_the_fields_that_it_shares_with_vllm_mean_the_same() -> None:
    event = stored(
        block_hashes=[-1],
        parent_block_hash=6,
        lora_id=7,
        medium="CPU",
        extra_keys=[["lora_id:7", "salt"]],
        group_idx=2,
        kv_cache_spec_kind="full_attention",
        kv_cache_spec_sliding_window=128,
        locality="REMOTE",
    )
    assert event == StoredBlocks(
        sequence=9,
        hashes=b"\xff" * 8,
        tokens=b"".join(token.to_bytes(4, "little") for token in (1, 2, 3, 4)),
        parent=6,
        block_size=4,
        medium=Medium.CPU,
        shared=True,
        lora_name="lora_id:7",
        group=2,
        spec_kind="full_attention",
        extra_keys=(extra_key(["salt"]),),
    )
    removed = map_event("BlockRemoved", block_hashes=[7], medium="CPU", locality="REMOTE")
    assert only(removed) == RemovedBlocks(
        sequence=9, hashes=(7).to_bytes(8, "little"), medium=Medium.CPU, shared=True
    )


def segment(digest: str, start: int, **more: object) -> dict[str, object]:
    return {"type": "mm_key", "hash": digest, "start_offset": start, **more}


def test_segments_of_images_enter_their_blocks() -> None:
    two = {"block_hashes": [7, 8], "token_ids": [1] * 8}
    rows = [[segment("aa", 2)], [segment("aa", 0, uuid="u"), segment("bb", 1)]]
    expected = (extra_key([["aa", 2]]), extra_key([["aa", 0], ["bb", 1]]))
    assert stored(**two, mm_keys=rows).extra_keys == expected
    assert stored(**two, mm_keys=[[], rows[0]]).extra_keys == (b"", expected[0])
    assert stored(**two, mm_keys=[[], []]) == stored(**two, mm_keys=None) == stored(**two)


@pytest.mark.parametrize("offsets", [[], [[0, 2]]])
def test_an_image_enters_its_block_though_nobody_knows_where_it_stands(
    offsets: list[list[int]],
) -> None:
    infos = [{"mm_objects": [{"mm_hash": 77, "offsets": offsets}]}]
    assert stored(block_mm_infos=infos).extra_keys == (extra_key([[77, *offsets]]),)


def test_a_token_that_is_a_string_is_a_key_of_its_block() -> None:
    event = stored(block_hashes=[7, 8], token_ids=[1, "a3", 3, 4, 5, 6, 7, "b4"])
    tokens = [1, 0, 3, 4, 5, 6, 7, 0]
    assert event.tokens == b"".join(token.to_bytes(4, "little") for token in tokens)
    assert event.extra_keys == (extra_key([["a3", 1]]), extra_key([["b4", 3]]))


def test_a_token_that_is_a_string_behind_the_last_block_is_left_to_the_kernel() -> None:
    event = stored(token_ids=[1, 2, 3, 4, "a3"])
    assert (len(event.tokens), event.extra_keys) == (20, ())


@pytest.mark.parametrize(("parent", "keys"), [(None, (extra_key(["s"]), b"")), (5, ())])
def test_a_salt_enters_the_first_block_of_a_chain(
    parent: int | None, keys: tuple[bytes, ...]
) -> None:
    two = {"block_hashes": [7, 8], "token_ids": [1] * 8}
    assert stored(**two, cache_salt="s", parent_block_hash=parent).extra_keys == keys


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"mm_keys": [[segment("aa", 0)], []]}, DropReason.BAD_EXTRA_KEYS),
        ({"mm_keys": [[{"type": "mm_key", "hash": "a"}]]}, DropReason.BAD_EXTRA_KEYS),
        ({"mm_keys": 5}, DropReason.BAD_EXTRA_KEYS),
        ({"extra_keys": [["a"]], "cache_salt": "s"}, DropReason.BAD_EXTRA_KEYS),
        ({"block_mm_infos": [{"mm_objects": [{"mm_hash": "x"}]}]}, DropReason.BAD_EXTRA_KEYS),
        ({"token_ids": [1, 2.5, 3, 4]}, DropReason.BAD_TOKENS),
        ({"token_ids": [1, "x" * 2000, 3, 4]}, DropReason.NAME_TOO_LONG),
        ({"later": 1}, DropReason.UNKNOWN_FIELD),
        ({"block_hashes": ["a"]}, DropReason.BAD_HASHES),
    ],
)
def test_a_bad_field_costs_its_event_only(fields: dict[str, object], reason: str) -> None:
    assert reason_of(**fields) == reason


def test_events_as_arrays_are_not_its() -> None:
    (error,) = decode(["BlockRemoved", [7]]).dropped
    assert error.reason == DropReason.MALFORMED_EVENT
