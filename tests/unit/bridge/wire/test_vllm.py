from typing import Any

import pytest

from bridge.wire.batch import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from bridge.wire.vllm import open_source
from schemas.arrays import PythonArrayPacker
from schemas.errors import EventError, LeftOutError, ToleratedError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks, extra_key
from schemas.identities import Medium
from schemas.limits import BLOCK_SIZE_MAX, GROUP_NUMBER_MAX, NAME_BYTES_MAX
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


def stored(registered: str = "", **fields: object) -> StoredBlocks:
    fields = {"block_hashes": [7], "token_ids": TOKENS, "block_size": 4, **fields}
    event = only(map_event("BlockStored", **fields), lora_name=registered)
    assert isinstance(event, StoredBlocks)
    return event


def reason_of(event: object) -> str:
    """Why it cannot be used; what can be read of its names and its place is kept."""
    batch = decode(event, ["AllBlocksCleared"])
    *kept, cleared = batch.events
    assert cleared == ClearedBlocks(sequence=9)
    (error,) = batch.dropped
    is_left_out = isinstance(error, LeftOutError)
    left_out = StoredBlocks(sequence=9, hashes=(7).to_bytes(8, "little"), left_out=error.reason)
    assert kept == [left_out][:is_left_out]
    return error.reason


@pytest.mark.parametrize("length", range(1, len(STORED_FIELDS) + 1))
def test_a_stored_array_may_end_after_any_field(length: int) -> None:
    event = only(["BlockStored", *STORED_FIELDS[:length]])
    assert isinstance(event, StoredBlocks)
    assert event.hashes == (7).to_bytes(8, "little")
    is_named_alone = length in (6, 7)  # on another tier, and without extra keys
    assert event.parent == (6 if length >= 2 and not is_named_alone else None)
    assert len(event.tokens) == (16 if length >= 3 and not is_named_alone else 0)
    assert event.block_size == (4 if length >= 4 else 0)
    assert event.medium == (Medium.CPU if length >= 6 else Medium.GPU)
    assert event.lora_name == ("ad" if length >= 7 else "")
    assert event.extra_keys == ((extra_key(["salt"]),) if length >= 8 else ())
    assert event.group == (2 if length >= 9 else 0)
    assert event.spec_kind == ("sliding_window" if length >= 10 else "")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_removed_array_may_end_after_any_field(length: int) -> None:
    event = only(["BlockRemoved", *([7], "CPU", 2)[:length]])
    assert event == RemovedBlocks(
        sequence=9,
        hashes=(7).to_bytes(8, "little"),
        medium=Medium.CPU if length >= 2 else Medium.GPU,
        group=2 if length >= 3 else 0,
    )


def test_fields_that_name_no_block_are_ignored() -> None:
    assert stored(ownership="fs", session_id=3) == stored()
    assert stored(kv_cache_spec_sliding_window=512) == stored()


KVCR = {"ownership": "kvcr"}


@pytest.mark.parametrize(
    ("place", "is_owned"),
    [
        ({"medium": "CPU"}, True),
        ({"medium": "STORAGE", "locality": "LOCAL"}, True),
        ({"medium": "STORAGE", "locality": "REMOTE"}, False),
        ({"medium": "GPU"}, False),
    ],
)
def test_blocks_of_an_owner_that_is_known_are_a_set(place: Any, is_owned: bool) -> None:
    assert stored(**place, **KVCR).owned is is_owned
    removal = only(map_event("BlockRemoved", block_hashes=[7], **place, **KVCR))
    assert isinstance(removal, RemovedBlocks)
    assert removal.owned is is_owned
    left_out = map_event("BlockStored", block_hashes=[7], token_ids=["x"], **place, **KVCR)
    (kept,) = decode(left_out).events
    assert isinstance(kept, StoredBlocks)
    assert (kept.owned, kept.left_out) == (is_owned, DropReason.BAD_TOKENS)


