"""Reads small topics whole, from a moment on, and goes on where it was after an outage. One loop.

For topics of which every process reads everything, and of which nothing is committed.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence

from brokers.errors import DamagedError
from brokers.interface import Consumer, Message, Partition
from brokers.options import ClientOptions
from brokers.reading import opened_reader
from brokers.topics import count_partitions

logger = logging.getLogger(__name__)


class Following:
    """See the module.

    Args:
        options: of the clients.
        topics: to read.
        since: when the first message may have been written that is read, Unix seconds.
        poll_ms: how long a poll waits for messages.
        take: called with each message, and its topic; in order for each partition.

    Attributes:
        caught_up: set while all that was there at the start of reading has been taken.
        damaged: places at which messages cannot be read, and were passed over.
    """

    def __init__(
        self,
        options: ClientOptions,
        topics: Sequence[str],
        *,
        since: float,
        poll_ms: int,
        take: Callable[[str, Message], None],
    ) -> None:
        self.caught_up = asyncio.Event()
        self.damaged = 0
        self._options = options
        self._topics = topics
        self._since = since
        self._poll_ms = poll_ms
        self._take = take
        self._next: dict[Partition, int] = {}

    async def run(self) -> None:
        """Reads until it is cancelled.

        Raises:
            ConfigurationError: there is no such topic.
            KafkaError, OSError, TimeoutError: the brokers are away. Call it again.
        """
        partitions = [
            Partition(topic, number)
            for topic in self._topics
            for number in range(await count_partitions(self._options, topic))
        ]
        try:
            async with opened_reader(self._options, committed=False) as reader:
                reader.assign(partitions)
                ends = await self._seek(reader, partitions)
                while True:
                    await self._read_some(reader)
                    if not self.caught_up.is_set() and await _is_at(reader, ends):
                        self.caught_up.set()
        finally:
            self.caught_up.clear()

    async def _seek(
        self, reader: Consumer, partitions: Sequence[Partition]
    ) -> Mapping[Partition, int]:
        ends = await reader.end_offsets(partitions)
        begins = await reader.beginning_offsets(partitions)
        first = dict(ends)
        since_ms = math.floor(1000 * self._since)
        found = await reader.offsets_for_times(dict.fromkeys(partitions, since_ms))
        for partition, place in found.items():
            if place is not None:
                first[partition] = place.offset
        for partition in partitions:
            start = self._next.get(partition, first[partition])
            if not begins[partition] <= start <= ends[partition]:  # it is gone, or another topic
                start = begins[partition]
            self._next[partition] = start
            reader.seek(partition, start)
        return ends

    async def _read_some(self, reader: Consumer) -> None:
        try:
            found = await reader.getmany(timeout_ms=self._poll_ms)
        except DamagedError as error:
            self.damaged += 1
            logger.warning("Part of a topic is damaged: %s. Reading on behind it", error)
            after = error.readable_from or error.offset + 1
            self._next[error.partition] = after
            reader.seek(error.partition, after)
            return
        for partition, messages in found.items():
            for message in messages:
                self._next[partition] = message.offset + 1
                self._take(partition.topic, message)


async def _is_at(reader: Consumer, ends: Mapping[Partition, int]) -> bool:
    for partition, end in ends.items():
        if await reader.position(partition) < end:
            return False
    return True
