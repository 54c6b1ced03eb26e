"""aiokafka's clients with the options that the bridge relies on; the only module that opens them.

Its types stop here: the protocols below are what the bridge uses of them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

from aiokafka import (  # type: ignore[import-untyped]
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.coordinator.assignors.sticky.sticky_assignor import (  # type: ignore[import-untyped]
    StickyPartitionAssignor,
)
from aiokafka.errors import (  # type: ignore[import-untyped]
    CorruptRecordException,
    KafkaError,
    MessageSizeTooLargeError,
)
from aiokafka.partitioner import DefaultPartitioner  # type: ignore[import-untyped]

from brokers.options import ClientOptions
from brokers.settings import KafkaSettings
from schemas.limits import KAFKA_BATCH_BYTES, KAFKA_MESSAGE_MAX_BYTES

__all__ = [
    "Clients",
    "Consumer",
    "KafkaError",
    "Message",
    "MessageSizeTooLargeError",
    "Partition",
    "Producer",
    "partition_of",
]

CONSUMER_TIMEOUT_MS = 20_000


class Partition(NamedTuple):
    """One partition of a topic; equal to aiokafka's `TopicPartition`."""

    topic: str
    partition: int


class Message(Protocol):
    """One message as a consumer gives it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class SentBatch(Protocol):
    """Where a batch was written."""

    @property
    def offset(self) -> int:
        """Of its first message; -1 where the broker only knows that it has it."""
        ...


class Batch(Protocol):
    """Messages for one partition, written together."""

    def append(
        self, *, key: bytes | None, value: bytes | None, timestamp: int | None
    ) -> object | None:
        """Adds a message; None where it does not fit. The first one always does."""
        ...


class Producer(Protocol):
    """An idempotent producer."""

    async def start(self) -> None:
        """Connects; raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Writes what is under way, for as long as that takes, and disconnects."""
        ...

    def create_batch(self) -> Batch:
        """An empty batch."""
        ...

    async def send_batch(
        self, batch: Batch, topic: str, *, partition: int
    ) -> "asyncio.Future[SentBatch]":
        """Hands the batch on. The future waits for as long as the broker is away."""
        ...


class RebalanceListener(Protocol):
    """Called by the consumer around a rebalance; it waits for both."""

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        """Another member may have these partitions once this returns."""
        ...

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        """These are ours: all of them, not only the new ones."""
        ...


class Consumer(Protocol):
    """A consumer, in a group or without one."""

    async def start(self) -> None:
        """Connects; raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Leaves the group and disconnects."""
        ...

    def subscribe(self, topics: Sequence[str], *, listener: object) -> None:
        """Joins the group's sharing of the topics; see `subscribe`."""
        ...

    def assign(self, partitions: Sequence[object]) -> None:
        """Reads these partitions, in no group."""
        ...

    def seek(self, partition: object, offset: int) -> None:
        """Reads on from there."""
        ...

    async def seek_to_beginning(self, *partitions: object) -> bool:
        """Reads from the first message that is kept."""
        ...

    async def position(self, partition: object) -> int:
        """The offset that is read next."""
        ...

    async def getmany(
        self, *partitions: object, timeout_ms: int, max_records: int | None = None
    ) -> Mapping[Partition, Sequence[Message]]:
        """What has arrived."""
        ...

    async def beginning_offsets(self, partitions: Sequence[object]) -> Mapping[Partition, int]:
        """The first offsets that are kept."""
        ...

    async def end_offsets(self, partitions: Sequence[object]) -> Mapping[Partition, int]:
        """The offsets after the last messages."""
        ...

    async def commit(self, offsets: Mapping[object, int]) -> None:
        """Writes the group's offsets; raises KafkaError where we are no member of it any more."""
        ...


