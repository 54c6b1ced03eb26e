"""Dynamo's events: on its event plane, in four frames, and as JSON, in three."""

import json
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import xxhash

from bridge.wire import DecodedBatch, open_source, single_events
from bridge.wire.drop_reasons import DropReason
from bridge.wire.dynamo import KIND
from bridge.wire.known_part import KnownPart
from bridge.wire.single_events import ReadEvent, with_unknown
from schemas.arrays import PythonArrayPacker
from schemas.errors import FrameError, LeftOutError, ToleratedError
from schemas.events import TOKEN_HASH_SEED, BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from tests.unit.bridge.messages import captured_messages, registration

SEQUENCE = 9
PUBLISHER = (2**63 + 5).to_bytes(8, "big")


def u64s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def stored(*blocks: tuple[int, int], parent: int | None = None, **fields: Any) -> dict[str, Any]:
    named = [{"block_hash": value, "tokens_hash": local} for value, local in blocks]
    return {"data": {"stored": {"parent_hash": parent, "blocks": named, **fields}}}


def removed(*values: int) -> dict[str, Any]:
    return {"data": {"removed": {"block_hashes": list(values)}}}


def plane_frames(
    payload: object, *, header: bytes | None = None, **envelope: object
) -> list[bytes]:
    encoded = payload if isinstance(payload, bytes) else msgspec.msgpack.encode(payload)
    fields = {"publisher_id": 5, "sequence": SEQUENCE, "published_at": 1_700_000_000_250}
    content = msgspec.msgpack.encode(
        {**fields, "topic": "kv-events", "payload": encoded} | envelope
    )
    if header is None:
        header = b"\x01" + len(content).to_bytes(4, "big")
    return [b"kv-events", PUBLISHER, SEQUENCE.to_bytes(8, "big"), header + content]


def decode(frames: list[bytes], dp_rank: int = 0, lora_name: str = "") -> DecodedBatch:
    registered = registration(kind=KIND, dp_rank=dp_rank, lora_name=lora_name)
    return open_source(registered, PythonArrayPacker()).decode(frames)


def of_plane(*events: dict[str, Any], **fields: Any) -> list[BlockEvent]:
    routed = [
        {"worker_id": 42, "event": {"event_id": 1, "dp_rank": 0, **event}} for event in events
    ]
    batch = decode(plane_frames([{**one, **fields} for one in routed]))
    assert batch.dropped == []
    assert (batch.sequence, batch.engine_time) == (SEQUENCE, 1_700_000_000.25)
    return batch.events


def of_json(document: object, **fields: Any) -> DecodedBatch:
    payload = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode([b"", SEQUENCE.to_bytes(8, "big"), payload], **fields)


CHAIN = StoredBlocks(
    sequence=SEQUENCE,
    hashes=u64s(7, 8),
    parent=6,
    block_size=4,
    reported=True,
    token_hashes=u64s(70, 80),
)


def test_a_chain_is_of_hashes_of_tokens_which_are_said_again_and_not_counted_twice() -> None:
    assert of_plane(stored((7, 70), (8, 80), parent=6, start_position=1)) == [CHAIN]
    assert of_json(stored((7, 70), (8, 80), parent=6)).events == [CHAIN]


def test_the_lora_is_the_registered_one() -> None:
    [event] = of_json(stored((7, 70)), lora_name="adapter").events
    assert isinstance(event, StoredBlocks)
    assert event.lora_name == "adapter"


@pytest.mark.parametrize(
    ("tier", "medium"),
    [
        ("device", Medium.GPU),
        ("host_pinned", Medium.CPU),
        ("disk", Medium.DISK),
        ("external", Medium.DISK),
    ],
)
def test_each_tier_has_its_medium(tier: str, medium: Medium) -> None:
    [gone] = of_plane(removed(7), storage_tier=tier, residency_domain="worker")
    assert gone == RemovedBlocks(sequence=SEQUENCE, hashes=u64s(7), medium=medium)


@pytest.mark.parametrize("data", ["cleared", {"cleared": None}])
def test_a_clear_is_said_in_a_word(data: object) -> None:
    assert of_plane({"data": data}) == [ClearedBlocks(sequence=SEQUENCE)]
    assert of_json([{"event_id": 0, "dp_rank": 0, "data": data}]).clears


def test_a_payload_may_be_one_event_of_a_router() -> None:
    one = {"worker_id": 42, "event": removed(7)}
    assert len(decode(plane_frames(one)).events) == 1
    assert len(decode(plane_frames([one] * 40)).events) == 40


def test_json_may_be_events_of_a_worker_or_of_a_router() -> None:
    routed = {"worker_id": 42, "storage_tier": "disk", "event": removed(8)}
    assert of_json([removed(7), routed]).events == [
        RemovedBlocks(sequence=SEQUENCE, hashes=u64s(7)),
        RemovedBlocks(sequence=SEQUENCE, hashes=u64s(8), medium=Medium.DISK),
    ]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (removed(2**64), DropReason.BAD_HASHES),
        (stored((7, 2**64)), DropReason.BAD_TOKENS),
        (stored((7, 70), parent=2**64), DropReason.BAD_PARENT),
        ({"event": removed(7), "storage_tier": "tape"}, DropReason.UNKNOWN_MEDIUM),
        ({"event": removed(7), "residency_domain": "cache_owner"}, DropReason.UNKNOWN_MEDIUM),
        ({"data": {}}, DropReason.MALFORMED_EVENT),
        ({"data": removed(7)["data"] | stored((7, 70))["data"]}, DropReason.MALFORMED_EVENT),
        ({"data": "stored"}, DropReason.MALFORMED_EVENT),
        (5, DropReason.MALFORMED_EVENT),
    ],
)
def test_a_bad_event_costs_itself_only(bad: object, reason: str) -> None:
    batch = of_json([bad, removed(7)])
    assert batch.events == [RemovedBlocks(sequence=SEQUENCE, hashes=u64s(7))]
    assert [error.reason for error in batch.dropped] == [reason]


