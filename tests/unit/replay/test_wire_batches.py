"""Records become messages again that give the same table, whoever reads them."""

from pathlib import Path

import msgspec
import pytest

from bridge.sockets.raw_message import RawMessage
from replay.capture.reader import Capture
from replay.wire_batches import Outgoing, WireMessage
from schemas.codec import decode_log_record
from schemas.events import BlockEvent, StoredBlocks, extra_key, paired_key
from schemas.identities import Medium, Offset, PublisherKey
from schemas.records import EventsRecord, encode_record
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.verification import context_digests
from tests.building import (
    BLOCK,
    STREAM,
    events_record,
    gap_record,
    in_parts,
    registered_record,
    registration,
    removed,
    reset_record,
    stored,
    u32s,
    u64s,
)
from tests.unit.bridge.publisher.sequencers import Sequencers
from tests.unit.replay.histories import SEED, captured, fold_of_records, history, write_log


def outgoing(tmp_path: Path, records: list[bytes], *, renumber: bool = False) -> list[WireMessage]:
    path = captured(write_log(tmp_path / "data", records), tmp_path / "c", replace=True)
    with Capture(path) as capture:
        return list(Outgoing(capture, renumber=renumber))


def subscribed(messages: list[WireMessage], *publishers: PublisherKey) -> Fold:
    """The table of a bridge that receives the messages. What they announce again was looked at when
    it came from the engines.
    """
    sequencer, fold, offset = Sequencers(), Fold(open_kernel(SEED)), 0
    for number, publisher in enumerate(publishers):
        named = registration(publisher.stream.instance_id, port=6000 + number)
        one = msgspec.structs.replace(named, kv_cache_report_mode="incremental")
        sequencer.add(one)
        fold.apply(Offset(offset), registered_record(one))
        offset += 1
    for message in messages:
        raw = RawMessage(publishers[message.publisher], message.frames, 0.0)
        for record in sequencer.process([raw], 0.0):
            assert not fold.apply(Offset(offset), encode_record(record))
            offset += 1
    return fold