class Clients:
    """Makes clients for one deployment."""

    def __init__(self, settings: KafkaSettings, options: ClientOptions, session_s: float) -> None:
        self.settings = settings
        self.session_s = session_s
        self._options = options

    def producer(self) -> Producer:
        """A producer that writes each batch once, acknowledged by all replicas in sync."""
        return cast(
            Producer,
            AIOKafkaProducer(
                **self._options,
                enable_idempotence=True,
                acks="all",
                compression_type="zstd",  # the client's lz4 is the slow kind: 3 times the CPU
                max_batch_size=KAFKA_BATCH_BYTES,
                max_request_size=KAFKA_MESSAGE_MAX_BYTES,
                linger_ms=0,
                request_timeout_ms=CONSUMER_TIMEOUT_MS,
                metadata_max_age_ms=60_000,
            ),
        )

    def reader(self) -> Consumer:
        """A consumer in no group."""
        return cast(
            Consumer,
            AIOKafkaConsumer(
                **self._options,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                max_partition_fetch_bytes=KAFKA_MESSAGE_MAX_BYTES,
                fetch_max_wait_ms=100,
                request_timeout_ms=CONSUMER_TIMEOUT_MS,
            ),
        )

    def member(self, group: str) -> Consumer:
        """A member of a consumer group, which keeps what it has where that is possible."""
        session_ms = round(self.session_s * 1000)
        return cast(
            Consumer,
            AIOKafkaConsumer(
                **self._options,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                partition_assignment_strategy=(StickyPartitionAssignor,),
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(session_ms // 4, 100),
                rebalance_timeout_ms=max(session_ms, 10_000),
                max_poll_interval_ms=300_000,
                fetch_max_wait_ms=500,
                request_timeout_ms=CONSUMER_TIMEOUT_MS,
                metadata_max_age_ms=60_000,
            ),
        )


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        await self._listener.on_partitions_revoked(revoked)

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        await self._listener.on_partitions_assigned(assigned)


def subscribe(consumer: Consumer, topic: str, listener: RebalanceListener) -> None:
    """Joins the group's sharing of the topic."""
    consumer.subscribe([topic], listener=_Listener(listener))


def topic_partition(topic: str, partition: int) -> object:
    """A partition as the clients want it."""
    return TopicPartition(topic, partition)


_partitioner: Callable[[bytes, list[int], list[int]], int] = DefaultPartitioner()


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: as Kafka's own clients choose it."""
    every = list(range(partitions))
    return _partitioner(key, every, every)


async def read_to_end(
    reader: Consumer,
    topic: str,
    starts: Mapping[int, int | None],
    take: Callable[[Message], None],
    corrupt: Callable[[int, int], None] | None = None,
) -> dict[int, int]:
    """Gives `take` every message of the partitions up to where they end now, in order for each.

    Args:
        reader: started, in no group.
        topic: to read.
        starts: by partition, the offset to begin at, None for the end; where nothing is kept that
            old, and where it is beyond the end (the topic was made anew), everything is read.
        take: called for each message.
        corrupt: called with the partition and the offset of each message that fails its checksum,
            which is passed over then.

    Returns:
        The ends.

    Raises:
        KafkaError: the broker went away, or a checksum fails that may not.
    """
    partitions = {number: topic_partition(topic, number) for number in starts}
    reader.assign(list(partitions.values()))
    begins = await reader.beginning_offsets(list(partitions.values()))
    ends = await reader.end_offsets(list(partitions.values()))
    remaining: dict[object, int] = {}
    nexts: dict[int, int] = {}
    for number, partition in partitions.items():
        key = Partition(topic, number)
        begin, end, start = begins[key], ends[key], starts[number]
        if start is None or start == end or begin == end:
            continue
        nexts[number] = start if begin <= start < end else begin
        reader.seek(partition, nexts[number])
        remaining[partition] = end
    while remaining:
        try:
            batches = await reader.getmany(*remaining, timeout_ms=500)
        except CorruptRecordException:
            if corrupt is None:
                raise
            for number, partition in partitions.items():
                if partition in remaining:
                    reader.seek(partition, nexts[number])
                    await _read_one_by_one(reader, partition, remaining[partition], take, corrupt)
            break
        for messages in batches.values():
            for message in messages:
                take(message)
                nexts[message.partition] = message.offset + 1
        for partition, end in list(remaining.items()):
            if await reader.position(partition) >= end:
                del remaining[partition]
    return {number: ends[Partition(topic, number)] for number in starts}


async def _read_one_by_one(
    reader: Consumer,
    partition: object,
    end: int,
    take: Callable[[Message], None],
    corrupt: Callable[[int, int], None],
) -> None:
    """Reads on to the end where the client says of a corrupt batch neither its begin nor its end,
    and drops what it read before it.
    """
    while (offset := await reader.position(partition)) < end:
        try:
            batches = await reader.getmany(partition, timeout_ms=500, max_records=1)
        except CorruptRecordException:
            corrupt(cast(Partition, partition).partition, offset)
            reader.seek(partition, offset + 1)
            continue
        for messages in batches.values():
            for message in messages:
                take(message)
