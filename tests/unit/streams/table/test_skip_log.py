"""Skipped records in the service's log: logged, and never a flood."""

import pytest

from schemas.identities import Offset
from streams.table.fold import DUPLICATE
from streams.table.skip_log import (
    SKIPPED_RECORDS_NAMED_MAX,
    SKIPPED_RECORDS_WINDOW_S,
    SkipLog,
    SkippedRecord,
)


def test_the_first_of_each_reason_are_logged_and_then_those_of_the_next_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    skip_log = SkipLog(lambda: now)

    def lines(reason: str) -> list[str]:
        return [line for line in caplog.messages if f"({reason})" in line]

    for number in range(SKIPPED_RECORDS_NAMED_MAX + 50):
        skip_log.log(3, SkippedRecord(Offset(number), DUPLICATE, "again"))
    skip_log.log(3, SkippedRecord(Offset(999), "malformed_record", "no map"))
    assert len(lines(DUPLICATE)) == SKIPPED_RECORDS_NAMED_MAX + 1
    assert "they are only counted for 60 s" in lines(DUPLICATE)[-1]
    assert lines("malformed_record") == [
        "Cannot use the record at 3:999 (malformed_record): no map. It is left out"
    ]
    now = SKIPPED_RECORDS_WINDOW_S + 1
    skip_log.log("", SkippedRecord(Offset(1000), DUPLICATE, "again"))
    assert lines(DUPLICATE)[-1] == (
        f"Cannot use the record at offset 1000 ({DUPLICATE}): again. It is left out"
    )
