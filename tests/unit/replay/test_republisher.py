"""The events of a log, at one socket, as indexers of vLLM's read them."""

import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from replay.republisher import Republisher
from replay.wire_batches import WireMessage
from schemas.codec import decode_log_record, decode_record_events
from schemas.errors import RecordError
from schemas.events import RemovedBlocks, StoredBlocks
from schemas.identities import StreamKey
from schemas.records import EventsRecord, ResetRecord, UnregisteredRecord
from streams.log.record_lines import PlacedRecord, StreamFilter
from tests.building import (
    BLOCK,
    STREAM,
    cleared,
    events_record,
    registration,
    reset_record,
    stored,
    unregistered_record,
)
from tests.unit.replay.histories import history


class Socket:
    """In place of CapturePublishers with one publisher: keeps what was sent."""

    def __init__(self) -> None:
        self.publishers = {0: self}
        self.sent: list[WireMessage] = []
        self.refuses = 0
        self.served = 0

    def try_send(self, message: WireMessage) -> bool:
        self.refuses -= 1
        if self.refuses >= 0:
            return False
        self.sent.append(message)
        return True

    def serve(self, seconds: float) -> None:
        self.served += 1

    def batches(self) -> Iterator[tuple[int, str, list[dict[str, Any]]]]:
        """Number, topic and events of each."""
        for message in self.sent:
            topic, number, payload = message.frames
            _, events, rank = msgspec.msgpack.decode(payload)
            assert rank == 0
            yield int.from_bytes(number, "big"), topic.decode(), events

    def held(self) -> dict[str, Counter[int]]:
        """By topic, how often each block is held, as any reader counts."""
        found: dict[str, Counter[int]] = {}
        for _, topic, events in self.batches():
            blocks = found.setdefault(topic, Counter())
            for event in events:
                match event["type"]:
                    case "BlockStored":
                        blocks.update(event["block_hashes"])
                    case "BlockRemoved":
                        blocks.subtract(event["block_hashes"])
                    case "AllBlocksCleared":
                        blocks.clear()
        return found


def republished(values: list[bytes], *, a_time: int = 7) -> Socket:
    """What was sent of these records, some at a time."""
    socket = Socket()
    again = Republisher(socket, StreamFilter(), stopped=lambda: False)  # type: ignore[arg-type]
    entries = [PlacedRecord(0, offset, value) for offset, value in enumerate(values)]
    for start in range(0, len(entries), a_time):
        assert again.take(entries[start : start + a_time])
    return socket


def expected(values: list[bytes]) -> dict[str, Counter[int]]:
    """The same by the records themselves."""
    found: dict[str, Counter[int]] = {}
    last: dict[str, tuple[int, int]] = {}
    for value in values:
        try:
            record = decode_log_record(value)
        except RecordError:
            continue
        if not isinstance(record, EventsRecord | ResetRecord | UnregisteredRecord):
            continue
        stream = record.stream
        name = f"kv@{stream.instance_id}@{stream.model_name}"
        if isinstance(record, UnregisteredRecord):
            last.pop(name, None)
            found.get(name, Counter()).clear()
            continue
        incarnation, sequence = last.get(name, (0, -1))
        blocks = found.setdefault(name, Counter())
        if record.incarnation > incarnation:
            blocks.clear()
            sequence = -1
        if isinstance(record, ResetRecord):
            last[name] = (record.incarnation, -1)
            continue
        for event in decode_record_events(record):
            if event.sequence <= sequence:
                continue
            if isinstance(event, StoredBlocks):
                blocks.update(struct.unpack(f"<{len(event.hashes) // 8}Q", event.hashes))
            elif isinstance(event, RemovedBlocks):
                blocks.subtract(struct.unpack(f"<{len(event.hashes) // 8}Q", event.hashes))
            else:
                blocks.clear()
        last[name] = (record.incarnation, max(sequence, record.last_sequence))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_whoever_reads_it_holds_what_the_log_says(seed: int) -> None:
    values = history(200, seed)
    held, due = republished(values).held(), expected(values)
    for topic in due.keys() | held.keys():
        assert held.get(topic, Counter()) == due.get(topic, Counter()), (seed, topic)
    assert any(due.values()), seed


A, B = STREAM._replace(instance_id="a"), STREAM._replace(instance_id="b")


def batch(number: int, block: int | None, *, stream: StreamKey = A, incarnation: int = 1) -> bytes:
    """Of one event: a block is stored, or all is cleared."""
    tokens = range(BLOCK)
    event = cleared(number) if block is None else stored(number, [block], tokens)
    return events_record(number, number, [event], stream=stream, incarnation=incarnation)


def test_numbers_rise_by_one_over_all_engines_and_a_gap_leaves_one_out() -> None:
    values = [batch(0, 1), batch(0, 1, stream=B), batch(1, 2), batch(4, 3), batch(1, 2, stream=B)]
    found = [(number, topic) for number, topic, _ in republished(values).batches()]
    assert found == [(0, "kv@a@m"), (1, "kv@b@m"), (2, "kv@a@m"), (4, "kv@a@m"), (5, "kv@b@m")]


def test_all_is_cleared_at_the_begin_a_restart_and_the_end_of_an_engine() -> None:
    values = [
        batch(0, 1),
        batch(1, None),
        reset_record(2, stream=A),
        batch(0, 1, incarnation=2),
        unregistered_record(registration("a")),
        batch(1, 2, incarnation=2),
    ]
    kinds = [[one["type"] for one in events] for _, _, events in republished(values).batches()]
    clear, store = "AllBlocksCleared", "BlockStored"
    assert kinds == [[clear, store], [clear], [clear], [store], [clear], [clear, store]]


def test_what_is_not_wanted_and_what_cannot_be_read_is_left_out() -> None:
    socket = Socket()
    again = Republisher(socket, StreamFilter(instance="b"), stopped=lambda: False)  # type: ignore[arg-type]
    values = [b"nothing", batch(0, 1), batch(0, 1, stream=B)]
    again.take([PlacedRecord(0, offset, value) for offset, value in enumerate(values)])
    assert [topic for _, topic, _ in socket.batches()] == ["kv@b@m"]
    assert (again.left_out, again.engines) == (1, 1)


def test_a_subscriber_that_takes_no_more_is_waited_for_until_the_end() -> None:
    socket, ends = Socket(), [False, False, False, True]
    again = Republisher(socket, StreamFilter(), stopped=lambda: ends.pop(0))  # type: ignore[arg-type]
    socket.refuses = 2
    assert again.take([PlacedRecord(0, 0, batch(0, 1)), PlacedRecord(0, 1, None)])
    assert len(socket.sent) == 1
    socket.refuses = 9
    assert not again.take([PlacedRecord(0, 2, batch(1, 2))])
    assert len(socket.sent) == 1
