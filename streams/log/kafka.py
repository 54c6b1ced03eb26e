"""Topics as a worker uses them: its partition of the table topic, and the bounds of the events.

A flush is a transaction, under an id that belongs to the partition: opening the partition elsewhere
ends whatever the owner before had begun, and refuses whatever it still sends. So of two workers
that both believe that they own a partition, as after a pause longer than the session timeout, only
the later one writes, and readers (`isolation_level="read_committed"`) never see half a flush.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from aiokafka import (  # type: ignore[import-untyped]
    AIOKafkaConsumer,
    AIOKafkaProducer,
    TopicPartition,
)
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]

from schemas.kafka import MESSAGE_MAX
from schemas.kafka_clients import ClientOptions
from streams.table.partition import LogBounds, TableLostError, TopicRow
from streams.table.writing import RowWrite

logger = logging.getLogger(__name__)

REQUEST_MS: Final = 15_000
"""How long a request may take before the broker counts as away."""

TRANSACTION_MS: Final = 120_000
"""After it the broker itself ends a flush; the largest is a whole table published again."""

_POLL_MS: Final = 1_000
_BATCH_BYTES: Final = 1 << 20
_STALLED_POLLS_MAX: Final = 60


@asynccontextmanager
async def opened_reader(
    options: ClientOptions, *, committed: bool
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer that belongs to no group."""
    consumer = AIOKafkaConsumer(
        **options,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed" if committed else "read_uncommitted",
        request_timeout_ms=REQUEST_MS,
        max_partition_fetch_bytes=MESSAGE_MAX,
        fetch_max_bytes=4 * MESSAGE_MAX,
    )
    try:
        await consumer.start()
        yield consumer
    finally:
        await stop_consumer(consumer)


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Stops it; as a task, since its fetcher may end the call with a cancellation of its own."""
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait((stopping,))
    if not stopping.cancelled() and stopping.exception() is not None:
        logger.debug("A consumer did not stop in order: %r", stopping.exception())


async def log_bounds(
    options: ClientOptions, topic: str, partitions: Iterable[int]
) -> dict[int, LogBounds]:
    """Where each partition of the events begins and ends now.

    Raises:
        KafkaError: the broker is away.
    """
    parts = [TopicPartition(topic, number) for number in partitions]
    async with opened_reader(options, committed=False) as consumer:
        starts = await consumer.beginning_offsets(parts)
        ends = await consumer.end_offsets(parts)
    return {part.partition: LogBounds(starts[part], ends[part]) for part in parts}


async def first_offset_from(options: ClientOptions, topic: str, partition: int, start: int) -> int:
    """The offset of the first record at or after `start`; `start` where none comes.

    Raises:
        KafkaError: the broker is away.
    """
    part = TopicPartition(topic, partition)
    async with opened_reader(options, committed=False) as consumer:
        consumer.assign([part])
        consumer.seek(part, start)
        batches = await consumer.getmany(part, timeout_ms=_POLL_MS, max_records=1)
    return next((batch[0].offset for batch in batches.values()), start)


class KafkaTableTopic:
    """See `TableTopic`. `start` takes the partition from whoever had it."""

    def __init__(
        self, options: ClientOptions, topic: str, partition: int, *, transactional_id: str
    ) -> None:
        self._options = options
        self._part = TopicPartition(topic, partition)
        self._transactional_id = transactional_id
        self._producer: AIOKafkaProducer | None = None

    async def start(self) -> None:
        """From here on no other owner's flush is committed.

        Raises:
            KafkaError: the broker is away.
        """
        await self.stop()
        producer = AIOKafkaProducer(
            **self._options,
            transactional_id=self._transactional_id,
            transaction_timeout_ms=TRANSACTION_MS,
            acks="all",
            compression_type="lz4",
            linger_ms=0,
            max_batch_size=_BATCH_BYTES,
            max_request_size=MESSAGE_MAX,
            request_timeout_ms=REQUEST_MS,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def stop(self) -> None:
        """Gives the partition up; a flush under way is undone."""
        if self._producer is not None:
            producer, self._producer = self._producer, None
            with suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(producer.stop(), REQUEST_MS / 1000)

    async def end(self) -> int:
        """See `TableTopic`."""
        async with opened_reader(self._options, committed=True) as consumer:
            return int((await consumer.end_offsets([self._part]))[self._part])

    async def read(self, start: int) -> AsyncIterator[list[TopicRow]]:
        """See `TableTopic`. Raises KafkaError where the broker stays away."""
        async with opened_reader(self._options, committed=True) as consumer:
            consumer.assign([self._part])
            begin = (await consumer.beginning_offsets([self._part]))[self._part]
            end = (await consumer.end_offsets([self._part]))[self._part]
            consumer.seek(self._part, max(start, begin))
            stalled = 0
            while await consumer.position(self._part) < end:
                batches = await consumer.getmany(self._part, timeout_ms=_POLL_MS)
                stalled = 0 if batches else stalled + 1
                if stalled > _STALLED_POLLS_MAX:
                    raise KafkaError(f"no rows come from {self._part.topic}")
                for records in batches.values():
                    yield [
                        TopicRow(record.offset, record.key or b"", record.value)
                        for record in records
                    ]

    async def write(self, written: list[RowWrite]) -> list[int]:
        """See `TableTopic`: one transaction."""
        producer = self._producer
        if producer is None:
            raise TableLostError("the partition was given up")
        topic, partition = self._part
        try:
            await producer.begin_transaction()
            sent = [
                await producer.send(topic, key=row.key, value=row.value, partition=partition)
                for row in written
            ]
            metadata = await asyncio.gather(*sent)
            await producer.commit_transaction()
        except (KafkaError, OSError, TimeoutError) as error:
            raise TableLostError(f"{type(error).__name__}: {error}") from error
        return [one.offset for one in metadata]
