import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.bounds import BATCH_ERRORS_MAX, BATCH_TOLERATED_MAX
from bridge.wire import batch as batch_module
from bridge.wire import fields
from bridge.wire.batch import (
    BATCH_APART_EVENTS_MAX,
    BatchDecoder,
    DecodedBatch,
    read_frames,
    read_sequence,
)
from bridge.wire.drop_reasons import DropReason
from bridge.wire.forms import WireEvent
from bridge.wire.vllm import open_source
from schemas.arrays import PythonArrayPacker
from schemas.errors import BatchError, EventError, FrameError, LeftOutError, ToleratedError
from schemas.events import ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.limits import BATCH_EVENTS_MAX
from tests.unit.bridge.messages import captured_messages, frames_of, map_event, registration

CLEARED = ["AllBlocksCleared"]
DEEP = b"\x91" * 100_000 + b"\xc0"


def decoder(dp_rank: int = 0) -> BatchDecoder:
    return open_source(registration(dp_rank=dp_rank), PythonArrayPacker())


def decode(batch: object) -> DecodedBatch:
    return decoder().decode(frames_of(batch, sequence=3))


def decode_payload(payload: bytes) -> DecodedBatch:
    return decoder().decode([b"", (3).to_bytes(8, "big"), payload])


def batch_reason(decoded: DecodedBatch) -> str:
    """The reason of a batch that was dropped whole, and whose sequence counts all the same."""
    (error,) = decoded.dropped
    assert isinstance(error, BatchError)
    assert (decoded.sequence, decoded.events, decoded.engine_time) == (3, [], None)
    assert not decoded.clears
    return error.reason


@pytest.mark.parametrize("event", [CLEARED, {"type": "AllBlocksCleared"}])
@pytest.mark.parametrize(
    "batch",
    [
        lambda events: [1.5, events],
        lambda events: [1.5, events, None],
        lambda events: [1.5, events, 0],
        lambda events: [1.5, events, 0, "later", {"a": 1}],
        lambda events: {"ts": 1.5, "events": events},
        lambda events: {"data_parallel_rank": 0, "events": events, "ts": 1.5, "later": []},
    ],
)
def test_every_form_of_batch_holds_every_form_of_event(batch: object, event: object) -> None:
    assert callable(batch)
    decoded = decode(batch([event, event]))
    assert decoded.dropped == []
    assert decoded.engine_time == 1.5
    assert decoded.events == [ClearedBlocks(sequence=3)] * 2


def test_a_batch_may_mix_arrays_and_maps() -> None:
    decoded = decode([1, [CLEARED, {"type": "AllBlocksCleared"}]])
    assert decoded.events == [ClearedBlocks(sequence=3)] * 2
    assert decoded.engine_time == 1.0


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (["BlockStored"], DropReason.MALFORMED_EVENT),
        (["BlockRemoved", [1], "TAPE"], DropReason.UNKNOWN_MEDIUM),
        (["BlockMoved", [1]], DropReason.UNKNOWN_EVENT),
        (map_event("BlockMoved"), DropReason.UNKNOWN_EVENT),
        (map_event("BlockRemoved"), DropReason.MALFORMED_EVENT),
        ({"block_hashes": [1]}, DropReason.MALFORMED_EVENT),
        ([], DropReason.MALFORMED_EVENT),
        ([5], DropReason.MALFORMED_EVENT),
        (None, DropReason.MALFORMED_EVENT),
        ("BlockRemoved", DropReason.MALFORMED_EVENT),
        (7, DropReason.MALFORMED_EVENT),
        (msgspec.Raw(b"\xa1\xff"), DropReason.MALFORMED_EVENT),
        (["BlockRemoved", [1], msgspec.Raw(b"\xa1\xff")], DropReason.MALFORMED_EVENT),
    ],
)
def test_one_bad_event_of_five_costs_itself_only(bad: object, reason: str) -> None:
    events: list[object] = [["BlockRemoved", [i]] for i in range(4)]
    decoded = decode([1.5, [*events[:2], bad, *events[2:]], 0])
    assert decoded.events == [
        RemovedBlocks(sequence=3, hashes=i.to_bytes(8, "little")) for i in range(4)
    ]
    (error,) = decoded.dropped
    assert isinstance(error, EventError)
    assert error.reason == reason


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", DropReason.UNDECODABLE),
        (b"\xc1", DropReason.UNDECODABLE),
        (b"text", DropReason.UNDECODABLE),
        (msgspec.msgpack.encode([1.5]), DropReason.UNDECODABLE),
        (msgspec.msgpack.encode([1.5, None]), DropReason.UNDECODABLE),
        (msgspec.msgpack.encode({"ts": 1.5}), DropReason.UNDECODABLE),
        (msgspec.msgpack.encode([1.5, [CLEARED]]) + b"x", DropReason.UNDECODABLE),
        (msgspec.msgpack.encode([1.5, [CLEARED]])[:-1], DropReason.UNDECODABLE),
        (b"\x92\x01\x91" + DEEP, DropReason.UNDECODABLE),
        (msgspec.msgpack.encode(["now", [CLEARED]]), DropReason.BAD_TIMESTAMP),
        (msgspec.msgpack.encode([None, []]), DropReason.BAD_TIMESTAMP),
        (msgspec.msgpack.encode([True, []]), DropReason.BAD_TIMESTAMP),
        (msgspec.msgpack.encode([math.nan, []]), DropReason.BAD_TIMESTAMP),
        (msgspec.msgpack.encode([math.inf, [["?"]]]), DropReason.BAD_TIMESTAMP),
        (msgspec.msgpack.encode([1.5, [CLEARED], "0"]), DropReason.RANK_MISMATCH),
        (msgspec.msgpack.encode([1.5, [CLEARED], 1.0]), DropReason.RANK_MISMATCH),
    ],
)
def test_an_unusable_batch_is_dropped_whole_and_its_sequence_counts(
    payload: bytes, reason: str
) -> None:
    assert batch_reason(decode_payload(payload)) == reason


