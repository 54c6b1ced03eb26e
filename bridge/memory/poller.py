"""What looks at a directory have found, compared with what the log has been told: pure, no clock.

A record is made when it is written and not before, from what was read last. So while a log is away
nothing piles up, and the end of it all is told once it is back. It is made where

- a segment appears, disappears, or is another file of the same name;
- its limit is another one;
- what is used or preallocated has changed by MEMORY_CHANGE_RATIO of the limit, or the pressure has
  come to another of LEVELS, or gone MEMORY_LEVEL_MARGIN below it;
- its writer has ended, or turns out to be there;
- it was read since, and MEMORY_REPEAT_S have gone by: so a reader can tell that somebody looks.

A segment that is there and cannot be read now, as one that is being written, is none of these.

Its writer has ended where its process group was there and is no more. If the numbers change all the
same, the group was another one, of another PID namespace: then its writer is not known any more. So
it is where the group was not there at first: it is older than its segment, so that one that comes
later is another one, as a short-lived process of the bridge's own container.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bridge.memory.reading import Reading, Scan
from schemas.limits import MEMORY_REPEAT_S, MEMORY_SEGMENTS_READ_MAX
from schemas.memory_segments import (
    MemoryRecord,
    SegmentChange,
    SegmentKey,
    SegmentState,
    SegmentWriter,
    pressure_of,
)

MEMORY_CHANGE_RATIO: Final = 0.01  # of the limit, by which a number changes before it is written
MEMORY_LEVEL_MARGIN: Final = 0.005  # below a level of pressure, before it counts as left

LEVELS: Final = (0.5, 0.8, 0.95)
"""Of pressure, whose crossing is told at once: kvcached's own tools colour by the first two."""


@dataclass(slots=True)
class _Segment:
    """One segment.

    Attributes:
        observed_at, changed_at, since: of it, of these numbers, of this file; Unix seconds.
        writer: what is known of its processes.
        is_foreign: whether the process group in its name is not that of its writers.
        is_present: whether it was there at the last look.
        told, told_at: the last record that is in the log, and since when, monotonic seconds.
        level: how many of LEVELS the pressure has come to, as told.
    """

    reading: Reading
    observed_at: float
    changed_at: float
    since: float
    writer: SegmentWriter = SegmentWriter.UNKNOWN
    is_foreign: bool = False
    is_present: bool = True
    told: MemoryRecord | None = None
    told_at: float = 0.0
    level: int = 0


class SegmentPoller:
    """The segments of one directory. See the module.

    Args:
        host: what this machine is called in records.
        bridge: the name of this run of a bridge.

    Attributes:
        records: how many are in the log.
    """

    def __init__(self, host: str, bridge: str) -> None:
        self.host = host
        self.bridge = bridge
        self.records = 0
        self._segments: dict[str, _Segment] = {}

    # What was read

    def remember(self, segments: Mapping[SegmentKey, SegmentState], prefix: str = "") -> None:
        """Takes over what a table has of this host, before the first look: so what has gone, or is
        another file since, is told as that. Of names without the prefix, which are not looked for,
        nothing can be told.
        """
        for key, state in segments.items():
            if key.host == self.host and not state.gone and key.segment.startswith(prefix):
                self._segments[key.segment] = _remembered(key, state)

    def note(self, scan: Scan, *, at: float) -> None:
        """Takes what a look has found; one that failed says nothing. Cost O(segments).

        Args:
            at: when it ended, Unix seconds.
        """
        if scan.error:
            return
        for name, reading in scan.readings.items():
            segment = self._segments.get(name)
            if segment is None or not segment.is_present or segment.reading.inode != reading.inode:
                self._begin(name, segment, reading, at)
            else:
                _go_on(segment, reading, at)
        for name, segment in list(self._segments.items()):
            if name in scan.present:
                continue
            if segment.told is None or segment.told.change == SegmentChange.DISAPPEARED:
                del self._segments[name]  # nobody has heard of it, or everybody that it is gone
            elif segment.is_present:
                segment.is_present, segment.observed_at = False, at
        self._drop_untold()

    def _begin(self, name: str, before: _Segment | None, reading: Reading, at: float) -> None:
        segment = _Segment(reading, observed_at=at, changed_at=at, since=at)
        if before is not None:
            segment.told, segment.told_at = before.told, before.told_at
        _note_writers(segment, reading)
        self._segments[name] = segment

    def _drop_untold(self) -> None:
        """Of those that are gone, while the log is away, so that new ones have room."""
        gone = [name for name, segment in self._segments.items() if not segment.is_present]
        for name in gone[: max(len(self._segments) - 2 * MEMORY_SEGMENTS_READ_MAX, 0)]:
            del self._segments[name]

    @property
    def names(self) -> frozenset[str]:
        """Of the segments that were there at the last look."""
        return frozenset(name for name, one in self._segments.items() if one.is_present)

    def states(self) -> dict[SegmentKey, SegmentState]:
        """What was read last, as a table would have it. Cost O(segments)."""
        return {
            SegmentKey(self.host, name): SegmentState(
                bridge=self.bridge,
                inode=one.reading.inode,
                total=one.reading.total,
                used=one.reading.used,
                preallocated=one.reading.preallocated,
                observed_at=one.observed_at,
                changed_at=one.changed_at,
                since=one.since,
                writer=one.writer.value,
                gone=not one.is_present,
            )
            for name, one in self._segments.items()
        }

    # What is to be told

    def due(self, now: float) -> Iterator[SegmentKey]:
        """The segments of which there is something to write; `now` in monotonic seconds."""
        for name, segment in self._segments.items():
            if _change_of(segment, now) is not None:
                yield SegmentKey(self.host, name)

    def make(self, key: SegmentKey, *, now: float, at: float) -> MemoryRecord | None:
        """The record of a segment; None where nothing is to be said of it any more.

        Args:
            now: monotonic seconds.
            at: Unix seconds.
        """
        segment = self._segments.get(key.segment)
        change = None if segment is None else _change_of(segment, now)
        if segment is None or change is None:
            return None
        _, total, used, preallocated, _ = segment.reading
        return MemoryRecord(
            host=key.host,
            segment=key.segment,
            bridge=self.bridge,
            change=change.value,
            inode=segment.reading.inode,
            total=total,
            used=used,
            preallocated=preallocated,
            pressure=pressure_of(total, used, preallocated),
            writer=segment.writer.value,
            observed_at=segment.observed_at,
            changed_at=segment.changed_at,
            bridge_time=at,
        )

    def written(self, record: MemoryRecord, *, now: float) -> None:
        """The record is in the log; `now` in monotonic seconds."""
        self.records += 1
        segment = self._segments.get(record.segment)
        if segment is not None:
            before = segment.level if _is_of_one_file(segment, record) else 0
            segment.told, segment.told_at = record, now
            segment.level = _level_of(record.pressure, before)


