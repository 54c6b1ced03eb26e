"""Which records of a log a capture has: the same rules for an embedded log and for a partition."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import msgspec

from replay.capture.errors import CaptureError
from replay.capture.format import CaptureEntry, CaptureSelection, PartitionSource
from schemas.codec import decode_log_record
from schemas.errors import RecordError
from schemas.identities import PublisherKey
from schemas.memory_segments import MemoryRecord
from schemas.positions import LogBounds
from schemas.records import (
    HeartbeatRecord,
    LogRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
    encode_record,
)
from streams.log.record_lines import StreamFilter

OUTSIDE: Final = "outside_the_range"
FILTERED: Final = "other_streams"
UNREADABLE: Final = "unreadable"


def check_bounds(asked: CaptureSelection, partitions: dict[int, LogBounds]) -> None:
    """Compares the positions that were asked for with what the log has.

    Raises:
        CaptureError: a position is not one of this log; the text has its bounds.
    """
    for name, places in (("--from", asked.first), ("--to", asked.last)):
        for partition, offset in (places or {}).items():
            bounds = partitions.get(partition)
            if bounds is None:
                known = ", ".join(map(str, sorted(partitions)))
                raise CaptureError(
                    f"Expected a position of this log, which has the partitions {known},"
                    f" got {name} `{partition}:{offset}`"
                )
            if not bounds.start <= offset < bounds.end:
                raise CaptureError(
                    f"Expected a position of this log, which has `{partition}:{bounds.start}` to"
                    f" `{partition}:{bounds.end - 1}`, got {name} `{partition}:{offset}`"
                )


def partition_source(
    asked: CaptureSelection, partition: int, bounds: LogBounds, *, keeps_registrations: bool
) -> PartitionSource:
    """What the header says of a partition."""
    first = (asked.first or {}).get(partition, 0)
    return PartitionSource(
        partition=partition,
        begin=bounds.start,
        end=bounds.end,
        complete=bounds.start == 0 and first == 0 and asked.since is None,
        keeps_registrations=keeps_registrations,
    )


class RecordFilter:
    """Takes the records of one partition in their order, and gives those that are wanted.

    Times are compared record by record. Those of one publisher rise, unless its bridge's clock was
    set back, so what is left of it has no hole; records of several bridges may stand in the log in
    another order than their times.

    Args:
        asked: the range and the streams.
        bounds: what the log has of it.
        left_out: counts by reason; the owner's.
    """

    def __init__(
        self, asked: CaptureSelection, partition: int, bounds: LogBounds, left_out: Counter[str]
    ) -> None:
        self._begun = False
        self._asked = asked
        self._partition = partition
        self._first = (asked.first or {}).get(partition, bounds.start)
        self._last = (asked.last or {}).get(partition, bounds.end - 1)
        self._left_out = left_out
        self._streams = StreamFilter(asked.tenant, asked.model, asked.instance)
        self._is_filtered = self._streams != StreamFilter()
        self._live: dict[PublisherKey, CaptureEntry] = {}
        self._time = 0.0

    @property
    def end(self) -> int:
        """Behind the last offset that may be wanted."""
        return self._last + 1

    def take(self, offset: int, value: bytes) -> Iterator[tuple[CaptureEntry, bool]]:
        """The record as an entry, and whether it stands before the range; nothing where it is left
        out. Before the first one of the range come the registrations that are live there.
        """
        record = self._decoded(value)
        if record is not None:
            self._time = record.bridge_time
        elif self._is_filtered:
            self._left_out[UNREADABLE] += 1
            return
        if record is not None and self._is_filtered:
            kept = self._wanted(record)
            if kept is None:
                self._left_out[FILTERED] += 1
                return
            if kept is not record:
                value = encode_record(kept)
        entry = CaptureEntry(self._partition, offset, self._time, value)
        if not self._is_inside(offset):
            self._left_out[OUTSIDE] += 1
            if not self._begun and offset <= self._last:
                self._note(record, entry)
            return
        yield from self.rest()
        yield entry, False

    def rest(self) -> Iterator[tuple[CaptureEntry, bool]]:
        """The registrations that are live where the range begins, unless they were given: behind
        the end, too, where nothing of the range has come.
        """
        if self._begun:
            return
        self._begun = True
        live, self._live = self._live, {}
        self._left_out[OUTSIDE] -= len(live)
        for entry in sorted(live.values(), key=lambda entry: entry.position):
            yield entry, True

    def _is_inside(self, offset: int) -> bool:
        since, until = self._asked.since, self._asked.until
        return (
            self._first <= offset <= self._last
            and (since is None or self._time >= since)
            and (until is None or self._time < until)
        )

    def _note(self, record: LogRecord | None, entry: CaptureEntry) -> None:
        if isinstance(record, RegisteredRecord):
            self._live[record.publisher] = entry
        elif isinstance(record, UnregisteredRecord):
            self._live.pop(record.publisher, None)

    @staticmethod
    def _decoded(value: bytes) -> LogRecord | None:
        try:
            return decode_log_record(value)
        except RecordError:
            return None

    def _wanted(self, record: LogRecord) -> LogRecord | None:
        """The record, a heartbeat with what it says of wanted streams; None for no such record,
        as one of a segment of memory, which is of no stream.
        """
        if isinstance(record, MemoryRecord):
            return None
        if not isinstance(record, HeartbeatRecord):
            return self._wanted_record(record)
        reports = tuple(report for report in record.reports if self._streams.matches(report.stream))
        if reports == record.reports:
            return record
        return msgspec.structs.replace(record, reports=reports) if reports else None

    def _wanted_record(self, record: Record) -> Record | None:
        return record if self._streams.matches(record.stream) else None
