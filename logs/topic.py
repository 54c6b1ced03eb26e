"""A log in the partitions of a topic, reading only.

Where a partition begins and ends, where the next record is, and how to get past records that are
corrupt.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

from brokers.availability import describe, quiet_client
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Message, Partition
from brokers.errors import AWAY, CorruptRecordException
from brokers.options import ClientOptions
from brokers.reading import (
    first_offset_from,
    log_bounds,
    opened_reader,
    read_batches,
    read_one_by_one,
)
from brokers.topics import count_partitions
from logs.interface import LogEntry
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.positions import LogBounds

OTHER_LOG_RECORDS_MAX: Final = 1024  # looked at to tell whether a log is still the same
CORRUPT_READ_RECORDS_MAX: Final = 4096  # read one by one past a corrupt batch, and held in memory

T = TypeVar("T")


def read_once(
    settings: KafkaSettings,
    work: Coroutine[Any, Any, T],
    *,
    away: tuple[type[Exception], ...] = AWAY,
) -> T:
    """Runs what reads topics, in no group, up to where they end now.

    Args:
        work: reads, and says what it found.
        away: what it raises where Kafka went away.

    Raises:
        StorageError: Kafka went away.
    """
    quiet_client()
    try:
        return asyncio.run(work)
    except away as error:
        raise StorageError(f"Kafka at {settings.bootstrap} went away: {describe(error)}") from error


async def bounds_in(options: ClientOptions, topic: str) -> dict[int, LogBounds]:
    """Where each partition of a topic begins and ends now.

    Raises:
        ConfigurationError: there is no such topic.
        KafkaError: the broker is away.
    """
    return await log_bounds(options, topic, range(await count_partitions(options, topic)))


def entries_of(messages: Iterable[Message]) -> list[LogEntry]:
    """The same as entries; a message without a value has an empty one."""
    return [LogEntry(Offset(message.offset), message.value or b"") for message in messages]


async def next_record_offset(
    options: ClientOptions, topic: str, partition: int, start: int
) -> int | None:
    """The offset of the first record at or after `start`; None where the log has none.

    Raises:
        KafkaError: the broker is away, or does not answer within a bound.
    """
    async with opened_reader(options, committed=False) as reader:
        return await first_offset_from(reader, Partition(topic, partition), start)


async def records_up_to(
    options: ClientOptions, topic: str, partition: int, last: int
) -> list[LogEntry]:
    """The records up to and with an offset, as many as `OTHER_LOG_RECORDS_MAX`; fewer where some
    are damaged.

    Raises:
        KafkaError: the broker is away, or does not answer within a bound.
    """
    part = Partition(topic, partition)
    entries: list[LogEntry] = []
    start = max(last + 1 - OTHER_LOG_RECORDS_MAX, 0)
    async with opened_reader(options, committed=True) as reader:
        try:
            async for messages in read_batches(reader, part, start):
                entries += entries_of(one for one in messages if one.offset <= last)
                if messages[-1].offset >= last:
                    break
        except CorruptRecordException:
            pass  # who folds them finds out
    return entries


async def read_past_corruption(
    options: ClientOptions, topic: str, partition: int, start: int
) -> list[LogEntry]:
    """The records from `start` on, up to and with the first that cannot be read.

    Its records have an empty value: whoever folds them skips, counts and logs them as unreadable.
    At most `CORRUPT_READ_RECORDS_MAX`.

    Raises:
        KafkaError: the broker is away, or does not answer within a bound.
    """
    part = Partition(topic, partition)
    entries: list[LogEntry] = []
    corrupt = False
    async with opened_reader(options, committed=True, every_offset=True) as reader:
        reader.assign([part])
        end = (await reader.end_offsets([part]))[part]
        async for offset, message in read_one_by_one(reader, part, start, end):
            if corrupt and message is not None:
                break
            corrupt = message is None
            value = b"" if message is None else message.value or b""
            entries.append(LogEntry(Offset(offset), value))
            if len(entries) == CORRUPT_READ_RECORDS_MAX:
                break
    return entries
