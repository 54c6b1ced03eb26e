"""What SMG's and OpenEngine's messages say is what their engines published."""

import random

import msgspec
import pytest

from bridge.grpc.messages import openengine_events_pb2 as openengine_pb
from bridge.grpc.messages import smg_events_pb2 as smg_pb
from bridge.grpc.methods import METHODS
from bridge.grpc.openengine import OpenEngineEvents
from bridge.grpc.shapes import SHAPED_BYTES, SUBMESSAGES_MAX
from bridge.grpc.smg import SmgEvents
from bridge.grpc.streamed import UNREADABLE, StreamedMessage
from bridge.wire import DecodedBatch, open_source
from bridge.wire.drop_reasons import DropReason
from bridge.wire.stream_marks import WholeMark
from schemas.arrays import PythonArrayPacker
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, StoredBlocks
from schemas.identities import Medium
from schemas.registration import STREAMED_KINDS, VLLM, PublisherKind
from tests.unit.bridge.grpc.streams import Streamed, message_of, registration, streamed

SMG = streamed("smg-0.14.1")
RELAYED = [one for one in SMG if one.frames]


def decoded(kind: str, frames: list[bytes]) -> DecodedBatch:
    source = open_source(registration(1, kind=PublisherKind(kind)), PythonArrayPacker())
    return source.decode(frames)


def read(one: Streamed, rank: int = 0) -> StreamedMessage:
    return SmgEvents().read(one.message, rank)


def is_kept_back(event: BlockEvent) -> bool:
    """Whether the relay says nothing of it: of placeholders, and of groups that form no prefix."""
    if not isinstance(event, StoredBlocks):
        return False
    return not event.tokens or event.spec_kind == "sliding_window"


@pytest.mark.parametrize("one", RELAYED, ids=lambda one: f"{one.kind}-{one.case}")
def test_a_relayed_batch_is_what_its_engine_published(one: Streamed) -> None:
    rank = msgspec.msgpack.decode(one.frames[2], strict=False)[2] or 0
    found = read(one, rank)
    assert found.number == int.from_bytes(one.frames[1], "big")
    assert found.mark is None
    told = registration(1, kind=one.kind, dp_rank=rank)
    source = open_source(told, PythonArrayPacker())
    published = source.decode([b"", *one.frames[1:]])
    streamed_batch = source.decode([b"", one.frames[1], found.payload])
    assert streamed_batch.engine_time == published.engine_time
    assert not streamed_batch.dropped
    if [error.reason for error in published.dropped] == [DropReason.LOOKAHEAD]:
        assert len(streamed_batch.events) == 1  # the relay does not say that: see the document
        return
    said = [event for event in published.events if not is_kept_back(event)]
    assert len(streamed_batch.events) == len(said)
    for got, expected in zip(streamed_batch.events, said, strict=True):
        assert type(got) is type(expected)
        if isinstance(got, StoredBlocks) and isinstance(expected, StoredBlocks):
            assert got.hashes == expected.hashes
            assert (got.tokens, got.parent) == (expected.tokens, expected.parent)
            assert (got.lora_name, got.medium) == (expected.lora_name, expected.medium)
        if isinstance(got, RemovedBlocks) and isinstance(expected, RemovedBlocks):
            assert (got.hashes, got.medium) == (expected.hashes, expected.medium)


def test_every_kind_that_streams_has_a_method() -> None:
    assert set(METHODS) == set(STREAMED_KINDS)


def test_a_batch_of_another_rank_is_not_read() -> None:
    found = read(next(one for one in SMG if one.case == "behind_snapshot"), rank=1)
    assert (found.number, found.rank, found.payload) == (100, 0, b"")


def test_a_load_comes_with_a_batch_and_alone() -> None:
    with_batch = SmgEvents().read(message_of("load_with_a_batch"), 0)
    alone = SmgEvents().read(message_of("load_alone"), 0)
    assert with_batch.number == 7
    assert alone.number is None
    assert with_batch.load is not None
    assert with_batch.load == alone.load
    assert with_batch.load == (3, 2, 512, 0.5, 4096)


def test_a_snapshot_is_marked_with_its_parts() -> None:
    marks = [SmgEvents().read(message_of(f"snapshot_partial_{part}"), 0).mark for part in (0, 1)]
    assert marks == [WholeMark(0, 2, 17), WholeMark(1, 2, 17)]
    assert SmgEvents().read(message_of("snapshot_0"), 0).mark == WholeMark(0, 2, 0)


