"""Reads partitions to their end, past messages that cannot be read, and stops consumers.

The readers are in no group: see `Clients.reader`. How long an answer may take is bounded; past the
bound a `KafkaError` is raised, as where the broker is away.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from brokers.client_internals import close_connections, probing, start_client
from brokers.client_types import Consumer, Message, Partition
from brokers.clients import Clients
from brokers.errors import CorruptRecordException, DamagedPartitionError, KafkaTimeoutError
from brokers.options import ClientOptions
from schemas.limits import CLIENT_LEAVE_S, READ_POLL_MS, READ_STALLED_POLLS_MAX
from schemas.positions import LogBounds

# Waits of the clients. Past any of them the broker counts as away: the condition `kafka`.
FETCH_LOST_S: Final = 30.0  # that nothing behind an offset can be read; a fault may mend by then

logger = logging.getLogger(__name__)


# Consumers


@asynccontextmanager
async def opened_reader(
    options: ClientOptions, *, committed: bool, every_offset: bool = False
) -> AsyncIterator[Consumer]:
    """A consumer in no group, started; see `Clients.reader`."""
    reader = Clients(options).reader(committed=committed, every_offset=every_offset)
    async with started_consumer(reader):
        yield reader


@asynccontextmanager
async def started_consumer(consumer: Consumer) -> AsyncIterator[Consumer]:
    """The consumer, started; it is stopped in the end."""
    try:
        await start_client(consumer)
        yield consumer
    finally:
        await stop_consumer(consumer)


async def stop_consumer(consumer: Consumer, *, timeout_s: float | None = None) -> bool:
    """Stops a consumer.

    Args:
        timeout_s: give up after it, and close its connections within CLIENT_LEAVE_S more; None to
            wait for as long as it takes.

    Returns:
        Whether it left its group in order.
    """
    # As a task: its fetcher may end the call with the cancellation of a fetch of its own.
    stopping = asyncio.ensure_future(consumer.stop())
    done, _ = await asyncio.wait((stopping,), timeout=timeout_s)
    if not done:
        stopping.cancel()
    elif not stopping.cancelled():
        failure = stopping.exception()
        if failure is None:
            return True
        logger.debug("A consumer failed while it was stopped: %r", failure)
    await close_connections(consumer, CLIENT_LEAVE_S)
    return False


# Offsets


async def log_bounds(
    options: ClientOptions, topic: str, partitions: Iterable[int]
) -> dict[int, LogBounds]:
    """Where each partition begins and ends now.

    Raises:
        KafkaError: the broker is away.
    """
    parts = [Partition(topic, number) for number in partitions]
    async with opened_reader(options, committed=False) as reader:
        starts = await reader.beginning_offsets(parts)
        ends = await reader.end_offsets(parts)
    return {part.partition: LogBounds(starts[part], ends[part]) for part in parts}


async def first_offset_from(reader: Consumer, partition: Partition, start: int) -> int | None:
    """The offset of the first message at or after `start`; None where the partition has none.

    That nothing came yet is no answer: it is asked for again, until a message comes or the reader
    stands at the end.

    Args:
        reader: started, in no group.
        start: an offset; where nothing is kept that old, the first message that is kept counts.

    Raises:
        KafkaTimeoutError: no answer came within `READ_STALLED_POLLS_MAX` polls.
        KafkaError: the broker is away.
    """
    reader.assign([partition])
    reader.seek(partition, start)
    end = (await reader.end_offsets([partition]))[partition]
    for _ in range(READ_STALLED_POLLS_MAX):
        for messages in (await _poll(reader, partition, single=True)).values():
            return messages[0].offset
        if await reader.position(partition) >= end:
            return None
    raise _stalled(partition)


# Messages


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
        starts: by partition, the offset to begin at, None for the end; where nothing is kept that
            old, and where it is beyond the end (another topic of that name), everything is read.
        corrupt: called with the partition and the offset of each message that cannot be read, which
            is then skipped.

    Returns:
        The ends.

    Raises:
        KafkaError: the broker went away, or a checksum fails that may not.
    """
    parts = [Partition(topic, number) for number in starts]
    reader.assign(parts)
    begins, ends = await reader.beginning_offsets(parts), await reader.end_offsets(parts)
    remaining = _first_offsets(starts, begins, ends)  # by partition, what to read next
    for part, offset in remaining.items():
        reader.seek(part, offset)
    while remaining:
        try:
            batches = await reader.getmany(*remaining, timeout_ms=READ_POLL_MS)
        except CorruptRecordException:
            if corrupt is None:
                raise
            for part, start in remaining.items():
                reader.assign([part])  # alone, so that nothing takes its turn
                async for offset, message in read_one_by_one(reader, part, start, ends[part]):
                    if message is None:
                        corrupt(part.partition, offset)
                    else:
                        take(message)
            break
        for part, messages in batches.items():
            for message in messages:
                take(message)
                remaining[part] = message.offset + 1
        for part in list(remaining):
            if await reader.position(part) >= ends[part]:
                del remaining[part]
    return {part.partition: ends[part] for part in parts}


def _first_offsets(
    starts: Mapping[int, int | None], begins: Mapping[Partition, int], ends: Mapping[Partition, int]
) -> dict[Partition, int]:
    """The first offset to read, of the partitions that have anything to read."""
    found: dict[Partition, int] = {}
    for part, end in ends.items():
        begin, start = begins[part], starts[part.partition]
        if start is not None and start != end and begin != end:
            found[part] = start if begin <= start < end else begin
    return found


