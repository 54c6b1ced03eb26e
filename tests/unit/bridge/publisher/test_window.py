import msgspec
import pytest

from bridge.publisher import window as window_module
from bridge.publisher.window import Window
from bridge.wire.batch_parts import EventRun
from schemas.codec import decode_record, decode_record_events
from schemas.events import BlockEvent, ClearedBlocks, RemovedBlocks, encode_run
from schemas.identities import Medium
from schemas.records import (
    PART_VERSION,
    RECORD_VERSION,
    EventsRecord,
    GapRecord,
    Part,
    ResetRecord,
    SequencedRecord,
    UnusableRun,
    encode_record,
)
from tests.unit.bridge.messages import registration

PUBLISHER = registration(dp_rank=2).publisher


def open_window() -> Window:
    return Window(PUBLISHER, 50.0)


def removed(sequence: int, blocks: int = 1) -> BlockEvent:
    return RemovedBlocks(sequence=sequence, hashes=bytes(8 * blocks), medium=Medium.CPU)


def add(
    window: Window,
    sequence: int,
    events: list[BlockEvent],
    incarnation: int = 1,
    *,
    unusable: str = "",
    is_whole: bool = False,
    repaired: str = "",
) -> None:
    window.add_batch(
        incarnation=incarnation,
        sequence=sequence,
        engine_time=sequence + 0.5,
        event_count=len(events),
        run=encode_run(events),
        unusable=unusable,
        is_whole=is_whole,
        repaired=repaired,
    )


def events_of(record: SequencedRecord) -> list[BlockEvent]:
    assert isinstance(record, EventsRecord)
    return decode_record_events(record)


def span(record: SequencedRecord) -> tuple[str, int, int, int]:
    return (
        type(record).__name__,
        record.incarnation,
        record.first_sequence,
        record.last_sequence,
    )


def test_a_window_without_batches_has_no_records() -> None:
    assert open_window().close() == []


def test_a_record_says_which_of_its_batches_was_the_last_incomplete_one() -> None:
    window = open_window()
    for sequence, unusable in enumerate(["", "bad_hashes", "bad_hashes", ""]):
        add(window, sequence, [removed(sequence)], unusable=unusable)
    window.add_gap(incarnation=1, first=4, last=4, reason="missed")
    add(window, 5, [removed(5)])
    found = [record.incomplete for record in window.close() if isinstance(record, EventsRecord)]
    assert found == [2, msgspec.UNSET]


def test_a_record_says_which_of_its_batches_could_not_be_used_and_why() -> None:
    window = open_window()
    reasons = ["", "bad_hashes", "bad_hashes", "bad_tokens", "", "bad_tokens"]
    for sequence, unusable in enumerate(reasons):
        add(window, sequence, [removed(sequence)], unusable=unusable)
    add(window, 6, [], unusable="undecodable", is_whole=True)
    add(window, 7, [], unusable="undecodable", is_whole=True)
    add(window, 8, [], unusable="undecodable")
    [record] = window.close()
    assert isinstance(record, EventsRecord)
    assert record.incomplete == 8
    assert record.unusable == (
        UnusableRun(1, 2, "bad_hashes"),
        UnusableRun(3, 3, "bad_tokens"),
        UnusableRun(5, 5, "bad_tokens"),
        UnusableRun(6, 7, "undecodable", True),
        UnusableRun(8, 8, "undecodable"),
    )


def test_what_could_not_be_used_is_bounded_in_each_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_module, "UNUSABLE_RUNS_MAX", 2)
    window = open_window()
    for sequence in range(7):
        add(window, sequence, [], unusable="bad_hashes" if sequence % 2 else "bad_tokens")
    records = [one for one in window.close() if isinstance(one, EventsRecord)]
    assert [span(record)[2:] for record in records] == [(0, 1), (2, 3), (4, 5), (6, 6)]


def test_what_a_replay_brought_shares_no_record_with_what_came() -> None:
    window = open_window()
    for sequence, repaired in enumerate(["", "missed", "missed", "reconnected", ""]):
        add(window, sequence, [removed(sequence)], repaired=repaired)
    records = [one for one in window.close() if isinstance(one, EventsRecord)]
    assert [(*span(record)[2:], record.repaired) for record in records] == [
        (0, 0, msgspec.UNSET),
        (1, 2, "missed"),
        (3, 3, "reconnected"),
        (4, 4, msgspec.UNSET),
    ]


def test_batches_that_follow_each_other_share_a_record() -> None:
    window = open_window()
    add(window, 3, [removed(3)])
    add(window, 4, [removed(4, 2), ClearedBlocks(sequence=4)])
    (record,) = window.close()
    assert isinstance(record, EventsRecord)
    assert record.publisher == PUBLISHER
    assert span(record) == ("EventsRecord", 1, 3, 4)
    assert (record.bridge_time, record.engine_time) == (50.0, 4.5)
    assert events_of(record) == [removed(3), removed(4, 2), ClearedBlocks(sequence=4)]


def test_a_record_survives_the_log() -> None:
    window = open_window()
    add(window, 3, [removed(3)])
    (record,) = window.close()
    read = decode_record(encode_record(record))
    assert isinstance(read, EventsRecord)
    assert span(read) == span(record)
    assert events_of(read) == [removed(3)]


