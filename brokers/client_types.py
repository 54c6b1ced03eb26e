"""What the roles use of Kafka's clients, as types: aiokafka's own stop at this package.

`KafkaError` and those below it are what the clients raise; see `brokers.errors`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:

    class Partition(NamedTuple):
        """One partition of a topic."""

        topic: str
        partition: int
else:
    # The client takes nothing else for one.
    from aiokafka import TopicPartition as Partition

__all__ = [
    "Batch",
    "Consumer",
    "EntryProducer",
    "Epoch",
    "EpochProducer",
    "Message",
    "OffsetAtTime",
    "Partition",
    "Producer",
    "RebalanceListener",
    "SentBatch",
    "SentMessage",
]


class Message(Protocol):
    """One message as a consumer gives it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class SentBatch(Protocol):
    """Where a batch was written."""

    @property
    def offset(self) -> int:
        """Of its first message; -1 where the broker only knows that it has it."""
        ...


class SentMessage(Protocol):
    """Where a message was written."""

    @property
    def partition(self) -> int:
        """Of its topic."""
        ...

    @property
    def offset(self) -> int:
        """Its place there."""
        ...


class OffsetAtTime(Protocol):
    """A message that a time led to."""

    @property
    def offset(self) -> int:
        """Its place."""
        ...


class Batch(Protocol):
    """Messages for one partition, written together."""

    def append(
        self,
        *,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> object | None:
        """Adds a message; None where it does not fit. The first one always does."""
        ...


class Producer(Protocol):
    """An idempotent producer of batches."""

    async def start(self) -> None:
        """Connects; raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Writes what is under way, for as long as that takes, and disconnects."""
        ...

    def create_batch(self) -> Batch:
        """An empty batch."""
        ...

    async def send_batch(
        self, batch: Batch, topic: str, *, partition: int
    ) -> "asyncio.Future[SentBatch]":
        """Hands the batch on. The future waits for as long as the broker is away."""
        ...


class EntryProducer(Protocol):
    """A producer of single messages that gives one up after its request's time."""

    async def start(self) -> None:
        """Connects; raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Writes what is under way, and disconnects."""
        ...

    async def send_and_wait(self, topic: str, *, key: bytes, value: bytes | None) -> "SentMessage":
        """Returns once the log has it; raises KafkaError where it was given up."""
        ...


class Epoch(NamedTuple):
    """How a broker tells the writers of a partition apart."""

    producer_id: int
    epoch: int


class EpochProducer(Protocol):
    """A transactional producer. Its start gives it a new epoch of the transactional id, and ends
    what an older one began.
    """

    @property
    def epoch(self) -> Epoch:
        """The one that its start gave it."""
        ...

    async def start(self) -> None:
        """Connects; raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Ends the transaction that is open, and disconnects."""
        ...

    async def begin_transaction(self) -> None:
        """What is sent from here on counts once it is committed."""
        ...

    async def commit_transaction(self) -> None:
        """Returns once what was sent counts."""
        ...

    async def abort_transaction(self) -> None:
        """What was sent never counts."""
        ...

    async def send(
        self, topic: str, *, key: bytes, value: bytes | None, partition: int
    ) -> "asyncio.Future[SentMessage]":
        """Hands the message on; waits while the client holds too many."""
        ...


class RebalanceListener(Protocol):
    """Called by the consumer around a rebalance; it waits for both."""

    async def on_partitions_revoked(self, revoked: set[Partition]) -> None:
        """Another member may have these partitions once this returns."""
        ...

    async def on_partitions_assigned(self, assigned: set[Partition]) -> None:
        """These are ours: all of them, not only the new ones."""
        ...


class Consumer(Protocol):
    """A consumer, in a group or without one."""

    async def start(self) -> None:
        """Connects; raises KafkaError."""
        ...

    async def stop(self) -> None:
        """Leaves the group and disconnects."""
        ...

    def subscribe(self, topics: Sequence[str], *, listener: object) -> None:
        """Joins the group's sharing of the topics; see `subscribe`."""
        ...

    def assign(self, partitions: Sequence[Partition]) -> None:
        """Reads these partitions, in no group."""
        ...

    def seek(self, partition: Partition, offset: int) -> None:
        """Reads on from there."""
        ...

    def pause(self, *partitions: Partition) -> None:
        """Fetches nothing of them until they are assigned again."""
        ...

    def assignment(self) -> set[Partition]:
        """What it reads now: what it was assigned, or was given by its group."""
        ...

    async def position(self, partition: Partition) -> int:
        """The offset that is read next."""
        ...

    async def getmany(
        self, *partitions: Partition, timeout_ms: int, max_records: int | None = None
    ) -> Mapping[Partition, Sequence[Message]]:
        """What has arrived."""
        ...

    async def beginning_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The first offsets that are kept."""
        ...

    async def end_offsets(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        """The offsets after the last messages."""
        ...

    async def offsets_for_times(
        self, timestamps_ms: Mapping[Partition, int]
    ) -> "Mapping[Partition, OffsetAtTime | None]":
        """The first message of each that is no older; None where there is none."""
        ...

    async def commit(self, offsets: "Mapping[Partition, int | tuple[int, str]]") -> None:
        """Writes the group's offsets, with metadata where it is given; raises KafkaError where we
        are no longer a member.
        """
        ...