@pytest.mark.parametrize("renumber", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_a_bridge_that_receives_them_has_the_same_table(
    tmp_path: Path, seed: int, renumber: bool
) -> None:
    records = [
        value
        for value in history(seed=seed)
        if b"unregistered" not in value  # who is followed no message says
    ]
    messages = outgoing(tmp_path, records, renumber=renumber)
    publishers = list(
        dict.fromkeys(
            record.publisher
            for record in map(_decoded, records)
            if isinstance(record, EventsRecord)
        )
    )
    theirs = subscribed(messages, *publishers)
    ours = fold_of_records(records)
    assert context_digests(theirs.kernel) == context_digests(ours.kernel)
    assert len(context_digests(ours.kernel)) > 1
    if not renumber:
        for publisher in publishers:
            mine, other = ours.publishers[publisher], theirs.publishers[publisher]
            if mine.cursor == other.cursor:  # a gap behind the last batch no message shows
                assert (mine.degraded_since is None) == (other.degraded_since is None)


def _decoded(value: bytes) -> object:
    return None if value.startswith(b"\xc1") else decode_log_record(value)


def table_of(*events: BlockEvent, tmp_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    records = [registered_record(registration()), events_record(0, 0, events)]
    theirs = subscribed(outgoing(tmp_path, records), registration().publisher)
    return context_digests(theirs.kernel), context_digests(fold_of_records(records).kernel)


@pytest.mark.parametrize(
    "event",
    [
        stored(0, [2**64 - 1, 7], range(2**32 - 8, 2**32)),
        stored(0, [1], range(4), medium=Medium.DISK),
        stored(0, [1], range(4), shared=True, medium=Medium.CPU),
        stored(0, [1], range(4), lora_name="adapter"),
        StoredBlocks(
            sequence=0,
            hashes=u64s([1, 2]),
            tokens=u32s(range(8)),
            block_size=BLOCK,
            extra_keys=(b"", extra_key(["salt", ["image", 3]])),
        ),
        StoredBlocks(
            sequence=0,
            hashes=u64s([1]),
            tokens=u32s(range(4)),
            block_size=BLOCK,
            lora_name="x",
            extra_keys=(extra_key(["x"]),),
        ),
        StoredBlocks(
            sequence=0,
            hashes=u64s([1, 2]),
            tokens=u32s(range(8)),
            block_size=BLOCK,
            extra_keys=(paired_key(extra_key(["salt"]), u32s([4])), paired_key(b"", u32s([9]))),
        ),
        StoredBlocks(
            sequence=0,
            hashes=u64s([1]),
            tokens=u32s(range(4)),
            block_size=BLOCK,
            group=3,
            spec_kind="mla_attention",
        ),
    ],
)
def test_what_says_which_block_it_is_comes_through(tmp_path: Path, event: StoredBlocks) -> None:
    theirs, ours = table_of(event, tmp_path=tmp_path)
    assert theirs == ours != {}


def test_what_is_said_again_is_counted_once_there_too(tmp_path: Path) -> None:
    event = stored(0, [1, 2], range(2 * BLOCK))
    again = msgspec.structs.replace(event, reported=True)
    theirs, ours = table_of(event, again, tmp_path=tmp_path)
    once, _ = table_of(event, tmp_path=tmp_path)
    assert theirs == ours == once


def test_an_event_of_another_kind_of_group_is_left_out_there_too(tmp_path: Path) -> None:
    event = StoredBlocks(
        sequence=0,
        hashes=u64s([1]),
        tokens=u32s(range(4)),
        block_size=BLOCK,
        spec_kind="sliding_window",
    )
    assert (
        table_of(event, stored(0, [5], range(4)), tmp_path=tmp_path)[0]
        == (table_of(event, stored(0, [5], range(4)), tmp_path=tmp_path)[1])
    )


def test_blocks_without_tokens_of_their_own_are_left_out(tmp_path: Path) -> None:
    """As placeholders they would say that blocks had moved."""
    chain = stored(0, [1, 2], range(2 * BLOCK))
    by_hash = StoredBlocks(sequence=0, hashes=u64s([7]), block_size=BLOCK, by_hash=True)
    hashed = StoredBlocks(sequence=0, hashes=u64s([8]), block_size=BLOCK, token_hashes=u64s([80]))
    records = [registered_record(registration()), events_record(0, 0, [by_hash, chain, hashed])]
    [message] = outgoing(tmp_path, records)
    _, events, _ = msgspec.msgpack.decode(message.frames[2])
    assert [event["block_hashes"] for event in events] == [[1, 2]]


def test_a_record_of_several_batches_becomes_each_of_them(tmp_path: Path) -> None:
    events: list[BlockEvent] = [
        stored(3, [1], range(4)),
        stored(5, [2], range(4)),
        removed(5, [1]),
    ]
    messages = outgoing(tmp_path, [events_record(3, 6, events)])
    assert [message.sequence for message in messages] == [3, 4, 5, 6]
    decoded = [msgspec.msgpack.decode(message.frames[2]) for message in messages]
    assert [[event["type"] for event in batch[1]] for batch in decoded] == [
        ["BlockStored"],
        [],
        ["BlockStored", "BlockRemoved"],
        [],
    ]
    assert [message.sequence for message in outgoing_renumbered(tmp_path, events)] == [0, 1, 2, 3]


def outgoing_renumbered(tmp_path: Path, events: list[BlockEvent]) -> list[WireMessage]:
    return outgoing(tmp_path / "again", [events_record(3, 6, events)], renumber=True)


def test_a_batch_in_parts_is_one_message_again(tmp_path: Path) -> None:
    events = [stored(1, [number], [number] * 4) for number in range(6)]
    whole = decode_log_record(events_record(1, 1, events))
    assert isinstance(whole, EventsRecord)
    first = events_record(0, 0, [stored(0, [99], range(4))])
    parts = []
    for part, of_part in zip(
        in_parts(whole, 2, 5, 6), (events[:2], events[2:5], events[5:]), strict=True
    ):
        assert part.part is not msgspec.UNSET
        parts.append(events_record(1, 1, of_part, part=part.part))
    messages = outgoing(tmp_path, [first, *parts])
    assert [message.sequence for message in messages] == [0, 1]
    batch = msgspec.msgpack.decode(messages[1].frames[2])
    assert [event["block_hashes"] for event in batch[1]] == [[number] for number in range(6)]


def test_a_batch_of_which_a_part_is_missing_is_a_gap(tmp_path: Path) -> None:
    events = [stored(0, [number], [number] * 4) for number in range(6)]
    whole = decode_log_record(events_record(0, 0, events))
    assert isinstance(whole, EventsRecord)
    first, _, last = in_parts(whole, 2, 5, 6)
    messages = outgoing(
        tmp_path,
        [
            events_record(0, 0, events[:2], part=first.part),  # type: ignore[arg-type]
            events_record(0, 0, events[5:], part=last.part),  # type: ignore[arg-type]
            events_record(1, 1, [stored(1, [50], range(4))]),
        ],
    )
    assert [message.sequence for message in messages] == [1]


@pytest.mark.parametrize("renumber", [False, True])
def test_an_incarnation_that_begins_above_the_last_number_drops_what_was_held(
    tmp_path: Path, renumber: bool
) -> None:
    """Its number alone would look like a gap."""
    records = [
        registered_record(registration()),
        events_record(0, 0, [stored(0, [1], range(4))]),
        reset_record(2),
        gap_record(0, 6, incarnation=2),
        events_record(7, 7, [stored(7, [2], range(4, 8))], incarnation=2),
    ]
    messages = outgoing(tmp_path, records, renumber=renumber)
    theirs = subscribed(messages, PublisherKey(STREAM, 0))
    assert context_digests(theirs.kernel) == context_digests(fold_of_records(records).kernel)
