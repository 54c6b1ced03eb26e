"""Writes single messages to topics, each answered once its topic has it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from brokers.errors import AWAY
from brokers.interface import EntryProducer, SentMessage
from logs.producer import OneProducer
from schemas.limits import CLIENT_LEAVE_S


class EntryWriter:
    """See the module. One loop; whoever asks for an entry tries again by itself.

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

    async def close(self) -> None:
        """Writes what is under way and disconnects; within a bound."""
        producer = self._producer.taken()
        if producer is not None:
            with suppress(*AWAY):
                async with asyncio.timeout(CLIENT_LEAVE_S):
                    await producer.stop()
