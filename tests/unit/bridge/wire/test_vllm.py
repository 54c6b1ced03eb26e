import pytest

from bridge.wire.batch import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.vllm import open_source
from schemas.arrays import PythonArrayPacker
from schemas.events import BlockEvent, Cleared, Removed, Stored, extra_key
from schemas.identities import Medium
from schemas.limits import BLOCK_SIZE_MAX, NAME_BYTES_MAX
from tests.unit.bridge.messages import frames_of, map_event, registration

TOKENS = [1, 2, 3, 4]
STORED_FIELDS: list[object] = [
    [7], 6, TOKENS, 4, None, "CPU", "ad", [["ad", "salt"]], 2, "sliding_window", 128,
]  # fmt: skip


def decode(*events: object, lora_name: str = "") -> DecodedBatch:
    source = open_source(registration(lora_name=lora_name), PythonArrayPacker())
    return source.decode(frames_of([1.5, list(events), 0], sequence=9))


def only(*events: object, lora_name: str = "") -> BlockEvent:
    batch = decode(*events, lora_name=lora_name)
    assert batch.dropped == []
    (event,) = batch.events
    return event


def stored(registered: str = "", **fields: object) -> Stored:
    fields = {"block_hashes": [7], "token_ids": TOKENS, "block_size": 4, **fields}
    event = only(map_event("BlockStored", **fields), lora_name=registered)
    assert isinstance(event, Stored)
    return event


def reason_of(event: object) -> str:
    batch = decode(event, ["AllBlocksCleared"])
    assert batch.events == [Cleared(sequence=9)]
    (error,) = batch.dropped
    return error.reason


@pytest.mark.parametrize("length", range(1, len(STORED_FIELDS) + 1))
def test_a_stored_array_may_end_after_any_field(length: int) -> None:
    event = only(["BlockStored", *STORED_FIELDS[:length]])
    assert isinstance(event, Stored)
    assert event.hashes == (7).to_bytes(8, "little")
    assert event.parent == (6 if length >= 2 else None)
    assert len(event.tokens) == (16 if length >= 3 else 0)
    assert event.block_size == (4 if length >= 4 else 0)
    assert event.medium == (Medium.CPU if length >= 6 else Medium.GPU)
    assert event.lora_name == ("ad" if length >= 7 else "")
    assert event.extra_keys == ((extra_key(["salt"]),) if length >= 8 else ())
    assert event.group == (2 if length >= 9 else 0)
    assert event.spec_kind == ("sliding_window" if length >= 10 else "")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_removed_array_may_end_after_any_field(length: int) -> None:
    event = only(["BlockRemoved", *([7], "CPU", 2)[:length]])
    assert event == Removed(
        sequence=9,
        hashes=(7).to_bytes(8, "little"),
        medium=Medium.CPU if length >= 2 else Medium.GPU,
        group=2 if length >= 3 else 0,
    )


def test_fields_that_name_no_block_are_ignored() -> None:
    tokens = [[1], [2]]
    assert stored(ownership="fs", session_id=3, lookahead_token_ids=tokens) == stored()
    assert stored(kv_cache_spec_sliding_window=512) == stored()


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", *STORED_FIELDS, None, "x"],
        ["AllBlocksCleared", 1],
        map_event("BlockStored", block_hashes=[1], later={"a": [None]}),
        map_event("BlockRemoved", block_hashes=[1], later=None),
    ],
)
def test_an_event_with_a_field_that_is_not_known_is_not_used(event: object) -> None:
    batch = open_source(registration(), PythonArrayPacker()).decode(frames_of([1.5, [event], 0]))
    assert batch.events == []
    assert [error.reason for error in batch.dropped] == [DropReason.UNKNOWN_FIELD]


@pytest.mark.parametrize(
    ("medium", "expected"),
    [
        (None, Medium.GPU),
        ("GPU", Medium.GPU),
        ("gpu", Medium.GPU),
        ("CPU", Medium.CPU),
        ("cpu", Medium.CPU),
        ("cpu:0", Medium.CPU),
        ("Cpu_Pinned", Medium.CPU),
        ("DISK", Medium.DISK),
        ("storage", Medium.DISK),
        ("FS", Medium.DISK),
        ("OBJ", Medium.DISK),
        ("EXTERNAL", Medium.DISK),
    ],
)
def test_every_spelling_of_a_medium_has_one_meaning(medium: str | None, expected: Medium) -> None:
    assert stored(medium=medium).medium is expected
    assert only(map_event("BlockRemoved", block_hashes=[7], medium=medium)) == Removed(
        sequence=9, hashes=(7).to_bytes(8, "little"), medium=expected
    )


@pytest.mark.parametrize("medium", ["", "TAPE", "GPUX", ":0"])
def test_an_unknown_medium_costs_its_event_only(medium: str) -> None:
    assert reason_of(["BlockRemoved", [7], medium]) == DropReason.UNKNOWN_MEDIUM