def _remembered(key: SegmentKey, state: SegmentState) -> _Segment:
    told = MemoryRecord(
        host=key.host,
        segment=key.segment,
        bridge=state.bridge,
        change=SegmentChange.REPEATED.value,
        inode=state.inode,
        total=state.total,
        used=state.used,
        preallocated=state.preallocated,
        pressure=state.pressure,
        writer=state.writer,
        observed_at=state.observed_at,
        changed_at=state.changed_at,
        bridge_time=state.observed_at,
    )
    return _Segment(
        Reading(state.inode, *state.numbers),
        observed_at=state.observed_at,
        changed_at=state.changed_at,
        since=state.since,
        writer=SegmentWriter.of(state.writer),
        told=told,
        level=_level_of(state.pressure, 0),
    )


def _go_on(segment: _Segment, reading: Reading, at: float) -> None:
    """The same file was read again."""
    if segment.reading[1:4] != reading[1:4]:
        segment.changed_at = at
    if segment.writer is SegmentWriter.GONE and segment.reading[2:4] != reading[2:4]:
        segment.is_foreign = True  # the limit is anybody's to change
    segment.reading, segment.observed_at = reading, at
    _note_writers(segment, reading)


def _note_writers(segment: _Segment, reading: Reading) -> None:
    if reading.has_writers is False and segment.writer is SegmentWriter.UNKNOWN:
        segment.is_foreign = True
    if segment.is_foreign:
        segment.writer = SegmentWriter.UNKNOWN
    elif reading.has_writers:
        segment.writer = SegmentWriter.ALIVE
    elif reading.has_writers is False and segment.writer is SegmentWriter.ALIVE:
        segment.writer = SegmentWriter.GONE


def _is_of_one_file(segment: _Segment, record: MemoryRecord) -> bool:
    told = segment.told
    return told is not None and told.inode == record.inode


def _level_of(pressure: float, before: int) -> int:
    """How many of LEVELS the pressure has come to, where it had come to `before` of them."""
    level = sum(pressure >= least for least in LEVELS)
    kept = sum(pressure >= least - MEMORY_LEVEL_MARGIN for least in LEVELS)
    return max(level, min(kept, before))


def _change_of(segment: _Segment, now: float) -> SegmentChange | None:
    """What is to be told of a segment, if anything."""
    told, reading = segment.told, segment.reading
    if told is None or told.change == SegmentChange.DISAPPEARED:
        return SegmentChange.APPEARED if segment.is_present else None
    if not segment.is_present:
        return SegmentChange.DISAPPEARED
    if told.inode != reading.inode:
        return SegmentChange.RESTARTED
    if told.total != reading.total:
        return SegmentChange.LIMIT_CHANGED
    least = MEMORY_CHANGE_RATIO * reading.total
    pressure = pressure_of(reading.total, reading.used, reading.preallocated)
    if (
        abs(told.used - reading.used) >= least
        or abs(told.preallocated - reading.preallocated) >= least
        or _level_of(pressure, segment.level) != segment.level
        or told.writer != segment.writer
    ):
        return SegmentChange.CHANGED
    if now - segment.told_at >= MEMORY_REPEAT_S and segment.observed_at > told.observed_at:
        return SegmentChange.REPEATED
    return None
