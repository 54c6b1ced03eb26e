"""No log contradicts the table that was folded from it, however little of it is looked at."""

from collections.abc import Callable

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from logs.interface import LogEntry
from schemas.codec import decode_log_record
from schemas.identities import Offset
from schemas.records import EventsRecord, encode_record
from streams.table.fold import Fold
from streams.table.other_log import contradiction
from tests.building import events_record, heartbeat_record, registered_record, registration, stored
from tests.property.test_recovery_equals_never_crashing import HARSH, histories, records_of

Item = object


def folded(records: list[bytes], make_fold: Callable[[], Fold]) -> tuple[Fold, list[LogEntry]]:
    entries = [LogEntry(Offset(offset), record) for offset, record in enumerate(records)]
    fold = make_fold()
    for entry in entries:
        fold.apply(entry.offset, entry.value)
    return fold, entries


@settings(max_examples=200)
@given(histories(HARSH), st.integers(0, 8))
def test_a_log_is_that_of_its_own_table(
    make_fold: Callable[[], Fold], history: list[Item], looked_at: int
) -> None:
    records = records_of(history)  # type: ignore[arg-type]
    for end in range(len(records) + 1):
        fold, entries = folded(records[:end], make_fold)
        assert contradiction(fold, entries[len(entries) - looked_at :]) == "", end


def batches(bridge_time: float, *, first: int = 0, count: int = 4) -> list[bytes]:
    """A registration, a heartbeat and batches, a second apart."""
    one = registration("a")
    records = [registered_record(one), heartbeat_record("bridge", bridge_time, [])]
    for number in range(first, first + count):
        record = events_record(number, number, [stored(number, [number + 1], list(range(4)))])
        decoded = decode_log_record(record)
        assert isinstance(decoded, EventsRecord)
        later = msgspec.structs.replace(decoded, engine_time=bridge_time + number)
        records.append(encode_record(later))
    return records


def test_another_log_shows_by_a_heartbeat_or_by_an_engine_time(
    make_fold: Callable[[], Fold],
) -> None:
    fold, own = folded(batches(100.0, count=6), make_fold)
    assert contradiction(fold, own) == ""
    _, other = folded(batches(500.0, count=4), make_fold)
    assert "a heartbeat of bridge `bridge`" in contradiction(fold, other)
    assert "a newer engine time" in contradiction(fold, other[2:])
    assert contradiction(fold, []) == ""


def test_another_log_shows_by_a_batch_that_the_table_has_not(
    make_fold: Callable[[], Fold],
) -> None:
    fold, _ = folded(batches(100.0, count=2), make_fold)
    _, other = folded(batches(100.0, count=4), make_fold)
    assert "batch 1:3 where 1:1 was the last one" in contradiction(fold, other)
