"""What the writers of all partitions of `events` share."""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from bridge.delivery.complaints import Complaints
from bridge.delivery.lease import Lease
from bridge.delivery.spool import Spool, SpooledRecord
from logs.producer import ReplaceableProducer
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import StorageError
from schemas.identities import PublisherKey
from schemas.records import Record
from schemas.topics import TopicSpec
from schemas.tracing import NO_TRACER, Tracer

_DISK: Final = "the disk of the spool"  # what is complained of
_logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Delivery:
    """See the module.

    Attributes:
        topic: `events`.
        spool: of these writers alone.
        on_written: called for each acknowledged record, with its offset.
        lease: without it nothing is sent: another bridge may own our publishers.
        dropped: records, by publisher and reason.
        written_records, written_bytes: that were acknowledged.
        produce_errors: attempts that failed.
        queue_bytes: of records that wait to be sent.
        complaints: of the spool's disk, and of publishers whose records are dropped.
    """

    topic: TopicSpec
    producer: ReplaceableProducer
    spool: Spool
    on_written: Callable[[PublisherKey, Record, int], None]
    lease: Lease
    tracer: Tracer = NO_TRACER
    clock: Clock = REAL_CLOCK
    dropped: Counter[tuple[PublisherKey, str]] = field(default_factory=Counter)
    written_records: int = 0
    written_bytes: int = 0
    produce_errors: int = 0
    queue_bytes: int = 0
    complaints: Complaints = field(default_factory=Complaints)

    def unspool(self, publisher: PublisherKey, records: Iterable[SpooledRecord]) -> None:
        """Deletes records that the log has; where that fails, they will be written twice."""
        with contextlib.suppress(StorageError):
            self.spool.delete(publisher, records)

    def complain(self, error: StorageError, what_now: str) -> None:
        """The spool's disk fails: what is tried again with each record is not said each time."""
        if self.complaints.is_news(_DISK, str(error), self.clock.monotonic()):
            _logger.error("%s; %s", error, what_now)

    def end_complaints(self, now: float) -> None:
        """Says so where the spool's disk has not failed for a while; `now` in monotonic seconds."""
        ended = self.complaints.ended(now).get(_DISK)
        if ended is not None:
            _logger.info(
                "The disk of the spool has not failed for %.0f s; before that it failed %d times"
                " in %.1f s",
                *(now - ended.last_at, ended.times, ended.last_at - ended.since),
            )
