"""Writes single messages to topics, each answered once its topic has it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from brokers.availability import insist
from brokers.backoff import Backoff
from brokers.client_types import EntryProducer, SentMessage
from brokers.errors import AWAY
from logs.producer import OneProducer
from schemas.limits import CLIENT_LEAVE_S, KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S


class EntryWriter:
    """See the module. One loop.

    Args:
        make_producer: which gives an entry up in time.
    """

    def __init__(self, make_producer: Callable[[], EntryProducer]) -> None:
        self._producer = OneProducer(make_producer)

    async def open(self) -> None:
        """Starts the producer, which the first entry does otherwise.

        Raises:
            KafkaError, OSError: Kafka is away.
        """
        await self._producer.started()

    async def write(self, topic: str, *, key: bytes, value: bytes | None) -> SentMessage:
        """Writes one; says where it is.

        Raises:
            KafkaError, OSError, TimeoutError: it may not have been written.
        """
        producer = await self._producer.started()
        return await producer.send_and_wait(topic, key=key, value=value)

    async def insist(
        self,
        topic: str,
        *,
        key: bytes,
        value: Callable[[], bytes | None],
        again_s: float,
        failed: Callable[[Exception], None],
    ) -> None:
        """Writes an entry until there is none to be written.

        Args:
            value: the entry as it is now; None to end.
            again_s: how long after one was written the next may be.
            failed: told each time that Kafka does not take it; it is tried again after a pause.
        """
        backoff = Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)

        async def write() -> bool:
            entry = value()
            if entry is not None:
                await self.write(topic, key=key, value=entry)
            return entry is not None

        while await insist(write, backoff, failed):  # noqa: ASYNC110 -- a pause, no poll
            await asyncio.sleep(again_s)

    async def close(self) -> None:
        """Writes what is under way and disconnects; within a bound."""
        producer = self._producer.taken()
        if producer is not None:
            with suppress(*AWAY):
                async with asyncio.timeout(CLIENT_LEAVE_S):
                    await producer.stop()
