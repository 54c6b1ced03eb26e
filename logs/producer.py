"""The producer of one writer: started when it is needed, replaced when it has failed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar, cast

from brokers.client_internals import abandon_producer, start_client
from brokers.client_types import Batch, EntryProducer, Producer, SentBatch
from brokers.errors import KafkaError
from schemas.limits import BRIDGE_LEAVE_S

ProducerT = TypeVar("ProducerT", bound=Producer | EntryProducer)


class OneProducer(Generic[ProducerT]):
    """Starts a producer when it is needed. One loop.

    Args:
        make_producer: called again once the last one was taken away.
    """

    def __init__(self, make_producer: Callable[[], ProducerT]) -> None:
        self._make_producer = make_producer
        self._producer: ProducerT | None = None
        self._starting = asyncio.Lock()

    async def started(self) -> ProducerT:
        """The producer.

        Raises:
            KafkaError, OSError: the broker is away.
        """
        async with self._starting:
            if self._producer is None:
                producer = self._make_producer()
                try:
                    await start_client(producer)
                except BaseException:
                    await producer.stop()
                    raise
                self._producer = producer
            return self._producer

    @property
    def is_started(self) -> bool:
        """Whether one is in use."""
        return self._producer is not None

    def taken(self) -> ProducerT | None:
        """The one that is in use, to be stopped by the caller; the next use starts another one."""
        producer, self._producer = self._producer, None
        return producer


class ProducerReplacedError(KafkaError):  # type: ignore[misc]
    """What was under way was dropped; whoever replaced the producer says why."""


class ReplaceableProducer(OneProducer[Producer]):
    """Sends batches by an idempotent producer, waiting while the broker is away. One loop.

    Args:
        make_producer: called again where a producer has failed for good.
        leave_s: for each of two steps in which one is stopped.
    """

    def __init__(
        self, make_producer: Callable[[], Producer], *, leave_s: float = BRIDGE_LEAVE_S
    ) -> None:
        super().__init__(make_producer)
        self._leave_s = leave_s
        self._ended = asyncio.Event()

    async def started(self) -> Producer:
        """See `OneProducer`."""
        producer = await super().started()
        if self._ended.is_set():
            self._ended = asyncio.Event()
        return producer

    async def replace(self, failed: Producer | None = None) -> None:
        """Stops the producer and drops what is under way; the next use starts another one.

        aiokafka's own `stop` waits for what is under way, and once it is cancelled goes on sending
        that for ever: it would be written when another bridge writes in our place.

        Args:
            failed: does nothing where this one has been replaced already; None: whichever there is.
        """
        if self._producer is None or failed not in (None, self._producer):
            return
        producer, self._producer = self._producer, None
        self._ended.set()
        await abandon_producer(producer, self._leave_s)

    async def send(
        self, topic: str, partition: int, messages: Iterable[tuple[bytes, bytes]]
    ) -> int:
        """Writes keys and values, in order; waits for the broker. Returns the first one's offset,
        -1 where the broker only knows that it has it.

        Raises:
            KafkaError, OSError: they may not have been written.
        """
        producer = await self.started()
        batch = producer.create_batch()
        offsets = []
        for key, value in messages:
            if batch.append(key=key, value=value, timestamp=None) is None:
                offsets.append(await self.send_batch(producer, batch, topic, partition))
                batch = producer.create_batch()
                batch.append(key=key, value=value, timestamp=None)
        offsets.append(await self.send_batch(producer, batch, topic, partition))
        return offsets[0]

    async def send_batch(self, producer: Producer, batch: Batch, topic: str, partition: int) -> int:
        """Writes one batch; waits while the broker is away. Returns its first offset; see
        `offset_of` for what it raises.
        """
        return await self.offset_of(await producer.send_batch(batch, topic, partition=partition))

    async def offset_of(
        self,
        sent: "asyncio.Future[SentBatch]",
        *,
        late_s: float | None = None,
        late: Callable[[], Awaitable[None]] | None = None,
    ) -> int:
        """The first offset of a batch that the producer was handed, once it is written.

        Args:
            sent: of the batch.
            late_s: how often `late` is awaited meanwhile, in seconds; None for never.
            late: see there.

        Raises:
            ProducerReplacedError: by `replace`, while this was under way.
            KafkaError, OSError: it may not have been written.
        """
        ended: asyncio.Future[object] = asyncio.ensure_future(self._ended.wait())
        waited = {cast("asyncio.Future[object]", sent), ended}
        try:
            while True:
                done, _ = await asyncio.wait(
                    waited, timeout=late_s, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    break
                if late is not None:
                    await late()
            if not sent.done() or sent.cancelled():
                raise ProducerReplacedError("the producer was closed")
            return sent.result().offset
        finally:
            ended.cancel()
