"""Reads partitions until it is cancelled, whatever becomes of Kafka; in no group.

aiokafka reconnects by itself, so a short outage ends nothing here. A consumer that fails or stands
still is stopped; after a pause the next one begins where its user has it begin.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from brokers.backoff import Backoff
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
from schemas.errors import ConfigurationError, StorageError

_GONE = (OffsetOutOfRangeError, NoOffsetForPartitionError)
Messages = Mapping[Partition, Sequence[Message]]
"""What one poll gave: by partition, in order."""


class LogLostError(Exception):
    """The log does not have what follows on what was read, or is another one."""


class StalledError(Exception):
    """The consumer gives nothing although there is more, or Kafka answers nothing."""


class Follower(ABC):
    """See the module. One loop; a user is a subclass, which resets `backoff` once it reads.

    Args:
        poll_ms: how long a poll waits for messages.
        records_max: how many it gives at most; None for as many as there are.
        look_s: how often `look` is called, in seconds; None for never.
        retry_first_s, retry_max_s: the pauses between attempts, see `Backoff`.
        leave_s: how long a consumer may take to stop, in seconds; None for as long as it takes.
    """

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
        self.backoff = Backoff(retry_first_s, retry_max_s)
        self._poll_ms = poll_ms
        self._records_max = records_max
        self._look_s = look_s
        self._leave_s = leave_s

    # Of the user: reading

    async def prepare(self) -> None:  # noqa: B027 -- some have nothing to prepare
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

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:  # noqa: B027
        """Called after each poll."""

    async def look(self, consumer: Consumer) -> None:  # noqa: B027
        """Called every `look_s` beside the reading; what it raises ends the attempt."""

    def unanswered(self) -> None:  # noqa: B027
        """The consumer could not be stopped in order within `leave_s`."""

    async def left(self) -> None:  # noqa: B027
        """An attempt has ended; its consumer, if it had one, is stopped."""

    # Of the user: what goes wrong

    async def damaged(self, consumer: Consumer, error: CorruptRecordException) -> None:
        """Reads on where the log is damaged. Here: not, as if Kafka were away."""
        raise error

    def lost(self, error: LogLostError) -> bool:
        """Says so, and from where it is read next; returns whether that is at once. Here: as any
        error that nothing expects.
        """
        self.failed(error)
        return False

    @abstractmethod
    def refused(self, error: ConfigurationError) -> bool | None:
        """The topics or Kafka cannot be used as they are; returns True to end `run`."""

    @abstractmethod
    def away(self, error: Exception) -> None:
        """Kafka is away, or stands still."""

    def disk_failed(self, error: StorageError) -> None:
        """A disk of the user failed. Here: as any error that nothing expects."""
        self.failed(error)

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Logs and counts an error of this program; called while it is handled."""

    # The one loop

    async def run(self) -> None:
        """Reads until it is cancelled, or refused for good."""
        while True:
            is_at_once = False
            try:
                await self._attempt()
            except LogLostError as error:
                is_at_once = self.lost(error)
            except ConfigurationError as error:
                if self.refused(error):
                    return
            except (*AWAY, StalledError) as error:
                self.away(error)
            except StorageError as error:
                self.disk_failed(error)
            except Exception as error:  # noqa: BLE001 -- its user logs it
                self.failed(error)
            if not is_at_once:
                await self.pause()

    async def pause(self) -> None:
        """Waits between two attempts."""
        await self.backoff.wait()

    async def _attempt(self) -> None:
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
