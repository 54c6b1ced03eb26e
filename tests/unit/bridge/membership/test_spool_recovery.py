from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bridge.delivery import spool as spool_module
from bridge.delivery import unreadable_records
from bridge.delivery.dropped_records import SPOOL_UNREADABLE
from bridge.delivery.spool import Spool
from bridge.membership.cursors import LogState
from bridge.membership.spool_recovery import prune, resolve
from bridge.publisher.anchor import Anchor
from schemas.codec import decode_record
from schemas.events import encode_events
from schemas.positions import NO_CURSOR, Cursor, Proof
from schemas.records import (
    EventsRecord,
    GapRecord,
    Record,
    RegisteredRecord,
    ResetRecord,
    UnregisteredRecord,
    encode_record,
)
from tests.building import in_parts
from tests.unit.bridge.messages import registration

ONE = registration().publisher


def events(incarnation: int, first: int, last: int) -> EventsRecord:
    return EventsRecord(
        stream=ONE.stream,
        dp_rank=ONE.dp_rank,
        bridge_time=1.0,
        incarnation=incarnation,
        first_sequence=first,
        last_sequence=last,
        engine_time=float(last),
        events=msgspec.Raw(encode_events([])),
    )


def gap(incarnation: int, first: int, last: int) -> GapRecord:
    return GapRecord(
        stream=ONE.stream,
        dp_rank=ONE.dp_rank,
        bridge_time=1.0,
        incarnation=incarnation,
        first_sequence=first,
        last_sequence=last,
    )


def reset(incarnation: int) -> ResetRecord:
    return ResetRecord(
        stream=ONE.stream,
        dp_rank=ONE.dp_rank,
        bridge_time=1.0,
        incarnation=incarnation,
        first_sequence=-1,
        last_sequence=-1,
    )


REGISTERED = RegisteredRecord(
    stream=ONE.stream, dp_rank=ONE.dp_rank, bridge_time=1.0, registration=registration()
)
UNREGISTERED = UnregisteredRecord(stream=ONE.stream, dp_rank=ONE.dp_rank, bridge_time=1.0)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path)
    yield opened
    opened.close()


def fill(spool: Spool, *records: Record) -> None:
    spool.append(ONE, [encode_record(one) for one in records])


def left(spool: Spool) -> list[Record]:
    return [record for _, record in spool.decoded(ONE)]


def state(
    incarnation: int, sequence: int, *, registered: int = 1, time: float | None = None
) -> LogState:
    """The time of a batch is its number, unless another is given."""
    return LogState(
        0,
        cursor=Cursor(incarnation, sequence),
        engine_time=float(max(sequence, 0)) if time is None else time,
        registered=registered,
    )


def test_our_spool_goes_on_where_the_log_ends_and_is_the_cursor(spool: Spool) -> None:
    records: list[Record] = [events(1, 0, 4), events(1, 5, 7), gap(1, 8, 9), events(1, 10, 12)]
    fill(spool, *records)
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 12), 12.0, heard=Proof(12, 12.0))
    assert left(spool) == records[1:]


def test_the_parts_of_a_batch_that_is_not_whole_in_the_log_are_kept(spool: Spool) -> None:
    """Some of them may be there: a fold passes over those."""
    parts = in_parts(events(1, 5, 5), 2, 4, 6)
    fill(spool, events(1, 4, 4), *parts, events(1, 6, 6))
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 6), 6.0, heard=Proof(6, 6.0))
    assert left(spool) == [*parts, events(1, 6, 6)]


def test_a_batch_of_which_the_spool_has_a_part_is_begun(spool: Spool) -> None:
    parts = in_parts(events(1, 5, 5), 2, 4, 6)
    fill(spool, *parts[:2])
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 4), 4.0, begun=5.0)
    assert left(spool) == parts[:2]


def test_parts_that_continue_anothers_log_are_kept_up_to_the_end(spool: Spool) -> None:
    parts = in_parts(events(1, 5, 5), 2, 4, 6)
    fill(spool, *parts, events(1, 6, 6))
    prune(spool, ONE, state(1, 4))
    assert left(spool) == [*parts, events(1, 6, 6)]
    prune(spool, ONE, state(1, 5))
    assert left(spool) == [events(1, 6, 6)]


def test_a_spool_that_the_log_has_is_emptied(spool: Spool) -> None:
    fill(spool, events(1, 0, 4), events(1, 5, 7))
    assert resolve(spool, ONE, state(1, 9)) == Anchor(Cursor(1, 9), 9.0)
    assert ONE not in spool


def test_what_was_spooled_before_an_unregistering_is_dropped(spool: Spool) -> None:
    fill(spool, events(1, 5, 7))
    assert resolve(spool, ONE, state(1, 4, registered=0)) == Anchor(Cursor(2, -1), 0.0)
    assert ONE not in spool


