from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.link_numbers import LinkNumber
from bridge.publisher.causes import JOINED_LATE, MISSED, RESTARTED
from bridge.sockets.raw_message import RawMessage
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker, PythonArrayPacker
from schemas.codec import decode_record, decode_record_events
from schemas.events import BlockEvent, RemovedBlocks
from schemas.identities import Offset, PublisherKey
from schemas.limits import SEQUENCE_MAX
from schemas.positions import NO_CURSOR, Cursor
from schemas.records import (
    EventsRecord,
    GapRecord,
    ResetRecord,
    SequencedRecord,
    encode_record,
)
from schemas.troubles import NO_TROUBLES
from streams.kernel import array_packer, open_kernel
from streams.table.fold import Fold
from tests.unit.bridge.messages import frames_of, registration
from tests.unit.bridge.publisher.sequencers import Sequencers

ONE = registration()
TWO = registration(instance_id="w-2")


def message(
    sequence: int, *hashes: int, ts: float = 1.0, of: PublisherKey | None = None
) -> RawMessage:
    batch = [ts, [["BlockRemoved", [number]] for number in hashes], 0]
    return RawMessage(of or ONE.publisher, frames_of(batch, sequence), 0.0)


def sequencer(cursor: Cursor = NO_CURSOR) -> Sequencers:
    built = Sequencers()
    built.add(ONE, cursor)
    return built


def removed(sequence: int, number: int) -> BlockEvent:
    return RemovedBlocks(sequence=sequence, hashes=number.to_bytes(8, "little"))


def told(records: Sequence[SequencedRecord]) -> list[object]:
    """Records as short as can be: events, or the name of what else happened and where."""
    short: list[object] = []
    for record in records:
        if isinstance(record, EventsRecord):
            short.extend(decode_record_events(record))
        else:
            short.append(
                (record.reason, record.incarnation, record.first_sequence, record.last_sequence)
            )
    return short


def test_messages_become_events_in_order() -> None:
    records = sequencer().process([message(0, 1, 2), message(1), message(2, 3)], 9.0)
    assert told(records) == [removed(0, 1), removed(0, 2), removed(2, 3)]
    (record,) = records
    assert isinstance(record, EventsRecord)
    assert (record.first_sequence, record.last_sequence, record.bridge_time) == (0, 2, 9.0)


def test_no_messages_are_no_records() -> None:
    assert sequencer().process([], 9.0) == []


def test_a_late_join_is_a_gap_before_the_events() -> None:
    records = sequencer().process([message(5, 1)], 9.0)
    assert told(records) == [(JOINED_LATE, 1, 0, 4), removed(5, 1)]


def test_a_gap_stands_where_batches_are_missing_and_is_reported_once() -> None:
    built = sequencer(Cursor(4, 9))
    assert told(built.process([message(10, 1), message(13, 2)], 9.0)) == [
        removed(10, 1),
        (MISSED, 4, 11, 12),
        removed(13, 2),
    ]
    assert told(built.process([message(14, 3)], 9.0)) == [removed(14, 3)]
    counters = built.counters()[ONE.publisher]
    assert (counters.gaps, counters.lost_batches) == (1, 2)


def test_a_restart_resets_before_its_first_batch() -> None:
    built = sequencer(Cursor(4, 9))
    assert told(built.process([message(10, 1), message(0, 2), message(1, 3)], 9.0)) == [
        removed(10, 1),
        (RESTARTED, 5, -1, -1),
        removed(0, 2),
        removed(1, 3),
    ]
    assert built[ONE.publisher].stream.cursor == Cursor(5, 1)
    assert built.counters()[ONE.publisher].restarts == 1


def test_a_restart_that_was_joined_late_resets_and_then_misses_the_beginning() -> None:
    assert told(sequencer(Cursor(4, 9)).process([message(3, 1)], 9.0)) == [
        (RESTARTED, 5, -1, -1),
        (JOINED_LATE, 5, 0, 2),
        removed(3, 1),
    ]


def test_a_duplicate_is_left_out_and_counted() -> None:
    built = sequencer()
    records = built.process([message(0, 1), message(1, 2), message(0, 1), message(2, 3)], 9.0)
    assert told(records) == [removed(0, 1), removed(1, 2), removed(2, 3)]
    assert built.counters()[ONE.publisher].duplicates == 1


