import re

import pytest

from bridge.wire.sglang import open_source
from schemas.arrays import PythonArrayPacker
from schemas.errors import EventError, LeftOutError, ToleratedError
from schemas.events import RemovedBlocks, StoredBlocks, extra_key, paired_key
from schemas.identities import Medium
from schemas.registration import PublisherKind
from tests.unit.bridge.messages import frames_of, map_event, registration


def only(event: object, lora_name: str = "") -> object:
    registered = registration(kind=PublisherKind("SGLang"), lora_name=lora_name)
    batch = open_source(registered, PythonArrayPacker()).decode(frames_of([1.5, [event], 0]))
    assert batch.dropped == []
    (decoded,) = batch.events
    return decoded


def stored(**fields: object) -> StoredBlocks:
    fields = {"block_hashes": [-7, 8], "token_ids": [1, 2, 3, 4], "block_size": 2, **fields}
    event = only(map_event("BlockStored", **fields))
    assert isinstance(event, StoredBlocks)
    return event


def test_signed_hashes_keep_their_bits() -> None:
    assert stored(parent_block_hash=-1).parent == 2**64 - 1
    assert stored().hashes[:8] == (2**64 - 7).to_bytes(8, "little")


def test_a_salt_enters_the_first_block_of_a_chain() -> None:
    assert stored(cache_salt="s", parent_block_hash=None).extra_keys == (extra_key(["s"]), b"")


def test_a_salt_after_a_parent_enters_no_block() -> None:
    assert stored(cache_salt="s", parent_block_hash=5).extra_keys == ()


@pytest.mark.parametrize("salt", [None, ""])
def test_no_salt_is_no_key(salt: str | None) -> None:
    assert stored(cache_salt=salt).extra_keys == ()


def test_a_salt_without_blocks_is_no_key() -> None:
    assert stored(cache_salt="s", block_hashes=[]).extra_keys == ()


def test_a_page_of_pairs_is_one_of_the_token_behind_it_too() -> None:
    pairs = [[5, 6], [6, 7], [7, 8], [8, 9]]
    event = stored(token_ids=pairs, block_hashes=[1, 2], block_size=2)
    assert event.tokens == u32s(5, 6, 7, 8)
    assert event.extra_keys == (paired_key(b"", u32s(7)), paired_key(b"", u32s(9)))
    salted = stored(token_ids=pairs, block_hashes=[1, 2], block_size=2, cache_salt="s")
    salt = extra_key(["s"])
    assert salted.extra_keys == (paired_key(salt, u32s(7)), paired_key(b"", u32s(9)))
    short = stored(token_ids=pairs, block_hashes=[1, 2, 3], block_size=2)
    assert short.extra_keys == (), "of too few tokens, as the kernel counts it"
    uneven = stored(token_ids=pairs, block_hashes=[1, 2], block_size=2, extra_keys=[["a"]])
    assert uneven.extra_keys == (extra_key(["a"]),), "likewise"


def u32s(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def test_pinned_memory_is_the_cpu_tier() -> None:
    assert stored(medium="CPU_PINNED").medium is Medium.CPU
    assert only(["BlockRemoved", [1], "CPU_PINNED"]) == RemovedBlocks(
        sequence=0, hashes=(1).to_bytes(8, "little"), medium=Medium.CPU
    )


ARRAY = ["BlockStored", [1], None, [1, 2], 2, None, "GPU"]


@pytest.mark.parametrize("parent", [None, 5])
def test_the_salt_of_an_array_is_that_of_a_map(parent: int | None) -> None:
    """0.5.18 and 0.5.19 send it as an eighth element, and only where there is one."""
    event = only([*ARRAY[:2], parent, *ARRAY[3:], {"cache_salt": "s"}])
    assert event == stored(
        block_hashes=[1],
        parent_block_hash=parent,
        token_ids=[1, 2],
        medium="GPU",
        cache_salt="s",
    )
    assert only([*ARRAY, None]) == only([*ARRAY, {}]) == only(ARRAY)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        ([*ARRAY, None, "x"], "BlockStored that is not known, got: 9 elements instead of 8"),
        (map_event("BlockStored", block_hashes=[1], pepper="x"), "BlockStored.*got: pepper"),
    ],
)
def test_a_store_with_a_field_that_is_not_known_is_left_out(event: object, named: str) -> None:
    """It may change what a block is, as the salt did."""
    registered = registration(kind=PublisherKind("SGLang"))
    batch = open_source(registered, PythonArrayPacker()).decode(frames_of([1.5, [event, ARRAY], 0]))
    left_out, other = batch.events
    assert isinstance(left_out, StoredBlocks)
    assert isinstance(other, StoredBlocks)
    assert (left_out.left_out, left_out.tokens, other.left_out) == ("unknown_field", b"", "")
    (error,) = batch.dropped
    assert isinstance(error, LeftOutError)
    assert re.search(named, str(error))


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (map_event("BlockRemoved", block_hashes=[1], tier=1, a=2), "BlockRemoved.*got: a, tier"),
        (["AllBlocksCleared", None, 3], "AllBlocksCleared.*got: 3 elements instead of 2"),
    ],
)
def test_a_removal_or_a_clear_is_applied_whatever_else_it_says(event: object, named: str) -> None:
    registered = registration(kind=PublisherKind("SGLang"))
    batch = open_source(registered, PythonArrayPacker()).decode(frames_of([1.5, [event], 0]))
    assert len(batch.events) == 1
    (error,) = batch.dropped
    expected = ToleratedError if isinstance(batch.events[0], RemovedBlocks) else EventError
    assert type(error) is expected, "a clear may have meant less"
    assert re.search(named, str(error))


def test_what_is_proposed_is_understood() -> None:
    """sgl-project/sglang#39620, #32514, and #40601: a salt as a row for each block."""
    more = {"reason": "evicted", "lora_name": None, "component_types": ["full"]}
    assert only(map_event("BlockRemoved", block_hashes=[1], **more)) == only(
        map_event("BlockRemoved", block_hashes=[1])
    )
    two = {"block_hashes": [1, 2], "token_ids": [1, 2, 3, 4], "block_size": 2}
    salted = only(map_event("BlockStored", **two, extra_keys=[["salt"], None]))
    assert salted == only(map_event("BlockStored", **two, cache_salt="salt"))


def test_a_registered_lora_names_events_that_do_not() -> None:
    event = only(["BlockStored", [1], None, [1, 2], 2, 7], lora_name="reg")
    assert isinstance(event, StoredBlocks)
    assert event.lora_name == "reg"
    assert stored(lora_name="ad").lora_name == "ad"


def test_an_engine_with_snapshots_is_read_as_any_other() -> None:
    """The topics of its live messages say more, and its barriers are batches without events."""
    source = open_source(registration(kind=PublisherKind("SGLang")), PythonArrayPacker())
    epoch = b"kv\x00sgl-kv-epoch=6f1b"
    barrier = epoch + b"\x00sgl-kv-snapshot=09ac"
    removed = frames_of([1.5, [["BlockRemoved", [1]]], 0], 7)
    empty = frames_of([1.6, [], 0], 8)
    for topic, (_, number, payload), events in ((epoch, removed, 1), (barrier, empty, 0)):
        batch = source.decode([topic, number, payload])
        assert (batch.dropped, batch.event_count) == ([], events)
        assert batch.digest == source.decode([b"", number, payload]).digest, "as it is replayed"