@pytest.mark.parametrize("payload", [b"\xc1", msgspec.msgpack.encode([1.5, [5]])])
def test_what_every_form_has_against_a_message_is_said_once(payload: bytes) -> None:
    (error,) = decode_payload(payload).dropped
    told = str(error).removeprefix("Expected a batch of events: ").split("; or ")
    assert len(told) == len(set(told))


def test_the_registered_rank_is_the_one_expected() -> None:
    assert decoder(dp_rank=3).decode(frames_of([1.5, [CLEARED], 3])).dropped == []
    assert decoder(dp_rank=3).decode(frames_of([1.5, [CLEARED], None])).dropped == []
    for rank in (0, -1, 2**40):
        other = decoder(dp_rank=3).decode(frames_of([1.5, [CLEARED, ["?"]], rank]))
        (error,) = other.dropped
        assert (error.reason, other.other_ranks) == (DropReason.OTHER_RANK, (rank,))
        assert (other.event_count, other.clears) == (0, False)


def test_bounds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [["BlockRemoved", [1, 2]], CLEARED]
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "BATCH_EVENTS_MAX", 1)
        assert batch_reason(decode([1.5, events])) == DropReason.TOO_MANY_EVENTS
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "MESSAGE_BYTES_MAX", 10)
        assert batch_reason(decode([1.5, events])) == DropReason.MESSAGE_TOO_LARGE
    with monkeypatch.context() as patch:
        size_bytes = len(decode([1.5, events]).run)
        patch.setattr(batch_module, "PACKED_BATCH_BYTES_MAX", size_bytes)
        assert len(decode([1.5, events]).events) == 2
        patch.setattr(batch_module, "PACKED_BATCH_BYTES_MAX", size_bytes - 1)
        assert batch_reason(decode([1.5, events])) == DropReason.BATCH_TOO_LARGE
    with monkeypatch.context() as patch:
        patch.setattr("bridge.wire.fields.EVENT_BLOCKS_MAX", 8)
        assert decode([1.5, [["BlockRemoved", list(range(8))]]]).dropped == []
        decoded = decode([1.5, [["BlockRemoved", list(range(9))], CLEARED]])
        assert decoded.events == [ClearedBlocks(sequence=3)]
        assert decoded.dropped[0].reason == DropReason.TOO_MANY_BLOCKS


@pytest.mark.parametrize(
    ("bad", "count", "reason"),
    [
        (b"\xc0", BATCH_ERRORS_MAX, None),
        (b"\x90", BATCH_ERRORS_MAX, None),
        (b"\x80", BATCH_ERRORS_MAX, None),
        (b"\x91\xa1?", BATCH_ERRORS_MAX, None),
        (b"\x90", BATCH_ERRORS_MAX + 1, DropReason.UNDECODABLE),
        (b"\x91\xa1?", BATCH_APART_EVENTS_MAX + 1, DropReason.UNDECODABLE),
        (b"\xc0", BATCH_EVENTS_MAX + 1, DropReason.TOO_MANY_EVENTS),
        (b"\x80", 999_999, DropReason.TOO_MANY_EVENTS),
    ],
)
def test_what_bad_events_cost_is_bounded_whatever_their_number(
    monkeypatch: pytest.MonkeyPatch, bad: bytes, count: int, reason: str | None
) -> None:
    """One message of 976 KB stopped every publisher for a minute: each event was tried apart."""
    tried = 0
    read = BatchDecoder._read_event

    def counted(self: BatchDecoder, encoded: msgspec.Raw) -> tuple[WireEvent, EventError | None]:
        nonlocal tried
        tried += 1
        return read(self, encoded)

    monkeypatch.setattr(BatchDecoder, "_read_event", counted)
    header = b"\x93\xcb" + bytes(8) + b"\xdd" + count.to_bytes(4, "big")
    decoded = decode_payload(header + bad * count + b"\0")
    assert tried <= BATCH_ERRORS_MAX + 1
    if reason is None:
        assert len(decoded.dropped) == count
    else:
        assert batch_reason(decoded) == reason
        assert len(str(decoded.dropped[0])) < 1_000