def bad_message(sequence: int, payload: bytes = b"\xc1") -> RawMessage:
    return RawMessage(ONE.publisher, [b"", sequence.to_bytes(8, "big"), payload], 0.0)


def cleared_message(sequence: int) -> RawMessage:
    batch = [1.0, [["AllBlocksCleared"]], 0]
    return RawMessage(ONE.publisher, frames_of(batch, sequence), 0.0)


def gaps(records: Sequence[SequencedRecord]) -> list[tuple[str, int, int]]:
    return [
        (record.reason, record.first_sequence, record.last_sequence)
        for record in records
        if isinstance(record, GapRecord)
    ]


def test_a_bad_batch_is_a_gap_and_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    built = sequencer()
    records = built.process([message(0, 1, ts=7.0), bad_message(1), message(2, 3, ts=8.0)], 9.0)
    assert told(records) == [removed(0, 1), (DropReason.UNDECODABLE, 1, 1, 1), removed(2, 3)]
    assert built[ONE.publisher].stream.cursor == Cursor(1, 2)
    counters = built.counters()[ONE.publisher]
    assert counters.dropped == Counter({DropReason.UNDECODABLE: 1})
    assert (counters.messages, counters.batches, counters.events, counters.gaps) == (3, 3, 2, 0)
    assert "undecodable" in caplog.text


def test_a_bad_batch_of_a_degraded_publisher_keeps_the_engine_time_of_the_one_before() -> None:
    built = sequencer()
    built.process([message(0, 1, ts=7.0), bad_message(1)], 9.0)
    (record,) = built.process([bad_message(2)], 9.0)
    assert isinstance(record, EventsRecord)
    assert (record.engine_time, record.last_sequence) == (7.0, 2)


def test_bad_batches_without_end_are_one_gap_and_share_their_records() -> None:
    built = sequencer()
    records = built.process([bad_message(number) for number in range(1000)], 9.0)
    assert gaps(records) == [(DropReason.UNDECODABLE, 0, 0)]
    assert len(records) == 2
    assert gaps(built.process([bad_message(number) for number in range(1000, 2000)], 9.0)) == []
    assert built.counters()[ONE.publisher].dropped == Counter({DropReason.UNDECODABLE: 2000})


def test_a_bad_batch_after_missed_ones_needs_no_gap_of_its_own() -> None:
    records = sequencer().process([message(0, 1), bad_message(3)], 9.0)
    assert gaps(records) == [(MISSED, 1, 2)]
    assert records[-1].last_sequence == 3


def test_a_bad_batch_is_a_gap_again_after_a_clear_and_in_a_new_life() -> None:
    built = sequencer()
    messages = [bad_message(0), cleared_message(1), bad_message(2), message(0, 1), bad_message(1)]
    assert gaps(built.process(messages, 9.0)) == [
        (DropReason.UNDECODABLE, 0, 0),
        (DropReason.UNDECODABLE, 2, 2),
        (DropReason.UNDECODABLE, 1, 1),
    ]
    assert built[ONE.publisher].stream.cursor == Cursor(2, 1)


def test_the_fold_is_degraded_by_a_bad_batch_and_folds_what_follows() -> None:
    built, fold = sequencer(), Fold(open_kernel(1337))
    records = built.process([message(0, 1), bad_message(1), message(2, 3)], 9.0)
    for offset, record in enumerate(records):
        assert fold.apply(Offset(offset), encode_record(record)) is None
    state = fold.publishers[ONE.publisher]
    assert (state.sequence, state.degraded_since) == (2, 1)
    assert fold.counters["log_holes"] == 0


def test_a_message_without_a_place_leaves_the_cursor_where_it_is() -> None:
    built = sequencer()
    nowhere = [RawMessage(ONE.publisher, frames, 0.0) for frames in ([], [b"a"], [b"", b"1", b""])]
    records = built.process([message(0, 1), *nowhere, message(1, 2)], 9.0)
    assert told(records) == [removed(0, 1), removed(1, 2)]
    assert built.counters()[ONE.publisher].dropped == Counter(
        {DropReason.FRAME_COUNT: 2, DropReason.SEQUENCE_LENGTH: 1}
    )


