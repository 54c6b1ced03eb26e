"""Writes one partition of a topic, a batch at a time, whatever becomes of Kafka.

One batch is under way at a time, by an idempotent producer with acks=all, which writes it again
while the broker is away.
"""

import asyncio
from abc import abstractmethod

from brokers.client_types import Batch, Producer, SentBatch
from brokers.errors import AWAY
from logs.attempts import Attempts
from logs.producer import ReplaceableProducer


class BatchWriter(Attempts):
    """See the module. One loop; a user is a subclass.

    Args:
        producer: of this writer, or of several.
        retry_first_s, retry_max_s: see `Attempts`.
        late_s: how often `late` is called while a batch is under way, in seconds; None for never.
    """

    away_when = AWAY

    def __init__(
        self,
        producer: ReplaceableProducer,
        topic: str,
        partition: int,
        *,
        retry_first_s: float,
        retry_max_s: float,
        late_s: float | None = None,
    ) -> None:
        super().__init__(retry_first_s=retry_first_s, retry_max_s=retry_max_s)
        self.producer = producer
        self.partition = partition
        self._topic = topic
        self._late_s = late_s
        self._used: Producer | None = None  # of the attempt
        self._sent: asyncio.Future[SentBatch] | None = None  # under way

    # Of the user: writing

    async def prepare(self) -> None:
        """What must be so before each batch, as that the topic is there."""

    @abstractmethod
    def fill(self, batch: Batch) -> bool:
        """Adds what is to be written next; False where there is nothing."""

    @abstractmethod
    async def wait(self) -> None:
        """Returns once there may be something to write."""

    async def send(self, producer: Producer, batch: Batch) -> int:
        """Writes what was filled in; its first offset."""
        self._sent = await producer.send_batch(batch, self._topic, partition=self.partition)
        return await self._offset_of(self._sent)

    @abstractmethod
    def written(self, offset: int) -> None:
        """What was filled in last is in the log, from that offset on."""

    # Of the user: what goes wrong

    async def late(self) -> None:
        """A batch has been under way for `late_s`, or for as long again."""

    def given_up(self) -> None:
        """What was filled in last is not under way any more; Kafka may have taken it."""

    # Writing

    async def attempt(self) -> None:
        """See `Attempts`."""
        if not await self.write_batch():
            await self.wait()
        self.backoff.reset()

    async def pause(self) -> None:
        """See `Attempts`."""
        await self.give_up()
        await super().pause()

    async def write_batch(self) -> bool:
        """Writes a batch, or waits for the one that is under way; False where there is nothing.

        Raises:
            ConfigurationError, KafkaError, OSError, TimeoutError: it may not have been written.
            StorageError: a disk of the user failed.
        """
        if self._sent is not None:
            offset = await self._offset_of(self._sent)
        else:
            self._used = None
            await self.prepare()
            producer = await self.producer.started()
            batch = producer.create_batch()
            if not self.fill(batch):
                return False
            self._used = producer
            offset = await self.send(producer, batch)
        self._sent = None
        self.written(offset)
        return True

    async def _offset_of(self, sent: "asyncio.Future[SentBatch]") -> int:
        return await self.producer.offset_of(sent, late_s=self._late_s, late=self.late)

    async def give_up(self) -> None:
        """Gives up what is under way, and the producer that was used for it."""
        self._sent = None
        used, self._used = self._used, None
        self.given_up()
        if used is not None:
            await self.producer.replace(used)
