r"""Writes records to the topic `events`, in order for each publisher; never waits for the broker.

    append -> queue of the partition -> one Kafka batch at a time -> acknowledged
           \-> spool on disk, where the broker is late -> (drained, oldest first) -> the same

One batch of a partition is under way at a time, by an idempotent producer with acks=all, which
retries it while the broker is away. A record that is not acknowledged within
SPOOL_AFTER_S moves the queue, and whatever comes after it, to the spool. A publisher that has
records in the spool gets its next ones there too, so its order holds.

A publisher of which much is yet to be folded (`partition_lag`), and of which more waits than the
inbox can keep, is written by way of the spool, too: from there it goes as the workers get on.

Above the spool's bound records are dropped, and remembered as a `Loss`: once there is room again,
the publisher's owner replays them or reports them in the log, before anything else of it.

Delivery: `on_written` is called once for each record that is in the log, in the order of each
partition. A record may be in the log twice (sent, killed before the spool forgot it); it is
missing only where it is counted in `dropped`.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from bridge.bounds import BRIDGE_RETRY_S, WRITER_PAUSE_S
from bridge.delivery.complaints import Complaints
from bridge.delivery.dropped_records import DISK_ERROR, RECORD_TOO_LARGE, SPOOL_FULL, Loss, gap_of
from bridge.delivery.partition_lag import PartitionLag
from bridge.delivery.partition_queue import PartitionQueue, PendingRecord, is_control
from bridge.delivery.spool import Spool, SpooledRecord
from bridge.delivery.traced_batch import TracedBatch
from bridge.delivery.unreadable_records import drop_unreadable
from bridge.publisher.anchor import NO_ANCHOR, Anchor
from brokers.availability import describe
from brokers.client_types import Batch, Producer
from brokers.clients import partition_of
from brokers.errors import KafkaError, MessageSizeTooLargeError
from logs.producer import ProducerReplacedError, ReplaceableProducer
from schemas.errors import StorageError
from schemas.identities import PublisherKey, StreamKey
from schemas.limits import (
    KAFKA_BATCH_BYTES,
    MIB,
    RECORD_SEND_BYTES_MAX,
    SPOOL_BYTES_MAX,
    TURN_BYTES_MAX,
)
from schemas.memory_segments import MemoryRecord, SegmentKey, encode_segment
from schemas.positions import Cursor
from schemas.records import (
    EventsRecord,
    HeartbeatRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.topics import TopicSpec, encode_stream
from schemas.tracing import NO_TRACER, Span, Tracer, batch_attributes

# A gap stands in the log for what is dropped.
QUEUE_BYTES_MAX: Final = 64 * MIB  # records not yet acknowledged; above it they go to the spool

SPOOL_REOPEN_RATIO: Final = 0.9  # of SPOOL_BYTES_MAX: below it, records are taken again

assert KAFKA_BATCH_BYTES < QUEUE_BYTES_MAX, "one batch must not fill the queue"
assert QUEUE_BYTES_MAX < SPOOL_BYTES_MAX, "the spool takes the whole queue when Kafka goes away"
assert SPOOL_REOPEN_RATIO < 1.0, "a full spool must be drained before it is filled again"

_DISK: Final = "the disk of the spool"  # what is complained of
_logger = logging.getLogger(__name__)


class Writer:
    """See the module. One loop; what is not a coroutine returns at once.

    Args:
        topic: `events`.
        producer: of the bridge.
        spool: this writer's own.
        on_written: called for each acknowledged record, with its offset.
        may_write: False while another bridge may own our publishers: nothing is sent then.
        make_heartbeat: for a partition, where there is something to say; made as it is sent.
        on_heartbeat: called for each acknowledged heartbeat, with its partition.
        make_memory: of segments of memory in a partition, what is to be said; made as it is sent.
        on_memory: called for each acknowledged one.
        tracer: of the bridge.
    """

    def __init__(
        self,
        *,
        topic: TopicSpec,
        producer: ReplaceableProducer,
        spool: Spool,
        on_written: Callable[[PublisherKey, Record, int], None],
        may_write: Callable[[], bool],
        make_heartbeat: Callable[[int], HeartbeatRecord | None] = lambda partition: None,
        on_heartbeat: Callable[[int, HeartbeatRecord], None] = lambda partition, record: None,
        make_memory: Callable[[int], Sequence[MemoryRecord]] = lambda partition: (),
        on_memory: Callable[[MemoryRecord], None] = lambda record: None,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        self.spool = spool
        self.dropped: Counter[tuple[PublisherKey, str]] = Counter()
        self.written_records = 0
        self.written_bytes = 0
        self.produce_errors = 0
        self.queue_bytes = 0
        self.losses: dict[PublisherKey, Loss] = {}
        self.lags = [PartitionLag(number) for number in range(topic.partitions)]
        self._topic = topic
        self._producer = producer
        self._on_written = on_written
        self._may_write = may_write
        self._make_heartbeat = make_heartbeat
        self._on_heartbeat = on_heartbeat
        self._make_memory = make_memory
        self._on_memory = on_memory
        self._tracer = tracer
        self._queues = [PartitionQueue(number) for number in range(topic.partitions)]
        self._partitions: dict[StreamKey, tuple[bytes, int]] = {}
        self._withheld = dict.fromkeys(spool.publishers())
        self._overflowing: dict[PublisherKey, None] = {}  # a set, in order
        self._last: dict[PublisherKey, Anchor] = {}
        self._written: dict[PublisherKey, Cursor] = {}
        self._complaints = Complaints()

    # Appending

    def append(self, records: Iterable[Record]) -> None:
        """Takes records, in order for each publisher. Cost O(bytes)."""
        now = time.monotonic()
        for record in records:
            pending = PendingRecord(record, encode_record(record))
            if len(pending.encoded) > RECORD_SEND_BYTES_MAX and isinstance(record, EventsRecord):
                pending = self._shrink(record)
            self._append(pending, now)

    def _append(self, pending: PendingRecord, now: float) -> None:
        publisher = pending.record.publisher
        loss = self.losses.get(publisher)
        if loss is not None and not is_control(pending.record):
            self._lose(pending, SPOOL_FULL)
            return
        queue = self._queue_of(publisher)
        if publisher in self._overflowing and self._overflow(queue, pending):
            return
        fits = self.queue_bytes + len(pending.encoded) <= QUEUE_BYTES_MAX
        if publisher not in self.spool and fits and not queue.is_late(now):
            self._enqueue(queue, pending, now)
        elif self._spill(queue):
            self._spool(queue, pending)
        elif is_control(pending.record):
            self._enqueue(queue, pending, now)
        else:
            self._lose(pending, SPOOL_FULL)

    def _overflow(self, queue: PartitionQueue, pending: PendingRecord) -> bool:
        """Spools the record, behind all of its publisher; False where that has caught up."""
        publisher = pending.record.publisher
        if publisher not in self.spool and not self.holds_back(publisher):
            del self._overflowing[publisher]
            return False
        if self._spill(queue, publisher):
            self._spool(queue, pending)
        elif is_control(pending.record):
            return False
        else:
            self._lose(pending, SPOOL_FULL)
        return True

    def _enqueue(self, queue: PartitionQueue, pending: PendingRecord, now: float) -> None:
        if queue.is_idle:
            queue.since = now
        queue.waiting.append(pending)
        self.queue_bytes += len(pending.encoded)
        self.lags[queue.partition].add(pending.record.publisher, len(pending.encoded))
        self._remember(pending.record)
        queue.changed.set()

    def _remember(self, record: Record) -> None:
        if not isinstance(record, RegisteredRecord | UnregisteredRecord):
            before = self._last.get(record.publisher, NO_ANCHOR)
            self._last[record.publisher] = before.after(record)

    def _spool(self, queue: PartitionQueue, pending: PendingRecord) -> None:
        """Appends to the publisher's lane, or loses the record where it may be lost."""
        publisher = pending.record.publisher
        if not is_control(pending.record) and not self.spool.fits(len(pending.encoded)):
            self._lose(pending, SPOOL_FULL)
            return
        try:
            self.spool.append(publisher, [pending.encoded])
        except StorageError as error:
            self._complain(error, f"dropping records, now of {publisher}")
            self._lose(pending, DISK_ERROR)
            return
        queue.spooled[publisher] = None
        queue.changed.set()
        self._remember(pending.record)

    def _lose(self, pending: PendingRecord, reason: str) -> None:
        record = pending.record
        publisher = record.publisher
        self.dropped[publisher, reason] += 1
        if isinstance(record, RegisteredRecord | UnregisteredRecord):
            return
        loss = self.losses.get(publisher)
        if loss is None:
            if self._complaints.is_news(publisher, reason, time.monotonic()):
                _logger.warning(
                    "Dropping records of %s (%s), until a replay or a gap can replace them",
                    *(publisher, reason),
                )
            before = self._last.get(publisher, NO_ANCHOR)
            loss = self.losses[publisher] = Loss.beginning(before, record)
        loss.add(record)

    def _complain(self, error: StorageError, what_now: str) -> None:
        """The spool's disk fails: what is tried again with each record is not said each time."""
        if self._complaints.is_news(_DISK, str(error), time.monotonic()):
            _logger.error("%s; %s", error, what_now)

    def _spill(self, queue: PartitionQueue, publisher: PublisherKey | None = None) -> bool:
        """Moves the queue to the spool, and copies there what is under way; all or nothing. Of one
        publisher where it is given.
        """

        def is_meant(pending: PendingRecord) -> bool:
            return publisher is None or pending.record.publisher == publisher

        moved = [one for one in queue.in_flight if one.number < 0 and is_meant(one)]
        copied = len(moved)
        waiting = [one for one in queue.waiting if is_meant(one)]
        moved += waiting
        if not self.spool.fits(sum(len(pending.encoded) for pending in moved)):
            return not moved
        numbers: list[int] = []
        try:
            for pending in moved:
                numbers += self.spool.append(pending.record.publisher, [pending.encoded])
                queue.spooled[pending.record.publisher] = None
        except StorageError as error:
            self._complain(error, f"keeping queues, now that of partition {queue.partition}")
            for pending, number in zip(moved, numbers, strict=False):
                self._unspool(pending.record.publisher, [SpooledRecord(number, pending.encoded)])
            return False
        self.queue_bytes -= sum(len(pending.encoded) for pending in waiting)
        kept = [] if publisher is None else [one for one in queue.waiting if not is_meant(one)]
        queue.waiting.clear()
        queue.waiting += kept
        self._uncount(queue, moved)
        unused = iter(numbers[:copied])
        queue.in_flight = [
            one if one.number >= 0 or not is_meant(one) else one._replace(number=next(unused))
            for one in queue.in_flight
        ]
        return True

    def _uncount(self, queue: PartitionQueue, gone: Iterable[PendingRecord]) -> None:
        """Of what the spool has only what comes back from it counts, once it is written."""
        lag = self.lags[queue.partition]
        for pending in gone:
            lag.remove(pending.record.publisher, len(pending.encoded))

    def _queue_of(self, publisher: PublisherKey) -> PartitionQueue:
        return self._queues[self._key_and_partition(publisher.stream)[1]]

    def _key_and_partition(self, stream: StreamKey) -> tuple[bytes, int]:
        found = self._partitions.get(stream)
        if found is None:
            key = encode_stream(stream)
            found = self._partitions[stream] = (key, partition_of(key, len(self._queues)))
        return found

    # What the owner of the publishers decides

    def release(self, publisher: PublisherKey) -> None:
        """Lets what is spooled of the publisher be written, also by an earlier process."""
        self._withheld.pop(publisher, None)
        if publisher in self.spool:
            queue = self._queue_of(publisher)
            queue.spooled[publisher] = None
            queue.changed.set()

    def withhold(self, publisher: PublisherKey) -> None:
        """Keeps what is spooled of the publisher from being written, until `release`."""
        if publisher in self.spool:
            self._withheld[publisher] = None

    def discard(self, publisher: PublisherKey) -> None:
        """Drops what is spooled of the publisher, and lets what comes next be written."""
        self.spool.discard(publisher)
        self._withheld.pop(publisher, None)

    def withheld(self) -> list[PublisherKey]:
        """The publishers that have records in the spool which wait for `release`."""
        return [publisher for publisher in self._withheld if publisher in self.spool]

    def place(self, publisher: PublisherKey, anchor: Anchor) -> None:
        """Sets the publisher's last batch in the log, or in the spool."""
        self._last[publisher] = anchor

    def spill(self) -> None:
        """Spools all that is not acknowledged, as far as there is room."""
        for queue in self._queues:
            self._spill(queue)

    def losses_to_end(self) -> list[PublisherKey]:
        """The publishers whose loss can be ended: there is room again."""
        if not self.losses or self.spool.size_bytes > SPOOL_REOPEN_RATIO * self.spool.bytes_max:
            return []
        return list(self.losses)

    async def withdraw(self, *, withhold: bool) -> None:
        """Spools all that is not acknowledged, what is under way included, since another bridge may
        write in our place; what a broker has got already may still be written.

        Args:
            withhold: all that is spooled, until its `release`. What the spool has no room for is
                dropped: whoever owns its publisher next goes on from what the log has.
        """
        under_way = False
        for queue in self._queues:
            taken, queue.in_flight = queue.in_flight, []
            under_way = under_way or bool(taken)
            rest = [pending for pending in taken if pending.number < 0]  # the others are there
            queue.waiting.extendleft(reversed(rest))
            self.queue_bytes += sum(len(pending.encoded) for pending in rest)
        self.spill()
        if withhold:
            for publisher in self.spool.publishers():
                self.withhold(publisher)
            self._drop_queued()
        if under_way:
            await self._producer.replace()

    def _drop_queued(self) -> None:
        gone: Counter[PublisherKey] = Counter()
        for queue in self._queues:
            for pending in queue.waiting:
                self.queue_bytes -= len(pending.encoded)
                gone[pending.record.publisher] += 1
            self._uncount(queue, queue.waiting)
            queue.waiting.clear()
        for publisher, count in gone.items():
            self.dropped[publisher, SPOOL_FULL] += count
            _logger.warning(
                "Dropped %d records of %s (%s): its next owner asks its engine, or writes a gap",
                count,
                publisher,
                SPOOL_FULL,
            )

    def end_loss(self, publisher: PublisherKey) -> Loss:
        """Takes records of the publisher again; the caller first appends what reports the loss."""
        return self.losses.pop(publisher)

    def forget(self, publisher: PublisherKey) -> None:
        """Forgets a publisher that is no longer ours, or no longer registered."""
        self.losses.pop(publisher, None)
        self._overflowing.pop(publisher, None)
        self._last.pop(publisher, None)
        self._written.pop(publisher, None)

    async def check(self) -> None:
        """Spools what is late, and takes back what may no longer be written; to be called now and
        then, since nothing may arrive that does it.
        """
        if not self._may_write():
            await self.withdraw(withhold=False)
        now = time.monotonic()
        ended = self._complaints.ended(now).get(_DISK)
        if ended is not None:
            _logger.info(
                "The disk of the spool has not failed for %.0f s; before that it failed %d times"
                " in %.1f s",
                now - ended.last_at,
                ended.times,
                ended.last_at - ended.since,
            )
        for queue in self._queues:
            if queue.waiting and queue.is_late(now):
                self._spill(queue)
            if queue.spooled:
                queue.changed.set()  # who was held back may go on

    def let_go_on(self, publishers: Iterable[PublisherKey]) -> None:
        """The workers have got on: what these have in the spool can be written."""
        for publisher in publishers:
            queue = self._queue_of(publisher)
            if publisher in queue.spooled:
                queue.changed.set()

    # State

    @property
    def may_write(self) -> bool:
        """Whether no other bridge may own our publishers."""
        return self._may_write()

    @property
    def is_late(self) -> bool:
        """Whether the broker is away, or too slow."""
        now = time.monotonic()
        return any(queue.is_late(now) for queue in self._queues)

    def ends(self) -> dict[int, int]:
        """By partition, the offset after the last acknowledged record."""
        return {queue.partition: queue.end for queue in self._queues}

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`."""
        late = self._queue_of(publisher).is_late(time.monotonic())
        return late or publisher in self.losses or publisher in self.spool

    def partition_of(self, stream: StreamKey) -> int:
        """The partition of the stream's records."""
        return self._key_and_partition(stream)[1]

    @property
    def turn_bytes(self) -> int:
        """See `RecordSink`."""
        return TURN_BYTES_MAX

    @property
    def is_ready(self) -> bool:
        """See `RecordSink`: always, for what the queue cannot take the spool does."""
        return True

    async def ready(self) -> None:
        """See `RecordSink`: at once."""

    def let_overflow(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: the spool takes what comes of it, until it has caught up."""
        self._overflowing[publisher] = None

    def holds_back(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`: while much of the publisher is yet to be folded."""
        return self._lag_of(publisher).holds_back(publisher, time.monotonic())

    def _lag_of(self, publisher: PublisherKey) -> PartitionLag:
        return self.lags[self.partition_of(publisher.stream)]

    async def room(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: until the queue is at most half full, and the publisher need not wait
        for the workers.
        """
        while self.queue_bytes > QUEUE_BYTES_MAX // 2 or self.holds_back(publisher):  # noqa: ASYNC110 -- many events end it
            await asyncio.sleep(WRITER_PAUSE_S)

    async def idle(self) -> None:
        """See `RecordSink`: answers come from elsewhere."""

    async def settle(self, publishers: Collection[PublisherKey]) -> None:
        """Waits until nothing of the publishers is queued or under way: the log or the spool has
        it, whatever the broker takes meanwhile. Cost O(records queued) each time it looks.
        """
        while any(  # noqa: ASYNC110 -- many events end it
            pending.record.publisher in publishers
            for queue in self._queues
            for pending in (*queue.in_flight, *queue.waiting)
        ):
            await asyncio.sleep(WRITER_PAUSE_S)

    async def flush(self, timeout_s: float) -> bool:
        """Waits until all that was queued is acknowledged; False where it took too long, or may not
        be written.
        """
        end = time.monotonic() + timeout_s
        while not all(queue.is_idle for queue in self._queues):
            if not self._may_write():
                await self.withdraw(withhold=False)
                return False
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(WRITER_PAUSE_S)
        return True

    # Sending

    async def run(self) -> None:
        """Sends until it is cancelled; then what is queued or under way goes to the spool."""
        tasks = [asyncio.create_task(self._run_queue(queue)) for queue in self._queues]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for queue in self._queues:
                self._spill(queue)
            await self._producer.replace()

    async def _run_queue(self, queue: PartitionQueue) -> None:
        while True:
            if not self._may_write():
                await asyncio.sleep(WRITER_PAUSE_S)
                continue
            producer: Producer | None = None
            try:
                producer = await self._producer.started()
                if not self._may_write():  # any more: a start may take as long as Kafka is away
                    continue
                batch = producer.create_batch()
                traced = TracedBatch(batch, self._tracer)
                is_filled = self._fill(queue, traced)
                memory = self._add_memory(queue, batch)
                heartbeat = self._add_heartbeat(queue, batch)
                if not is_filled and not memory and heartbeat is None:
                    await queue.changed.wait()
                    queue.changed.clear()
                    continue
                place = (self._topic.name, queue.partition)
                with traced.span as span:
                    offset = await self._producer.send_batch(producer, batch, *place)
                    self._note(span, queue, offset)
            except ProducerReplacedError:
                await asyncio.sleep(BRIDGE_RETRY_S)
            except (KafkaError, OSError, TimeoutError) as error:
                self._handle_failure(queue, error)
                if producer is not None:
                    await self._producer.replace(producer)
                await asyncio.sleep(BRIDGE_RETRY_S)
            except StorageError as error:
                self._complain(error, f"retrying in {BRIDGE_RETRY_S:g} s")
                await asyncio.sleep(BRIDGE_RETRY_S)
            else:
                self._finish(queue, offset)
                for told in memory:
                    queue.end += 1
                    self._on_memory(told)
                if heartbeat is not None:
                    queue.end += 1
                    self._on_heartbeat(queue.partition, heartbeat)

    def _note(self, span: Span, queue: PartitionQueue, offset: int) -> None:
        if span.is_recorded:
            records = len(queue.in_flight)
            last = offset + records - 1
            span.note(
                batch_attributes("events", records, queue.partition, last, topic=self._topic.name)
            )

    def beat(self, partition: int) -> None:
        """Writes a heartbeat into the partition, behind all that was appended before. One that
        cannot be written is never written later.
        """
        queue = self._queues[partition]
        queue.is_beat_due = True
        queue.changed.set()

    def _add_heartbeat(self, queue: PartitionQueue, batch: Batch) -> HeartbeatRecord | None:
        """Behind all that waits; where the batch has no room for that, with the next one."""
        if not queue.is_beat_due or queue.waiting:
            return None
        queue.is_beat_due = False
        heartbeat = self._make_heartbeat(queue.partition)
        if heartbeat is None:
            return None
        added = batch.append(key=None, value=encode_record(heartbeat), timestamp=None)
        return None if added is None else heartbeat

    def tell_memory(self, partition: int) -> None:
        """Writes what is to be said of segments in the partition; what cannot be written now is
        made anew when this is called again.
        """
        queue = self._queues[partition]
        queue.is_memory_due = True
        queue.changed.set()

    def _add_memory(self, queue: PartitionQueue, batch: Batch) -> list[MemoryRecord]:
        if not queue.is_memory_due:
            return []
        queue.is_memory_due = False
        added = []
        for record in self._make_memory(queue.partition):
            key, value = encode_segment(record.key), encode_record(record)
            if batch.append(key=key, value=value, timestamp=None) is None:
                queue.is_memory_due = True  # the rest with the next one
                break
            added.append(record)
        return added

    def partition_of_segment(self, key: SegmentKey) -> int:
        """The partition of the records of a segment of memory."""
        return partition_of(encode_segment(key), len(self._queues))

    def _fill(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Fills the batch with what is next; False where there is nothing."""
        if queue.in_flight:  # the last attempt failed: retry it
            self._refill(queue, batch)
            return True
        from_spool = bool(queue.spooled) and not (queue.drained_last and queue.waiting)
        queue.drained_last = from_spool
        if not (from_spool and self._fill_from_spool(queue, batch)):
            self._fill_from_queue(queue, batch)
        return bool(queue.in_flight)

    def _refill(self, queue: PartitionQueue, batch: Batch) -> None:
        for index, pending in enumerate(queue.in_flight):
            if not self._put(batch, pending):
                assert index, "the first message always fits"
                rest = queue.in_flight[index:]
                del queue.in_flight[index:]
                unspooled = [pending for pending in rest if pending.number < 0]
                queue.waiting.extendleft(reversed(unspooled))
                self.queue_bytes += sum(len(pending.encoded) for pending in unspooled)
                return

    def _fill_from_queue(self, queue: PartitionQueue, batch: Batch) -> None:
        while queue.waiting and self._put(batch, queue.waiting[0]):
            pending = queue.waiting.popleft()
            self.queue_bytes -= len(pending.encoded)
            queue.in_flight.append(pending)

    def _fill_from_spool(self, queue: PartitionQueue, batch: Batch) -> bool:
        for publisher in list(queue.spooled):
            if publisher not in self.spool:
                del queue.spooled[publisher]
                continue
            if publisher in self._withheld or self.holds_back(publisher):
                continue
            if not self._fill_from_lane(queue, batch, publisher):
                return True
        if queue.in_flight:
            queue.since = time.monotonic()
        return bool(queue.in_flight)

    def _fill_from_lane(self, queue: PartitionQueue, batch: Batch, publisher: PublisherKey) -> bool:
        """False where the batch is full.

        A record that cannot be read waits until those before it are in the log, and goes then.
        """
        before = len(queue.in_flight)
        for spooled in self.spool.read(publisher, bytes_max=KAFKA_BATCH_BYTES):
            record = self.spool.decode(publisher, spooled)
            if isinstance(record, str):
                break
            pending = PendingRecord(record, spooled.encoded, spooled.number)
            if not self._put(batch, pending):
                return False
            queue.in_flight.append(pending)
        else:
            return True
        if len(queue.in_flight) == before:
            last = self._last.get(publisher, NO_ANCHOR).cursor
            drop_unreadable(self.spool, publisher, before=self._written.get(publisher), last=last)
            queue.changed.set()  # the rest of the lane comes next
        return True

    def _put(self, batch: Batch, pending: PendingRecord) -> bool:
        key = self._key_and_partition(pending.record.stream)[0]
        return batch.append(key=key, value=pending.encoded, timestamp=None) is not None

    def _finish(self, queue: PartitionQueue, offset: int) -> None:
        written, queue.in_flight = queue.in_flight, []
        queue.failing = False
        queue.since = time.monotonic()
        spooled: dict[PublisherKey, list[SpooledRecord]] = {}
        lag = self.lags[queue.partition]
        for index, pending in enumerate(written):
            publisher = pending.record.publisher
            if pending.number >= 0:
                lag.add(publisher, len(pending.encoded))
            lag.written(publisher, len(pending.encoded), offset + index)
            self.written_records += 1
            self.written_bytes += len(pending.encoded)
            if not isinstance(pending.record, RegisteredRecord | UnregisteredRecord):
                self._written[publisher] = pending.record.reached
            self._on_written(publisher, pending.record, offset + index)
            if pending.number >= 0:
                spooled.setdefault(publisher, []).append(
                    SpooledRecord(pending.number, pending.encoded)
                )
        queue.end = max(queue.end, offset + len(written))
        for publisher, records in spooled.items():
            self._unspool(publisher, records)

    def _unspool(self, publisher: PublisherKey, records: list[SpooledRecord]) -> None:
        with contextlib.suppress(StorageError):  # they will be written twice
            self.spool.delete(publisher, records)

    def _handle_failure(self, queue: PartitionQueue, error: BaseException) -> None:
        self.produce_errors += 1
        place = (self._topic.name, queue.partition, describe(error))
        level = logging.DEBUG if queue.failing else logging.WARNING
        _logger.log(level, "Cannot write to %s, partition %d, retrying: %s", *place)
        queue.failing = True
        if isinstance(error, MessageSizeTooLargeError) and len(queue.in_flight) == 1:
            (pending,) = queue.in_flight  # the topic's limit is below ours
            if isinstance(pending.record, EventsRecord):
                shrunk = self._shrink(pending.record, pending.number)
                if pending.number < 0:
                    self._uncount(queue, [pending])
                    self.lags[queue.partition].add(pending.record.publisher, len(shrunk.encoded))
                queue.in_flight = [shrunk]

    def _shrink(self, record: EventsRecord, number: int = -1) -> PendingRecord:
        self.dropped[record.publisher, RECORD_TOO_LARGE] += 1
        gap = gap_of(record, RECORD_TOO_LARGE)
        return PendingRecord(gap, encode_record(gap), number)