def test_a_message_without_a_place_is_remembered_until_a_batch_shows_what_it_was() -> None:
    built = sequencer()
    publisher = ONE.publisher
    nowhere = RawMessage(publisher, [b"", b"1", b""], 0.0)

    def after(*messages: RawMessage) -> int:
        built.process(messages, 9.0)
        return built[publisher].stream.unplaced

    assert after(message(0, 1)) == 0
    assert after(nowhere) == 2
    assert after(nowhere) == 3
    assert after(message(0, 1)) == 3, "it came before"
    assert after(message(1, 2)) == 0
    assert after(nowhere) == 6
    assert after(message(3, 2)) == 0, "a gap stands for it"
    assert after(nowhere, message(0, 5)) == 0, "of another incarnation"


@pytest.mark.parametrize(("before", "then"), [(0, 0), (2, 2), (2, 0)])
def test_a_batch_whose_number_is_out_of_range_is_lost_though_the_next_shows_no_gap(
    before: int, then: int
) -> None:
    """Behind such numbers 0 looks like the first one, or like another run's."""
    built = sequencer()
    built.process([message(0, 1), message(1, 2)][:before], 9.0)
    beyond = RawMessage(ONE.publisher, [b"", b"\xff" * 8, message(0, 1).frames[-1]], 0.0)
    (*_, last) = built.process([beyond, message(then, 9)], 9.0)
    assert isinstance(last, EventsRecord)
    assert isinstance(last.unusable, tuple)
    assert [one.reason for one in last.unusable] == [DropReason.SEQUENCE_RANGE]
    assert built.counters()[ONE.publisher].dropped == {DropReason.SEQUENCE_RANGE: 1}
    (after,) = built.process([message(last.last_sequence + 1, 3)], 9.0)
    assert isinstance(after, EventsRecord)
    assert after.unusable is msgspec.UNSET, "it is told once"


def test_what_was_out_of_range_is_no_loss_where_the_next_batch_clears() -> None:
    built = sequencer()
    beyond = RawMessage(ONE.publisher, [b"", b"\xff" * 8, b""], 0.0)
    clears = RawMessage(ONE.publisher, frames_of([1.0, [["AllBlocksCleared"]], 0]), 0.0)
    (record,) = built.process([beyond, clears], 9.0)
    assert isinstance(record, EventsRecord)
    assert record.unusable is msgspec.UNSET


def test_bad_events_are_counted_and_their_siblings_kept() -> None:
    built = sequencer()
    batch = [1.0, [["BlockRemoved", [1]], ["BlockMoved"], ["BlockRemoved", [2], "TAPE"]], 0]
    records = built.process([RawMessage(ONE.publisher, frames_of(batch), 0.0)], 9.0)
    assert told(records) == [removed(0, 1)]
    assert built.counters()[ONE.publisher].dropped == Counter(
        {DropReason.UNKNOWN_EVENT: 1, DropReason.UNKNOWN_MEDIUM: 1}
    )


def test_publishers_do_not_mix() -> None:
    built = sequencer()
    built.add(TWO)
    two = TWO.publisher
    records = built.process(
        [message(0, 1), message(7, 2, of=two), message(1, 3), message(8, 4, of=two)], 9.0
    )
    assert [record.publisher for record in records] == [ONE.publisher, two, two]
    assert told(records) == [
        removed(0, 1), removed(1, 3), (JOINED_LATE, 1, 0, 6), removed(7, 2), removed(8, 4),
    ]  # fmt: skip


def test_messages_of_a_removed_publisher_are_counted_and_left_out() -> None:
    built = sequencer()
    built.remove(ONE.publisher)
    assert built.process([message(0, 1)], 9.0) == []
    assert built.unregistered_messages == 1
    assert built.counters() == {}


def test_hashes_are_packed_by_the_packer_that_is_given() -> None:
    class Zeros(PythonArrayPacker):
        def pack_hashes(self, encoded: bytes) -> bytes:
            return bytes(8)

    built = Sequencers(Zeros())
    built.add(ONE)
    assert told(built.process([message(0, 5)], 9.0)) == [removed(0, 0)]


class Delivery(NamedTuple):
    """One batch as it reaches the bridge; equal ones are one batch delivered twice."""

    life: int
    sequence: int


