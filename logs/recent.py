"""Reads small topics whole, or from a moment on, and goes on where it was after an outage. One
loop.

For topics of which every process reads everything, and of which nothing is committed.
"""

import asyncio
import logging
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from brokers.client_types import Consumer, Message, Partition
from brokers.clients import Clients
from brokers.errors import CorruptRecordException, DamagedPartitionError
from brokers.options import ClientOptions
from brokers.topics import count_partitions
from logs.follower import Follower, Messages
from schemas.limits import KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S

logger = logging.getLogger(__name__)


class RecentFollower(Follower):
    """See the module.

    Args:
        since: when the first message may have been written that is read, Unix seconds; None for all
            that is there.
        poll_ms, records_max: see `Follower`.
        committed: see `Clients.reader`.
        retry_first_s, retry_max_s: see `Follower`.

    Attributes:
        caught_up: set while all that was there at the start of reading has been taken.
        ends: where they ended when they were asked last.
        damaged_places: at which messages cannot be read, and were passed over.
    """

    spoken: ClassVar[str] = "a topic"
    """What is read, of people."""

    def __init__(
        self,
        options: ClientOptions,
        topics: Sequence[str],
        *,
        since: float | None,
        poll_ms: int,
        records_max: int | None = None,
        committed: bool = False,
        retry_first_s: float | None = None,
        retry_max_s: float | None = None,
    ) -> None:
        super().__init__(
            poll_ms=poll_ms,
            records_max=records_max,
            retry_first_s=retry_first_s or KAFKA_RETRY_FIRST_S,
            retry_max_s=retry_max_s or KAFKA_RETRY_MAX_S,
        )
        self.caught_up = asyncio.Event()
        self.damaged_places = 0
        self._options = options
        self._topics = topics
        self._since = since
        self._committed = committed
        self.partitions: list[Partition] = []
        self.ends: Mapping[Partition, int] = {}
        self._next: dict[Partition, int] = {}

    @abstractmethod
    def take_message(self, topic: str, message: Message) -> None:
        """Called with each message; in order for each partition."""

    # Follower

    async def prepare(self) -> None:
        """See `Follower`.

        Raises:
            ConfigurationError: there is no such topic.
        """
        self.partitions = [
            Partition(topic, number)
            for topic in self._topics
            for number in range(await count_partitions(self._options, topic))
        ]

    def make_consumer(self) -> Consumer:
        """See `Follower`."""
        return Clients(self._options).reader(committed=self._committed)

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`: where it was, or what is young enough."""
        consumer.assign(self.partitions)
        self.ends = await consumer.end_offsets(self.partitions)
        begins = await consumer.beginning_offsets(self.partitions)
        first = dict(begins if self._since is None else self.ends)
        if self._since is not None:
            since_ms = math.floor(1000 * self._since)
            found = await consumer.offsets_for_times(dict.fromkeys(self.partitions, since_ms))
            for partition, place in found.items():
                if place is not None:
                    first[partition] = place.offset
        for partition in self.partitions:
            start = self._next.get(partition, first[partition])
            if not begins[partition] <= start <= self.ends[partition]:
                start = begins[partition]  # it is gone, or of another topic
            self._next[partition] = start
            consumer.seek(partition, start)

    async def take(self, messages: Messages) -> None:
        """See `Follower`."""
        for partition, some in messages.items():
            for message in some:
                self._next[partition] = message.offset + 1
                self.take_message(partition.topic, message)

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """See `Follower`."""
        if not self.caught_up.is_set() and await self._is_at_ends(consumer):
            self.backoff.reset()
            self.caught_up.set()

    async def _is_at_ends(self, consumer: Consumer) -> bool:
        for partition, end in self.ends.items():
            if await consumer.position(partition) < end:
                return False
        return True

    async def damaged(self, consumer: Consumer, error: CorruptRecordException) -> None:
        """See `Follower`: reads on behind it."""
        if not isinstance(error, DamagedPartitionError):
            raise error
        self.damaged_places += 1
        logger.warning("Part of %s is damaged: %s. Reading on behind it", self.spoken, error)
        after = error.readable_from or error.offset + 1
        self._next[error.partition] = after
        consumer.seek(error.partition, after)

    async def left(self) -> None:
        """See `Follower`."""
        self.caught_up.clear()
