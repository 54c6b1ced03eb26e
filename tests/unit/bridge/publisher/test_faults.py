"""An unforeseen error of ours: nothing of the publisher may be missing without a word."""

import pytest

from bridge.link_numbers import LinkNumber
from bridge.publisher import sequencer as sequencer_module
from bridge.publisher import stream as streams
from bridge.publisher.held_batches import HeldBatch
from bridge.publisher.window import Window
from bridge.sockets.raw_message import RawMessage
from bridge.wire import DecodedBatch
from bridge.wire.drop_reasons import DropReason
from schemas.positions import Cursor
from schemas.records import EventsRecord, SequencedRecord
from tests.unit.bridge.publisher.sequencers import Sequencers
from tests.unit.bridge.publisher.test_sequencer import ONE, TWO, message, removed, told

POISON = 13
FAULT = str(DropReason.INTERNAL_ERROR)


class Poison(Exception):
    """What the patched code raises."""


@pytest.fixture
def decoding_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of sequence POISON cannot be decoded."""
    decode = streams.BatchStream.decode

    def failing(stream: streams.BatchStream, message: RawMessage) -> DecodedBatch | None:
        batch = decode(stream, message)
        if batch is not None and batch.sequence == POISON:
            raise Poison
        return batch

    monkeypatch.setattr(streams.BatchStream, "decode", failing)


@pytest.fixture
def packing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of sequence POISON cannot be packed: its place has been taken by then."""
    add_batch = Window.add_batch

    def failing(window: Window, *, sequence: int, **fields: object) -> None:
        if sequence == POISON:
            raise Poison
        add_batch(window, sequence=sequence, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(Window, "add_batch", failing)


@pytest.fixture
def closing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window whose last batch is POISON cannot be closed."""
    close = Window.close

    def failing(window: Window) -> list[SequencedRecord]:
        records = close(window)
        if any(isinstance(one, EventsRecord) and one.last_sequence == POISON for one in records):
            raise Poison
        return records

    monkeypatch.setattr(Window, "close", failing)


def built(*, repairs: bool) -> Sequencers:
    sequencer = Sequencers()
    sequencer.add(ONE, Cursor(1, 9), repairs=repairs)
    sequencer.add(TWO)
    return sequencer


def messages(first: int, last: int) -> list[RawMessage]:
    return [message(number, number) for number in range(first, last + 1)]


def of_two(*numbers: int) -> list[RawMessage]:
    return [message(number, number, of=TWO.publisher) for number in numbers]


@pytest.mark.usefixtures("decoding_fails")
def test_a_batch_that_fails_in_decoding_is_a_gap_at_once_and_its_neighbours_are_kept() -> None:
    sequencer = built(repairs=False)
    records = sequencer.process([*messages(10, POISON), *of_two(0)], 9.0)
    assert told(records) == [
        *(removed(number, number) for number in range(10, POISON)),
        (FAULT, 1, POISON, POISON),
        removed(0, 0),
    ]
    assert told(sequencer.process(messages(POISON + 1, 15), 9.0)) == [
        removed(14, 14),
        removed(15, 15),
    ]
    assert sequencer.faults == 1
    assert sequencer.counters()[ONE.publisher].dropped[FAULT] == 1


@pytest.mark.usefixtures("packing_fails")
def test_a_window_that_fails_in_packing_is_a_gap_and_the_stream_goes_on() -> None:
    sequencer = built(repairs=False)
    records = sequencer.process([*messages(10, 15), *of_two(0, 1)], 9.0)
    assert told(records) == [
        (FAULT, 1, 10, POISON),
        removed(14, 14),
        removed(15, 15),
        removed(0, 0),
        removed(1, 1),
    ]
    assert sequencer[ONE.publisher].stream.cursor == Cursor(1, 15)


@pytest.mark.usefixtures("decoding_fails")
def test_a_publisher_that_can_replay_is_asked_again_for_what_failed_in_decoding() -> None:
    sequencer = built(repairs=True)
    records = sequencer.process([*messages(10, 15), *of_two(0)], 9.0)
    assert told(records) == [*(removed(n, n) for n in range(10, POISON)), removed(0, 0)]
    assert sequencer.take_gaps() == [ONE.publisher]
    assert sequencer[ONE.publisher].stream.cursor == Cursor(1, POISON - 1)
    assert told(sequencer[ONE.publisher].resume(9.0)) == [
        (DropReason.INTERNAL_ERROR, 1, POISON, POISON),
        removed(14, 14),
        removed(15, 15),
    ]


@pytest.mark.usefixtures("packing_fails")
def test_a_publisher_that_can_replay_is_asked_again_for_the_window_that_failed() -> None:
    sequencer = built(repairs=True)
    assert told(sequencer.process([*messages(10, 15), *of_two(0)], 9.0)) == [removed(0, 0)]
    assert sequencer.take_gaps() == [ONE.publisher]
    assert sequencer[ONE.publisher].stream.cursor == Cursor(1, 9)
    again = [sequencer.decode(one) for one in messages(10, 12)]
    assert told(
        sequencer[ONE.publisher].accept([one for one in again if one], 9.0, link=LinkNumber(0))
    ) == [removed(number, number) for number in range(10, 13)]
    assert told(sequencer[ONE.publisher].resume(9.0)) == [
        (DropReason.INTERNAL_ERROR, 1, POISON, POISON),
        removed(14, 14),
        removed(15, 15),
    ]


@pytest.mark.usefixtures("decoding_fails")
def test_what_its_publisher_has_no_more_is_a_gap_though_nothing_came_behind_it() -> None:
    sequencer = built(repairs=True)
    sequencer.process([message(10, 10), message(11, 11), message(12, 12), message(POISON, 1)], 9.0)
    assert sequencer.take_gaps() == [ONE.publisher]
    assert told(sequencer[ONE.publisher].resume(9.0)) == [(FAULT, 1, POISON, POISON)]
    assert told(sequencer.process(messages(14, 14), 9.0)) == [removed(14, 14)]


@pytest.mark.usefixtures("packing_fails")
def test_a_replayed_batch_that_fails_again_is_a_gap() -> None:
    sequencer = built(repairs=True)
    sequencer.process(messages(10, POISON), 9.0)
    again = [sequencer.decode(one) for one in messages(10, 14)]
    records = sequencer[ONE.publisher].accept(
        [one for one in again if one], 9.0, link=LinkNumber(0)
    )
    assert told(records) == [(FAULT, 1, 10, POISON), removed(14, 14)]
    assert sequencer[ONE.publisher].resume(9.0) == []
    assert sequencer.faults == 2


@pytest.mark.usefixtures("closing_fails")
@pytest.mark.parametrize("repairs", [False, True])
def test_a_window_that_cannot_be_closed_is_a_gap_unless_its_publisher_can_be_asked(
    repairs: bool,
) -> None:
    sequencer = built(repairs=repairs)
    records = told(sequencer.process([*messages(10, POISON), *of_two(0)], 9.0))
    lost = [(FAULT, 1, 10, POISON)]
    assert records == [*([] if repairs else lost), removed(0, 0)]
    assert sequencer.take_gaps() == ([ONE.publisher] if repairs else [])
    assert sequencer[ONE.publisher].is_held is repairs
    assert told(sequencer[ONE.publisher].resume(9.0)) == (lost if repairs else [])
    assert sequencer.faults == 1


@pytest.mark.usefixtures("closing_fails")
def test_replayed_batches_whose_window_cannot_be_closed_are_a_gap() -> None:
    sequencer = built(repairs=True)
    sequencer[ONE.publisher].hold()
    again = [sequencer.decode(one) for one in messages(10, POISON)]
    records = sequencer[ONE.publisher].accept(
        [one for one in again if one], 9.0, link=LinkNumber(0)
    )
    assert told(records) == [(FAULT, 1, 10, POISON)]
    assert sequencer.take_gaps() == []


def test_a_batch_that_fails_while_it_is_made_to_wait_costs_nothing_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(batch: DecodedBatch, size_bytes: int, link: int) -> HeldBatch:
        if batch.sequence == POISON:
            raise Poison
        return HeldBatch(batch, size_bytes, LinkNumber(link))

    monkeypatch.setattr(sequencer_module, "HeldBatch", failing)
    sequencer = built(repairs=True)
    sent = [*messages(10, 11), message(POISON, POISON), message(14, 14)]
    assert told(sequencer.process(sent, 9.0)) == [removed(10, 10), removed(11, 11)]
    assert sequencer.take_gaps() == [ONE.publisher]
    assert told(sequencer[ONE.publisher].resume(9.0)) == [("missed", 1, 12, 13), removed(14, 14)]


@pytest.mark.usefixtures("decoding_fails")
def test_a_replayed_batch_that_cannot_be_decoded_is_left_out_and_counted() -> None:
    sequencer = built(repairs=True)
    assert sequencer.decode(message(POISON, 1)) is None
    assert (sequencer.faults, sequencer.counters()[ONE.publisher].dropped[FAULT]) == (1, 1)


@pytest.mark.usefixtures("packing_fails")
def test_a_batch_that_waited_and_fails_is_a_gap_and_nothing_waits_any_longer() -> None:
    sequencer = built(repairs=True)
    sequencer[ONE.publisher].hold()
    sequencer.process(messages(10, 15), 9.0)
    assert told(sequencer[ONE.publisher].resume(9.0)) == [
        (FAULT, 1, 10, POISON),
        removed(14, 14),
        removed(15, 15),
    ]
    assert (sequencer[ONE.publisher].is_held, sequencer.held_bytes) == (False, 0)


@pytest.mark.usefixtures("packing_fails")
def test_a_restart_within_the_window_that_failed_is_not_forgotten() -> None:
    sequencer = built(repairs=False)
    live = [message(10, 1), *(message(number, number) for number in range(POISON + 1))]
    assert told(sequencer.process(live, 9.0)) == [(FAULT, 2, -1, -1), (FAULT, 2, 0, POISON)]


def test_records_that_could_not_be_handed_on_are_taken_back() -> None:
    sequencer = built(repairs=False)
    sequencer.process(messages(10, 12), 9.0)
    assert told(sequencer[ONE.publisher].take_back(9.0, request_replay=True)) == [
        (FAULT, 1, 10, 12)
    ]
    assert told(sequencer.process(messages(13, 13), 9.0)) == [removed(13, 13)]


def test_records_of_a_publisher_that_can_replay_are_taken_back_and_asked_for_again() -> None:
    sequencer = built(repairs=True)
    sequencer.process(messages(10, 12), 9.0)
    assert sequencer[ONE.publisher].take_back(9.0, request_replay=True) == []
    assert sequencer.take_gaps() == [ONE.publisher]
    assert sequencer[ONE.publisher].stream.cursor == Cursor(1, 9)
    assert told(sequencer[ONE.publisher].resume(9.0)) == [(FAULT, 1, 10, 12)]


def test_what_is_known_to_have_come_is_a_gap_where_it_is_not_replayed() -> None:
    sequencer = built(repairs=True)
    sequencer[ONE.publisher].hold()
    sequencer[ONE.publisher].expect(Cursor(1, 12), "spool_full")
    assert told(sequencer[ONE.publisher].resume(9.0)) == [("spool_full", 1, 10, 12)]


@pytest.mark.usefixtures("decoding_fails")
@pytest.mark.parametrize("known", [Cursor(1, 12), None])
def test_what_fails_while_its_publisher_is_held_is_missing_beside_what_was_known_to_be(
    known: Cursor | None,
) -> None:
    sequencer = built(repairs=True)
    sequencer[ONE.publisher].hold()
    if known is not None:
        sequencer[ONE.publisher].expect(known, "spool_full")
    sequencer.process([message(POISON, POISON)], 9.0)
    expected = (FAULT, 1, 10, 10) if known is None else ("spool_full", 1, 10, 12)
    assert told(sequencer[ONE.publisher].resume(9.0)) == [expected]