def test_salts_and_keys_enter_the_blocks_they_belong_to() -> None:
    blocks = [smg_pb.KvBlock(block_hash=-1 - at, token_ids=[at] * 4, block_size=4) for at in (0, 1)]
    stored = smg_pb.KvBlocksStored(blocks=blocks, cache_salt="salt", tier=smg_pb.KV_CACHE_TIER_HOST)
    batch = smg_pb.KvEventBatch(timestamp=1.5, events=[smg_pb.KvCacheEvent(stored=stored)])
    envelope = smg_pb.KvEventEnvelope(sequence_number=3)
    message = envelope.SerializeToString() + batch.SerializeToString()
    found = SmgEvents().read(message, 0)
    (event,) = decoded(VLLM, [b"", (3).to_bytes(8, "big"), found.payload]).events
    assert isinstance(event, StoredBlocks)
    assert event.medium is Medium.CPU
    assert event.hashes == (2**64 - 1).to_bytes(8, "little") + (2**64 - 2).to_bytes(8, "little")
    assert event.extra_keys == (msgspec.msgpack.encode(["salt"]), b"")


def open_engine(batch: openengine_pb.KvEventBatch, number: int, rank: int = 0) -> bytes:
    envelope = openengine_pb.KvBatchEnvelope(sequence_number=number, data_parallel_rank=rank)
    body = envelope.SerializeToString() + batch.SerializeToString()
    return openengine_pb.KvEventEnvelope(
        batch=openengine_pb.KvBatchEnvelope.FromString(body)
    ).SerializeToString()


def test_openengine_says_what_its_engine_published() -> None:
    cases = streamed("openengine-2185e342")
    assert [one.case for one in cases] == ["stored", "removed", "cleared", "lora", "error"]
    for one in cases[:-1]:
        found = OpenEngineEvents().read(one.message, 1)
        told = registration(1, kind=one.kind, dp_rank=1)
        source = open_source(told, PythonArrayPacker())
        published = source.decode([b"", *one.frames[1:]])
        number = one.frames[1]
        assert found.number == int.from_bytes(number, "big")
        got = source.decode([b"", number, found.payload])
        assert got.events == published.events
        assert not got.dropped
    assert OpenEngineEvents().read(cases[-1].message, 1).error == "the subscription has failed"


def test_a_clear_ends_all() -> None:
    case = next(one for one in streamed("openengine-2185e342") if one.case == "cleared")
    found = OpenEngineEvents().read(case.message, 1)
    told = registration(1, kind=case.kind, dp_rank=1)
    batch = open_source(told, PythonArrayPacker()).decode([b"", bytes(8), found.payload])
    assert batch.clears
    assert batch.events == [ClearedBlocks(sequence=0)]


# Hostile bytes


@pytest.mark.parametrize("protocol", [SmgEvents(), OpenEngineEvents()], ids=lambda one: one.name)
def test_no_bytes_raise_an_error(protocol: SmgEvents | OpenEngineEvents, seed: int) -> None:
    chance = random.Random(seed)
    messages = [one.message for one in (*SMG, *streamed("openengine-2185e342"))]
    for _ in range(300):
        message = bytearray(chance.choice(messages))
        for _ in range(chance.randrange(1, 6)):
            if message and chance.random() < 0.8:
                message[chance.randrange(len(message))] = chance.randrange(256)
            else:
                del message[chance.randrange(len(message) + 1) :]
        found = protocol.read(bytes(message), 0)
        if found.payload:
            decoded(VLLM, [b"", (found.number or 0).to_bytes(8, "big"), found.payload])


def test_a_message_that_would_grow_is_refused_before_it_does() -> None:
    envelope = smg_pb.KvEventEnvelope(sequence_number=3).SerializeToString()
    message = envelope + b"\x1a\x00" * (SUBMESSAGES_MAX + 1)
    found = SmgEvents().read(message, 0)
    assert found.number == 3
    assert found.unusable is not None
    assert [error.reason for error in found.unusable.dropped] == [DropReason.TOO_MANY_VALUES]


def test_blocks_within_an_event_are_counted_too() -> None:
    blocks = b"\x0a\x00" * (SUBMESSAGES_MAX + 1)
    stored = smg_pb.KvCacheEvent(stored=smg_pb.KvBlocksStored.FromString(blocks))
    batch = smg_pb.KvEventBatch(timestamp=1.0, events=[stored]).SerializeToString()
    found = SmgEvents().read(batch, 0)
    assert found.unusable is not None
    assert [error.reason for error in found.unusable.dropped] == [DropReason.TOO_MANY_VALUES]


def test_what_ends_within_a_field_is_counted() -> None:
    assert SmgEvents().read(b"\x1a\xff\xff\x03", 0) == UNREADABLE
    large = b"\x18\x01" * SHAPED_BYTES + b"\x1a\xff"
    assert SmgEvents().read(large, 0) == UNREADABLE