@pytest.mark.parametrize(
    "event",
    [
        {"event": removed(7), "later": 1},
        {"event": removed(7) | {"later": {"a": [1]}}, "worker_id": 42},
        removed(7) | {"later": 1},
        {"data": {"removed": {"block_hashes": [7], "later": [1]}}, "event_id": 3},
    ],
)
@pytest.mark.parametrize("shape", [of_json, lambda events: decode(plane_frames(events))])
def test_a_removal_is_applied_whatever_else_it_says(
    event: object, shape: Callable[[list[object]], DecodedBatch]
) -> None:
    batch = shape([event])
    assert batch.events == [RemovedBlocks(sequence=SEQUENCE, hashes=u64s(7))]
    assert [type(error) for error in batch.dropped] == [ToleratedError]


@pytest.mark.parametrize("later", [1, [1], {"a": None}, "x", None, [], {}, [None]])
def test_a_store_with_a_field_that_says_something_is_left_out(later: object) -> None:
    batch = of_json([stored((7, 70), later=later), removed(7)])
    (kept, gone) = batch.events
    assert gone == RemovedBlocks(sequence=SEQUENCE, hashes=u64s(7))
    (error,) = batch.dropped
    if later in (None, [], {}, [None]):
        assert [kept] == of_json([stored((7, 70))]).events
        assert isinstance(error, ToleratedError)
    else:
        names = StoredBlocks(
            sequence=SEQUENCE, hashes=u64s(7), reported=True, left_out="unknown_field"
        )
        assert kept == names
        assert isinstance(error, LeftOutError)


@pytest.mark.parametrize(
    "frames",
    [
        plane_frames([], header=b"\x02" + bytes(4)),
        plane_frames([], header=b""),
        plane_frames(b"\xc1"),
        plane_frames(b""),
        plane_frames(b"\x91"),
        [b"", PUBLISHER, bytes(8), b""],
        [b"", PUBLISHER, bytes(8), b"\x01\x00\x00\x00\x00"],
        [b"", PUBLISHER, bytes(8), b"\x01\x00\x00\x00\x01\xc1"],
        [b"", bytes(8), b"\xc1"],
        [b"", bytes(8), b"[1"],
    ],
)
def test_what_is_no_message_of_its_is_one_error(frames: list[bytes]) -> None:
    batch = decode(frames)
    assert batch.events == []
    [error] = batch.dropped
    assert error.reason in (DropReason.UNDECODABLE, DropReason.MALFORMED_EVENT)


def test_an_event_of_too_many_blocks_costs_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_events, "EVENT_BLOCKS_MAX", 1)
    batch = of_json([removed(7, 8), stored((7, 70), (8, 80)), removed(9)])
    assert batch.events == [RemovedBlocks(sequence=SEQUENCE, hashes=u64s(9))]
    assert {error.reason for error in batch.dropped} == {DropReason.TOO_MANY_BLOCKS}


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_messages_of_other_frames_have_no_place(count: int) -> None:
    with pytest.raises(FrameError):
        decode([b""] * count)


def test_an_event_of_the_registered_rank_is_used() -> None:
    assert of_json(removed(7) | {"dp_rank": 3}, dp_rank=3).dropped == []


def test_what_the_released_publisher_hashes_is_what_we_hash() -> None:
    """Plain blocks have the hash of their tokens; a LoRA, a salt and an image have others."""
    by_case = {
        one.name.partition("/")[2]: one
        for one in captured_messages()
        if one.name.startswith("dynamo-1.6.1/")
    }

    def first(case: str) -> int:
        [event] = decode(by_case[case].frames).events[:1]
        assert isinstance(event, StoredBlocks)
        return int.from_bytes(event.token_hashes[:8], "little")

    tokens = struct.pack("<4I", 1000, 1001, 1002, 1003)
    plain = xxhash.xxh3_64_intdigest(tokens, TOKEN_HASH_SEED)
    assert first("stored") == plain
    others = {first(case) for case in ("stored-lora", "stored-salt", "stored-mm")}
    assert len(others - {plain}) == 3


def test_the_released_publisher_passes_on_every_store_and_the_last_removal() -> None:
    names = [one.name for one in captured_messages() if one.name.startswith("dynamo-1.6.1/")]
    assert "dynamo-1.6.1/stored-again" in names
    assert "dynamo-1.6.1/removed-first" not in names
    assert "dynamo-1.6.1/removed-last" in names


@pytest.mark.parametrize(
    ("unknown", "are_empty", "is_tolerated"),
    [("scope", False, False), ("scope", True, True), ("", False, None)],
    ids=["says something", "says nothing", "none"],
)
def test_a_clear_of_which_not_all_is_known_may_have_meant_less(
    unknown: str, are_empty: bool, is_tolerated: bool | None
) -> None:
    """It is applied, and its publisher's state says so."""
    read = ReadEvent([ClearedBlocks(sequence=1)])
    found = with_unknown(read, KnownPart(None, unknown, are_empty))
    assert found.events == read.events
    errors = [isinstance(error, ToleratedError) for error in found.dropped]
    assert errors == ([] if is_tolerated is None else [is_tolerated])
