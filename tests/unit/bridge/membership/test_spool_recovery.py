from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bridge.delivery.spool import Spool
from bridge.membership.cursors import LogState
from bridge.membership.spool_recovery import prune, resolve
from bridge.sequencing.lane import Anchor
from schemas.events import encode_events
from schemas.positions import Cursor
from schemas.records import EventsRecord, GapRecord, Record, ResetRecord, encode_record
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


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    opened = Spool(tmp_path)
    yield opened
    opened.close()


def fill(spool: Spool, *records: Record) -> None:
    spool.append(ONE, [encode_record(one) for one in records])


def left(spool: Spool) -> list[Record]:
    return [record for _, record in spool.decoded(ONE)]


def state(incarnation: int, sequence: int, *, registered: int = 1) -> LogState:
    return LogState(0, cursor=Cursor(incarnation, sequence), engine_time=5.0, registered=registered)


def test_our_spool_goes_on_where_the_log_ends_and_is_the_cursor(spool: Spool) -> None:
    records: list[Record] = [events(1, 0, 4), events(1, 5, 7), gap(1, 8, 9), events(1, 10, 12)]
    fill(spool, *records)
    assert resolve(spool, ONE, state(1, 4)) == Anchor(Cursor(1, 12), 12.0)
    assert left(spool) == records[1:]


def test_a_spool_that_the_log_has_is_emptied(spool: Spool) -> None:
    fill(spool, events(1, 0, 4), events(1, 5, 7))
    assert resolve(spool, ONE, state(1, 9)) == Anchor(Cursor(1, 9), 5.0)
    assert ONE not in spool


def test_what_was_spooled_before_an_unregistering_is_dropped(spool: Spool) -> None:
    fill(spool, events(1, 5, 7))
    assert resolve(spool, ONE, state(1, 4, registered=0)) == Anchor(Cursor(2, -1), 0.0)
    assert ONE not in spool


def test_of_anothers_publisher_only_what_continues_the_log_is_left(spool: Spool) -> None:
    fill(spool, events(1, 3, 6), events(1, 7, 9), gap(1, 10, 11), events(1, 12, 14))
    prune(spool, ONE, state(1, 4))
    assert left(spool) == [events(1, 3, 6), events(1, 7, 9)]


def test_of_anothers_publisher_a_hole_ends_what_is_left(spool: Spool) -> None:
    fill(spool, events(1, 6, 7))
    prune(spool, ONE, state(1, 4))
    assert ONE not in spool


def test_of_anothers_publisher_a_reset_continues_the_log(spool: Spool) -> None:
    fill(spool, events(1, 5, 6), reset(2), events(2, 0, 3))
    prune(spool, ONE, state(1, 4))
    assert left(spool) == [events(1, 5, 6), reset(2), events(2, 0, 3)]


def test_of_an_unregistered_publisher_nothing_is_left(spool: Spool) -> None:
    fill(spool, events(1, 5, 6))
    prune(spool, ONE, state(1, 4, registered=0))
    assert ONE not in spool
