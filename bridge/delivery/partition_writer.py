"""Writes one partition of the topic `events`: its queue, and what the spool has for it."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from bridge.bounds import BRIDGE_RETRY_S, WRITER_PAUSE_S
from bridge.delivery.delivery import Delivery
from bridge.delivery.dropped_records import RECORD_TOO_LARGE, gap_of
from bridge.delivery.outbox import Outbox
from bridge.delivery.partition_lag import PartitionLag
from bridge.delivery.spool import SpooledRecord
from bridge.delivery.traced_batch import TracedBatch
from bridge.delivery.unreadable_records import drop_unreadable
from bridge.heartbeats import Heartbeats
from brokers.availability import describe
from brokers.client_types import Batch, Producer
from brokers.clients import partition_of
from brokers.errors import MessageSizeTooLargeError
from logs.batch_writer import BatchWriter
from logs.producer import ProducerReplacedError
from schemas.errors import StorageError
from schemas.limits import KAFKA_BATCH_BYTES
from schemas.memory_segments import MemoryRecord, SegmentKey, encode_segment
from schemas.records import (
    EventsRecord,
    HeartbeatRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.tracing import NO_SPAN, batch_attributes

SPOOL_AFTER_S: Final = 1.0  # a record not acknowledged by then makes the next ones go to the spool

_logger = logging.getLogger(__name__)


class PendingRecord(NamedTuple):
    """A record that is not acknowledged; `number` is its number in the spool, -1 for none."""

    outbox: Outbox
    record: Record
    encoded: bytes
    number: int = -1


class MemorySource(Protocol):
    """What is to be said of segments of memory; `MemoryWatch`."""

    def due(self) -> Iterable[SegmentKey]:
        """The segments of which there is something to write."""
        ...

    def records(self) -> Sequence[MemoryRecord]:
        """What is to be written of them now."""
        ...

    def written(self, record: MemoryRecord) -> None:
        """The record is in the log."""
        ...


def _every(outbox: Outbox) -> bool:
    return True


class PartitionWriter(BatchWriter):
    """See the module. One loop; what is not a coroutine returns at once.

    Attributes:
        waiting: records to be sent.
        in_flight: those of the batch under way, or of the one that failed last.
        spooled: whose records the spool has, to be drained; a set, in order.
        lag: what the workers have yet to fold of it.
        end: the offset after the last acknowledged record.
    """

    def __init__(self, partition: int, delivery: Delivery) -> None:
        super().__init__(
            delivery.producer,
            delivery.topic.name,
            partition,
            retry_first_s=BRIDGE_RETRY_S,
            retry_max_s=BRIDGE_RETRY_S,
        )
        self.waiting: deque[PendingRecord] = deque()
        self.in_flight: list[PendingRecord] = []
        self.spooled: dict[Outbox, None] = {}
        self.lag = PartitionLag(partition)
        self.end = 0
        self._delivery = delivery
        self._since = 0.0  # when the oldest record that is not acknowledged came
        self._has_drained = False  # the last batch came from the spool: the next is the queue's
        self._is_failing = False  # logged already
        self._changed = asyncio.Event()  # there may be something to send
        self._span = NO_SPAN
        self._beating: Heartbeats | None = None  # whose heartbeat was sent last, or is to be
        self._is_beat_due = False
        self._heartbeat: HeartbeatRecord | None = None  # in the batch
        self._memory: MemorySource | None = None  # likewise
        self._is_memory_due = False
        self._segments: list[MemoryRecord] = []  # in the batch

    @property
    def is_idle(self) -> bool:
        """Whether all that was queued is acknowledged."""
        return not self.waiting and not self.in_flight

    def is_late(self, now: float) -> bool:
        """Whether the broker is away, or too slow; `now` in monotonic seconds."""
        return not self.is_idle and now - self._since > SPOOL_AFTER_S

    # What is to be written

    def enqueue(self, pending: PendingRecord, now: float) -> None:
        """A record is to be sent."""
        if self.is_idle:
            self._since = now
        self.waiting.append(pending)
        self._delivery.queue_bytes += len(pending.encoded)
        self.lag.add(pending.outbox, len(pending.encoded))
        pending.outbox.remember(pending.record)
        self._changed.set()

    def drain(self, outbox: Outbox) -> None:
        """The spool has records of it, to be sent."""
        self.spooled[outbox] = None
        self._changed.set()

    def look(self) -> None:
        """There may be something to send."""
        self._changed.set()

    def beat(self, heartbeats: Heartbeats) -> None:
        """A heartbeat is to be sent behind all that waits, made as it is sent. One that cannot be
        written is never written later.
        """
        self._beating, self._is_beat_due = heartbeats, True
        self._changed.set()

    def tell_memory(self, memory: MemorySource) -> None:
        """What is to be said of segments is to be sent, made as it is sent; what cannot be written
        now is made again when this is called again.
        """
        self._memory, self._is_memory_due = memory, True
        self._changed.set()

    # What is not to be written now

    def spill(self, is_meant: Callable[[Outbox], bool] = _every) -> bool:
        """Moves the queue to the spool, and copies there what is under way; all or nothing."""
        delivery, spool = self._delivery, self._delivery.spool
        moved = [one for one in self.in_flight if one.number < 0 and is_meant(one.outbox)]
        copied = len(moved)
        waiting = [one for one in self.waiting if is_meant(one.outbox)]
        moved += waiting
        if not spool.fits(sum(len(pending.encoded) for pending in moved)):
            return not moved
        numbers: list[int] = []
        try:
            for pending in moved:
                numbers += spool.append(pending.outbox.publisher, [pending.encoded])
                self.spooled[pending.outbox] = None
        except StorageError as error:
            delivery.complain(error, f"keeping queues, now that of partition {self.partition}")
            for pending, number in zip(moved, numbers, strict=False):
                spooled = SpooledRecord(number, pending.encoded)
                delivery.unspool(pending.outbox.publisher, [spooled])
            return False
        delivery.queue_bytes -= sum(len(pending.encoded) for pending in waiting)
        kept = [one for one in self.waiting if not is_meant(one.outbox)]
        self.waiting.clear()
        self.waiting += kept
        self._uncount(moved)
        unused = iter(numbers[:copied])
        self.in_flight = [
            one
            if one.number >= 0 or not is_meant(one.outbox)
            else one._replace(number=next(unused))
            for one in self.in_flight
        ]
        return True

    def _uncount(self, gone: Iterable[PendingRecord]) -> None:
        """Of what the spool has only what comes back from it counts, once it is written."""
        for pending in gone:
            self.lag.remove(pending.outbox, len(pending.encoded))

    def take_back(self) -> bool:
        """Lets what is under way wait again; returns whether anything was."""
        taken, self.in_flight = self.in_flight, []
        self._put_back(taken)
        return bool(taken)

    def _put_back(self, taken: Iterable[PendingRecord]) -> None:
        rest = [pending for pending in taken if pending.number < 0]  # the others are in the spool
        self.waiting.extendleft(reversed(rest))
        self._delivery.queue_bytes += sum(len(pending.encoded) for pending in rest)

    def drop_queued(self) -> list[PendingRecord]:
        """Drops all that waits; returns it."""
        gone = list(self.waiting)
        self.waiting.clear()
        self._delivery.queue_bytes -= sum(len(pending.encoded) for pending in gone)
        self._uncount(gone)
        return gone

    def shrunk(self, outbox: Outbox, record: EventsRecord, number: int = -1) -> PendingRecord:
        """What stands for a record that is too large."""
        self._delivery.dropped[outbox.publisher, RECORD_TOO_LARGE] += 1
        gap = gap_of(record, RECORD_TOO_LARGE)
        return PendingRecord(outbox, gap, encode_record(gap), number)

    # BatchWriter

    async def prepare(self) -> None:
        """See `BatchWriter`: while another bridge may own our publishers nothing is sent."""
        while not self._delivery.lease.may_write:  # noqa: ASYNC110 -- a clock ends it, too
            await asyncio.sleep(WRITER_PAUSE_S)

    async def wait(self) -> None:
        """See `BatchWriter`."""
        if self._delivery.lease.may_write:
            await self._changed.wait()
            self._changed.clear()

    def fill(self, batch: Batch) -> bool:
        """See `BatchWriter`: records, what is to be said of memory, then a heartbeat."""
        if not self._delivery.lease.may_write:  # any more: a start takes as long as Kafka is away
            return False
        traced = TracedBatch(batch, self._delivery.tracer)
        is_filled = self._fill(traced)
        self._span = traced.span
        self._segments = self._add_memory(batch)
        self._heartbeat = self._add_heartbeat(batch)
        return is_filled or bool(self._segments) or self._heartbeat is not None

    def _fill(self, batch: Batch) -> bool:
        """Fills the batch with what is next; False where there is nothing."""
        if self.in_flight:  # the last attempt failed: it is sent again
            self._refill(batch)
            return True
        from_spool = bool(self.spooled) and not (self._has_drained and self.waiting)
        self._has_drained = from_spool
        if not (from_spool and self._fill_from_spool(batch)):
            self._fill_from_queue(batch)
        return bool(self.in_flight)

    def _refill(self, batch: Batch) -> None:
        for index, pending in enumerate(self.in_flight):
            if not _put(batch, pending):
                assert index, "the first message always fits"
                rest = self.in_flight[index:]
                del self.in_flight[index:]
                self._put_back(rest)
                return

    def _fill_from_queue(self, batch: Batch) -> None:
        while self.waiting and _put(batch, self.waiting[0]):
            pending = self.waiting.popleft()
            self._delivery.queue_bytes -= len(pending.encoded)
            self.in_flight.append(pending)

    def _fill_from_spool(self, batch: Batch) -> bool:
        for outbox in list(self.spooled):
            if outbox.publisher not in self._delivery.spool:
                del self.spooled[outbox]
                continue
            if outbox.is_withheld or self.lag.holds_back(outbox, self._delivery.clock.monotonic()):
                continue
            if not self._fill_from_lane(batch, outbox):
                return True
        if self.in_flight:
            self._since = self._delivery.clock.monotonic()
        return bool(self.in_flight)

    def _fill_from_lane(self, batch: Batch, outbox: Outbox) -> bool:
        """False where the batch is full.

        A record that cannot be read waits until those before it are in the log, and goes then.
        """
        before, spool, publisher = len(self.in_flight), self._delivery.spool, outbox.publisher
        for spooled in spool.read(publisher, bytes_max=KAFKA_BATCH_BYTES):
            record = spool.decode(publisher, spooled)
            if isinstance(record, str):
                break
            pending = PendingRecord(outbox, record, spooled.encoded, spooled.number)
            if not _put(batch, pending):
                return False
            self.in_flight.append(pending)
        else:
            return True
        if len(self.in_flight) == before:
            drop_unreadable(
                spool,
                publisher,
                before=outbox.written,
                last=outbox.last.cursor,
                clock=self._delivery.clock.unix,
            )
            self._changed.set()  # the rest of the lane comes next
        return True

    def _add_heartbeat(self, batch: Batch) -> HeartbeatRecord | None:
        """Behind all that waits; where the batch has no room for that, with the next one."""
        if self._beating is None or not self._is_beat_due or self.waiting:
            return None
        self._is_beat_due = False
        heartbeat = self._beating.make(self.partition)
        if heartbeat is None:
            return None
        added = batch.append(key=None, value=encode_record(heartbeat), timestamp=None)
        return None if added is None else heartbeat

    def _add_memory(self, batch: Batch) -> list[MemoryRecord]:
        if self._memory is None or not self._is_memory_due:
            return []
        self._is_memory_due = False
        added, partitions = [], self._delivery.topic.partitions
        for record in self._memory.records():
            key = encode_segment(record.key)
            if partition_of(key, partitions) != self.partition:
                continue
            if batch.append(key=key, value=encode_record(record), timestamp=None) is None:
                self._is_memory_due = True  # the rest with the next one
                break
            added.append(record)
        return added

    async def send(self, producer: Producer, batch: Batch) -> int:
        """See `BatchWriter`."""
        with self._span as span:
            offset = await super().send(producer, batch)
            if span.is_recorded:
                records, topic = len(self.in_flight), self._delivery.topic.name
                place = (records, self.partition, offset + records - 1)
                span.note(batch_attributes("events", *place, topic=topic))
        return offset

    def written(self, offset: int) -> None:
        """See `BatchWriter`."""
        delivery, lag = self._delivery, self.lag
        written, self.in_flight = self.in_flight, []
        self._is_failing = False
        self._since = self._delivery.clock.monotonic()
        spooled: dict[Outbox, list[SpooledRecord]] = {}
        for place, (outbox, record, encoded, number) in enumerate(written, offset):
            if number >= 0:
                lag.add(outbox, len(encoded))
                spooled.setdefault(outbox, []).append(SpooledRecord(number, encoded))
            lag.written(outbox, len(encoded), place)
            delivery.written_records += 1
            delivery.written_bytes += len(encoded)
            if not isinstance(record, RegisteredRecord | UnregisteredRecord):
                outbox.written = record.reached
            delivery.on_written(outbox.publisher, record, place)
        self.end = max(self.end, offset + len(written))
        for outbox, records in spooled.items():
            delivery.unspool(outbox.publisher, records)
        if self._memory is not None:
            self.end += len(self._segments)
            for segment in self._segments:
                self._memory.written(segment)
        if self._beating is not None and self._heartbeat is not None:
            self.end += 1
            self._beating.written(self.partition, self._heartbeat)

    def away(self, error: Exception) -> None:
        """See `BatchWriter`."""
        if isinstance(error, ProducerReplacedError):
            return
        self._delivery.produce_errors += 1
        place = (self._delivery.topic.name, self.partition, describe(error))
        level = logging.DEBUG if self._is_failing else logging.WARNING
        _logger.log(level, "Cannot write to %s, partition %d, retrying: %s", *place)
        self._is_failing = True
        if isinstance(error, MessageSizeTooLargeError) and len(self.in_flight) == 1:
            (pending,) = self.in_flight  # the topic's limit is below ours
            if isinstance(pending.record, EventsRecord):
                shrunk = self.shrunk(pending.outbox, pending.record, pending.number)
                if pending.number < 0:
                    self._uncount([pending])
                    self.lag.add(pending.outbox, len(shrunk.encoded))
                self.in_flight = [shrunk]

    def disk_failed(self, error: StorageError) -> None:
        """See `BatchWriter`."""
        self._delivery.complain(error, f"retrying in {BRIDGE_RETRY_S:g} s")

    def failed(self, error: Exception) -> None:
        """See `BatchWriter`: `bridge.supervision` logs and counts it, and starts all again."""
        raise error


def _put(batch: Batch, pending: PendingRecord) -> bool:
    added = batch.append(key=pending.outbox.key, value=pending.encoded, timestamp=None)
    return added is not None