@pytest.mark.parametrize("ownership", ["fs", "KVCR", "", 7, ["kvcr"], b"kvcr"])
def test_others_own_no_set(ownership: object) -> None:
    assert not stored(medium="CPU", ownership=ownership).owned


@pytest.mark.parametrize("medium", [None, "CPU", "STORAGE"])
def test_an_owner_clears_what_it_has(medium: str | None) -> None:
    tag = "AllBlocksCleared" if medium is None else "TierBlocksCleared"
    fields = {} if medium is None else {"medium": medium}
    batch = decode(map_event(tag, **fields, **KVCR))
    assert (batch.clears, batch.settled, batch.dropped) == (False, 0, [])
    (cleared,) = batch.events
    assert isinstance(cleared, ClearedBlocks)
    assert cleared.owned
    assert (cleared.medium is None) == (medium is None)


@pytest.mark.parametrize("ownership", ["fs", 7])
def test_a_clear_of_an_owner_that_is_not_known_may_be_of_all(ownership: object) -> None:
    batch = decode(map_event("AllBlocksCleared", ownership=ownership))
    assert batch.events == [ClearedBlocks(sequence=9)]
    assert [error.reason for error in batch.dropped] == [DropReason.UNKNOWN_FIELD]


@pytest.mark.parametrize("lookahead", [None, [], [None], [[], []]])
def test_blocks_that_depend_on_later_tokens_are_left_out(lookahead: object) -> None:
    assert stored(lookahead_token_ids=lookahead) == stored()
    fields = {"block_hashes": [7], "token_ids": TOKENS, "block_size": 4}
    event = map_event("BlockStored", **fields, lookahead_token_ids=[[5]])
    assert reason_of(event) == DropReason.LOOKAHEAD


NAMES = {"block_hashes": [7]}


@pytest.mark.parametrize(
    "event",
    [
        ["AllBlocksCleared", None, 1],
        map_event("AllBlocksCleared", later=1),
        map_event("AllBlocksCleared", locality="REMOTE"),
        map_event("AllBlocksCleared", group_idx=1),
    ],
)
def test_a_clear_that_may_have_meant_less_is_applied_and_missed(event: object) -> None:
    batch = decode(event)
    assert batch.events == [ClearedBlocks(sequence=9)]
    (error,) = batch.dropped
    assert (type(error), error.reason) == (EventError, DropReason.UNKNOWN_FIELD)


@pytest.mark.parametrize(
    ("event", "used"),
    [
        (["AllBlocksCleared", None, []], ClearedBlocks(sequence=9)),
        (map_event("AllBlocksCleared", later=None), ClearedBlocks(sequence=9)),
        (["BlockRemoved", [7], "CPU", 2, "later", 5], "removed"),
        (map_event("BlockRemoved", **NAMES, medium="CPU", group_idx=2, later=[1]), "removed"),
        (["BlockStored", *STORED_FIELDS, None, [], {}], "stored"),
    ],
)
def test_what_is_not_known_is_passed_over_where_that_is_safe(event: object, used: object) -> None:
    """A removal or a clear that is not applied leaves blocks that nobody holds."""
    batch = decode(event)
    (error,) = batch.dropped
    assert isinstance(error, ToleratedError)
    assert error.reason == DropReason.UNKNOWN_FIELD
    if used == "removed":
        hashes = (7).to_bytes(8, "little")
        used = RemovedBlocks(sequence=9, hashes=hashes, medium=Medium.CPU, group=2)
    elif used == "stored":
        used = only(["BlockStored", *STORED_FIELDS])
    assert batch.events == [used]


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [7], None, TOKENS, 4, None, "GPU", *[None] * 5, "x"],
        map_event("BlockStored", **NAMES, later={"a": [None]}),
        map_event("BlockStored", **NAMES, later=1),
    ],
)
def test_a_store_that_says_more_than_is_known_is_left_out(event: object) -> None:
    assert reason_of(event) == DropReason.UNKNOWN_FIELD


