"""What `LLM.get_kv_cache_events()` gives, forwarded as JSON."""

import json
from typing import Any

import pytest

from bridge.bounds import BATCH_ERRORS_MAX, BATCH_TOLERATED_MAX
from bridge.wire import batch as batch_module
from bridge.wire import single_events
from bridge.wire.batch import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.single_events import SINGLE_EVENTS_BYTES_MAX
from bridge.wire.trtllm import KIND, open_source
from schemas.arrays import PythonArrayPacker
from schemas.errors import BatchError, LeftOutError, ToleratedError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, extra_key
from schemas.identities import PARTIAL_BLOCK, Medium
from tests.unit.bridge.messages import registration

LEVELS = (Medium.GPU, Medium.CPU, Medium.DISK)


class Publisher:
    def __init__(self, dp_rank: int = 0) -> None:
        registered = registration(kind=KIND, dp_rank=dp_rank)
        self._source = open_source(registered, PythonArrayPacker())

    def decode(self, document: object) -> DecodedBatch:
        payload = document if isinstance(document, bytes) else json.dumps(document).encode()
        return self._source.decode([b"", (9).to_bytes(8, "big"), payload])

    def events(self, *data: dict[str, Any], **fields: object) -> list[BlockEvent]:
        batch = self.decode([event(one, **fields) for one in data])
        assert batch.dropped == []
        return batch.events


def event(data: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {"event_id": 1, "data": data, **fields}


def block(value: object, tokens: list[int], **fields: object) -> dict[str, Any]:
    unique = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens]
    return {"type": "stored_block", "block_hash": value, "tokens": unique, **fields}


def token_of(*, extra: int) -> dict[str, Any]:
    """A block of one token with an extra id."""
    return {"block_hash": 7, "tokens": [{"token_id": 1, "token_extra_id": extra}]}


def stored(*blocks: dict[str, Any], parent: object = None, **fields: object) -> dict[str, Any]:
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks), **fields}


