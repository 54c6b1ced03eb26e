"""Engines that number their events: what is missing, begins again, or is another's is told."""

import json
from typing import Any

import msgspec
import pytest

from bridge.sockets.raw_message import RawMessage
from bridge.wire import dynamo as dynamo_wire
from bridge.wire import mooncake as mooncake_wire
from bridge.wire import trtllm as trtllm_wire
from bridge.wire.drop_reasons import DropReason
from schemas.codec import decode_record_events
from schemas.events import ClearedBlocks
from schemas.positions import Cursor
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord
from tests.unit.bridge.messages import registration
from tests.unit.bridge.publisher.sequencers import Sequencers

TRTLLM = registration(kind=trtllm_wire.KIND)
DYNAMO = registration(kind=dynamo_wire.KIND)


def trtllm(event_id: int, kind: str = "removed") -> dict[str, Any]:
    data: dict[str, Any] = {"type": kind}
    data |= {"block_hashes": [7]} if kind == "removed" else {"num_blocks_per_cache_level": [9]}
    return {"event_id": event_id, "data": data}


def dynamo(event_id: int | None, worker: int | None = 42) -> dict[str, Any]:
    event: dict[str, Any] = {"dp_rank": 0, "data": {"removed": {"block_hashes": [7]}}}
    event |= {} if event_id is None else {"event_id": event_id}
    return event if worker is None else {"worker_id": worker, "event": event}


class Publisher:
    def __init__(self, *, dynamo: bool = False) -> None:
        self.registration = DYNAMO if dynamo else TRTLLM
        self.key = self.registration.publisher
        self.sequencer = Sequencers()
        self.sequencer.add(self.registration)
        self.sequence = -1

    def sends(self, *events: dict[str, Any], at: int | None = None) -> list[SequencedRecord]:
        """One batch; the next one, unless it is at another number."""
        self.sequence = self.sequence + 1 if at is None else at
        frames = [b"", self.sequence.to_bytes(8, "big"), json.dumps(events).encode()]
        return self.sequencer.process([RawMessage(self.key, frames, 0.0)], 1.0)

    @property
    def dropped(self) -> dict[str, int]:
        return dict(self.sequencer.counters()[self.key].dropped)


def clears(records: list[SequencedRecord]) -> int:
    return sum(
        isinstance(event, ClearedBlocks)
        for record in records
        if isinstance(record, EventsRecord)
        for event in decode_record_events(record)
    )


def is_incomplete(records: list[SequencedRecord]) -> bool:
    """Whether the last one degrades its publisher for what is missing, as the ledger has it."""
    last = records[-1]
    assert isinstance(last, EventsRecord)
    unusable = last.unusable if isinstance(last.unusable, tuple) else ()
    return [one.reason for one in unusable] == [DropReason.EVENTS_MISSING]


@pytest.mark.parametrize(("kind", "start"), [(trtllm, 0), (dynamo, 1)])
def test_numbers_that_follow_on_say_nothing(kind: Any, start: int) -> None:
    publisher = Publisher(dynamo=kind is dynamo)
    for first in (start, start + 2, start + 4):
        records = publisher.sends(kind(first), kind(first + 1))
        assert (clears(records), is_incomplete(records)) == (0, False)
    assert publisher.dropped == {}


@pytest.mark.parametrize(
    ("first", "missing"),
    [
        (trtllm(0), False),
        (trtllm(1), True),
        (trtllm(2, "created"), True),
        (dynamo(1), False),
        (dynamo(2), True),
        (dynamo(0, None), False),
        (dynamo(1, None), True),
    ],
    ids=["first", "second", "third", "first", "second", "first of its engine", "second of it"],
)
def test_the_first_number_of_the_first_message_is_the_first_of_its_kind(
    first: dict[str, Any], missing: bool
) -> None:
    """The engine has dropped its first events before its forwarder took any."""
    publisher = Publisher(dynamo="type" not in first.get("data", {}))
    assert is_incomplete(publisher.sends(first)) is missing
    assert publisher.dropped == ({DropReason.EVENTS_MISSING: 1} if missing else {})


def test_the_first_number_may_come_behind_messages_without_events() -> None:
    publisher = Publisher()
    publisher.sends()
    assert is_incomplete(publisher.sends(trtllm(1)))
    other = Publisher()
    other.sends()
    assert not is_incomplete(other.sends(trtllm(0)))


def test_the_first_number_of_another_run_counts_likewise() -> None:
    publisher = Publisher()
    publisher.sends(trtllm(0))
    publisher.sends(trtllm(1))
    assert is_incomplete(publisher.sends(trtllm(2), at=0))
    assert publisher.sequencer[publisher.key].stream.cursor == Cursor(2, 0)


