"""What a worker asks of its topics: readers without a group, and the bounds of the events."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import (  # type: ignore[import-untyped]
    AIOKafkaConsumer,
    TopicPartition,
)

from schemas.kafka import MESSAGE_MAX
from schemas.kafka_clients import ClientOptions
from streams.table.partition import LogBounds

logger = logging.getLogger(__name__)

REQUEST_MS: Final = 15_000
"""How long a request may take before the broker counts as away."""

POLL_MS: Final = 1_000


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
        batches = await consumer.getmany(part, timeout_ms=POLL_MS, max_records=1)
    return next((batch[0].offset for batch in batches.values()), start)
