r"""Writes records to the topic `events`, in order for each publisher; never waits for the broker.

    append -> queue of the partition -> one Kafka batch at a time -> acknowledged
           \-> spool on disk, where the broker is late -> (drained, oldest first) -> the same

One batch of a partition is under way at a time, by an idempotent producer with acks=all, which
retries it while the broker is away. A record that is not acknowledged within
SPOOL_AFTER_S moves the queue, and whatever comes after it, to the spool. A publisher that has
records in the spool gets its next ones there too, so its order holds.

A publisher of which much is yet to be folded (`partition_lag`), and of which more waits than the
inbox can keep, is written by way of the spool, too: from there it goes as the workers get on.

Above the spool's bound records are dropped, and remembered as `DroppedRecords`: once there is room
again, the publisher's owner replays them or reports them in the log, before anything else of it.

Delivery: `on_written` is called once for each record that is in the log, in the order of each
partition. A record may be in the log twice (sent, killed before the spool forgot it); it is
missing only where it is counted in `dropped`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from bridge.bounds import SPOOL_BYTES_MAX, WRITER_PAUSE_S
from bridge.delivery.delivery import Delivery
from bridge.delivery.dropped_records import DISK_ERROR, SPOOL_FULL, DroppedRecords
from bridge.delivery.outbox import Outbox, is_control
from bridge.delivery.partition_writer import MemorySource, PartitionWriter, PendingRecord
from bridge.heartbeats import Heartbeats
from bridge.publisher.anchor import Anchor
from bridge.supervision import cancel
from brokers.clients import partition_of
from schemas.errors import StorageError
from schemas.identities import PublisherKey, StreamKey
from schemas.limits import (
    HEARTBEAT_S,
    KAFKA_BATCH_BYTES,
    MIB,
    RECORD_SEND_BYTES_MAX,
    TURN_BYTES_MAX,
)
from schemas.memory_segments import SegmentKey, encode_segment
from schemas.records import (
    EventsRecord,
    Record,
    RegisteredRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.topics import encode_stream

# A gap stands in the log for what is dropped.
QUEUE_BYTES_MAX: Final = 64 * MIB  # records not yet acknowledged; above it they go to the spool

SPOOL_REOPEN_RATIO: Final = 0.9  # of SPOOL_BYTES_MAX: below it, records are taken again

assert KAFKA_BATCH_BYTES < QUEUE_BYTES_MAX, "one batch must not fill the queue"
assert QUEUE_BYTES_MAX < SPOOL_BYTES_MAX, "the spool takes the whole queue when Kafka goes away"
assert SPOOL_REOPEN_RATIO < 1.0, "a full spool must be drained before it is filled again"

_logger = logging.getLogger(__name__)


class Writer:
    """See the module. One loop; what is not a coroutine returns at once.

    Args:
        delivery: what its partitions share; of this writer alone.

    Attributes:
        partitions: of `events`, each with its queue.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.spool = delivery.spool
        numbers = range(delivery.topic.partitions)
        self.partitions = [PartitionWriter(number, delivery) for number in numbers]
        self.lags = [partition.lag for partition in self.partitions]
        self._outboxes: dict[PublisherKey, Outbox] = {}
        self._losing: dict[Outbox, None] = {}  # a set, in order
        self._keys: dict[StreamKey, tuple[bytes, int]] = {}
        for publisher in self.spool.publishers():
            self._outbox(publisher).is_withheld = True

    def _outbox(self, publisher: PublisherKey) -> Outbox:
        outbox = self._outboxes.get(publisher)
        if outbox is None:
            place = self._key_and_partition(publisher.stream)
            outbox = self._outboxes[publisher] = Outbox(publisher, *place)
        return outbox

    def _key_and_partition(self, stream: StreamKey) -> tuple[bytes, int]:
        found = self._keys.get(stream)
        if found is None:
            key = encode_stream(stream)
            found = self._keys[stream] = (key, partition_of(key, len(self.partitions)))
        return found

    # Appending

    def append(self, records: Iterable[Record]) -> None:
        """Takes records, in order for each publisher. Cost O(bytes)."""
        now = self.delivery.clock.monotonic()
        for record in records:
            outbox = self._outbox(record.publisher)
            partition = self.partitions[outbox.partition]
            pending = PendingRecord(outbox, record, encode_record(record))
            if len(pending.encoded) > RECORD_SEND_BYTES_MAX and isinstance(record, EventsRecord):
                pending = partition.shrunk(outbox, record)
            self._append(partition, pending, now)

    def _append(self, partition: PartitionWriter, pending: PendingRecord, now: float) -> None:
        outbox = pending.outbox
        if outbox.loss is not None and not is_control(pending.record):
            self._lose(pending, SPOOL_FULL)
            return
        if outbox.overflows and self._overflow(partition, pending, now):
            return
        fits = self.delivery.queue_bytes + len(pending.encoded) <= QUEUE_BYTES_MAX
        if outbox.publisher not in self.spool and fits and not partition.is_late(now):
            partition.enqueue(pending, now)
        elif partition.spill():
            self._spool(partition, pending)
        elif is_control(pending.record):
            partition.enqueue(pending, now)
        else:
            self._lose(pending, SPOOL_FULL)

    def _overflow(self, partition: PartitionWriter, pending: PendingRecord, now: float) -> bool:
        """Spools the record, behind all of its publisher; False where that has caught up."""
        outbox = pending.outbox
        if outbox.publisher not in self.spool and not partition.lag.holds_back(outbox, now):
            outbox.overflows = False
            return False
        if partition.spill(lambda one: one is outbox):
            self._spool(partition, pending)
        elif is_control(pending.record):
            return False
        else:
            self._lose(pending, SPOOL_FULL)
        return True

    def _spool(self, partition: PartitionWriter, pending: PendingRecord) -> None:
        """Appends to the publisher's lane, or loses the record where it may be lost."""
        publisher = pending.outbox.publisher
        if not is_control(pending.record) and not self.spool.fits(len(pending.encoded)):
            self._lose(pending, SPOOL_FULL)
            return
        try:
            self.spool.append(publisher, [pending.encoded])
        except StorageError as error:
            self.delivery.complain(error, f"dropping records, now of {publisher}")
            self._lose(pending, DISK_ERROR)
            return
        partition.drain(pending.outbox)
        pending.outbox.remember(pending.record)

    def _lose(self, pending: PendingRecord, reason: str) -> None:
        outbox, record = pending.outbox, pending.record
        publisher = outbox.publisher
        self.delivery.dropped[publisher, reason] += 1
        if isinstance(record, RegisteredRecord | UnregisteredRecord):
            return
        if outbox.loss is None:
            if self.delivery.complaints.is_news(publisher, reason, self.delivery.clock.monotonic()):
                _logger.warning(
                    "Dropping records of %s (%s), until a replay or a gap can replace them",
                    *(publisher, reason),
                )
            outbox.loss = DroppedRecords.beginning(outbox.last, record)
            self._losing[outbox] = None
        outbox.loss.add(record)

    async def beat(self, heartbeats: Heartbeats) -> None:
        """Sends a heartbeat every HEARTBEAT_S where there may be something to say, until it is
        cancelled. Cost O(publishers).
        """
        while True:
            for partition in heartbeats.partitions():
                self.partitions[partition].beat(heartbeats)
            await asyncio.sleep(HEARTBEAT_S)

    def tell_memory(self, memory: MemorySource) -> None:
        """Sends what is to be said of segments of memory. Cost O(segments)."""
        for partition in set(map(self.partition_of_segment, memory.due())):
            self.partitions[partition].tell_memory(memory)

    # What the owner of the publishers decides

    def release(self, publisher: PublisherKey) -> None:
        """Lets what is spooled of the publisher be written, also by an earlier process."""
        outbox = self._outbox(publisher)
        outbox.is_withheld = False
        if publisher in self.spool:
            self.partitions[outbox.partition].drain(outbox)

    def withhold(self, publisher: PublisherKey) -> None:
        """Keeps what is spooled of the publisher from being written, until `release`."""
        if publisher in self.spool:
            self._outbox(publisher).is_withheld = True

    def discard(self, publisher: PublisherKey) -> None:
        """Drops what is spooled of the publisher, and lets what comes next be written."""
        self.spool.discard(publisher)
        self._outbox(publisher).is_withheld = False

    def withheld(self) -> list[PublisherKey]:
        """The publishers that have records in the spool which wait for `release`."""
        spooled = self.spool.publishers()
        return [publisher for publisher in spooled if self._outbox(publisher).is_withheld]

    def place(self, publisher: PublisherKey, anchor: Anchor) -> None:
        """Sets the publisher's last batch in the log, or in the spool."""
        self._outbox(publisher).last = anchor

    def spill(self) -> None:
        """Spools all that is not acknowledged, as far as there is room."""
        for partition in self.partitions:
            partition.spill()

    @property
    def is_dropping(self) -> bool:
        """Whether records of any publisher are dropped."""
        return bool(self._losing)

    def loss_of(self, publisher: PublisherKey) -> DroppedRecords | None:
        """What of the publisher was dropped, and is not yet reported; None for nothing."""
        outbox = self._outboxes.get(publisher)
        return None if outbox is None else outbox.loss

    def losses_to_end(self) -> list[PublisherKey]:
        """The publishers whose loss can be ended: there is room again."""
        if not self._losing or self.spool.size_bytes > SPOOL_REOPEN_RATIO * self.spool.bytes_max:
            return []
        return [outbox.publisher for outbox in self._losing]

    async def withdraw(self, *, withhold: bool) -> None:
        """Spools all that is not acknowledged, what is under way included, since another bridge may
        write in our place; what a broker has got already may still be written.

        Args:
            withhold: all that is spooled, until its `release`. What the spool has no room for is
                dropped: whoever owns its publisher next goes on from what the log has.
        """
        under_way = [partition.take_back() for partition in self.partitions]
        self.spill()
        if withhold:
            for publisher in self.spool.publishers():
                self.withhold(publisher)
            self._drop_queued()
        if any(under_way):
            await self.delivery.producer.replace()

    def _drop_queued(self) -> None:
        gone = Counter(
            pending.outbox.publisher
            for partition in self.partitions
            for pending in partition.drop_queued()
        )
        for publisher, count in gone.items():
            self.delivery.dropped[publisher, SPOOL_FULL] += count
            _logger.warning(
                "Dropped %d records of %s (%s): its next owner asks its engine, or writes a gap",
                *(count, publisher, SPOOL_FULL),
            )

    def end_loss(self, publisher: PublisherKey) -> DroppedRecords:
        """Takes records of the publisher again; the caller first appends what reports the loss."""
        outbox = self._outbox(publisher)
        loss, outbox.loss = outbox.loss, None
        assert loss is not None, "the caller was told of it"
        del self._losing[outbox]
        return loss

    def forget(self, publisher: PublisherKey) -> None:
        """Forgets a publisher that is no longer ours, or no longer registered."""
        outbox = self._outboxes.get(publisher)
        if outbox is None:
            return
        outbox.forget()
        self._losing.pop(outbox, None)
        if not (publisher in self.spool or outbox.is_withheld or outbox.unfolded_bytes):
            del self._outboxes[publisher]

    async def check(self) -> None:
        """Spools what is late, and takes back what may no longer be written; to be called now and
        then, since nothing may arrive that does it.
        """
        if not self.delivery.lease.may_write:
            await self.withdraw(withhold=False)
        now = self.delivery.clock.monotonic()
        self.delivery.end_complaints(now)
        for partition in self.partitions:
            if partition.waiting and partition.is_late(now):
                partition.spill()
            if partition.spooled:
                partition.look()  # who was held back may go on

    def resume_held_back(self, publishers: Iterable[PublisherKey]) -> None:
        """The workers have got on: what these have in the spool can be written."""
        for publisher in publishers:
            if publisher in self.spool:
                self.partitions[self._outbox(publisher).partition].look()

    # State

    @property
    def is_late(self) -> bool:
        """Whether the broker is away, or too slow."""
        now = self.delivery.clock.monotonic()
        return any(partition.is_late(now) for partition in self.partitions)

    def ends(self) -> dict[int, int]:
        """By partition, the offset after the last acknowledged record."""
        return {one.partition: one.end for one in self.partitions}

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`."""
        outbox = self._outbox(publisher)
        late = self.partitions[outbox.partition].is_late(self.delivery.clock.monotonic())
        return late or outbox.loss is not None or publisher in self.spool

    def partition_of(self, stream: StreamKey) -> int:
        """The partition of the stream's records."""
        return self._key_and_partition(stream)[1]

    def partition_of_segment(self, key: SegmentKey) -> int:
        """The partition of the records of a segment of memory."""
        return partition_of(encode_segment(key), len(self.partitions))

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
        self._outbox(publisher).overflows = True

    def holds_back(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`: while much of the publisher is yet to be folded."""
        outbox = self._outbox(publisher)
        now = self.delivery.clock.monotonic()
        return self.partitions[outbox.partition].lag.holds_back(outbox, now)

    async def room(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: until the queue is at most half full, and the publisher need not wait
        for the workers.
        """
        while self.delivery.queue_bytes > QUEUE_BYTES_MAX // 2 or self.holds_back(publisher):  # noqa: ASYNC110 -- many events end it
            await asyncio.sleep(WRITER_PAUSE_S)

    async def idle(self) -> None:
        """See `RecordSink`: answers come from elsewhere."""

    async def settle(self, publishers: Collection[PublisherKey]) -> None:
        """Waits until nothing of the publishers is queued or under way: the log or the spool has
        it, whatever the broker takes meanwhile. Cost O(records queued) each time it looks.
        """
        while any(  # noqa: ASYNC110 -- many events end it
            pending.outbox.publisher in publishers
            for partition in self.partitions
            for pending in (*partition.in_flight, *partition.waiting)
        ):
            await asyncio.sleep(WRITER_PAUSE_S)

    async def flush(self, timeout_s: float) -> bool:
        """Waits until all that was queued is acknowledged; False where it took too long, or may not
        be written.
        """
        end = self.delivery.clock.monotonic() + timeout_s
        while not all(partition.is_idle for partition in self.partitions):
            if not self.delivery.lease.may_write:
                await self.withdraw(withhold=False)
                return False
            if self.delivery.clock.monotonic() >= end:
                return False
            await asyncio.sleep(WRITER_PAUSE_S)
        return True

    # Sending

    async def run(self) -> None:
        """Sends until it is cancelled; then what is queued or under way goes to the spool."""
        tasks = [asyncio.create_task(partition.run()) for partition in self.partitions]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel(*tasks)
            self.spill()
            for partition in self.partitions:
                await partition.give_up()
            await self.delivery.producer.replace()
