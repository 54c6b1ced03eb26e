"""Checkpoints of the routing fold, in the topic PREFIX.routing-state.

Each is one transaction, so its chunks are there all or none. The producer is given a new epoch when
the partition is taken, before the last checkpoint is read: whoever had the partition before can
write none any more, and what he wrote last is what is read. So checkpoints never go back, whatever
two workers believe.
"""

import asyncio
from contextlib import suppress

from brokers.client_internals import start_client, stop_producer
from brokers.client_types import EpochProducer
from brokers.clients import Clients
from brokers.errors import AWAY
from brokers.options import ClientOptions
from routing.bounds import ROUTING_CHUNKS_MAX
from routing.fold.chunks import chunks_of
from routing.log.recovery import RecoveredFold, recover_fold
from routing.log.topics import ROUTING_PARTITION, RoutingTopics
from schemas.errors import StorageError


class RoutingStateTopic:
    """See the module. One owner; calls may not overlap."""

    def __init__(self, options: ClientOptions, topics: RoutingTopics) -> None:
        self._options = options
        self._topics = topics
        self._producer: EpochProducer | None = None

    async def take(self) -> RecoveredFold:
        """Takes the partition from whoever has it, and reads what there is.

        Raises:
            KafkaError: the broker is away.
            NewerVersionError: a newer Reprise wrote the last checkpoint: the next one of this would
                take its place.
        """
        await self.stop()
        producer = Clients(self._options).epoch_producer(self._topics.state.name)
        try:
            await start_client(producer)
        except BaseException:
            await stop_producer(producer)
            raise
        self._producer = producer
        recovered = await recover_fold(self._options, self._topics)
        if recovered.newer is not None:
            raise recovered.newer
        return recovered

    async def write(self, offset: int, state: bytes) -> None:
        """Returns once the checkpoint counts.

        Args:
            offset: of the last record that it has.
            state: as the fold has dumped it.

        Raises:
            KafkaError: the broker is away, or another worker has taken the partition.
            StorageError: it is larger than a checkpoint may be, or the partition was given up.
        """
        producer, chunks = self._producer, chunks_of(offset, state)
        if producer is None:
            raise StorageError("the partition of the routing log was given up")
        if len(chunks) > ROUTING_CHUNKS_MAX:
            raise StorageError(f"a checkpoint of routing takes {len(chunks)} messages: too many")
        await producer.begin_transaction()
        try:
            sent = [
                await producer.send(
                    self._topics.state.name, key=key, value=value, partition=ROUTING_PARTITION
                )
                for key, value in chunks
            ]
            await asyncio.gather(*sent)
        except BaseException:
            with suppress(*AWAY):
                await producer.abort_transaction()
            raise
        await producer.commit_transaction()

    async def stop(self) -> None:
        """Gives the partition up; a checkpoint under way counts or does not."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await stop_producer(producer)
