"""Skipped records in the service's log: named, and never a flood."""

import pytest

from schemas.identities import Offset
from streams.table.fold import DUPLICATE, SkippedRecord
from streams.table.skip_log import NAMED_MAX, WINDOW_S, SkippedRecords


def test_the_first_of_each_reason_are_named_and_then_those_of_the_next_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    names = SkippedRecords(lambda: now)

    def lines(reason: str) -> list[str]:
        return [line for line in caplog.messages if f"({reason})" in line]

    for number in range(NAMED_MAX + 50):
        names.name(3, SkippedRecord(Offset(number), DUPLICATE, "again"))
    names.name(3, SkippedRecord(Offset(999), "malformed_record", "no map"))
    assert len(lines(DUPLICATE)) == NAMED_MAX + 1
    assert "not named for a minute" in lines(DUPLICATE)[-1]
    assert lines("malformed_record") == ["Skipped the record at 3:999 (malformed_record): no map"]
    now = WINDOW_S + 1
    names.name("", SkippedRecord(Offset(1000), DUPLICATE, "again"))
    assert lines(DUPLICATE)[-1] == f"Skipped the record at offset 1000 ({DUPLICATE}): again"