def u64s(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


def u32s(*values: int) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def test_blocks_of_one_size_and_level_are_one_chain() -> None:
    data = stored(block(7, [1, 2]), block(8, [3, 4]), parent=6, lora_name="ad")
    assert Publisher().events(data) == [
        StoredBlocks(
            sequence=9,
            hashes=u64s(7, 8),
            tokens=u32s(1, 2, 3, 4),
            parent=6,
            block_size=2,
            lora_name="ad",
        )
    ]


def test_a_partial_block_and_one_on_another_level_follow_on_the_one_before() -> None:
    blocks = block(7, [1, 2]), block(8, [3, 4], cache_level=1), block(9, [5], cache_level=1)
    common: Any = {"sequence": 9}
    assert Publisher().events(stored(*blocks)) == [
        StoredBlocks(hashes=u64s(7), tokens=u32s(1, 2), block_size=2, **common),
        StoredBlocks(
            hashes=u64s(8), tokens=u32s(3, 4), block_size=2, parent=7, medium=Medium.CPU, **common
        ),
        StoredBlocks(
            hashes=u64s(9), tokens=u32s(5), block_size=1, parent=8, medium=Medium.CPU, **common
        ),
    ]


WHOLE = block(7, [1, 2, 3, 4])
PART = block(8, [5, 6])


@pytest.mark.parametrize(
    ("blocks", "parent", "is_end"),
    [
        ([WHOLE, PART], None, True),
        ([PART], 7, True),
        ([PART], None, False),  # so begin the blocks of an engine of another size
        ([PART, PART], 7, False),
        ([PART, WHOLE], 7, False),
        ([block(8, [])], 7, False),
    ],
)
def test_the_end_of_a_prompt_says_nothing_of_the_block_size(
    blocks: list[dict[str, Any]], parent: object, is_end: bool
) -> None:
    end = StoredBlocks(sequence=9, hashes=u64s(8), left_out=PARTIAL_BLOCK)
    events = Publisher().events(stored(*blocks, parent=parent))
    assert (events[-1] == end) is is_end
    assert not any(one.left_out for one in events[:-1] if isinstance(one, StoredBlocks))


def test_no_blocks_are_stored() -> None:
    assert Publisher().events(stored(parent=7)) == []


def test_a_removal_names_no_level_so_the_block_is_gone_from_all() -> None:
    data = {"type": "removed", "block_hashes": [7, 8]}
    assert Publisher().events(data) == [
        RemovedBlocks(sequence=9, hashes=u64s(7, 8), medium=medium) for medium in LEVELS
    ]


def test_a_block_that_changes_its_level_is_never_on_none() -> None:
    level = {"type": "event_diff", "new_value": 1, "old_value": 0}
    data = {"type": "updated", "block_hash": 7, "cache_level": level}
    assert Publisher().events(data) == [
        StoredBlocks(sequence=9, hashes=u64s(7), medium=Medium.CPU),
        RemovedBlocks(sequence=9, hashes=u64s(7)),
    ]


def test_a_new_priority_says_nothing_of_blocks_and_a_new_pool_holds_none() -> None:
    priority = {"type": "event_diff", "new_value": 1, "old_value": 0}
    updated = {"type": "updated", "block_hash": 7, "cache_level": None, "priority": priority}
    assert Publisher().events(updated) == []
    created = {"type": "created", "num_blocks_per_cache_level": [9]}
    assert Publisher().events(created) == [
        ClearedBlocks(sequence=9),
        StoredBlocks(sequence=9, hashes=b""),
    ]


def test_windows_stand_in_place_of_groups() -> None:
    """Which is the largest `test_windows.py` has."""
    publisher = Publisher()
    for data in (
        {"type": "created", "num_blocks_per_cache_level": [9, 9]},
        stored(block(7, [1])),
        {"type": "removed", "block_hashes": [7]},
        {"type": "updated", "block_hash": 7, "cache_level": {"old_value": 0, "new_value": 1}},
    ):
        batch = publisher.decode([event(data, window_size=512)])
        groups = {one.group for one in batch.events if not isinstance(one, ClearedBlocks)}
        assert (batch.has_windows, groups) == (True, {512})
    for bad in (-1, 2**31, "512"):
        (error,) = publisher.decode([event(stored(block(7, [1])), window_size=bad)]).dropped
        assert error.reason == DropReason.MALFORMED_EVENT


def test_what_is_no_token_enters_the_hash_of_its_block() -> None:
    salted = block(7, [1], cache_salt="s")
    segment = {"type": "mm_key", "hash": "ab", "start_offset": 3}
    image = block(8, [1], mm_keys=[segment], cache_salt="s")
    image["tokens"] = [{"token_id": "a3"}]
    tuned = block(9, [1])
    tuned["tokens"] = [{"token_id": 5, "token_extra_id": 4}]
    (only,) = Publisher().events(stored(salted, image, tuned))
    assert isinstance(only, StoredBlocks)
    assert only.tokens == u32s(1, 0, 5)
    keys = extra_key(["s"]), extra_key([["ab", 3], ["a3", 0]]), extra_key([[4, 0]])
    assert only.extra_keys == keys


def test_hashes_are_numbers_or_their_digits() -> None:
    data = {"type": "removed", "block_hashes": [2**64 - 1, -1, "00ff", "ab" * 24 + "00" * 7 + "05"]}
    (removed, *_) = Publisher().events(data)
    assert isinstance(removed, RemovedBlocks)
    assert removed.hashes == u64s(2**64 - 1, 2**64 - 1, 255, 5)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (event({"type": "removed", "block_hashes": [2**64]}), DropReason.BAD_HASHES),
        (event({"type": "removed", "block_hashes": ["text"]}), DropReason.BAD_HASHES),
        (event({"type": "moved"}), DropReason.MALFORMED_EVENT),
        (event(stored(block(7, [1], cache_level=3))), DropReason.UNKNOWN_MEDIUM),
        (event(stored(block(7, [2**32]))), DropReason.MALFORMED_EVENT),
        (event({"type": "removed", "block_hashes": ["-1"]}), DropReason.BAD_HASHES),
        (event({"type": "removed", "block_hashes": ["1_0"]}), DropReason.BAD_HASHES),
        (event({"type": "removed", "block_hashes": [""]}), DropReason.BAD_HASHES),
        (event(stored(token_of(extra=2**64))), DropReason.BAD_EXTRA_KEYS),
        (event(stored(block(7, [1]), parent="x")), DropReason.BAD_HASHES),
        (5, DropReason.MALFORMED_EVENT),
    ],
)
def test_a_bad_event_costs_itself_only(bad: object, reason: str) -> None:
    good = event({"type": "removed", "block_hashes": [7]})
    batch = Publisher().decode([bad, good])
    assert len(batch.events) == len(LEVELS)
    assert [error.reason for error in batch.dropped] == [reason]