@st.composite
def deliveries(draw: st.DrawFn) -> list[Delivery]:
    """Lives of one engine: batches in order, some lost, some delivered twice."""
    delivered: list[Delivery] = []
    for life in range(draw(st.integers(1, 4))):
        kept = draw(st.sets(st.integers(0, 12)))
        in_life: list[Delivery] = []
        for sequence in sorted(kept):
            in_life.append(Delivery(life, sequence))
            if draw(st.booleans()):
                in_life.append(draw(st.sampled_from(in_life)))
        delivered += in_life
    return delivered


@given(deliveries(), st.integers(1, 7))
def test_records_rise_and_say_exactly_what_was_delivered(
    delivered: list[Delivery], window: int
) -> None:
    built = sequencer()
    messages = [message(sequence, sequence, ts=life + 1.0) for life, sequence in delivered]
    records: list[SequencedRecord] = []
    for start in range(0, len(messages), window):
        records += built.process(messages[start : start + window], 9.0)

    last = NO_CURSOR
    covered = set()
    for record in records:
        if isinstance(record, ResetRecord):
            assert record.incarnation == last.incarnation + 1
            last = Cursor(record.incarnation, -1)
            continue
        assert (record.incarnation, record.first_sequence) in (
            (last.incarnation, last.sequence + 1),
            (1, 0),
        )
        last = Cursor(record.incarnation, record.last_sequence)
        if isinstance(record, GapRecord):
            numbers = range(record.first_sequence, record.last_sequence + 1)
            covered |= {(record.incarnation, number) for number in numbers}
    assert built[ONE.publisher].stream.cursor == max(last, Cursor(1, -1))

    once = list(dict.fromkeys(delivered))
    events = [event for event in told(records) if isinstance(event, RemovedBlocks)]
    assert [event.sequence for event in events] == [sequence for _, sequence in once]
    counters = built.counters()[ONE.publisher]
    assert counters.duplicates == len(delivered) - len(once)
    assert counters.lost_batches == len(covered)


@pytest.mark.parametrize("packer", [PythonArrayPacker(), array_packer()], ids=["python", "kernel"])
def test_no_run_goes_beyond_the_largest_number(packer: ArrayPacker) -> None:
    """A record that says so could not be read again."""
    sequencer = Sequencers(packer)
    sequencer.add(ONE, Cursor(1, SEQUENCE_MAX - 3))
    payload = msgspec.msgpack.encode([1.0, [["BlockRemoved", [7]]], 0])
    messages = [
        RawMessage(ONE.publisher, [b"", number.to_bytes(8, "big"), payload], 0.0, LinkNumber(1))
        for number in range(SEQUENCE_MAX - 2, SEQUENCE_MAX + 9)
    ]
    first = sequencer.process(messages[:1], 1.0)
    for record in [*first, *sequencer.process(messages[1:], 1.0)]:
        assert decode_record(encode_record(record)) is not None, "it can be read again"
    assert sequencer[ONE.publisher].stream.cursor.sequence == SEQUENCE_MAX
    counters = sequencer.counters()[ONE.publisher]
    assert counters.dropped == {DropReason.SEQUENCE_RANGE: 8}


def test_what_is_dropped_last_is_kept_with_its_words() -> None:
    built = sequencer()
    counters = built[ONE.publisher].stream.counters
    assert counters.troubles("") == NO_TROUBLES
    built.process([RawMessage(ONE.publisher, [b"payload"], 0.0)] * 2, 1.0)
    said = counters.troubles("no such host")
    assert (said.dropped, said.reason) == (2, DropReason.FRAME_COUNT)
    assert (said.detail, said.link) == ("Expected 3 frames, got 1", "no such host")


def test_batches_under_one_number_are_counted_over_one_link() -> None:
    built = sequencer()
    counters = built[ONE.publisher].stream.counters
    for time in (1.0, 2.0, 3.0):
        built.process([message(0, 1, ts=time)._replace(link=LinkNumber(1))], 1.0)
    assert (counters.troubles("").repeats, counters.troubles("").number) == (2, 0)
    built.process([message(0, 1, ts=4.0)._replace(link=LinkNumber(2))], 1.0)
    assert counters.repeats == 0, "a link ends with its engine's process, which begins at 0 again"
    built.process([message(0, 1, ts=5.0)._replace(link=LinkNumber(2))], 1.0)
    built.process([message(1, 2, ts=6.0)._replace(link=LinkNumber(2))], 1.0)
    assert counters.troubles("") == NO_TROUBLES
