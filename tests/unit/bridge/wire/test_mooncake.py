"""What a Mooncake master's events mean: objects, and by which hashes their blocks are found."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from xxhash import xxh3_64_intdigest

from bridge.wire import mooncake, open_source
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import PythonArrayPacker
from schemas.errors import FrameError, PassedOverError
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from schemas.registration import Label, Registration
from tests.unit.bridge.messages import captured_messages, registration

DIGEST = "1111111111111111222222222222222233333333333333339111111111111101"
LOW64 = 0x9111111111111101
HIGH64 = 0x1111111111111111
KEY = f"m@tp_rank:0@pcp0@dcp0@pp_rank:0@{DIGEST}"
LAYOUT_KEY = (  # of `store_tp_size`; vLLM 0.32
    "m@store_tp:2@store_pp:1@store_format:tp_shared_lbnhc"
    f"@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{DIGEST}"
)
DCP = "tp2_dcp2_page16_pp1_cp1"  # of SGLang 0.5.23
TIME_MS = 1_700_000_000_250

COMMON: Mapping[str, object] = {
    "event_id": 1, "timestamp": TIME_MS, "model_name": None, "block_size": None,
    "additional_salt": None, "lora_name": None, "tenant_id": "default", "backend_id": "pool-0",
    "group_id": None, "medium": "cpu", "dp_rank": None, "object_key": "17", "seq_hashes": [17],
}  # fmt: skip


def stored(**fields: object) -> dict[str, object]:
    more = {"base_block_idx": 0, "parent_hash": None, "token_ids": None}
    return {**COMMON, "event_type": "stored", **more, **fields}


def removed(**fields: object) -> dict[str, object]:
    return {**COMMON, "event_type": "removed", "base_block_idx": None, **fields}


def of_pool(**fields: Any) -> Registration:
    return msgspec.structs.replace(registration(kind=mooncake.KIND), **fields)


def decoded(
    *events: object, pool: Registration | None = None, sequence: int = 8
) -> tuple[list[BlockEvent], list[str]]:
    source = open_source(pool or of_pool(), PythonArrayPacker())
    payload = msgspec.msgpack.encode([TIME_MS, list(events), 0])
    batch = source.decode([b"", sequence.to_bytes(8, "big"), payload])
    assert batch.engine_time == TIME_MS / 1000
    assert batch.sequence == sequence - 1
    assert [type(error) is PassedOverError for error in batch.dropped] == [
        error.reason in (DropReason.OTHER_STREAM, DropReason.OTHER_GROUP, DropReason.NO_BLOCK)
        for error in batch.dropped
    ]
    return batch.events, [error.reason for error in batch.dropped]


def name_of(object_key: str, backend: str = "pool-0") -> bytes:
    return xxh3_64_intdigest(f"{backend}\0{object_key}".encode()).to_bytes(8, "little")


def u64(value: int) -> bytes:
    return value.to_bytes(8, "little")


def is_at(event: BlockEvent) -> tuple[bytes, bytes, Medium]:
    assert isinstance(event, StoredBlocks)
    return event.hashes, event.aliases, event.medium


def test_an_object_is_named_by_its_key_and_found_by_the_engines_hash() -> None:
    expected = StoredBlocks(
        sequence=7,
        hashes=name_of("17"),
        aliases=u64(17),
        block_size=4,
        medium=Medium.CPU,
        shared=True,
    )
    assert decoded(stored()) == ([expected], [])
    gone = RemovedBlocks(sequence=7, hashes=name_of("17"), medium=Medium.DISK, shared=True)
    assert decoded(removed(medium="disk")) == ([gone], [])


def test_objects_of_two_backends_are_two() -> None:
    (one, other), _ = decoded(stored(), stored(backend_id="pool-1"))
    assert is_at(one)[0] == name_of("17") != is_at(other)[0] == name_of("17", "pool-1")


def test_the_digest_of_the_connector_names_the_block_by_its_last_eight_bytes() -> None:
    event = stored(object_key="any", seq_hashes=[], connector_block_hash=DIGEST)
    (one,), _ = decoded(event)
    assert is_at(one)[:2] == (name_of("any"), u64(LOW64))
    assert decoded({**event, "connector_block_hash": f"0x{DIGEST.upper()}"}) == ([one], [])
    assert decoded({**event, "seq_hashes": [LOW64]}) == ([one], [])


@pytest.mark.parametrize("signed", [LOW64 - 2**64, LOW64])
def test_the_older_name_of_a_hash_may_be_signed(signed: int) -> None:
    (one,), reasons = decoded(stored(seq_hashes=[LOW64], block_hashes=[signed]))
    assert (is_at(one)[1], reasons) == (u64(LOW64), [])
    (alone,), _ = decoded(stored(seq_hashes=[], block_hashes=[signed]))
    assert alone == one


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("17", 17),
        ("0017", 17),
        (str(2**64 - 1), 2**64 - 1),
        ("0x11", 17),
        ("0XfFfFfFfFfFfFfFfF", 2**64 - 1),
        (KEY, LOW64),
        (f"a@b@{KEY}", LOW64),
        (f"m@tp_rank:3@pcp0@dcp1@pp_rank:2@group:0@{DIGEST}", LOW64),
        (LAYOUT_KEY, LOW64),
        (
            f"ns@m@store_pp:1@store_format:tp_shared_mqa@tp_rank:0@pcp0@dcp0@pp_rank:0@{DIGEST}",
            LOW64,
        ),
        (f"m@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@{DIGEST}", LOW64),
        (f"m@pcp0@dcp0@head_or_tp_rank:0@{DIGEST}@31", LOW64),
        (f"{DIGEST}_0_k", HIGH64),
        (f"{DIGEST}_7_v", HIGH64),
        (f"m_{DIGEST}_0_1_v", HIGH64),
        (f"tag_m_{DIGEST}__k", HIGH64),
        (f"{DCP}_{DIGEST}_dcp0_cp0_k", HIGH64),
        (f"m_{DIGEST}_tp0_cp0_pp0_k", HIGH64),
        (f"{DIGEST}_cp0_pp0_deepseek_v4_c4_indexer", HIGH64),
        (f"{DIGEST}__indexer", HIGH64),
        (f"tag_m_{DCP}_{DIGEST}_dcp1_cp0_1_k", HIGH64),
    ],
)
def test_where_no_field_names_the_block_the_key_does(key: str, value: int) -> None:
    (one,), reasons = decoded(stored(object_key=key, seq_hashes=[]))
    assert (is_at(one)[:2], reasons) == ((name_of(key), u64(value)), [])


def shard(key: str, **fields: object) -> int:
    (one,), reasons = decoded(stored(object_key=key, seq_hashes=[], **fields))
    assert isinstance(one, StoredBlocks)
    assert not reasons
    (gone,), _ = decoded(removed(object_key=key, seq_hashes=[], **fields))
    assert (gone.hashes, gone.group) == (one.hashes, 0)  # type: ignore[union-attr]
    return one.group


@pytest.mark.parametrize(
    "key",
    [
        "17", KEY, f"m@tp_rank:00@pcp0@dcp0@pp_rank:0@group:0@{DIGEST}",
        f"m@pcp0@dcp0@head_or_tp_rank:0@{DIGEST}@0", f"{DIGEST}_0_k", f"m_{DIGEST}__k",
    ],
)  # fmt: skip
def test_the_first_object_of_a_block_has_no_number(key: str) -> None:
    assert shard(key) == shard(key, tp_rank=0, pp_rank=0, cache_prefix="") == 0


def test_each_rank_layer_half_and_prefix_is_another_shard() -> None:
    vllm = [f"m@tp_rank:{n}@pcp{i}@dcp{j}@pp_rank:{k}@{DIGEST}" for n, i, j, k in (
        (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (1, 0, 0, 1), (11, 0, 0, 0),
    )]  # fmt: skip
    others = [
        f"teamB@{KEY}", f"teamA@{KEY}", LAYOUT_KEY, f"teamA@{LAYOUT_KEY}",
        f"m@pcp0@dcp0@head_or_tp_rank:0@{DIGEST}@31", f"{DIGEST}_0_v",
        f"{DIGEST}_7_v", f"{DIGEST}_7_k", f"{DCP}_{DIGEST}_dcp0_cp0_k",
        f"{DCP}_{DIGEST}_dcp1_cp0_k", f"{DCP}_{DIGEST}_dcp0_cp0_1_k",
        f"{DIGEST}_tp0_cp0_pp0_k", f"{DIGEST}_tp1_cp0_pp0_k", f"{DIGEST}_cp0_pp0_k",
        f"{DIGEST}_0_draft_k", f"{DIGEST}_0_draft_v", f"{DIGEST}__indexer", f"{DIGEST}_0_conv_0",
        f"{DIGEST}_0_temporal", f"{DIGEST}_7_temporal",
    ]  # fmt: skip
    found = [shard(key) for key in (*vllm, *others)]
    assert 0 not in found
    assert len({*found}) == len(found)


def test_where_the_key_does_not_say_the_shard_fields_do() -> None:
    assert shard("17", tp_rank=1) == shard(KEY.replace("tp_rank:0", "tp_rank:1"))
    assert shard("17", head_or_tp_rank=1, pp_rank=0) == shard("17", tp_rank=1) > 0
    assert shard("17", cache_prefix="teamB") == shard(f"teamB@{KEY}")
    assert shard("17", pp_rank=1) != shard("17", tp_rank=1)


@pytest.mark.parametrize(
    "key",
    [
        "some/object", str(2**64), "9" * 5000, "-1", "0x", "0x1g", "17 ", "\u0661",
        f"m@tp_rank:0@pcp0@dcp0@{DIGEST}", "m@tp_rank:0@pcp0@dcp0@pp_rank:0@abc",
        f"m@tp_rank:0@pcp0@dcp0@pp_rank:0@{DIGEST}0", "m@tp_rank:0@pcp0@dcp0@pp_rank:0@",
        f"@tp_rank:0@pcp0@dcp0@pp_rank:0@{DIGEST}", f"{DIGEST}_0_Draft", f"m_{DIGEST}_0_",
        f"m_{DIGEST[1:]}_0_k", f"{DIGEST}_k", f"{DIGEST}_0_0_0_k", f"{DIGEST}_tp0_k",
    ],
)  # fmt: skip
def test_an_object_that_names_no_block_is_passed_over(key: str) -> None:
    (other,), reasons = decoded(stored(object_key=key, seq_hashes=[]), stored())
    assert (is_at(other)[1], reasons) == (u64(17), [DropReason.NO_BLOCK])
    (gone,), reasons = decoded(removed(object_key=key, seq_hashes=[]))
    assert (gone.hashes, reasons) == (name_of(key), [])  # type: ignore[union-attr]


def test_without_keys_an_object_is_what_it_has() -> None:
    (one,), _ = decoded(stored(object_key=None, seq_hashes=[17, 18]))
    (gone,), _ = decoded(removed(object_key=None, seq_hashes=[18]))
    assert is_at(one)[1] == u64(17) + u64(18)
    assert is_at(one)[0][8:] == gone.hashes  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "fields",
    [
        {"model_name": "other"}, {"tenant_id": "other"}, {"block_size": 16},
        {"additional_salt": "s"}, {"object_key": KEY.replace("m@", "other@")},
        {"object_key": f"n_{DIGEST}_0_k"}, {"object_key": f"not-m_{DIGEST}_0_k"},
    ],
)  # fmt: skip
def test_what_is_of_another_stream_is_passed_over(fields: dict[str, object]) -> None:
    assert decoded(stored(**fields)) == ([], [DropReason.OTHER_STREAM])
    assert decoded(removed(**fields)) == ([], [DropReason.OTHER_STREAM])


def test_what_names_the_registered_stream_is_of_it() -> None:
    named = {"model_name": "m", "tenant_id": "t", "block_size": 4, "additional_salt": "s"}
    pool = of_pool(tenant_id="t", additional_salt="s", lora_name="adapter")
    (one,), reasons = decoded(stored(**named), pool=pool)
    assert isinstance(one, StoredBlocks)
    assert (one.lora_name, reasons) == ("adapter", [])
    (one,), _ = decoded(stored(**named, lora_name="other"), pool=pool)
    assert isinstance(one, StoredBlocks)
    assert one.lora_name == "other"


def test_a_model_with_an_owner_has_no_slash_in_keys_of_sglang() -> None:
    pool = of_pool(model_name="meta/llama")
    key = f"tag_meta-llama_{DIGEST}_0_k"
    (one,), reasons = decoded(stored(object_key=key, seq_hashes=[]), pool=pool)
    assert (is_at(one)[1], reasons) == (u64(HIGH64), [])


@pytest.mark.parametrize("path", ["meta/llama", "/models/meta/llama/", "llama"])
@pytest.mark.parametrize(
    "tail", ["@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@", "@pcp0@dcp0@head_or_tp_rank:0@pp_rank:0@"]
)
def test_keys_of_vllm_call_a_model_by_the_last_part_of_its_path(path: str, tail: str) -> None:
    pool, key = of_pool(model_name=path), f"llama{tail}{DIGEST}"
    (one,), reasons = decoded(stored(object_key=key, seq_hashes=[]), pool=pool)
    assert (is_at(one)[1], reasons) == (u64(LOW64), [])
    other = stored(object_key=f"meta{tail}{DIGEST}", seq_hashes=[])
    assert decoded(other, pool=pool) == ([], [DropReason.OTHER_STREAM])


@pytest.mark.parametrize("key", [KEY, f"meta-m_{DIGEST}_0_k"])
def test_a_pool_may_say_what_keys_call_its_model(key: str) -> None:
    for name, reasons in (("meta/m", []), ("meta/other", [DropReason.OTHER_STREAM])):
        pool = of_pool(model_name="chat", labels=(Label(mooncake.MODEL_LABEL, name),))
        assert decoded(stored(object_key=key, seq_hashes=[]), pool=pool)[1] == reasons


@pytest.mark.parametrize("group", [None, "", "0", 0, "00", f"sglang-hicache:m_{DIGEST}", "\u0661"])
def test_group_zero_is_the_only_one_and_other_words_are_no_cache_group(group: object) -> None:
    assert decoded(stored(group_id=group))[1] == []


@pytest.mark.parametrize("group", ["1", "10", 1])
def test_objects_of_other_groups_are_passed_over(group: object) -> None:
    assert decoded(stored(group_id=group)) == ([], [DropReason.OTHER_GROUP])
    key = f"m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:{group}@{DIGEST}"
    assert decoded(stored(object_key=key, seq_hashes=[])) == ([], [DropReason.OTHER_GROUP])


def test_the_group_in_the_key_is_the_cache_group() -> None:
    key = f"m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{DIGEST}"
    assert decoded(stored(object_key=key, seq_hashes=[], group_id="7"))[1] == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"seq_hashes": [17], "block_hashes": [18]}, DropReason.BAD_HASHES),
        ({"connector_block_hash": DIGEST}, DropReason.BAD_HASHES),
        ({"connector_block_hash": "11" * 7}, DropReason.BAD_HASHES),
        ({"connector_block_hash": "1" * 17}, DropReason.BAD_HASHES),
        ({"connector_block_hash": "no hex"}, DropReason.BAD_HASHES),
        ({"seq_hashes": [17, 18]}, DropReason.BAD_HASHES),
        ({"seq_hashes": ["17"]}, DropReason.BAD_HASHES),
        ({"medium": "gpu"}, DropReason.UNKNOWN_MEDIUM),
        ({"medium": None}, DropReason.UNKNOWN_MEDIUM),
        ({"medium": "tape"}, DropReason.UNKNOWN_MEDIUM),
        ({"medium": "storage"}, DropReason.UNKNOWN_MEDIUM),
        ({"medium": "disk:0"}, DropReason.UNKNOWN_MEDIUM),
        ({"backend_id": None}, DropReason.MALFORMED_EVENT),
        ({"backend_id": ""}, DropReason.MALFORMED_EVENT),
        ({"object_key": 17}, DropReason.MALFORMED_EVENT),
        ({"shard_of": 3}, DropReason.UNKNOWN_FIELD),
        ({"event_type": "moved"}, DropReason.UNKNOWN_EVENT),
        ({"lora_name": "l" * 2000}, DropReason.NAME_TOO_LONG),
    ],
)
def test_what_cannot_be_used_is_a_loss_and_costs_nobody_else(
    fields: dict[str, object], reason: DropReason
) -> None:
    (*kept, other), reasons = decoded(stored(**fields), stored())
    assert (is_at(other)[1], reasons) == (u64(17), [reason])
    assert [getattr(event, "left_out", "") for event in kept] == reasons[: len(kept)]
    assert len(kept) == (reason in (DropReason.UNKNOWN_FIELD, DropReason.NAME_TOO_LONG))


def test_a_master_that_clears_holds_nothing() -> None:
    fields = ("event_id", "timestamp", "tenant_id", "backend_id", "medium", "dp_rank", "model_name")
    event = {**{name: COMMON[name] for name in fields}, "event_type": "cleared"}
    assert decoded(event) == ([ClearedBlocks(sequence=7)], [])
    assert decoded({**event, "tenant_id": "other"}) == ([], [DropReason.OTHER_STREAM])


def test_ranks_say_nothing() -> None:
    source = open_source(of_pool(dp_rank=3), PythonArrayPacker())
    payload = msgspec.msgpack.encode([TIME_MS, [stored(dp_rank=1)], 2])
    batch = source.decode([b"", (1).to_bytes(8, "big"), payload])
    assert (batch.event_count, batch.dropped) == (1, [])


def test_numbers_begin_at_one() -> None:
    source = open_source(of_pool(), PythonArrayPacker())
    with pytest.raises(FrameError, match="from 1 on"):
        source.decode([b"", bytes(8), msgspec.msgpack.encode([TIME_MS, [], 0])])
    assert source.decode_run([[b"", (1).to_bytes(8, "big"), b""]], 0, 1000) is None


def meant(captured: list[object]) -> list[tuple[object, ...]]:
    """An independent reading of captured events, in the words of `test_captured_objects`."""
    found: list[tuple[object, ...]] = []
    for event in captured:
        assert isinstance(event, dict)
        key, kind = event.get("object_key", ""), event["event_type"]
        if "other@" in key or event["tenant_id"] != "default" or "group:1" in key:
            continue
        if kind == "cleared":
            found.append((kind,))
        elif kind == "removed":
            found.append((kind, name_of(key), event["medium"]))
        elif key != "some/other/object":
            digest = next((part for part in key.split("@") if len(part) == len(DIGEST)), "")
            value = int(digest[-16:], 16) if digest else int(key, 0)
            found.append((kind, name_of(key), event["medium"], value))
    return found


CAPTURED = [one for one in captured_messages() if one.kind == mooncake.KIND]


@pytest.mark.parametrize("captured", CAPTURED, ids=[one.name for one in CAPTURED])
def test_captured_objects(captured: Any) -> None:
    batch = open_source(of_pool(), PythonArrayPacker()).decode(captured.frames)
    got: list[tuple[object, ...]] = []
    for event in batch.events:
        match event:
            case StoredBlocks():
                alias = int.from_bytes(event.aliases, "little")
                got.append(("stored", event.hashes, event.medium.lower(), alias))
            case RemovedBlocks():
                got.append(("removed", event.hashes, event.medium.lower()))
            case ClearedBlocks():
                got.append(("cleared",))
    assert got == meant(captured.decoded[1])
    assert batch.engine_time == captured.decoded[0] / 1000


def test_a_session_names_no_block() -> None:
    (event,), reasons = decoded(stored(session_id="s-1"))  # since 0.3.14
    assert (is_at(event)[1], reasons) == (u64(17), [])


def test_the_release_says_what_remove_all_takes_and_that_all_is_gone() -> None:
    frames = {
        one.name.rpartition("/")[2]: one.frames
        for one in captured_messages()
        if one.name.startswith("mooncake-0.3.14/")
    }
    source = open_source(of_pool(), PythonArrayPacker())
    batch = source.decode(frames["05_removed_all"])
    assert batch.clears
    assert {type(event) for event in batch.events} == {RemovedBlocks, ClearedBlocks}
    (by_regex,) = source.decode(frames["04_removed_by_regex"]).events
    assert isinstance(by_regex, RemovedBlocks)
