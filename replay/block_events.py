"""The block events of a capture as a fold takes them: each once, in the order of its publisher.

What a fold skips is skipped here by the same rules (`streams.table.fold`, 1 to 3): what cannot be
decoded, and what was folded before.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from replay.as_records import CaptureRecords
from replay.bounds import CAPTURE_TOLD_RECORDS
from schemas.codec import decode_log_record
from schemas.errors import RecordError
from schemas.events import BlockEvent
from schemas.identities import PublisherKey
from schemas.progress import Progress, StopCheck, Tell, never, silent
from schemas.records import (
    BridgeRecord,
    EventsRecord,
    Record,
    RegisteredRecord,
    SequencedRecord,
    UnregisteredRecord,
)
from streams.kernel.events import read_events


class Step(NamedTuple):
    """What one record says.

    Attributes:
        partition, position: where it stands; see `replay.capture.format`.
        time: Unix seconds, by the bridge's clock.
        events: of an events record, those that are new, with their places in it.
        forgets: whether all that its publisher held before is gone: it has restarted, or was
            unregistered.
    """

    partition: int
    position: int
    time: float
    record: Record
    events: list[tuple[int, BlockEvent]]
    forgets: bool

    @property
    def engine_time(self) -> float:
        """The last batch's time by the engine's clock, where it has one: batches that came late
        keep their distance by it.
        """
        record = self.record
        if isinstance(record, EventsRecord) and record.engine_time > 0:
            return record.engine_time
        return self.time


class _FoldedPublisher:
    """What was folded of one publisher."""

    __slots__ = ("begun", "incarnation", "sequence")

    def __init__(self) -> None:
        self.incarnation = 0
        self.sequence = -1
        self.begun = 0  # events of the next batch


class BlockEvents:
    """The steps of a capture; once.

    Args:
        records: of a capture of either kind.
        total: how many there are, where that is known.
        stopped: whether to end before.

    Attributes:
        skipped: records that no fold takes, by reason.
        ended: whether it came to the end.
    """

    def __init__(
        self,
        records: CaptureRecords,
        *,
        total: int | None = None,
        tell: Tell = silent,
        stopped: StopCheck = never,
    ) -> None:
        self._records = records
        self._total = total
        self._tell = tell
        self._stopped = stopped
        self._places: dict[PublisherKey, _FoldedPublisher] = {}
        self.records = 0
        self.skipped: Counter[str] = Counter()
        self.ended = True

    def __iter__(self) -> Iterator[Step]:
        """The steps.

        Raises:
            CaptureDamagedError, DiskError: the capture cannot be read further.
        """
        for number, entry in enumerate(self._records):
            if not number % CAPTURE_TOLD_RECORDS:
                self._tell(Progress(number, self._total, number))
                if self._stopped():
                    self.ended = False
                    return
            self.records += 1
            try:
                record = decode_log_record(entry.value)
                if isinstance(record, BridgeRecord):
                    continue
                if isinstance(record, RegisteredRecord | UnregisteredRecord):
                    forgets = isinstance(record, UnregisteredRecord)
                    if forgets:
                        self._places.pop(record.publisher, None)
                    yield Step(entry.lane, entry.position, entry.time, record, [], forgets)
                    continue
                events, forgets, is_new = self._take(record)
            except RecordError as error:
                self.skipped[error.reason] += 1
                continue
            if is_new:
                yield Step(entry.lane, entry.position, entry.time, record, events, forgets)
            else:
                self.skipped["duplicate_record"] += 1

    def _take(self, record: SequencedRecord) -> tuple[list[tuple[int, BlockEvent]], bool, bool]:
        """The new events, whether a new incarnation begins, and whether anything is new."""
        publisher = record.publisher
        place = self._places.get(publisher)
        decoded: list[BlockEvent] = []
        if isinstance(record, EventsRecord):
            decoded = read_events(bytes(record.events))
        if place is None:
            place = self._places[publisher] = _FoldedPublisher()
        forgets = record.incarnation > place.incarnation
        if forgets:
            forgets = place.incarnation > 0
            place.incarnation, place.sequence, place.begun = record.incarnation, -1, 0
        elif (record.incarnation, record.last_sequence) <= (place.incarnation, place.sequence):
            return [], False, False
        events = [
            (number, event)
            for number, event in enumerate(decoded)
            if event.sequence > place.sequence
        ]
        new = _after_begun(record, place, events)
        if new is None:
            return [], False, False
        place.sequence = max(place.sequence, record.reached.sequence)
        return new, forgets, True


def _after_begun(
    record: SequencedRecord, place: _FoldedPublisher, events: list[tuple[int, BlockEvent]]
) -> list[tuple[int, BlockEvent]] | None:
    """Those that were not folded with an earlier part of their batch; None where all were."""
    begun, place.begun = place.begun, 0
    if not isinstance(record, EventsRecord) or record.part is msgspec.UNSET:
        return events
    part = record.part
    seen = begun if record.first_sequence == place.sequence + 1 else 0
    if part.end <= seen:
        place.begun = begun
        return None
    if record.is_unfinished:
        place.begun = part.end
    return [(number, event) for number, event in events if part.first + number >= seen]