@pytest.mark.parametrize(
    ("event", "medium"),
    [
        (["AllBlocksCleared", None], None),
        (["AllBlocksCleared", "cpu"], Medium.CPU),
        (map_event("AllBlocksCleared", medium="STORAGE"), Medium.DISK),
        (["TierBlocksCleared", "GPU"], Medium.GPU),
        (map_event("TierBlocksCleared", medium="CPU_PINNED"), Medium.CPU),
    ],
)
def test_a_clear_may_be_of_one_medium(event: object, medium: Medium | None) -> None:
    batch = decode(event)
    assert (batch.events, batch.dropped) == ([ClearedBlocks(sequence=9, medium=medium)], [])
    assert batch.clears is (medium is None)
    assert decode(["BlockRemoved", [7]], event).clears is (medium is None)


def removals(counts: object) -> DecodedBatch:
    return decode(map_event("BlockRemoved", block_hashes=[1, 2, 3], remaining_copy_counts=counts))


def named(*hashes: int) -> bytes:
    return b"".join(one.to_bytes(8, "little") for one in hashes)


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        (None, {None: [1, 2, 3]}),
        ([1, 2, 1], {1: [1, 3], 2: [2]}),
        ([0, 0, 0], {0: [1, 2, 3]}),
        ([0, 1, 0], {0: [1, 3], 1: [2]}),
        ([2**60, 65_535, 65_536], {65_535: [1, 2, 3]}),
    ],
)
def test_a_removal_may_say_how_many_copies_are_left(
    counts: object, left: dict[int | None, list[int]]
) -> None:
    batch = removals(counts)
    assert batch.dropped == []
    assert batch.events == [
        RemovedBlocks(sequence=9, hashes=named(*hashes), whole=number == 0, left=number or 0)
        for number, hashes in left.items()
    ]


@pytest.mark.parametrize(
    "counts",
    [
        "x",
        "",
        False,
        1,
        [],
        [None] * 3,
        [[]],
        [0],
        [0, 0, 0, 0],
        [0, -1, 0],
        [0, 0, None],
        [1.5, 0, 0],
        {"a": 1},
    ],
)
def test_counts_that_say_nothing_known_are_missed_and_the_removal_is_applied(
    counts: object,
) -> None:
    batch = removals(counts)
    assert batch.events == [RemovedBlocks(sequence=9, hashes=named(1, 2, 3))]
    (error,) = batch.dropped
    assert (type(error), error.reason) == (EventError, "bad_copy_counts")


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
    assert only(map_event("BlockRemoved", block_hashes=[7], medium=medium)) == RemovedBlocks(
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
    assert isinstance(removed, RemovedBlocks)
    assert removed.shared is shared


@pytest.mark.parametrize(
    ("lora_name", "lora_id", "registered", "expected"),
    [
        (None, None, "", ""),
        (None, None, "reg", ""),  # since 0.14 the base model, of an engine that has adapters, too
        (None, 7, "", "lora_id:7"),
        (None, 7, "reg", "reg"),
        ("ad", 7, "reg", "ad"),
        ("", None, "reg", ""),
    ],
)
def test_the_lora_level_is_the_event_s_then_the_registered_then_the_id(
    lora_name: str | None, lora_id: int | None, registered: str, expected: str
) -> None:
    event = stored(registered, lora_name=lora_name, lora_id=lora_id)
    assert event.lora_name == expected


@pytest.mark.parametrize("more", [(), (None,), (None, "GPU")])
def test_an_event_without_the_field_is_of_the_registered_adapter(more: tuple[object, ...]) -> None:
    event = only(["BlockStored", [7], None, [1, 2], 2, *more], lora_name="reg")
    assert isinstance(event, StoredBlocks)
    assert event.lora_name == "reg"


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


@pytest.mark.parametrize(
    "fields",
    [
        {"block_size": BLOCK_SIZE_MAX},
        {"group_idx": GROUP_NUMBER_MAX},
        {"lora_name": "x" * NAME_BYTES_MAX},
    ],
)
def test_what_is_at_a_bound_is_used(fields: dict[str, Any]) -> None:
    assert stored(**fields).left_out == ""
