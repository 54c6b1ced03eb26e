"""The position of a time."""

import pytest

from logs.embedded import EmbeddedLog
from schemas.errors import PastError
from streams.history.log_times import offset_at
from tests.building import heartbeat_record

NOW = 1000.0


def written(log: EmbeddedLog, *times: float | None) -> None:
    """Records of these times; None: what is no record."""
    for time in times:
        log.append([b"junk" if time is None else heartbeat_record("bridge", time - 1000.0, [])])


def test_it_is_the_last_record_written_by_then(log: EmbeddedLog) -> None:
    written(log, 10.0, 20.0, 20.0, 30.0)
    asked = {10.0: 0, 19.9: 0, 20.0: 2, 29.0: 2, 30.0: 3, 999.0: 3}
    assert {time: offset_at(log, time, now=NOW) for time in asked} == asked


def test_records_that_cannot_be_read_are_passed_over(log: EmbeddedLog) -> None:
    written(log, 10.0, None, None, 20.0, None, 30.0, None)
    assert [offset_at(log, time, now=NOW) for time in (10.0, 20.0, 30.0)] == [0, 3, 5]


def test_a_time_to_come_and_one_before_the_log_are_refused(log: EmbeddedLog) -> None:
    written(log, 10.0)
    with pytest.raises(PastError, match=r"got one 5\.000 s ahead"):
        offset_at(log, NOW + 5, now=NOW)
    with pytest.raises(PastError, match="oldest record on, which is at offset 0"):
        offset_at(log, 9.0, now=NOW)


def test_an_empty_log_has_no_time(log: EmbeddedLog) -> None:
    with pytest.raises(PastError, match="oldest record"):
        offset_at(log, 9.0, now=NOW)
