"""Records that were dropped, and the records that stand for them in the log. Pure."""

from dataclasses import dataclass
from typing import Final

from bridge.publisher.anchor import Anchor
from schemas.identities import PublisherKey
from schemas.positions import Cursor
from schemas.records import EventsRecord, GapRecord, ResetRecord, SequencedRecord

SPOOL_FULL: Final = "spool_full"
RECORD_TOO_LARGE: Final = "record_too_large"
DISK_ERROR: Final = "disk_error"
SPOOL_UNREADABLE: Final = "spool_unreadable"


@dataclass(slots=True)
class DroppedRecords:
    """The batches of one publisher that were dropped, and are not yet reported in the log.

    Attributes:
        before: the last batch that was not dropped.
        incarnation, first, last: the lost batches of the last incarnation.
        reset: whether that incarnation began among them.
    """

    before: Anchor
    incarnation: int
    first: int
    last: int
    reset: bool = False

    @classmethod
    def beginning(cls, before: Anchor, record: SequencedRecord) -> "DroppedRecords":
        """A loss that begins with this record; call `add` with it next."""
        return cls(before, record.incarnation, record.first_sequence, record.last_sequence)

    def add(self, record: SequencedRecord) -> None:
        """Adds one more dropped record."""
        if isinstance(record, ResetRecord) or record.incarnation > self.incarnation:
            self.reset = True
            self.incarnation = record.incarnation
            self.first = 0
        self.last = record.last_sequence

    def records(self, publisher: PublisherKey, now: float) -> list[SequencedRecord]:
        """The records that report the loss."""
        stream, dp_rank = publisher
        records: list[SequencedRecord] = []
        if self.reset:
            records.append(
                ResetRecord(
                    stream=stream,
                    dp_rank=dp_rank,
                    bridge_time=now,
                    incarnation=self.incarnation,
                    first_sequence=-1,
                    last_sequence=-1,
                    reason=SPOOL_FULL,
                )
            )
        if self.last >= self.first:
            records.append(
                _gap(publisher, now, (self.incarnation, self.first, self.last), SPOOL_FULL)
            )
        return records


def gap_of(record: EventsRecord, reason: str) -> GapRecord:
    """The gap that stands for a record that cannot be written."""
    lost = (record.incarnation, record.first_sequence, record.last_sequence)
    return _gap(record.publisher, record.bridge_time, lost, reason)


def gap_between(
    publisher: PublisherKey, before: Cursor, after: Cursor, *, now: float, reason: str
) -> GapRecord | None:
    """The gap of the batches between both cursors, as far as their numbers tell; None for none.

    Args:
        before: the last batch before what is lost.
        after: the first batch after it.
        now: Unix seconds.
    """
    first = before.sequence + 1 if after.incarnation == before.incarnation else 0
    if after.incarnation < before.incarnation or first >= after.sequence:
        return None
    return _gap(publisher, now, (after.incarnation, first, after.sequence - 1), reason)


def _gap(publisher: PublisherKey, now: float, lost: tuple[int, int, int], reason: str) -> GapRecord:
    incarnation, first, last = lost
    return GapRecord(
        stream=publisher.stream,
        dp_rank=publisher.dp_rank,
        bridge_time=now,
        incarnation=incarnation,
        first_sequence=first,
        last_sequence=last,
        reason=reason,
    )
