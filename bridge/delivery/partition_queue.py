"""The records for one partition of the events topic: those that wait, and those under way."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.identities import PublisherKey
from schemas.records import Record, RegisteredRecord, UnregisteredRecord

SPOOL_AFTER_S: Final = 1.0  # a record not acknowledged by then makes the next ones go to the spool


class PendingRecord(NamedTuple):
    """A record that is not acknowledged; `number` is its number in the spool, -1 for none."""

    record: Record
    encoded: bytes
    number: int = -1


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The records for one partition of `events`.

    Attributes:
        partition: its number.
        waiting: records to be sent.
        in_flight: those of the batch under way, or of the one that failed last.
        since: when the oldest record that is not acknowledged came, monotonic seconds.
        spooled: the partition's publishers that have records in the spool, to be drained.
        end: the offset after the last acknowledged record.
        drained_last: whether the last batch came from the spool; the next is the queue's turn.
        failing: whether the last batch failed, which has been logged.
        is_beat_due: whether a heartbeat is to be sent behind all that waits.
        is_memory_due: whether there may be something to say of segments of memory.
        changed: set when there may be something to send.
    """

    partition: int
    waiting: deque[PendingRecord] = field(default_factory=deque)
    in_flight: list[PendingRecord] = field(default_factory=list)
    since: float = 0.0
    spooled: dict[PublisherKey, None] = field(default_factory=dict)  # a set, in order
    end: int = 0
    drained_last: bool = False
    failing: bool = False
    is_beat_due: bool = False
    is_memory_due: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_idle(self) -> bool:
        """Whether all that was queued is acknowledged."""
        return not self.waiting and not self.in_flight

    def is_late(self, now: float) -> bool:
        """Whether the broker is away, or too slow; `now` in monotonic seconds."""
        return not self.is_idle and now - self.since > SPOOL_AFTER_S


def is_control(record: Record) -> bool:
    """Whether the record must not be lost, and is small."""
    return isinstance(record, RegisteredRecord | UnregisteredRecord)