def test_what_was_spooled_of_the_present_registration_is_kept(spool: Spool) -> None:
    """Its engine may have no replay socket: nobody else has these."""
    fill(spool, events(1, 5, 7), REGISTERED, events(2, 0, 3), events(2, 4, 6))
    assert resolve(spool, ONE, state(1, 4, registered=0)) == Anchor(
        Cursor(2, 6), 6.0, heard=Proof(6, 6.0)
    )
    assert left(spool) == [REGISTERED, events(2, 0, 3), events(2, 4, 6)]


@pytest.mark.parametrize(
    "later",
    [[], [REGISTERED, events(2, 0, 3)], [events(2, 0, 3)]],
    ids=["ended", "begun again", "begun again, which the log has"],
)
def test_an_unregistering_that_the_log_does_not_have_is_written(
    spool: Spool, later: list[Record]
) -> None:
    """Else the old registration's blocks stay until the engine sends again."""
    fill(spool, events(1, 5, 7), UNREGISTERED, REGISTERED, events(2, 0, 1), UNREGISTERED, *later)
    found = state(1, 4)
    assert resolve(spool, ONE, found).cursor == (Cursor(2, 3) if later else Cursor(2, -1))
    assert left(spool) == [UNREGISTERED, *later]
    assert found.registered == 0, "so that it is written that it is registered"


def test_what_is_in_the_spool_twice_changes_nothing(spool: Spool) -> None:
    fill(spool, events(1, 5, 7), gap(1, 6, 7))
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 7), 7.0, heard=Proof(7, 7.0))


@pytest.mark.parametrize(
    ("log", "records", "kept"),
    [
        (Cursor(1, 4), [events(1, 0, 3), events(1, 3, 4), events(1, 5, 6)], 1),
        (Cursor(1, 4), [events(2, 0, 1)], 0),
        (Cursor(2, 4), [reset(2), events(2, 0, 4), events(2, 5, 6)], 1),
        (Cursor(3, 4), [events(3, 5, 6)], 1),
        (Cursor(2, 0), [events(1, 50, 60), events(2, 1, 3)], 1),
        (NO_CURSOR, [events(1, 0, 3)], 1),
        (NO_CURSOR, [events(2, 0, 3)], 0),
    ],
)
def test_of_anothers_publisher_what_the_log_has_ends_nothing_and_a_later_incarnation_does(
    spool: Spool, log: Cursor, records: list[Record], kept: int
) -> None:
    fill(spool, *records)
    prune(spool, ONE, state(*log))
    assert left(spool) == records[len(records) - kept :]


def test_of_anothers_publisher_no_registration_is_left(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fill(spool, REGISTERED, events(1, 5, 6), UNREGISTERED, events(1, 7, 8))
    prune(spool, ONE, state(1, 4))
    assert left(spool) == [events(1, 5, 6), events(1, 7, 8)]
    assert "Dropped 2 spooled records" in caplog.text
    caplog.clear()
    prune(spool, ONE, state(1, 4))
    assert not caplog.text, "nothing was dropped"


def test_of_anothers_publisher_only_what_continues_the_log_is_left(spool: Spool) -> None:
    fill(spool, events(1, 3, 6), events(1, 7, 9), gap(1, 10, 11), events(1, 12, 14))
    prune(spool, ONE, state(1, 4))
    assert left(spool) == [events(1, 3, 6), events(1, 7, 9)]


def test_of_anothers_publisher_a_hole_ends_what_is_left(spool: Spool) -> None:
    fill(spool, events(1, 6, 7))
    prune(spool, ONE, state(1, 4))
    assert ONE not in spool


def test_of_anothers_publisher_a_reset_ends_what_is_left(spool: Spool) -> None:
    """Folds would skip what the owner goes on to write of the incarnation before."""
    fill(spool, events(1, 5, 6), reset(2), events(2, 0, 3))
    prune(spool, ONE, state(1, 4))
    assert left(spool) == [events(1, 5, 6)]


def test_of_an_unregistered_publisher_nothing_is_left(spool: Spool) -> None:
    fill(spool, events(1, 5, 6))
    prune(spool, ONE, state(1, 4, registered=0))
    assert ONE not in spool


NEWER = msgspec.msgpack.encode({"kind": "novelty", "version": 9})


def append(spool: Spool, *records: Record | bytes) -> None:
    spool.append(ONE, [one if isinstance(one, bytes) else encode_record(one) for one in records])


def said(spool: Spool) -> list[tuple[str, int, int, int]]:
    return [
        (type(one).__name__, one.incarnation, one.first_sequence, one.last_sequence)
        for one in left(spool)
        if isinstance(one, EventsRecord | GapRecord)
    ]


def test_what_cannot_be_read_becomes_a_gap_of_the_batches_around_it(spool: Spool) -> None:
    append(spool, NEWER, b"\xa1\xff", events(1, 7, 8), NEWER, events(1, 12, 12), events(1, 13, 13))
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 13), 13.0, heard=Proof(13, 13.0))
    assert said(spool) == [
        ("GapRecord", 1, 5, 6),
        ("EventsRecord", 1, 7, 8),
        ("GapRecord", 1, 9, 11),
        ("EventsRecord", 1, 12, 12),
        ("EventsRecord", 1, 13, 13),
    ]
    assert spool.dropped == {(ONE, SPOOL_UNREADABLE): 3}