def test_from_the_middle_on_any_number_is_the_first() -> None:
    """What was before is a gap, or in the log."""
    publisher = Publisher()
    publisher.sends(trtllm(9), at=4)
    other = Publisher()
    other.sequencer = Sequencers()
    other.sequencer.add(other.registration, Cursor(1, 4))
    other.sends(trtllm(9), at=5)
    assert (publisher.dropped, other.dropped) == ({}, {})


@pytest.mark.parametrize("events", [(4,), (3, 5)])
def test_a_number_that_is_left_out_is_a_loss(events: tuple[int, ...]) -> None:
    """The engine has dropped events, and the forwarder's own sequence shows nothing."""
    publisher = Publisher()
    publisher.sends(trtllm(0), trtllm(1), trtllm(2))
    records = publisher.sends(*map(trtllm, events))
    assert is_incomplete(records)
    assert clears(records) == 0
    assert publisher.dropped == {DropReason.EVENTS_MISSING: 1}
    assert not is_incomplete(publisher.sends(trtllm(events[-1] + 1))), "only what is missing"


@pytest.mark.parametrize(
    ("events", "missing"), [((0,), False), ((1,), True), ((2,), True), ((8, 9, 0), False)]
)
def test_numbers_that_go_back_are_of_another_cache(events: tuple[int, ...], missing: bool) -> None:
    publisher = Publisher()
    publisher.sends(*map(trtllm, range(8)))
    records = publisher.sends(*map(trtllm, events))
    assert (clears(records), is_incomplete(records)) == (1, missing)


@pytest.mark.parametrize("event_id", [-1, -(2**63), None, "3", 1.5])
def test_what_is_no_number_of_an_event_begins_no_cache_again(event_id: Any) -> None:
    """One below 0 counted as going back: all blocks were dropped, and what was missing before was
    forgotten with them.
    """
    publisher = Publisher()
    publisher.sends(trtllm(1))
    assert publisher.dropped == {DropReason.EVENTS_MISSING: 1}
    records = publisher.sends(trtllm(event_id))
    assert clears(records) == 0
    assert publisher.dropped[DropReason.MALFORMED_EVENT] == 1
    assert clears(publisher.sends(trtllm(2))) == 0


@pytest.mark.parametrize("kind", ["dynamo", "pool"])
def test_a_number_below_0_is_refused_of_every_kind(kind: str) -> None:
    publisher: Any = Pool() if kind == "pool" else Publisher(dynamo=True)
    event: Any = pooled if kind == "pool" else dynamo
    publisher.sends(event(1))
    assert clears(publisher.sends(event(-1))) == 0
    assert publisher.dropped == {DropReason.MALFORMED_EVENT: 1}


def test_numbers_above_64_bits_are_numbers() -> None:
    publisher = Publisher()
    publisher.sends(trtllm(0))
    assert is_incomplete(publisher.sends(trtllm(2**64 - 1)))
    assert publisher.dropped == {DropReason.EVENTS_MISSING: 1}


def test_a_pool_that_is_created_is_empty() -> None:
    publisher = Publisher()
    publisher.sends(*map(trtllm, range(8)))
    assert clears(publisher.sends(trtllm(8, "created"))) == 1
    assert publisher.dropped == {}


def test_events_of_another_worker_are_not_used() -> None:
    publisher = Publisher(dynamo=True)
    publisher.sends(dynamo(1))
    (gap,) = publisher.sends(dynamo(0, 43))
    assert isinstance(gap, GapRecord)
    assert gap.reason == DropReason.OTHER_WORKER
    records = publisher.sends(dynamo(2), dynamo(3, 43))
    assert clears(records) == 0
    assert publisher.dropped == {DropReason.OTHER_WORKER: 2}


def test_behind_a_restart_another_worker_and_other_numbers_count() -> None:
    publisher = Publisher(dynamo=True)
    publisher.sends(dynamo(1))
    publisher.sends(dynamo(2))
    records = publisher.sends(dynamo(1, 43), at=0)
    assert publisher.sequencer[publisher.key].stream.cursor == Cursor(2, 0)
    assert (clears(records), publisher.dropped) == (0, {})
    assert not is_incomplete(publisher.sends(dynamo(2, 43)))


def test_behind_batches_that_are_missing_any_number_follows() -> None:
    """These are told already."""
    publisher = Publisher()
    publisher.sends(trtllm(0))
    records = publisher.sends(trtllm(9), at=5)
    assert isinstance(records[0], GapRecord)
    assert publisher.dropped == {}