async def read_one_by_one(
    reader: Consumer, partition: Partition, start: int, end: int
) -> AsyncIterator[tuple[int, Message | None]]:
    """Each offset with its message from `start` to the end; None where it cannot be read.

    Raises:
        KafkaTimeoutError: nothing came within `READ_STALLED_POLLS_MAX` polls.
        KafkaError: the broker is away.
    """
    reader.seek(partition, start)
    stalled = 0
    while (offset := await reader.position(partition)) < end:
        try:
            batches = await _poll(reader, partition, single=True)
        except CorruptRecordException as error:
            with probing(reader):
                readable = await _readable_from(reader, partition, offset, end, error)
            for unreadable in range(offset, readable):
                yield unreadable, None
            reader.seek(partition, readable)
            stalled = 0
            continue
        for messages in batches.values():
            for message in messages:
                yield message.offset, message
        stalled = 0 if batches or await reader.position(partition) > offset else stalled + 1
        if stalled >= READ_STALLED_POLLS_MAX:
            raise _stalled(partition)


async def _readable_from(
    reader: Consumer,
    partition: Partition,
    unreadable: int,
    end: int,
    error: CorruptRecordException,
) -> int:
    """The first offset that can be read, of one that could not be and those behind it; the end
    where there is none.

    A broker that cannot read for a moment looks the same as damage. So what was not shown by the
    bytes themselves is tried once more in the end; and that nothing can be read up to the end is
    believed only after FETCH_LOST_S.
    """
    said = _said(error)
    if said is not None:
        return min(said, end)
    loop = asyncio.get_running_loop()
    until = loop.time() + FETCH_LOST_S
    while True:
        found = await _search(reader, partition, unreadable, end)
        if not _is_proven(error):
            again = await _try(reader, partition, unreadable)
            if again.readable == unreadable:
                return unreadable
        if found.readable is not None:
            return found.readable
        if (found.is_proven and _is_proven(error)) or loop.time() >= until:
            return end
        await asyncio.sleep(READ_POLL_MS / 1000)


class _FoundPartition(NamedTuple):
    """Of a partition.

    Attributes:
        readable: from this offset on it can be read; None where that is not known.
        is_proven: see `DamagedPartitionError`.
    """

    readable: int | None
    is_proven: bool = True


async def _search(
    reader: Consumer, partition: Partition, unreadable: int, end: int
) -> _FoundPartition:
    """The first offset behind one that cannot be read.

    Where a batch does not say how long it is, the broker finds none of those behind it, up to the
    next that its index has. So it is asked for one further and further away, then between.
    """
    found = _FoundPartition(None)
    is_proven = True
    step = 1
    while found.readable is None and unreadable + step < end:
        found = await _try(reader, partition, unreadable + step)
        is_proven = is_proven and found.is_proven
        if found.readable is None:
            unreadable += step
            step *= 2
    readable = end if found.readable is None else min(found.readable, end)
    while readable - unreadable > 1:
        between = (unreadable + readable) // 2
        found = await _try(reader, partition, between)
        is_proven = is_proven and found.is_proven
        if found.readable == between:
            readable = between
        else:
            unreadable = between
    return _FoundPartition(readable if readable < end else None, is_proven)


async def _try(reader: Consumer, partition: Partition, offset: int) -> _FoundPartition:
    """From where on the partition can be read, of this offset and those behind it."""
    reader.seek(partition, offset)
    for _ in range(READ_STALLED_POLLS_MAX):
        try:
            found = await _poll(reader, partition, single=True)
        except CorruptRecordException as error:
            return _FoundPartition(_said(error), _is_proven(error))
        if found or await reader.position(partition) > offset:
            return _FoundPartition(offset)
    raise _stalled(partition)


def _said(error: CorruptRecordException) -> int | None:
    return error.readable_from if isinstance(error, DamagedPartitionError) else None


def _is_proven(error: CorruptRecordException) -> bool:
    return not isinstance(error, DamagedPartitionError) or error.is_proven


async def read_batches(
    reader: Consumer, partition: Partition, start: int
) -> AsyncIterator[list[Message]]:
    """The messages from `start`, or from the first that is kept, up to where it ends now.

    Raises:
        KafkaTimeoutError: nothing came within `READ_STALLED_POLLS_MAX` polls.
        KafkaError: the broker is away, or a checksum fails.
    """
    reader.assign([partition])
    begin = (await reader.beginning_offsets([partition]))[partition]
    end = (await reader.end_offsets([partition]))[partition]
    reader.seek(partition, max(start, begin))
    stalled = 0
    while await reader.position(partition) < end:
        batches = await _poll(reader, partition)
        stalled = 0 if batches else stalled + 1
        if stalled >= READ_STALLED_POLLS_MAX:
            raise _stalled(partition)
        for messages in batches.values():
            yield list(messages)


async def _poll(
    reader: Consumer, partition: Partition, *, single: bool = False
) -> dict[Partition, list[Message]]:
    found = await reader.getmany(
        partition, timeout_ms=READ_POLL_MS, max_records=1 if single else None
    )
    return {part: list(messages) for part, messages in found.items() if messages}


def _stalled(partition: Partition) -> KafkaTimeoutError:
    waited_s = READ_STALLED_POLLS_MAX * READ_POLL_MS // 1000
    return KafkaTimeoutError(
        f"No message of {partition.topic}:{partition.partition} in {waited_s:d} s, though it has"
        " more"
    )
