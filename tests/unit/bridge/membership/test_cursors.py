"""Recovery of cursors from topics in memory."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from bridge.membership import cursors
from bridge.membership.cursors import Cursors, LogState, fingerprint
from bridge.publisher.anchor import Anchor
from brokers.clients import Clients
from schemas.codec import decode_record
from schemas.events import encode_events
from schemas.positions import DISK_CLEARED, NO_CURSOR, POOL_CLEARED, SHARES, Cursor, Proof
from schemas.records import (
    EventsRecord,
    GapRecord,
    Record,
    RegisteredRecord,
    ResetRecord,
    UnregisteredRecord,
)
from schemas.topics import CursorNote, encode_note, encode_publisher
from tests.building import in_parts
from tests.unit.bridge.membership.topics import TOPICS, Topics
from tests.unit.bridge.messages import registration

ONE = registration()
TWO = registration(instance_id="w-2")


def envelope(publisher_of: Any) -> dict[str, Any]:
    return {"stream": publisher_of.stream, "dp_rank": publisher_of.dp_rank, "bridge_time": 1.0}


def events(of: Any, incarnation: int, first: int, last: int) -> EventsRecord:
    return EventsRecord(
        **envelope(of),
        incarnation=incarnation,
        first_sequence=first,
        last_sequence=last,
        engine_time=100.0 + last,
        events=msgspec.Raw(encode_events([])),
    )


def registered(of: Any) -> RegisteredRecord:
    return RegisteredRecord(**envelope(of), registration=of)


def recover(
    topics: Topics, *homes: int, of: Cursors | None = None
) -> tuple[Cursors, dict[Any, LogState]]:
    """Those of new ones, unless others are given."""
    made = of or Cursors(cast(Clients, topics), TOPICS)

    async def run() -> dict[Any, LogState]:
        await made.load({0, 1})
        wanted = {ONE.publisher: 0, TWO.publisher: 1}
        return dict(
            await made.recover({one: home for one, home in wanted.items() if home in homes})
        )

    return made, asyncio.run(run())


def write_note(
    topics: Topics, of: Any, sequence: int, *, partition: int = 0, offset: int = 0, home: int = 0
) -> None:
    note = CursorNote(incarnation=1, sequence=sequence, partition=partition, offset=offset)
    topics.append(TOPICS.cursors.name, home, encode_publisher(of.publisher), encode_note(note))


def write_notes(topics: Topics, made: Cursors) -> None:
    for home, notes in made.take_notes().items():
        for _, key, value in notes:
            topics.append(TOPICS.cursors.name, home, key, value)


def test_where_no_note_was_ever_written_the_events_are_read_from_their_beginning() -> None:
    topics = Topics()
    topics.record(registered(ONE), events(ONE, 1, 0, 4), events(TWO, 1, 0, 9), events(ONE, 1, 5, 6))
    _, states = recover(topics, 0, 1)
    one, two = states[ONE.publisher], states[TWO.publisher]
    assert (one.cursor, one.engine_time, one.registered) == (Cursor(1, 6), 106.0, fingerprint(ONE))
    assert (two.cursor, two.registered) == (Cursor(1, 9), 0)
    assert (one.offset, one.noted) == (4, False)
    assert len(topics.readers) == 2
    assert not any(reader.is_running for reader in topics.readers), "they are stopped"


def test_a_publisher_without_a_note_beside_others_with_one_costs_no_reading() -> None:
    topics = Topics()
    topics.record(*(events(TWO, 1, n, n) for n in range(50)))
    topics.append(TOPICS.cursors.name, 0, encode_publisher(TWO.publisher), b"\x80")
    _, states = recover(topics, 0)
    state = states[ONE.publisher]
    assert (state.cursor, state.offset) == (NO_CURSOR, 50)
    assert topics.read == 1


def test_a_note_shortens_what_is_read_and_the_rest_is_followed() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    for n in range(30):
        record = events(ONE, 1, n, n)
        topics.record(record)
        made.written(ONE.publisher, record, n)
    write_notes(topics, made)
    topics.record(events(ONE, 1, 30, 33))
    topics.read = 0
    _, states = recover(topics, 0)
    state = states[ONE.publisher]
    assert (state.cursor, state.engine_time) == (Cursor(1, 33), 133.0)
    assert state.noted
    assert topics.read == 2


def test_a_note_knows_the_engine_time_and_the_registration() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    records: list[Record] = [registered(ONE), events(ONE, 2, 0, 7)]
    topics.record(events(TWO, 1, 0, 9))
    for offset, record in enumerate(records, 1):
        topics.record(record)
        made.written(ONE.publisher, record, offset)
    write_notes(topics, made)
    again, states = recover(topics, 0)
    state = states[ONE.publisher]
    assert (state.cursor, state.engine_time) == (Cursor(2, 7), 107.0)
    assert (state.registered, state.registered_at) == (fingerprint(ONE), 1)
    assert again.known(0) == [ONE.publisher]


def test_resets_gaps_and_duplicates_are_followed() -> None:
    topics = Topics()
    reset = ResetRecord(**envelope(ONE), incarnation=2, first_sequence=-1, last_sequence=-1)
    gap = GapRecord(**envelope(ONE), incarnation=2, first_sequence=0, last_sequence=3)
    topics.record(events(ONE, 1, 0, 9), reset, gap, events(ONE, 1, 5, 9))
    _, states = recover(topics, 0)
    assert states[ONE.publisher].anchor == Anchor(Cursor(2, 3), 0.0)


def test_an_unregistered_publisher_goes_on_in_a_later_incarnation() -> None:
    topics = Topics()
    gone = UnregisteredRecord(**envelope(ONE))
    topics.record(registered(ONE), events(ONE, 3, 0, 9), gone)
    _, states = recover(topics, 0)
    state = states[ONE.publisher]
    assert state.registered == 0
    state.begin_registration()
    assert state.anchor == Anchor(Cursor(4, -1), 0.0)


def test_a_publisher_that_is_registered_again_begins_again_and_one_that_is_changed_does_not() -> (
    None
):
    state = LogState(0)
    changed = msgspec.structs.replace(ONE, endpoint="tcp://127.0.0.1:1")
    records: list[Record] = [registered(ONE), events(ONE, 1, 0, 0), registered(changed)]
    for offset, record in enumerate(records):
        state.take(record, offset)
    assert state.anchor == Anchor(Cursor(1, 0), 100.0, heard=Proof(0, 100.0))
    assert state.registered == fingerprint(changed)
    state.take(UnregisteredRecord(**envelope(ONE)), 3)
    state.take(registered(ONE), 4)
    assert state.anchor == Anchor(Cursor(2, -1), 0.0), "of the one batch before, nothing counts"


def test_a_batch_that_the_log_has_in_part_is_noted_as_begun() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    begun, ended = in_parts(events(ONE, 2, 8, 8), 3, 7)
    records: list[Record] = [registered(ONE), events(ONE, 2, 0, 7), begun]
    for offset, record in enumerate(records):
        topics.record(record)
        made.written(ONE.publisher, record, offset)
    write_notes(topics, made)
    _, states = recover(topics, 0)
    state = states[ONE.publisher]
    assert state.anchor == Anchor(Cursor(2, 7), 107.0, begun=108.0, heard=Proof(7, 107.0))
    topics.record(begun, ended)
    _, states = recover(topics, 0)
    assert states[ONE.publisher].anchor == Anchor(Cursor(2, 8), 108.0, heard=Proof(8, 108.0))


def test_a_note_knows_the_attention_window_and_the_media() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    named = msgspec.structs.replace(events(ONE, 1, 0, 4), window=4096, media=16 | SHARES)
    records: list[Record] = [registered(ONE), named, events(ONE, 1, 5, 7)]
    for offset, record in enumerate(records):
        topics.record(record)
        made.written(ONE.publisher, record, offset)
    write_notes(topics, made)
    _, states = recover(topics, 0)
    state = states[ONE.publisher]
    assert (state.anchor.window, state.anchor.media) == (4096, 16 | SHARES)
    lasting = SHARES | POOL_CLEARED | DISK_CLEARED
    begun = ResetRecord(**envelope(ONE), incarnation=2, first_sequence=-1, last_sequence=-1)
    state.take(begun, 3)
    assert (state.anchor.window, state.anchor.media) == (None, lasting)
    state.take(UnregisteredRecord.of(ONE.publisher, 1.0, continues=True), 4)
    state.take(registered(ONE), 5)
    assert (state.anchor.window, state.anchor.media) == (None, lasting), "it is the same engine"
    state.take(UnregisteredRecord(**envelope(ONE)), 6)
    state.take(registered(ONE), 7)
    assert (state.anchor.window, state.anchor.media) == (None, 0)


def test_a_registration_begins_again_behind_a_batch_of_which_there_is_only_a_part() -> None:
    state = LogState(0)
    state.take(registered(ONE), 0)
    state.take(in_parts(events(ONE, 1, 0, 0), 3, 7)[0], 1)
    assert state.anchor == Anchor(Cursor(1, -1), 0.0, begun=100.0)
    state.take(UnregisteredRecord(**envelope(ONE)), 2)
    state.take(registered(ONE), 3)
    assert state.anchor == Anchor(Cursor(2, -1), 0.0)


def test_what_comes_twice_in_the_log_changes_nothing() -> None:
    state = LogState(0)
    gap = GapRecord(**envelope(ONE), incarnation=1, first_sequence=3, last_sequence=4)
    records: list[Record] = [events(ONE, 1, 0, 4), gap]
    for offset, record in enumerate(records):
        state.take(record, offset)
    assert state.anchor == Anchor(Cursor(1, 4), 104.0, heard=Proof(4, 104.0))


def test_a_fingerprint_tells_registrations_apart_and_is_never_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fingerprint(ONE) == fingerprint(registration())
    assert fingerprint(ONE) != fingerprint(msgspec.structs.replace(ONE, endpoint="tcp://h:1"))
    monkeypatch.setattr(cursors, "crc32", lambda _: cursors.UNREGISTERED)
    assert fingerprint(ONE) == 1


@pytest.mark.parametrize("homes", [(0,), (0, 1)], ids=["alone", "with one that is further back"])
def test_what_a_note_knows_is_not_followed_again(homes: tuple[int, ...]) -> None:
    """Each rebalance would withdraw all that the publisher holds."""
    topics = Topics()
    made, _ = recover(topics, 0, 1)
    records: list[Record] = [
        events(TWO, 1, 0, 4),
        registered(ONE),
        events(ONE, 1, 0, 4),
        UnregisteredRecord(**envelope(ONE)),
        registered(ONE),
        events(ONE, 2, 0, 7),
    ]
    for offset, record in enumerate(records):
        topics.record(record)
        made.written(record.publisher, record, offset)
    write_notes(topics, made)
    _, states = recover(topics, *homes)
    assert states[ONE.publisher].cursor == Cursor(2, 7)


@pytest.mark.parametrize("written", range(3))
def test_a_beginning_that_was_noted_and_not_written_is_the_same_for_the_next_bridge(
    written: int,
) -> None:
    topics = Topics()
    topics.record(registered(ONE), events(ONE, 1, 0, 4), UnregisteredRecord(**envelope(ONE)))
    made, states = recover(topics, 0)
    states[ONE.publisher].begin_registration()
    made.written(ONE.publisher, UnregisteredRecord(**envelope(ONE)), 2)
    write_notes(topics, made)
    later: list[Record] = [registered(ONE), events(ONE, 2, 0, 7)]
    topics.record(*later[:written])
    _, states = recover(topics, 0)
    state = states[ONE.publisher]
    if not written:
        state.begin_registration()
    assert state.cursor == (Cursor(2, 7) if written == 2 else Cursor(2, -1))


def test_unreadable_messages_are_counted_and_a_bad_note_costs_a_reading() -> None:
    topics = Topics()
    topics.append(TOPICS.cursors.name, 0, b"\xc1", b"?")
    topics.append(TOPICS.cursors.name, 0, encode_publisher(ONE.publisher), b"\xc1")
    topics.append(TOPICS.events.name, 0, b"k", b"\xc1")
    topics.record(events(ONE, 1, 0, 4))
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 4)
    assert made.skipped.total() == 3


def test_events_that_fail_their_checksum_are_passed_over_and_counted() -> None:
    topics = Topics()
    topics.record(*(events(ONE, 1, number, number) for number in range(9)))
    topics.damaged = {4, 5}
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 8)
    assert made.skipped.total() == 2


def test_a_record_whose_events_are_none_was_not_written() -> None:
    topics = Topics()
    broken = msgspec.structs.replace(events(ONE, 1, 5, 9), events=msgspec.Raw(b"\x91\x01"))
    topics.record(events(ONE, 1, 0, 4), broken)
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 4)
    assert made.skipped.total() == 1


def test_a_record_without_a_value_is_none_of_ours() -> None:
    topics = Topics()
    topics.append(TOPICS.events.name, 0, b"k", None)
    topics.record(events(ONE, 1, 0, 4))
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 4)
    assert (made.skipped.total(), made.skipped.faults) == (1, 0)


def test_events_are_read_from_the_note_that_is_furthest_back() -> None:
    topics = Topics()
    topics.record(events(ONE, 1, 0, 4), events(TWO, 1, 0, 4), events(ONE, 1, 5, 6))
    write_note(topics, ONE, 6, offset=3)
    write_note(topics, TWO, -1, offset=1, home=1)
    _, states = recover(topics, 0, 1)
    assert states[TWO.publisher].cursor == Cursor(1, 4)


def test_a_note_of_another_partition_tells_nothing_of_where_to_read() -> None:
    """The topic was made anew, with other partitions."""
    topics = Topics()
    write_note(topics, ONE, -1, partition=1, offset=1)
    topics.record(events(ONE, 1, 0, 4))
    _, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 4)


def test_what_is_loaded_replaces_what_was_known() -> None:
    topics = Topics()
    write_note(topics, ONE, 4)
    made, _ = recover(topics)
    assert made.known(0) == [ONE.publisher]
    topics.logs.clear()
    recover(topics, of=made)
    assert made.state(ONE.publisher) is None


def test_a_partition_that_was_written_to_since_has_a_note_of_each_that_has_records() -> None:
    topics = Topics()
    made, _ = recover(topics)
    write_note(topics, ONE, 4, home=1)
    topics.record(events(TWO, 1, 0, 4))
    _, states = recover(topics, 1, of=made)
    assert states[TWO.publisher].cursor == NO_CURSOR, "not read"


def test_a_note_beyond_the_end_or_before_the_beginning_reads_what_there_is() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    made.written(ONE.publisher, events(ONE, 1, 0, 4), 1000)
    write_notes(topics, made)
    topics.record(events(ONE, 1, 5, 6))
    _, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 6)
    assert states[ONE.publisher].offset == 1


@pytest.mark.parametrize(
    ("begin", "behind", "due"),
    [
        (5, [], Cursor(1, 4)),  # nothing of it can be gone
        (6, [], Cursor(3, -1)),  # one record, which can have begun one incarnation
        (20, [], Cursor(17, -1)),
        (20, [events(ONE, 3, 0, 7)], Cursor(3, 7)),  # tells what came before it
        (20, [registered(ONE)], Cursor(17, -1)),
        (20, [UnregisteredRecord(**envelope(ONE)), registered(ONE)], Cursor(18, -1)),
    ],
)
def test_an_incarnation_that_retention_has_dropped_is_never_begun_again(
    begin: int, behind: list[Record], due: Cursor
) -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    noted: list[Record] = [registered(ONE), *(events(ONE, 1, n, n) for n in range(1, 5))]
    for offset, record in enumerate(noted):
        topics.record(record)
        made.written(ONE.publisher, record, offset)
    write_notes(topics, made)
    topics.record(*(events(TWO, 1, n, n) for n in range(15)), *behind)
    topics.begins[TOPICS.events.name, 0] = begin
    _, states = recover(topics, 0, 1)
    assert (states[ONE.publisher].cursor, states[ONE.publisher].offset) == (due, 20 + len(behind))


def test_an_incarnation_behind_what_retention_has_dropped_is_noted_at_once() -> None:
    topics = Topics()
    write_note(topics, ONE, 4)
    topics.record(*(events(TWO, 1, n, n) for n in range(9)))
    topics.begins[TOPICS.events.name, 0] = 9
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(11, -1)
    write_notes(topics, made)
    _, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(11, -1), "no further one"


@pytest.mark.parametrize("then", [UnregisteredRecord(**envelope(ONE)), registered(ONE)])
def test_who_may_be_registered_unread_is_unregistered_once(then: Record) -> None:
    topics = Topics()
    write_note(topics, ONE, 4)
    topics.record(*(events(TWO, 1, n, n) for n in range(9)))
    assert recover(topics, 0)[1][ONE.publisher].has_unread is False
    topics.begins[TOPICS.events.name, 0] = 9
    made, states = recover(topics, 0)
    assert states[ONE.publisher].has_unread is True
    made.written(ONE.publisher, then, 9)
    assert states[ONE.publisher].has_unread is False


def test_where_no_note_was_ever_written_no_incarnation_of_a_retired_log_is_begun_again() -> None:
    topics = Topics()
    topics.record(*(events(ONE, 1, n, n) for n in range(9)), events(TWO, 4, 0, 0))
    topics.begins[TOPICS.events.name, 0] = 9
    _, states = recover(topics, 0, 1)
    assert states[ONE.publisher].cursor == Cursor(10, -1)
    assert states[TWO.publisher].cursor == Cursor(4, 0)


def test_a_publisher_that_has_no_record_begins_with_the_first_incarnation() -> None:
    topics = Topics()
    write_note(topics, TWO, 4, offset=9)
    topics.record(*(events(TWO, 1, n, n) for n in range(9)))
    topics.begins[TOPICS.events.name, 0] = 9
    _, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == NO_CURSOR


def test_the_note_of_a_silent_publisher_is_written_again_before_it_is_far_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "CURSOR_NOTE_BEHIND_RECORDS_MAX", 10)
    topics = Topics()
    made, _ = recover(topics, 0)
    made.written(ONE.publisher, events(ONE, 1, 0, 4), 0)
    write_notes(topics, made)
    made.noted([ONE.publisher])
    made.advance({0: 11})
    assert made.take_notes() == {}
    made.advance({0: 12})
    assert list(made.take_notes()) == [0]
    state = made.state(ONE.publisher)
    assert state is not None
    assert (state.offset, state.cursor) == (12, Cursor(1, 4))


def test_the_first_note_of_a_publisher_is_not_written_because_the_log_goes_on() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    made.advance({0: 10**9})
    assert made.take_notes() == {}


def test_a_note_that_could_not_be_written_is_written_again() -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    made.written(ONE.publisher, events(ONE, 1, 0, 4), 0)
    notes = made.take_notes()
    assert list(notes) == [0]
    assert made.take_notes() == {}
    made.renote([ONE.publisher, TWO.publisher])
    assert made.take_notes() == notes
    assert made.take_notes([TWO.publisher]) == {}, "of which nothing is known"
    assert made.take_notes([TWO.publisher, ONE.publisher]) == notes


def test_publishers_of_other_partitions_are_forgotten() -> None:
    topics = Topics()
    made, _ = recover(topics, 0, 1)
    made.written(ONE.publisher, events(ONE, 1, 0, 4), 0)
    made.forget([0])
    made.written(ONE.publisher, events(ONE, 1, 5, 5), 1)
    assert made.state(ONE.publisher) is None
    assert made.state(TWO.publisher) is not None
    assert made.take_notes() == {}
    made.written(TWO.publisher, events(TWO, 1, 0, 4), 2)
    made.forget([1])
    recover(topics, 1, of=made)
    assert made.take_notes() == {}, "it begins anew"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\x92\x95\xa1\xff", b""),
        (encode_publisher(ONE.publisher), b"\x81\xa1\xff\x01"),
        (encode_publisher(ONE.publisher), b"\x91" * 10_000),
        (encode_publisher(ONE.publisher), None),
    ],
)
def test_a_note_that_cannot_be_read_keeps_no_partition_from_being_taken_over(
    key: bytes, value: bytes | None
) -> None:
    topics = Topics()
    topics.append(TOPICS.cursors.name, 0, encode_publisher(ONE.publisher), None)
    topics.append(TOPICS.cursors.name, 0, key, value)
    topics.record(events(ONE, 1, 0, 4))
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 4)
    assert (made.skipped.total(), made.skipped.faults) == (2, 0)


def test_an_unexpected_error_costs_one_message_and_is_counted_with_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def decode(encoded: bytes) -> Record:
        record = decode_record(encoded)
        if isinstance(record, EventsRecord) and record.first_sequence == 5:
            raise ZeroDivisionError("injected")
        return record

    monkeypatch.setattr(cursors, "decode_log_record", decode)
    topics = Topics()
    topics.record(events(ONE, 1, 0, 4), events(ONE, 1, 5, 5), events(ONE, 1, 6, 7))
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 7)
    assert (made.skipped.total(), made.skipped.faults) == (0, 1)
    assert f"skipping the message in {TOPICS.events.name}, partition 0, offset 1" in caplog.text


def test_notes_above_the_bound_cost_a_reading_and_never_a_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = Topics()
    made, _ = recover(topics, 0)
    made.written(ONE.publisher, events(ONE, 3, 0, 4), 0)
    topics.append(TOPICS.cursors.name, 0, encode_publisher(TWO.publisher), b"\x80")
    write_notes(topics, made)
    topics.record(events(ONE, 3, 0, 4))
    monkeypatch.setattr(cursors, "CURSOR_NOTES_MAX", 1)
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(3, 4)
    assert made.skipped["too_many"] == 1


def test_a_publisher_without_a_note_has_no_record_once_there_is_room_for_all_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "CURSOR_NOTES_MAX", 1)
    topics = Topics()
    for other in (ONE, registration(instance_id="w-3")):
        write_note(topics, other, 4, home=1)
    made, _ = recover(topics)
    monkeypatch.undo()
    topics.record(events(TWO, 1, 0, 4))
    _, states = recover(topics, 1, of=made)
    assert states[TWO.publisher].cursor == NO_CURSOR, "not read"


def test_a_later_note_of_a_publisher_counts_where_there_is_room_for_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cursors, "CURSOR_NOTES_MAX", 1)
    topics = Topics()
    for sequence in (4, 5):
        write_note(topics, ONE, sequence)
    made, states = recover(topics, 0)
    assert states[ONE.publisher].cursor == Cursor(1, 5)
    assert made.skipped.total() == 0


@pytest.mark.parametrize("homes", [(0,), (0, 1)], ids=["alone", "with one that is further back"])
def test_what_is_noted_beyond_the_end_is_read_from_the_beginning(homes: tuple[int, ...]) -> None:
    """The topic is another one of that name: nothing in it is known."""
    topics = Topics()
    write_note(topics, ONE, 4, offset=1000)
    write_note(topics, TWO, 4, offset=1, home=1)
    topics.record(events(ONE, 1, 5, 6), events(TWO, 1, 5, 6))
    _, states = recover(topics, *homes)
    assert states[ONE.publisher].cursor == Cursor(1, 6)