def test_an_empty_batch_moves_the_cursor() -> None:
    window = open_window()
    add(window, 3, [])
    (alone,) = window.close()
    assert (span(alone), events_of(alone)) == (("EventsRecord", 1, 3, 3), [])
    window = open_window()
    add(window, 3, [removed(3)])
    add(window, 4, [])
    (merged,) = window.close()
    assert (span(merged), events_of(merged)) == (("EventsRecord", 1, 3, 4), [removed(3)])


def test_gaps_and_resets_stand_between_the_batches_where_they_happened() -> None:
    window = open_window()
    add(window, 3, [removed(3)])
    window.add_gap(incarnation=1, first=4, last=6, reason="missed")
    add(window, 7, [removed(7)])
    window.add_reset(incarnation=2, reason="restarted")
    window.add_gap(incarnation=2, first=0, last=0, reason="joined_late")
    add(window, 1, [removed(1)], incarnation=2)
    records = window.close()
    assert [span(record) for record in records] == [
        ("EventsRecord", 1, 3, 3),
        ("GapRecord", 1, 4, 6),
        ("EventsRecord", 1, 7, 7),
        ("ResetRecord", 2, -1, -1),
        ("GapRecord", 2, 0, 0),
        ("EventsRecord", 2, 1, 1),
    ]
    assert all(record.publisher == PUBLISHER for record in records)
    assert isinstance(records[1], GapRecord)
    assert isinstance(records[3], ResetRecord)
    assert (records[1].reason, records[3].reason) == ("missed", "restarted")


def test_a_full_record_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "RECORD_BYTES_MAX", 5 + len(encode_run([removed(0)])))
    window = open_window()
    for sequence in range(5):
        add(window, sequence, [removed(sequence), ClearedBlocks(sequence=sequence)])
    records = window.close()
    assert [span(record)[2:] for record in records] == [(i, i) for i in range(5)]
    assert [events_of(record) for record in records] == [
        [removed(i), ClearedBlocks(sequence=i)] for i in range(5)
    ]


def test_a_record_may_be_exactly_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "RECORD_BYTES_MAX", 5 + 2 * len(encode_run([removed(0)])))
    window = open_window()
    for sequence in range(5):
        add(window, sequence, [removed(sequence)])
    assert [span(one)[2:] for one in window.close()] == [(0, 1), (2, 3), (4, 4)]


def test_records_are_split_by_size_and_one_larger_batch_stays_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(window_module, "RECORD_BYTES_MAX", 1000)
    window = open_window()
    sizes = [500, 50, 40, 500, 1, 50, 50, 50]
    for sequence, blocks in enumerate(sizes):
        add(window, sequence, [removed(sequence, blocks)])
    records = window.close()
    assert [span(record)[2:] for record in records] == [(0, 0), (1, 2), (3, 3), (4, 6), (7, 7)]
    events = [event for record in records for event in events_of(record)]
    assert events == [removed(sequence, blocks) for sequence, blocks in enumerate(sizes)]


def test_each_part_of_a_large_batch_is_a_record_and_the_last_one_ends_it() -> None:
    window = open_window()
    add(window, 6, [removed(6)])
    parts = [EventRun(count, encode_run([removed(7)] * count)) for count in (2, 1, 3)]
    window.add_batch(
        incarnation=1,
        sequence=7,
        engine_time=17.0,
        event_count=5,  # of which one has been cut
        run=b"",
        parts=parts,
        doubted=True,
        unusable="bad_hashes",
        repaired="missed",
    )
    add(window, 8, [removed(8)])
    records = window.close()
    assert [span(record)[2:] for record in records] == [(6, 6), (7, 7), (7, 7), (7, 7), (8, 8)]
    batch = [one for one in records[1:4] if isinstance(one, EventsRecord)]
    assert [(one.part, one.version) for one in batch] == [
        (Part(0, 2, 6), PART_VERSION),
        (Part(2, 3, 6), PART_VERSION),
        (Part(3, 6, 6), PART_VERSION),
    ]
    assert [one.reached.sequence for one in batch] == [6, 6, 7]
    assert [(one.doubted, one.incomplete, one.engine_time) for one in batch] == [
        (True, 7, 17.0)
    ] * 3
    assert [one.unusable for one in batch] == [(UnusableRun(7, 7, "bad_hashes"),)] * 3
    assert [one.repaired for one in batch] == ["missed"] * 3
    assert [len(events_of(one)) for one in batch] == [2, 1, 3]
    others = [one for one in (records[0], records[4]) if isinstance(one, EventsRecord)]
    whole = (msgspec.UNSET, RECORD_VERSION, msgspec.UNSET)
    assert [(one.part, one.version, one.incomplete) for one in others] == [whole] * 2


def test_batches_that_do_not_follow_are_an_error_of_the_caller() -> None:
    window = open_window()
    add(window, 3, [])
    with pytest.raises(AssertionError):
        add(window, 5, [])


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_any_number_of_events_is_an_array(count: int) -> None:
    window = open_window()
    add(window, 0, [ClearedBlocks(sequence=0)] * count)
    (record,) = window.close()
    assert len(events_of(record)) == count