def test_a_batch_that_comes_twice_says_nothing() -> None:
    publisher = Publisher()
    publisher.sends(trtllm(0))
    publisher.sends(trtllm(1))
    assert publisher.sends(trtllm(1), at=1) == []
    assert not is_incomplete(publisher.sends(trtllm(2)))
    assert publisher.dropped == {}


@pytest.mark.parametrize("is_same", [True, False], ids=["the same first bytes", "others"])
def test_without_a_time_numbers_that_begin_again_are_of_another_incarnation(is_same: bool) -> None:
    """What an engine does first is the same in each of its lives."""
    publisher = Publisher()
    stream = publisher.sequencer[publisher.key].stream
    for event_id, kind in enumerate(("created", "removed", "removed")):
        publisher.sends(trtllm(event_id, kind))
    publisher.sends(trtllm(0, "created" if is_same else "removed"), at=0)
    assert stream.cursor == Cursor(2, 0)
    publisher.sends(trtllm(1), at=1)
    assert stream.cursor == Cursor(2, 1)
    assert (stream.counters.restarts, stream.counters.duplicates) == (1, 0)


def test_without_a_time_other_bytes_under_a_number_are_of_another_incarnation() -> None:
    publisher = Publisher()
    for event_id in range(3):
        publisher.sends(trtllm(event_id))
    reset, gap, events = publisher.sends(trtllm(1, "created"), at=1)
    assert isinstance(reset, ResetRecord)
    assert isinstance(gap, GapRecord), "the first batch of that one has not come"
    assert isinstance(events, EventsRecord)


def test_events_without_numbers_are_as_before() -> None:
    publisher = Publisher(dynamo=True)
    publisher.sends(dynamo(None, None))
    publisher.sends(dynamo(None, None), dynamo(None))
    assert publisher.dropped == {}


class Pool(Publisher):
    """A Mooncake master, whose own numbers begin at 1."""

    def __init__(self) -> None:
        self.registration = registration(kind=mooncake_wire.KIND)
        self.key = self.registration.publisher
        self.sequencer = Sequencers()
        self.sequencer.add(self.registration)
        self.sequence = 0

    def sends(self, *events: dict[str, Any], at: int | None = None) -> list[SequencedRecord]:
        self.sequence = self.sequence + 1 if at is None else at
        payload = msgspec.msgpack.encode([1_700_000_000_000 + self.sequence, list(events), 0])
        frames = [b"", self.sequence.to_bytes(8, "big"), payload]
        return self.sequencer.process([RawMessage(self.key, frames, 0.0)], 1.0)


def pooled(event_id: int | None, **fields: object) -> dict[str, Any]:
    told = {"event_type": "removed", "backend_id": "p", "object_key": "17", "medium": "cpu"}
    return {"event_id": event_id, **told, **fields}


def test_numbers_of_a_pool_are_of_all_that_it_sends() -> None:
    """Also of other models, whose events are passed over, and of fields that are not known."""
    pool = Pool()
    pool.sends(pooled(1), pooled(2, model_name="another"))
    stored = pooled(4, event_type="stored", more="x")
    assert not is_incomplete(pool.sends(pooled(3), stored, pooled(5)))
    assert not is_incomplete(pool.sends(pooled(6)))
    assert DropReason.EVENTS_MISSING not in pool.dropped


def test_the_first_number_of_a_pool_is_1() -> None:
    assert not is_incomplete(Pool().sends(pooled(1)))
    pool = Pool()
    assert is_incomplete(pool.sends(pooled(4)))
    assert pool.dropped == {DropReason.EVENTS_MISSING: 1}


@pytest.mark.parametrize("events", [(9,), (3, 5), (3, 2)])
def test_a_number_that_a_pool_leaves_out_is_a_loss(events: tuple[int, ...]) -> None:
    pool = Pool()
    pool.sends(pooled(1), pooled(2))
    records = pool.sends(*map(pooled, events))
    assert (is_incomplete(records), clears(records)) == (True, 0)
    assert pool.dropped == {DropReason.EVENTS_MISSING: 1}
    assert not is_incomplete(pool.sends(pooled(events[-1] + 1))), "only what is missing"


def test_behind_lost_batches_any_number_of_a_pool_follows() -> None:
    pool = Pool()
    pool.sends(pooled(1))
    pool.sends(pooled(40), at=9)
    assert DropReason.EVENTS_MISSING not in pool.dropped


def test_a_pool_that_gives_no_numbers_is_as_before() -> None:
    pool = Pool()
    pool.sends(pooled(1))
    pool.sends(pooled(None), pooled(7))
    assert pool.dropped == {}