@pytest.mark.parametrize("kind", ["BlockRemoved", "BlockStored"])
def test_a_field_of_tomorrow_in_each_of_many_events_costs_none_of_them(kind: str) -> None:
    events = [map_event(kind, block_hashes=[at], later=1) for at in range(BATCH_TOLERATED_MAX)]
    batch = decoder().decode(frames_of([1.5, events, 0]))
    assert batch.event_count == len(batch.dropped) == BATCH_TOLERATED_MAX
    expected = ToleratedError if kind == "BlockRemoved" else LeftOutError
    assert {type(error) for error in batch.dropped} == {expected}
    batch = decoder().decode(frames_of([1.5, [*events, events[0]], 0], sequence=3))
    assert batch_reason(batch) == DropReason.UNDECODABLE


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        msgspec.msgpack.encode(["?", []]),
        msgspec.msgpack.encode([1.5, [["BlockRemoved", ["?"]], ["?"], None]]),
        msgspec.msgpack.encode([1.5, [None] * (BATCH_ERRORS_MAX + 1)]),
    ],
)
def test_what_is_dropped_keeps_nothing_alive_but_its_text(payload: bytes) -> None:
    """The errors of a held batch kept all messages of its turn: 21 KB where 1.4 were counted."""
    for error in decode_payload(payload).dropped:
        assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)


def test_a_bad_event_among_many_good_ones_costs_the_batch_beyond_a_bound() -> None:
    good = [["BlockRemoved", [number]] for number in range(BATCH_APART_EVENTS_MAX)]
    assert len(decode([1.5, good]).events) == len(good)
    assert len(decode([1.5, [*good[1:], ["?"]]]).events) == len(good) - 1
    assert batch_reason(decode([1.5, [*good, ["?"]]])) == DropReason.UNDECODABLE


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([], DropReason.FRAME_COUNT),
        ([b"", b""], DropReason.FRAME_COUNT),
        ([b"", bytes(8), b"", b""], DropReason.FRAME_COUNT),
        ([b"", bytes(7), b""], DropReason.SEQUENCE_LENGTH),
        ([b"", bytes(9), b""], DropReason.SEQUENCE_LENGTH),
        ([b"", b"\x80" + bytes(7), b""], DropReason.SEQUENCE_RANGE),
        ([b"", b"\xff" * 8, b""], DropReason.SEQUENCE_RANGE),
    ],
)
def test_a_message_without_a_place_in_the_stream_is_refused(
    frames: list[bytes], reason: str
) -> None:
    with pytest.raises(FrameError) as caught:
        decoder().decode(frames)
    assert caught.value.reason == reason


def test_the_sequence_is_big_endian() -> None:
    assert read_frames([b"t", b"\0\0\0\0\0\0\1\2", b"p"]) == (258, b"p")
    assert read_frames([b"t", b"\x7f" + b"\xff" * 7, b"p"])[0] == 2**63 - 1, "the last one"


@pytest.mark.parametrize("before", [[b"t"], [b"t", bytes(8)]])
def test_the_sequence_is_the_last_frame_before_the_payload(before: list[bytes]) -> None:
    assert read_sequence([*before, b"\0\0\0\0\0\0\1\2"]) == 258
    for heads in ([], [*before, b""], [*before, b"\xff" * 8]):
        with pytest.raises(FrameError):
            read_sequence(heads)


def test_equal_payloads_have_equal_digests_and_others_do_not() -> None:
    assert decode([1.5, [CLEARED]]).digest == decode([1.5, [CLEARED]]).digest
    assert decode([1.5, [CLEARED]]).digest != decode([1.75, [CLEARED]]).digest


@given(st.binary(max_size=80))
def test_no_payload_is_an_unforeseen_error(payload: bytes) -> None:
    decode_payload(payload)


SOUND = [captured.frames[2] for captured in captured_messages()]


@given(st.sampled_from(SOUND), st.integers(0), st.integers(0, 255), st.integers(0))
def test_no_damaged_payload_is_an_unforeseen_error(
    payload: bytes, place: int, byte: int, length: int
) -> None:
    damaged = bytearray(payload)
    damaged[place % len(payload)] = byte
    decode_payload(bytes(damaged))
    decode_payload(bytes(damaged[: length % len(payload)]))


def test_the_names_of_adapters_are_bounded_and_those_known_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each makes a context of the table."""
    monkeypatch.setattr(fields, "LORA_NAMES_MAX", 2)
    decoder = open_source(registration(), PythonArrayPacker())

    def stored(name: str, number: int) -> DecodedBatch:
        fields = {"block_hashes": [number], "token_ids": [1] * 4, "block_size": 4}
        event = map_event("BlockStored", **fields, lora_name=name)
        return decoder.decode(frames_of([1.0, [event], 0], number))

    assert [one.lora_name for one in stored("x", 0).events if isinstance(one, StoredBlocks)] == [
        "x"
    ]
    assert stored("y", 1).dropped == []
    refused = stored("z", 2)
    (left_out,) = refused.events
    assert isinstance(left_out, StoredBlocks)
    assert left_out.left_out == DropReason.TOO_MANY_LORA_NAMES
    assert [one.reason for one in refused.dropped] == [DropReason.TOO_MANY_LORA_NAMES]
    assert len(stored("x", 3).events) == 1
