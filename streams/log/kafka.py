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
from aiokafka.errors import CorruptRecordException  # type: ignore[import-untyped]

from brokers.options import ClientOptions
from schemas.identities import Offset
from schemas.limits import KAFKA_MESSAGE_MAX_BYTES
from streams.log.interface import LogEntry
from streams.table.table import LogBounds

logger = logging.getLogger(__name__)

REQUEST_MS: Final = 15_000
"""How long a request may take before the broker counts as away."""

POLL_MS: Final = 1_000
_CAREFUL_RECORDS_MAX: Final = 4_096


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
        max_partition_fetch_bytes=KAFKA_MESSAGE_MAX_BYTES,
        fetch_max_bytes=4 * KAFKA_MESSAGE_MAX_BYTES,
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


async def read_past_corruption(
    options: ClientOptions, topic: str, partition: int, start: int
) -> list[LogEntry]:
    """The records from `start` on, up to and with the first batch that fails its checksum.

    Its records have an empty value: whoever folds them skips, counts and names them as what is no
    record. One after the other, since the client says neither where such a batch begins nor where
    it ends, and drops what it read before it; at most `_CAREFUL_RECORDS_MAX`.

    Raises:
        KafkaError: the broker is away.
    """
    part = TopicPartition(topic, partition)
    entries: list[LogEntry] = []
    corrupt = False
    async with opened_reader(options, committed=True) as consumer:
        consumer.assign([part])
        consumer.seek(part, start)
        end = (await consumer.end_offsets([part]))[part]
        while start < end and len(entries) < _CAREFUL_RECORDS_MAX:
            try:
                batches = await consumer.getmany(part, timeout_ms=POLL_MS, max_records=1)
            except CorruptRecordException:
                corrupt = True
                entries.append(LogEntry(Offset(start), b""))
                start += 1
                consumer.seek(part, start)
                continue
            if corrupt or not batches:
                break
            (record,) = batches[part]
            entries.append(LogEntry(Offset(record.offset), record.value or b""))
            start = record.offset + 1
    return entries
