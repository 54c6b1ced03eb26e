"""The records of one publisher on their way into the log."""

from dataclasses import dataclass

from bridge.delivery.dropped_records import DroppedRecords
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from schemas.identities import PublisherKey
from schemas.positions import Cursor
from schemas.records import Record, RegisteredRecord, UnregisteredRecord


def is_control(record: Record) -> bool:
    """Whether the record must not be lost, and is small."""
    return isinstance(record, RegisteredRecord | UnregisteredRecord)


@dataclass(slots=True, eq=False)
class Outbox:
    """See the module.

    Attributes:
        partition: of `events`, for all of them.
        last: its last batch that the log, the queue or the spool has.
        written: its last batch that the writer has had acknowledged; None for none.
        loss: its batches that were dropped, and are not yet reported in the log.
        overflows: whether the spool takes what comes of it, until it has caught up.
        is_withheld: whether what the spool has of it waits for `Writer.release`.
        unfolded_bytes, is_held_back: see `PartitionLag`.
    """

    publisher: PublisherKey
    key: bytes
    partition: int
    last: Anchor = NO_ANCHOR
    written: Cursor | None = None
    loss: DroppedRecords | None = None
    overflows: bool = False
    is_withheld: bool = False
    unfolded_bytes: int = 0
    is_held_back: bool = False

    def remember(self, record: Record) -> None:
        """The record will be in the log."""
        if not isinstance(record, RegisteredRecord | UnregisteredRecord):
            self.last = self.last.after(record)

    def forget(self) -> None:
        """The publisher is no longer ours, or no longer registered."""
        self.last, self.written, self.loss, self.overflows = NO_ANCHOR, None, None, False
