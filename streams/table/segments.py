"""What a table remembers of segments in the memory of hosts: rule 10 of the fold.

The last record of a segment counts, whichever bridge wrote it: several bridges of one host see the
same. Of what a bridge that has just started cannot know the rest is kept: when the numbers were
first read, and that their writer has ended, as long as it reads the same numbers of the same file.

What is gone, or was not read by anybody for long, is forgotten as records go on: there is no clock
here. Where none come any more, it is no longer shown all the same.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from schemas.limits import MEMORY_SEGMENTS_READ_MAX
from schemas.memory_segments import (
    MemoryRecord,
    SegmentChange,
    SegmentKey,
    SegmentState,
    SegmentWriter,
)

# Memory segments of all hosts. What is above goes, first those that are gone, then those not heard
# of for the longest: reprise_fold_records{outcome="segments_forgotten"}.
MEMORY_SEGMENTS_MAX: Final = 1024  # 300 bytes each, in a row of its own

assert MEMORY_SEGMENTS_READ_MAX <= MEMORY_SEGMENTS_MAX, "a table holds all that one bridge reads"

FORGOTTEN = "segments_forgotten"
"""Counts segments that had to go before their time, for there were too many."""


class SegmentsFold:
    """The segments of one table; see the module.

    Attributes:
        segments: in the order in which they were heard of; replaced one by one, whole.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self.segments: dict[SegmentKey, SegmentState] = {}
        self._counters = counters
        self._gone: dict[SegmentKey, None] = {}  # a set, in the order in which they went
        self._changed: dict[SegmentKey, None] = {}

    def take(self, record: MemoryRecord) -> None:
        """Folds a record. Cost O(1), and O(1) for each segment that is forgotten."""
        key = record.key
        self._put(key, _state_after(self.segments.get(key), record))
        self._forget_old(record.bridge_time)
        while len(self.segments) > MEMORY_SEGMENTS_MAX:
            self._counters[FORGOTTEN] += 1
            self._forget(next(iter(self._gone or self.segments)))

    def _put(self, key: SegmentKey, state: SegmentState) -> None:
        self.segments.pop(key, None)  # the one that was heard of last stands last
        self.segments[key] = state
        self._gone.pop(key, None)
        if state.gone:
            self._gone[key] = None
        self._changed[key] = None

    def _forget_old(self, now: float) -> None:
        for keys in (self._gone, self.segments):
            while keys:
                oldest = next(iter(keys))
                if not self.segments[oldest].is_old(now):
                    break
                self._forget(oldest)

    def _forget(self, key: SegmentKey) -> None:
        del self.segments[key]
        self._gone.pop(key, None)
        self._changed[key] = None

    def take_changes(self) -> dict[SegmentKey, SegmentState | None]:
        """What changed since the last call; None: forgotten. Cost O(changes)."""
        changes = {key: self.segments.get(key) for key in self._changed}
        self._changed.clear()
        return changes

    def restore(self, segments: Mapping[SegmentKey, SegmentState]) -> None:
        """Takes over what the rows say."""
        for key, state in sorted(segments.items(), key=_heard_at):
            self._put(key, state)
        self._changed.clear()


def _state_after(known: SegmentState | None, record: MemoryRecord) -> SegmentState:
    is_same_file = known is not None and not known.gone and known.inode == record.inode
    state = SegmentState(
        bridge=record.bridge,
        inode=record.inode,
        total=record.total,
        used=record.used,
        preallocated=record.preallocated,
        observed_at=record.observed_at,
        changed_at=record.changed_at,
        since=known.since if known is not None and is_same_file else record.observed_at,
        writer=record.writer,
        gone=record.change == SegmentChange.DISAPPEARED,
    )
    if known is None or not is_same_file or state.numbers != known.numbers:
        return state
    writer = state.writer
    if writer == SegmentWriter.UNKNOWN and known.writer == SegmentWriter.GONE:
        writer = known.writer
    changed_at = min(known.changed_at, state.changed_at)
    return msgspec.structs.replace(state, changed_at=changed_at, writer=writer)


def _heard_at(item: tuple[SegmentKey, SegmentState]) -> tuple[float, SegmentKey]:
    return item[1].observed_at, item[0]