def test_a_removal_is_applied_whatever_else_it_says() -> None:
    said = {"type": "removed", "block_hashes": [7]}
    for more in (event(said | {"later": 1}), event(said) | {"later": {"a": 1}}):
        batch = Publisher().decode([more])
        assert batch.events == Publisher().decode([event(said)]).events
        assert [type(error) for error in batch.dropped] == [ToleratedError]


def test_a_field_of_a_new_pool_that_is_not_known_leaves_no_block_out() -> None:
    data = {"type": "created", "num_blocks_per_cache_level": [9]}
    (error,) = Publisher().decode([event(data, later=5)]).dropped
    assert isinstance(error, ToleratedError)


@pytest.mark.parametrize("place", ["block", "data"])
def test_a_store_with_a_field_that_says_something_is_left_out(place: str) -> None:
    said = stored(block(7, [1, 2]))
    (said["blocks"][0] if place == "block" else said)["later"] = [5]
    batch = Publisher().decode([event(said)])
    assert batch.events == [StoredBlocks(sequence=9, hashes=u64s(7), left_out="unknown_field")]
    assert [type(error) for error in batch.dropped] == [LeftOutError]


@pytest.mark.parametrize("values", [(5, None), (None, [0]), (2**70, None), (None, {"a": 2**70})])
def test_one_field_in_several_places_is_looked_at_in_each(values: tuple[object, object]) -> None:
    """The last one, which said nothing, hid the one before it."""
    said = stored(block(7, [1, 2], later=values[0]), block(8, [3, 4], later=values[1]))
    (error,) = Publisher().decode([event(said)]).dropped
    assert isinstance(error, LeftOutError)


def test_an_event_of_the_registered_rank_is_used() -> None:
    data = {"type": "removed", "block_hashes": [7]}
    assert Publisher(dp_rank=1).events(data, attention_dp_rank=1)
    assert Publisher(dp_rank=1).events(data)


@pytest.mark.parametrize("payload", [b"[", b"{", b'{"event_id":1}', b"[1", b"[" * 100_000])
def test_what_is_no_event_is_one_error(payload: bytes) -> None:
    batch = Publisher().decode(payload)
    assert (batch.sequence, batch.events, len(batch.dropped)) == (9, [], 1)


def test_a_payload_of_many_bad_events_is_undecodable() -> None:
    batch = Publisher().decode([1] * (BATCH_ERRORS_MAX + 1))
    assert [error.reason for error in batch.dropped] == [DropReason.UNDECODABLE]
    assert len(Publisher().decode([1] * BATCH_ERRORS_MAX).dropped) == BATCH_ERRORS_MAX


def test_many_events_with_a_field_of_tomorrow_are_undecodable() -> None:
    said = event({"type": "removed", "block_hashes": [7], "later": 1})
    assert len(Publisher().decode([said] * BATCH_TOLERATED_MAX).dropped) == BATCH_TOLERATED_MAX
    batch = Publisher().decode([said] * (BATCH_TOLERATED_MAX + 1))
    assert [error.reason for error in batch.dropped] == [DropReason.UNDECODABLE]


def test_bounds_are_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Publisher().decode(b"[" + b" " * SINGLE_EVENTS_BYTES_MAX + b"]")
    assert [error.reason for error in batch.dropped] == [DropReason.MESSAGE_TOO_LARGE]
    two = [event({"type": "removed", "block_hashes": [7, 8]})] * 2
    for module, name, bound, reason in (
        (single_events, "BATCH_EVENTS_MAX", 1, DropReason.TOO_MANY_EVENTS),
        (batch_module, "PACKED_BATCH_BYTES_MAX", 50, DropReason.BATCH_TOO_LARGE),
        (single_events, "EVENT_BLOCKS_MAX", 1, DropReason.TOO_MANY_BLOCKS),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, bound)
            batch = Publisher().decode(two)
            assert {error.reason for error in batch.dropped} == {reason}
            assert batch.events == []
            assert isinstance(batch.dropped[0], BatchError) == (name != "EVENT_BLOCKS_MAX")


def test_a_large_batch_is_cut_into_parts_that_say_the_same() -> None:
    blocks = [block(number, [number % 7] * 64) for number in range(400)]
    batch = Publisher().decode([event(stored(*blocks))])
    assert len(batch.parts) > 1
    hashes = b"".join(one.hashes for one in batch.events if isinstance(one, StoredBlocks))
    assert hashes == u64s(*range(400))
