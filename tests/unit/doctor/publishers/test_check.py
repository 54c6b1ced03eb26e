"""What a check says of frames: of released engines, of their next releases, of unknown ones."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bridge.wire import KINDS
from bridge.wire.drop_reasons import DropReason
from doctor.publishers import check
from doctor.publishers.check import Given
from doctor.publishers.document import PublisherCheck, Reading
from doctor.publishers.trial import Effect
from query_api.http.requests.registrations import read_registration
from query_api.http.wire import Wire
from replay.capture.errors import CaptureError
from replay.capture.format import CaptureKind, Header
from replay.capture.reader import Capture
from replay.capture.writer import CaptureWriter
from tests.unit.bridge.messages import VECTORS, captured_messages
from tests.unit.doctor.publishers.captures import (
    CLEARED,
    batches,
    borealis,
    checked,
    removed,
    stored,
    write_frames,
)

RELEASES = sorted({one.name.partition("/")[0] for one in captured_messages()})

NOT_TOLD = frozenset(
    name for name in RELEASES if name.startswith(("sglang-0.4", "sglang-0.5.5", "sglang-0.5.9"))
)
"""Arrays that vLLM sent, too: which of both it is the check asks."""


def frames_of(release: str) -> list[list[bytes]]:
    return [one.frames for one in captured_messages() if one.name.partition("/")[0] == release]


def effects(of: PublisherCheck, tag: str) -> dict[str, int]:
    [event] = [one for one in of.events if one.tag == tag]
    return event.effects


def unknown_fields(of: PublisherCheck, tag: str) -> dict[str, str]:
    [event] = [one for one in of.events if one.tag == tag]
    return {field.name: field.unknown for field in event.fields if field.unknown}


def codes(of: PublisherCheck) -> list[str]:
    return [one.code for one in of.findings]


def asks(of: PublisherCheck, words: str) -> bool:
    return any(words in question for question in of.questions)


@pytest.mark.parametrize("release", RELEASES)
def test_a_released_publisher_is_read_best_by_its_own_kind(release: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "c", frames_of(release))
    [kind] = [one for one in KINDS if release.startswith(f"{one.lower()}-")]
    best = found.kinds[0]
    if release in NOT_TOLD:
        assert asks(found, f"{kind} read as much of it") or asks(found, f" and {kind} read as")
    else:
        assert best.type == kind
    left = {"lookahead"} if release == "vllm-0.33.0" else set()
    assert {one.reason for one in found.problems if one.effect == Effect.DROPPED} == set()
    assert {one.reason for one in found.problems if not one.is_harmless} <= {*left, "other_stream"}
    assert found.reading in (Reading.WHOLE, Reading.IN_PART)


@pytest.mark.parametrize("release", RELEASES)
def test_the_registration_is_one_that_register_takes(release: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "c", frames_of(release), Given(model_name="m", block_size=4))
    for body in found.registrations:
        taken = read_registration(msgspec.json.encode(body), Wire.JSON, KINDS)
        assert (taken.endpoint, taken.kind) == (body["endpoint"], found.kinds[0].type)
        assert (taken.model_name, taken.block_size) == ("m", 4)
    assert found.registrations


def test_signed_hashes_and_pinned_memory_tell_sglang_where_both_read_all(tmp_path: Path) -> None:
    signed = checked(tmp_path / "a", batches(stored([-7, 9], range(32))))
    pinned = checked(tmp_path / "b", batches(stored([7], range(16), medium="CPU_PINNED")))
    plain = checked(tmp_path / "c", batches(stored([7], range(16))))
    kinds = [one.kinds[0].type for one in (signed, pinned, plain)]
    assert kinds == ["SGLang", "SGLang", "vLLM"]
    assert asks(plain, "which engine is it: TensorRT-LLM and SGLang read as much")


@pytest.mark.parametrize(
    ("release", "block_size"), [("vllm-0.9.0", 16), ("tensorrt-llm-api-1.2", 4)]
)
def test_a_block_size_is_told_by_blocks_where_no_field_has_the_name(
    release: str, block_size: int, tmp_path: Path
) -> None:
    found = checked(tmp_path / "c", frames_of(release))
    assert [body["block_size"] for body in found.registrations] == [block_size]


def test_a_block_size_of_pages_of_pairs_is_told_by_their_decoder(tmp_path: Path) -> None:
    pairs = [[5, 6], [6, 7], [7, 8], [8, 9]]
    found = checked(tmp_path / "c", batches(["BlockStored", [1], None, pairs, 4, None, "GPU"]))
    assert [body["block_size"] for body in found.registrations] == [4]


def test_the_vectors_are_all_looked_at() -> None:
    assert len(RELEASES) == len(list(VECTORS.glob("*.jsonl"))) > 15


def test_what_is_whole_is_whole_and_says_what_to_register(tmp_path: Path) -> None:
    messages = batches(
        stored([1, 2], range(64)),
        stored([3], range(64, 96), 2),
        stored([4], range(200, 232)),
        stored([5], range(64, 96), 4),
        removed([3]),
        CLEARED,
    )
    for frames in messages:
        frames[0] = b"kv@10.0.0.7@deepseek"
    found = checked(tmp_path / "c", messages)
    assert found.reading is Reading.WHOLE, found.problems
    assert found.problems == []
    [body] = found.registrations
    assert (body["type"], body["model"], body["block_size"]) == ("vLLM", "deepseek", 32)
    blocks = found.blocks
    assert (blocks.stored, blocks.removed, blocks.cleared) == (5, 1, 1)
    assert (blocks.roots, blocks.found_parents, blocks.unknown_parents) == (2, 2, 0)
    assert blocks.chained is True
    assert blocks.sizes == {"32": 5}
    assert blocks.counted == 0
    assert not asks(found, "evicts")
    assert not asks(found, "emptied")


def test_an_unknown_field_is_named_with_what_it_does(tmp_path: Path) -> None:
    found = checked(
        tmp_path / "c",
        batches(
            stored([1], range(16), hint=None, pinned=True),
            stored([2], range(16, 32), 1, hint=None),
            removed([2], why="age"),
            CLEARED | {"zone": "a"},
        ),
    )
    assert found.reading is Reading.IN_PART
    assert unknown_fields(found, "BlockStored") == {
        "hint": Effect.TOLERATED.value,
        "pinned": Effect.LEFT_OUT.value,
    }
    assert unknown_fields(found, "BlockRemoved") == {"why": Effect.TOLERATED.value}
    assert unknown_fields(found, "AllBlocksCleared") == {"zone": Effect.DOUBTED.value}
    by_effect = {one.effect: one for one in found.problems}
    left_out = by_effect[Effect.LEFT_OUT.value]
    assert (left_out.reason, left_out.count) == (DropReason.UNKNOWN_FIELD, 1)
    assert left_out.where == [
        "message 1 (number 0): BlockStored at `$[1][0]`, byte 11 of the payload"
    ]
    assert "hint, pinned" in left_out.got
    assert by_effect[Effect.TOLERATED.value].is_harmless
    assert not by_effect[Effect.DOUBTED.value].is_harmless


@pytest.mark.parametrize(
    ("kind", "event", "effect"),
    [
        ("vLLM", stored([2], range(16), 1, ownership="kvcr"), Effect.USED),
        ("vLLM", removed([1], remaining_copy_counts=[0]), Effect.USED),
        ("vLLM", {"type": "TierBlocksCleared", "medium": "GPU"}, Effect.USED),
        ("vLLM", {"type": "AllBlocksCleared", "medium": "GPU"}, Effect.USED),
        ("vLLM", {"type": "AllBlocksCleared", "group_idx": 1}, Effect.DOUBTED),
        ("vLLM", stored([2], range(16), 1, token_offset=16), Effect.LEFT_OUT),
        ("vLLM", stored([2], range(16), 1, origin="REUSED"), Effect.USED),
        ("vLLM", {"type": "EngineSlept", "level": 1}, Effect.DROPPED),
        ("SGLang", removed([1], reason="evict", component_types=["kv"]), Effect.USED),
        ("SGLang", stored([2], range(16), None, extra_keys=[["salt"]]), Effect.USED),
        ("SGLang", stored([2], range(16), None, epoch="e-1"), Effect.LEFT_OUT),
        ("TensorRT-LLM", stored([2], range(16), 1, ownership="kvcr"), Effect.LEFT_OUT),
    ],
)
def test_what_later_releases_may_send_is_told_by_kind(
    kind: str, event: dict[str, object], effect: Effect, tmp_path: Path
) -> None:
    messages = batches(stored([1], range(16)), event)
    found = checked(tmp_path / "c", messages, Given(kind=kind))
    assert effect.value in effects(found, str(event["type"]))
    harmless = effect is Effect.USED
    assert [one.is_harmless for one in found.problems] == ([] if harmless else [False])


def test_one_more_element_of_an_array_is_told(tmp_path: Path) -> None:
    store = ["BlockStored", [1], None, list(range(16)), 16, None, "GPU", None, None, 0, None, None]
    found = checked(tmp_path / "c", batches([*store, 7], ["BlockRemoved", [1], "GPU"]))
    [event, _] = found.events
    assert event.form == "array"
    told = {field.name: field.unknown for field in event.fields}
    assert told["[12]"] == Effect.LEFT_OUT.value
    assert told["[1] block_hashes"] == ""


def test_a_bad_value_is_told_with_its_place(tmp_path: Path) -> None:
    found = checked(
        tmp_path / "c",
        batches(stored([1], range(16)), stored(["x"], range(16)), stored([2], range(16), 1.5)),  # type: ignore[arg-type]
    )
    hashes, parent = sorted(
        (one for one in found.problems if not one.is_harmless), key=lambda one: one.reason
    )
    assert (hashes.reason, hashes.count) == (DropReason.BAD_HASHES, 1)
    assert hashes.where[0].startswith("message 2 (number 1): BlockStored at `$[1][0]`")
    assert hashes.expected
    assert hashes.remedy
    assert parent.reason == DropReason.MALFORMED_EVENT
    assert "$.parent_block_hash" in parent.got


def test_an_engine_that_no_kind_knows_is_described(tmp_path: Path) -> None:
    found = checked(tmp_path / "c", borealis())
    assert found.reading is Reading.NONE
    assert found.registrations == []
    assert "A kind of its own" in found.verdict
    assert found.messages.encodings == {"JSON": 7}
    assert found.messages.forms == {"a map of at: a number, items: events as maps": 7}
    cached, evicted = found.events
    assert (cached.tag, cached.count, evicted.tag) == ("cached", 6, "evicted")
    looks = {field.name: field.looks_like for field in cached.fields}
    assert looks["pages"] == "the names of blocks"
    assert looks["ids"] == "tokens"
    assert looks["page_len"] == "tokens of a block"
    assert looks["follows"] == "the block before, or one block"
    assert looks["where"] == "a medium"
    assert {field.name: field.looks_like for field in evicted.fields}["pages"] == looks["pages"]
    assert not asks(found, "mend `dropped`")


def test_hashes_of_a_block_alone_are_found_out(tmp_path: Path) -> None:
    page = range(64, 96)
    alone = batches(
        *(stored([1], range(32)), stored([9], page, 1)),
        *(stored([2], range(32, 64)), stored([9], page, 2)),
    )
    found = checked(tmp_path / "c", alone)
    assert "hashes_not_chained" in codes(found)
    assert found.blocks.chained is False
    assert found.reading is Reading.IN_PART


def test_a_hash_that_hides_something_is_found_out(tmp_path: Path) -> None:
    found = checked(tmp_path / "c", batches(stored([1], range(16)), stored([2], range(16))))
    assert codes(found) == ["hashes_differ"]


def test_what_adapters_and_salts_say_is_no_second_name(tmp_path: Path) -> None:
    found = checked(
        tmp_path / "c",
        batches(
            stored([1], range(16)),
            stored([2], range(16), lora_name="sql"),
            stored([3], range(16), extra_keys=[["salt"]]),
        ),
    )
    assert codes(found) == []
    assert found.blocks.adapters == {"sql": 1}
    assert found.blocks.keyed == 1
    assert not asks(found, "salts, adapters")


def test_numbers_tell_gaps_restarts_and_a_late_begin(tmp_path: Path) -> None:
    one, two = stored([1], range(16)), stored([2], range(16, 32))
    gap = checked(tmp_path / "gap", [*batches(one), *batches(two, first=3)])
    assert (gap.messages.numbers.missing, gap.messages.numbers.lost) == (2, 2)
    assert codes(gap) == ["lost_batches"]
    again = checked(tmp_path / "again", [*batches(one, two), *batches(two)])
    assert (again.messages.numbers.back, again.messages.numbers.restarts) == (1, 1)
    assert not asks(again, "after a restart")
    late = checked(tmp_path / "late", batches(one, two, first=7))
    assert codes(late) == ["begun_late"]
    assert late.findings[0].got == "numbers from 7 on"
    same = checked(tmp_path / "same", batches(one) + batches(one) + batches(one))
    assert same.messages.numbers.repeated == 2


def test_little_endian_numbers_are_told(tmp_path: Path) -> None:
    messages = batches(*(stored([n + 1], range(16 * n, 16 * n + 16)) for n in range(4)))
    for number, frames in enumerate(messages):
        frames[1] = number.to_bytes(8, "little")
    found = checked(tmp_path / "c", messages)
    assert any("little-endian" in one.cause for one in found.findings)


def test_frames_without_a_number_are_told_with_what_their_payload_would_be(tmp_path: Path) -> None:
    messages = [frames[::2] for frames in batches(stored([1], range(16)), removed([1]))]
    found = checked(tmp_path / "c", messages)
    assert found.messages.frames == {"2": 2}
    assert found.messages.numbers.unreadable == 2
    assert found.kinds[0].type == "vLLM"
    [problem] = found.problems
    assert (problem.reason, problem.count) == (DropReason.FRAME_COUNT, 2)
    assert problem.expected.startswith("three frames")
    pool = [frames[::2] for frames in frames_of("mooncake-dev-2026.08")]
    assert checked(tmp_path / "pool", pool).kinds[0].type == "Mooncake"


def test_removals_are_held_against_what_was_stored(tmp_path: Path) -> None:
    found = checked(tmp_path / "c", batches(stored([1], range(16)), removed([8]), removed([9])))
    assert found.blocks.unheld == 2
    assert "unheld_removed" in codes(found)
    silent = checked(tmp_path / "d", batches(stored([1], range(16)), stored([2], range(16, 32), 1)))
    assert asks(silent, "which blocks it evicts? None of 2")
    assert codes(silent) == []


def test_blocks_that_hang_on_nothing_are_told(tmp_path: Path) -> None:
    found = checked(tmp_path / "c", batches(stored([5], range(16), 4)))
    assert found.blocks.unknown_parents == 1
    assert codes(found) == ["left_out"]
    assert "unknown_parent" in found.findings[0].cause


def test_a_rank_is_registered(tmp_path: Path) -> None:
    messages = [
        [b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [event], 3])]
        for number, event in enumerate([stored([1], range(16)), removed([1])])
    ]
    found = checked(tmp_path / "c", messages)
    assert [body["dp_rank"] for body in found.registrations] == [3]
    assert found.reading is Reading.WHOLE


def test_two_ranks_in_one_stream_of_dynamo_are_both_registered(tmp_path: Path) -> None:
    messages = []
    for number in range(4):
        block = {"block_hash": 1 + number, "tokens_hash": 50 + number}
        data = {"stored": {"parent_hash": None, "blocks": [block]}}
        event = {"event_id": number, "dp_rank": number % 2, "data": data}
        messages.append([b"", number.to_bytes(8, "big"), msgspec.json.encode(event)])
    found = checked(tmp_path / "c", messages, Given(block_size=16))
    assert [body["dp_rank"] for body in found.registrations] == [0, 1]
    assert found.kinds[0].type == "Dynamo"
    assert found.reading is Reading.WHOLE


def test_ranks_that_count_each_for_itself_are_all_registered(tmp_path: Path) -> None:
    messages = [
        [b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([1.0 + number, [event], rank])]
        for number, event in enumerate([stored([1], range(16)), removed([1])])
        for rank in (0, 1)
    ]
    found = checked(tmp_path / "c", messages)
    assert [body["dp_rank"] for body in found.registrations] == [0, 1]
    assert (found.reading, codes(found)) == (Reading.WHOLE, [])
    numbers = found.messages.numbers
    assert (numbers.lost, numbers.restarts) == (0, 0)


def test_a_payload_that_breaks_off_is_told_with_its_byte(tmp_path: Path) -> None:
    whole, cut = batches(stored([1], range(16)), removed([1]))
    cut[2] = cut[2][:20]
    found = checked(tmp_path / "c", [whole, cut])
    assert found.messages.fault.startswith("message 2: ")
    assert "truncated" in found.messages.fault
    bad = [b"", (0).to_bytes(8, "big"), b'{"a": 1, }']
    assert "byte 9" in checked(tmp_path / "d", [bad]).messages.fault


@pytest.mark.parametrize(
    ("payload", "encoding"),
    [
        (b"\x0a\x03abc\x10\x96\x01", "protobuf, as it seems"),
        (b"\x05\xff\xfe", "other bytes"),
        (b"", "nothing"),
        (b'{"a": []}', "JSON"),
        (b"\x90", "msgpack"),
    ],
)
def test_an_encoding_is_told(payload: bytes, encoding: str, tmp_path: Path) -> None:
    found = checked(tmp_path / "c", [[b"t", bytes(8), payload]])
    assert found.messages.encodings == {encoding: 1}


def test_nothing_is_nothing(tmp_path: Path) -> None:
    found = checked(tmp_path / "c", [])
    assert found.reading is Reading.SILENT
    assert found.registrations == []


def test_a_block_size_that_no_event_says_is_asked_for(tmp_path: Path) -> None:
    messages = frames_of("dynamo-1.6.1")
    assert codes(checked(tmp_path / "c", messages)) == ["block_size_unsaid"]
    assert codes(checked(tmp_path / "d", messages, Given(block_size=16))) == []


def test_what_is_beyond_the_bound_is_folded_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHECK_EVENTS_MAX", 3)
    events = [stored([n], range(16 * n, 16 * n + 16)) for n in range(1, 9)]
    found = checked(tmp_path / "c", batches(*events))
    assert effects(found, "BlockStored") == {Effect.USED.value: 3}
    assert found.blocks.counted == 8
    assert found.events[0].count == 8


def test_a_capture_of_records_is_refused(tmp_path: Path) -> None:
    header = Header(kind=CaptureKind.RECORDS, created_at=1.0, created_by="test", source="test")
    with CaptureWriter(tmp_path / "c", header):
        pass
    with (
        Capture(tmp_path / "c") as capture,
        pytest.raises(CaptureError, match="Expected a capture of frames"),
    ):
        check.check_capture(capture, Given())


def test_a_kind_that_is_given_is_the_only_one(tmp_path: Path) -> None:
    found = checked(tmp_path / "c", frames_of("sglang-0.5.9"), Given(kind="sglang"))
    assert [one.type for one in found.kinds] == ["SGLang"]
    assert not asks(found, "which engine is it")


def places(of: PublisherCheck) -> Sequence[str]:
    return [place for one in of.problems for place in one.where]


def test_few_places_of_a_problem_are_named_and_all_are_counted(tmp_path: Path) -> None:
    events = [stored([n], range(16), pinned=True) for n in range(1, 10)]
    found = checked(tmp_path / "c", batches(*events))
    [problem] = found.problems
    assert problem.count == 9
    assert len(places(found)) == 3


def test_publishers_of_one_capture_are_told_apart(tmp_path: Path) -> None:
    good = batches(stored([1], range(16)), removed([1]))
    path = write_frames(tmp_path / "c", good, borealis(), good)
    with Capture(path) as capture:
        found = check.check_capture(capture, Given()).publishers
    assert [one.reading for one in found] == [Reading.WHOLE, Reading.NONE, Reading.WHOLE]
    names = [body["instance_id"] for one in found for body in one.registrations]
    assert names == ["engine-0", "engine-2"]


def test_publishers_beyond_the_bound_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "CHECK_PUBLISHERS_MAX", 1)
    good = batches(stored([1], range(16)), removed([1]))
    with Capture(write_frames(tmp_path / "c", good, good, good)) as capture:
        document = check.check_capture(capture, Given())
    assert len(document.publishers) == 1
    assert document.notes == ["Expected at most 1 publishers, got 2 more: not looked at"]
