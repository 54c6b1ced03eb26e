"""One partition of a topic, read forwards a record at a time, and again from its beginning."""

from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Protocol

from brokers.client_types import Consumer, Partition
from brokers.errors import CorruptRecordException, KafkaTimeoutError
from brokers.options import ClientOptions
from brokers.reading import opened_reader
from logs.interface import LogEntry
from logs.topic import entries_of, read_past_corruption
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.limits import READ_POLL_MS, READ_STALLED_POLLS_MAX
from schemas.positions import LogBounds


class PartitionLog(Protocol):
    """A log of which what comes next is read."""

    @property
    def bounds(self) -> LogBounds:
        """Its first offset, and the one after the last that is read."""
        ...

    def seek(self, offset: Offset) -> None:
        """Reads on from there."""
        ...

    def entries(self, last: Offset) -> AsyncIterator[LogEntry]:
        """What comes next, up to and with this offset."""
        ...


class TopicPartitionLog:
    """See `PartitionLog`; what cannot be read has an empty value.

    Args:
        reader: started, in no group, for this partition alone.
    """

    def __init__(
        self, options: ClientOptions, reader: Consumer, partition: Partition, bounds: LogBounds
    ) -> None:
        self.bounds = bounds
        self._options = options
        self._reader = reader
        self._partition = partition
        self._ahead: deque[LogEntry] = deque()
        self._next = bounds.start  # behind what is ahead
        reader.assign([partition])
        self.seek(Offset(bounds.start))

    def seek(self, offset: Offset) -> None:
        """See `PartitionLog`. Forwards within what was fetched it costs nothing."""
        first = self._ahead[0].offset if self._ahead else self._next
        if not first <= offset <= self._next:
            self._ahead.clear()
            self._next = offset
            self._reader.seek(self._partition, offset)
        while self._ahead and self._ahead[0].offset < offset:
            self._ahead.popleft()

    async def entries(self, last: Offset) -> AsyncIterator[LogEntry]:
        """See `PartitionLog`.

        Raises:
            StorageError: retention dropped meanwhile what is read.
            KafkaError: Kafka went away.
        """
        stalled = 0
        while True:
            while self._ahead and self._ahead[0].offset <= last:
                yield self._ahead.popleft()
            if self._ahead or self._next > last:
                return
            before = self._next
            await self._fetch()
            stalled = 0 if self._next > before else stalled + 1
            if stalled >= READ_STALLED_POLLS_MAX:
                topic, number = self._partition
                raise KafkaTimeoutError(f"No message of {topic}:{number}, though it has more")

    async def _fetch(self) -> None:
        try:
            found = await self._reader.getmany(self._partition, timeout_ms=READ_POLL_MS)
        except CorruptRecordException:
            topic, number = self._partition
            first = (await self._reader.beginning_offsets([self._partition]))[self._partition]
            if first > self._next:
                raise self._trimmed(first) from None
            entries = await read_past_corruption(self._options, topic, number, self._next)
            self._ahead += entries
            self._next = entries[-1].offset + 1 if entries else self._next
            self._reader.seek(self._partition, self._next)
            return
        for messages in found.values():
            for message in messages:
                if message.offset != self._next:
                    raise self._trimmed(message.offset)
                self._next += 1
            self._ahead += entries_of(messages)

    def _trimmed(self, first: int) -> StorageError:
        topic, number = self._partition
        return StorageError(
            f"Expected {topic}:{number} to have what it had when this began, from {self._next} on,"
            f" but retention dropped what was before {first}. Do it again"
        )


async def opened_partitions(
    opened: AsyncExitStack, options: ClientOptions, topic: str, bounds: Mapping[int, LogBounds]
) -> list[TopicPartitionLog]:
    """Its partitions, each with a reader of its own: one that is ahead holds up no other."""
    return [
        TopicPartitionLog(
            options,
            await opened.enter_async_context(
                opened_reader(options, committed=True, every_offset=True)
            ),
            Partition(topic, partition),
            bounds[partition],
        )
        for partition in sorted(bounds)
    ]
