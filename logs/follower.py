"""Reads partitions until it is cancelled, whatever becomes of Kafka; in no group.

aiokafka reconnects by itself, so a short outage ends nothing here. A consumer that fails or stands
still is stopped; after a pause the next one begins where its user has it begin.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from brokers.client_internals import start_client
from brokers.client_types import Consumer, Message, Partition
from brokers.errors import (
    AWAY,
    CorruptRecordException,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from brokers.reading import stop_consumer
from brokers.tasks import first_of
from logs.attempts import Attempts, LogLostError

_GONE = (OffsetOutOfRangeError, NoOffsetForPartitionError)
Messages = Mapping[Partition, Sequence[Message]]
"""What one poll gave: by partition, in order."""


class Follower(Attempts):
    """See the module. One loop; a user is a subclass, which resets `backoff` once it reads.

    Args:
        poll_ms: how long a poll waits for messages.
        records_max: how many it gives at most; None for as many as there are.
        look_s: how often `look` is called, in seconds; None for never.
        retry_first_s, retry_max_s: see `Attempts`.
        leave_s: how long a consumer may take to stop, in seconds; None for as long as it takes.
    """

    away_when = AWAY

    def __init__(
        self,
        *,
        poll_ms: int,
        retry_first_s: float,
        retry_max_s: float,
        records_max: int | None = None,
        look_s: float | None = None,
        leave_s: float | None = None,
    ) -> None:
        super().__init__(retry_first_s=retry_first_s, retry_max_s=retry_max_s)
        self._poll_ms = poll_ms
        self._records_max = records_max
        self._look_s = look_s
        self._leave_s = leave_s

    # Of the user: reading

    async def prepare(self) -> None:
        """What must be so before each attempt, as that the topics are there."""

    @abstractmethod
    def make_consumer(self) -> Consumer:
        """A consumer in no group that is not started."""

    @abstractmethod
    async def begin(self, consumer: Consumer) -> None:
        """Assigns the partitions to a consumer that is started, and seeks each."""

    @abstractmethod
    async def take(self, messages: Messages) -> None:
        """What came; not empty."""

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """Called after each poll."""

    async def look(self, consumer: Consumer) -> None:
        """Called every `look_s` beside the reading; what it raises ends the attempt."""

    def unanswered(self) -> None:
        """The consumer could not be stopped in order within `leave_s`."""

    async def left(self) -> None:
        """An attempt has ended; its consumer, if it had one, is stopped."""

    # Of the user: what goes wrong

    async def damaged(self, consumer: Consumer, error: CorruptRecordException) -> None:
        """Reads on where the log is damaged. Here: not, as if Kafka were away."""
        raise error

    # Reading

    async def attempt(self) -> None:
        """See `Attempts`."""
        try:
            await self.prepare()
            consumer = self.make_consumer()
            try:
                await start_client(consumer)
                await self.begin(consumer)
                await first_of(self._read(consumer), self._look(consumer))
            finally:
                if not await stop_consumer(consumer, timeout_s=self._leave_s):
                    self.unanswered()
        except _GONE as error:
            raise LogLostError(f"Kafka no longer has the offsets: {error}") from error
        finally:
            await self.left()

    async def _read(self, consumer: Consumer) -> None:
        while True:
            await self.turn(consumer)

    async def turn(self, consumer: Consumer) -> None:
        """One poll, and what it gives."""
        messages: Messages = {}
        try:
            messages = await consumer.getmany(
                timeout_ms=self._poll_ms, max_records=self._records_max
            )
        except CorruptRecordException as error:
            await self.damaged(consumer, error)
        else:
            if messages:
                await self.take(messages)
        await self.turned(consumer, has_read=bool(messages))

    async def _look(self, consumer: Consumer) -> None:
        while True:
            if self._look_s is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(self._look_s)
                await self.look(consumer)
