"""One partition of the events topic, as the writer sees it: what waits, and what is under way."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.identities import PublisherKey
from schemas.limits import SPOOL_AFTER_S
from schemas.records import Record, RegisteredRecord, UnregisteredRecord


class Pending(NamedTuple):
    """A record on its way; `number` is its place in the spool, -1 where it is not there."""

    record: Record
    encoded: bytes
    number: int = -1


@dataclass(slots=True, eq=False)
class Channel:
    """One partition of `events`."""

    partition: int
    queue: deque[Pending] = field(default_factory=deque)
    in_flight: list[Pending] = field(default_factory=list)
    since: float = 0.0  # when the oldest record that is not acknowledged came
    lanes: set[PublisherKey] = field(default_factory=set)  # spooled, and to be drained
    end: int = 0  # the offset after the last acknowledged record
    drained_last: bool = False
    failing: bool = False  # and that has been said
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_idle(self) -> bool:
        """Whether all that was queued is acknowledged."""
        return not self.queue and not self.in_flight

    def is_late(self, now: float) -> bool:
        """Whether the broker is away, or too slow; `now` is monotonic."""
        return not self.is_idle and now - self.since > SPOOL_AFTER_S


def is_control(record: Record) -> bool:
    """Whether the record must not be lost, and is small."""
    return isinstance(record, RegisteredRecord | UnregisteredRecord)