@pytest.mark.parametrize(
    ("locality", "shared"), [("REMOTE", True), ("remote", True), ("LOCAL", False), (None, False)]
)
def test_remote_blocks_are_shared(locality: str | None, shared: bool) -> None:
    assert stored(locality=locality).shared is shared
    removed = only(map_event("BlockRemoved", block_hashes=[7], locality=locality))
    assert isinstance(removed, Removed)
    assert removed.shared is shared


@pytest.mark.parametrize(
    ("lora_name", "lora_id", "registered", "expected"),
    [
        (None, None, "", ""),
        (None, None, "reg", "reg"),
        (None, 7, "", "lora_id:7"),
        (None, 7, "reg", "reg"),
        ("ad", 7, "reg", "ad"),
        ("", None, "reg", "reg"),
    ],
)
def test_the_lora_level_is_the_event_s_then_the_registered_then_the_id(
    lora_name: str | None, lora_id: int | None, registered: str, expected: str
) -> None:
    event = stored(registered, lora_name=lora_name, lora_id=lora_id)
    assert event.lora_name == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (None, ()),
        ([], ()),
        ([None], ()),
        ([[]], ()),
        ([["ad"]], ()),
        ([["ad"], None], ()),
        ([["ad", "salt"]], (extra_key(["salt"]),)),
        ([["salt", "ad"]], (extra_key(["salt", "ad"]),)),
        ([["ad", ["mm", 3], "s"], ["ad"]], (extra_key([["mm", 3], "s"]), b"")),
        ([None, ["x"], None], (b"", extra_key(["x"]), b"")),
        ([[b"\x01\x02"]], (extra_key([b"\x01\x02"]),)),
    ],
)
def test_extra_keys_lose_the_lora_and_what_is_empty(
    rows: object, expected: tuple[bytes, ...]
) -> None:
    assert stored(lora_name="ad", extra_keys=rows).extra_keys == expected


def test_rows_of_extra_keys_are_passed_on_whatever_their_number() -> None:
    assert stored(extra_keys=[["a"], ["b"], ["c"]]).extra_keys == (
        extra_key(["a"]),
        extra_key(["b"]),
        extra_key(["c"]),
    )


def test_all_forms_of_one_hash_are_one_number() -> None:
    value = 2**64 - 5
    forms: list[object] = [
        value,
        -5,
        value.to_bytes(8, "big"),
        b"\x11" * 24 + value.to_bytes(8, "big"),
    ]
    events = [stored(block_hashes=[form], parent_block_hash=form) for form in forms]
    assert {(event.hashes, event.parent) for event in events} == {
        (value.to_bytes(8, "little"), value)
    }


def test_a_placeholder_passes_with_its_block_size() -> None:
    assert (stored(token_ids=[], block_size=0).tokens, stored(block_size=0).block_size) == (b"", 0)
    assert stored(token_ids=None, block_size=0).tokens == b""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"block_hashes": 7}, DropReason.BAD_HASHES),
        ({"block_hashes": None}, DropReason.BAD_HASHES),
        ({"block_hashes": ["x"]}, DropReason.BAD_HASHES),
        ({"block_hashes": [b"short"]}, DropReason.BAD_HASHES),
        ({"parent_block_hash": b"short"}, DropReason.BAD_PARENT),
        ({"parent_block_hash": "text"}, DropReason.MALFORMED_EVENT),
        ({"token_ids": "text"}, DropReason.BAD_TOKENS),
        ({"token_ids": [-(2**31) - 1]}, DropReason.BAD_TOKENS),
        ({"token_ids": [2**32]}, DropReason.BAD_TOKENS),
        ({"token_ids": ["a"]}, DropReason.BAD_TOKENS),
        ({"block_size": -1}, DropReason.BAD_BLOCK_SIZE),
        ({"block_size": BLOCK_SIZE_MAX + 1}, DropReason.BAD_BLOCK_SIZE),
        ({"block_size": 4.5}, DropReason.MALFORMED_EVENT),
        ({"group_idx": -1}, DropReason.BAD_GROUP),
        ({"group_idx": 2**31}, DropReason.BAD_GROUP),
        ({"lora_name": "x" * (NAME_BYTES_MAX + 1)}, DropReason.NAME_TOO_LONG),
        ({"kv_cache_spec_kind": "x" * (NAME_BYTES_MAX + 1)}, DropReason.NAME_TOO_LONG),
        ({"extra_keys": 5}, DropReason.BAD_EXTRA_KEYS),
        ({"extra_keys": ["row"]}, DropReason.BAD_EXTRA_KEYS),
        ({"medium": 5}, DropReason.MALFORMED_EVENT),
    ],
)
def test_each_bad_field_costs_its_event_only(fields: dict[str, object], reason: str) -> None:
    sound: dict[str, object] = {"block_hashes": [7], "token_ids": TOKENS, "block_size": 4}
    assert reason_of(map_event("BlockStored", **{**sound, **fields})) == reason