def test_what_cannot_be_read_and_held_no_batch_says_nothing(spool: Spool) -> None:
    append(spool, b"", events(1, 5, 6), b"", reset(2), b"", events(2, 0, 1))
    resolve(spool, ONE, state(1, 4))
    assert said(spool) == [("EventsRecord", 1, 5, 6), ("EventsRecord", 2, 0, 1)]
    assert spool.records == 3


def test_batches_of_a_new_incarnation_that_cannot_be_read_are_a_gap_in_it(spool: Spool) -> None:
    append(spool, events(1, 5, 6), b"", events(2, 3, 4))
    resolve(spool, ONE, state(1, 4))
    assert said(spool)[1:] == [("GapRecord", 2, 0, 2), ("EventsRecord", 2, 3, 4)]


def test_a_tail_that_cannot_be_read_is_left_to_whoever_goes_on(spool: Spool) -> None:
    append(spool, events(1, 5, 6), NEWER, NEWER)
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 6), 6.0, heard=Proof(6, 6.0))
    assert said(spool) == [("EventsRecord", 1, 5, 6)]


def test_of_anothers_publisher_what_cannot_be_read_ends_what_is_left(spool: Spool) -> None:
    append(spool, events(1, 5, 6), NEWER, events(1, 8, 9))
    prune(spool, ONE, state(1, 4))
    assert said(spool) == [("EventsRecord", 1, 5, 6)]
    assert spool.dropped[ONE, SPOOL_UNREADABLE] == 1


def test_a_record_of_another_publisher_is_unreadable_in_this_lane(spool: Spool) -> None:
    other = registration(instance_id="w-9").publisher
    append(spool, msgspec.structs.replace(events(1, 5, 6), stream=other.stream))
    resolve(spool, ONE, state(1, 4))
    assert ONE not in spool


def test_more_than_one_write_of_unreadable_records_is_dropped(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreadable_records, "SPOOL_CHANGES_MAX", 3)
    append(spool, *[NEWER] * 10, events(1, 9, 9))
    resolve(spool, ONE, state(1, 4))
    assert said(spool) == [("GapRecord", 1, 5, 8), ("EventsRecord", 1, 9, 9)]


def test_an_unexpected_error_costs_one_record_and_is_counted(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decode(encoded: bytes) -> Record:
        record = decode_record(encoded)
        if isinstance(record, EventsRecord) and record.first_sequence == 6:
            raise ZeroDivisionError("injected")
        return record

    monkeypatch.setattr(spool_module, "decode_record", decode)
    append(spool, events(1, 5, 5), events(1, 6, 6), events(1, 7, 7))
    resolve(spool, ONE, state(1, 4))
    assert said(spool)[1] == ("GapRecord", 1, 6, 6)
    assert spool.faults == 1


# Two bridges that have found, apart from each other, that an engine has restarted

BEGUN: list[Record] = [events(1, 5, 7), reset(2), events(2, 0, 3), events(2, 4, 9)]


@pytest.mark.parametrize(
    "log",
    [state(2, 0), state(2, 2), state(2, 2, time=3.0), state(2, 3, time=50.0)],
    ids=["begun", "within a record", "within one, at the time of its end", "at its end"],
)
def test_what_another_bridge_has_begun_too_is_dropped(
    spool: Spool, log: LogState, caplog: pytest.LogCaptureFixture
) -> None:
    fill(spool, *BEGUN)
    assert resolve(spool, ONE, log) == log.anchor
    assert ONE not in spool
    assert "Dropped 4 spooled records" in caplog.text
    fill(spool, *BEGUN)
    prune(spool, ONE, log)
    assert ONE not in spool


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        (state(1, 4), 4),
        (state(1, 7), 3),
        (state(2, -1), 2),
        (state(2, 3), 1),
        (state(2, 9), 0),
        (state(2, 9, time=50.0), 0),
        (state(2, 12), 0),
    ],
)
def test_an_incarnation_that_was_begun_here_alone_goes_on_where_the_log_ends(
    spool: Spool, log: LogState, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    fill(spool, *BEGUN)
    ours = Anchor(Cursor(2, 9), 9.0, heard=Proof(9, 9.0))
    assert resolve(spool, ONE, log) == max(log.anchor, ours, key=lambda one: one[:2])
    assert left(spool) == BEGUN[len(BEGUN) - kept :]
    assert not caplog.text


def test_a_registration_is_kept_where_the_batches_behind_it_are_dropped(spool: Spool) -> None:
    fill(spool, REGISTERED, *BEGUN)
    resolve(spool, ONE, state(2, 2))
    assert left(spool) == [REGISTERED]
