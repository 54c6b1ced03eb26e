"""Writes what a source has to a topic, window by window; nothing of the process waits for it.

What waits is bounded by the queue: one window of it at most is here, the next one is taken once
Kafka has that. While Kafka is away the queue fills, and what it has no room for is dropped and
counted.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.broker_settings import KafkaSettings
from brokers.client_internals import abandon_producer
from brokers.client_types import Batch, Producer, SentBatch
from brokers.errors import AWAY, KafkaError, MessageSizeTooLargeError
from brokers.outages import UNREACHABLE
from brokers.topics import ensure_topics_now
from logs.bounds import WINDOW_LOG_S
from logs.loop_thread import LoopThread
from logs.producer import OneProducer
from logs.shared_condition import SharedCondition
from logs.source import RecordSource
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import (
    CLIENT_LEAVE_S,
    KAFKA_ATTEMPT_MS,
    KAFKA_RETRY_FIRST_S,
    KAFKA_RETRY_MAX_S,
    RECORD_SEND_BYTES_MAX,
    SHUTDOWN_S,
)
from schemas.topics import TopicSpec

WINDOW_LEAVE_S: Final = 2.0  # for Kafka to take what is left when a replica stops

assert 2 * WINDOW_LEAVE_S + 2 * CLIENT_LEAVE_S < SHUTDOWN_S, (
    "a replica stops in time, Kafka away or not"
)

ItemT = TypeVar("ItemT")
logger = logging.getLogger(__name__)
WRITER: Final = "writer"


def stop_writers(thread: LoopThread, writers: "Iterable[TopicWriter[Any]]") -> None:
    """Has them write what is left, all at once; within a bound. Before the thread's end, which ends
    all clients.
    """
    if not thread.is_running:
        return
    closing = [(writer.source.name, thread.run(writer.close())) for writer in writers]
    end = time.monotonic() + 2 * WINDOW_LEAVE_S + 2 * CLIENT_LEAVE_S
    for name, closed in closing:
        try:
            closed.result(max(end - time.monotonic(), 0.0))
        except (TimeoutError, CancelledError, RuntimeError) as error:
            logger.error("Cannot write the last %s: %s. They are lost", name, describe(error))


class WrittenTopic(NamedTuple):
    """Where to something is written.

    Attributes:
        settings: of the deployment.
        spec: of the topic, which is made where it is missing.
        partition: of it.
        is_idempotent: whether readers drop what comes again: then what Kafka may or may not have
            taken is written again. Else it is dropped and counted.
        bound: what is dropped while it cannot be written, of people.
    """

    settings: KafkaSettings
    spec: TopicSpec
    partition: int
    is_idempotent: bool
    bound: str


class TopicWriter(Generic[ItemT]):
    """See the module; on a `LoopThread`, from `start` to `stop_writers`.

    Args:
        source: to take from.
        topic: where to.
        condition: set while it cannot be written.
        make_producer: makes the producer.
        prepare: makes and checks the topic, within a bound; None: as `brokers.topics` does.
    """

    def __init__(
        self,
        source: RecordSource[ItemT],
        topic: WrittenTopic,
        condition: SharedCondition,
        *,
        make_producer: Callable[[], Producer],
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.source = source
        self._topic = topic
        self._condition = condition
        self._prepare = prepare or self._ensure_topic
        self._producer = OneProducer(make_producer)
        self._running: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[int, ItemT]] = deque()
        self._under_way: tuple[int, asyncio.Future[SentBatch]] | None = None

    def start(self, thread: LoopThread) -> None:
        """Starts writing on the thread."""
        thread.run(self.run())

    # On the thread

    async def run(self) -> None:
        """Writes until it is cancelled."""
        self._running = asyncio.current_task()
        backoff = Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)
        while True:
            try:
                await self._opened()
                await self.write()
                self._condition.clear(WRITER)
                backoff.reset()
                await asyncio.sleep(WINDOW_LOG_S)
                continue
            except ConfigurationError as error:
                self._note("refused", str(error))
            except AWAY as error:
                self._note(UNREACHABLE, self._said(error))
            except Exception as error:
                logger.exception("Unexpected error while writing %s; it goes on", self.source.name)
                self._note("unexpected", f"unexpected error: {cause_of(error)}")
            await self._abandon()
            await backoff.wait()

    def _note(self, reason: str, problem: str) -> None:
        self._condition.note(WRITER, reason, problem)

    async def write(self) -> None:
        """Writes what there is now; waits for Kafka.

        Raises:
            ConfigurationError: the topic is not as it must be, or may not be made.
            KafkaError, OSError, TimeoutError: Kafka is away, or it refused what was under way.
                What is too large for it is dropped and counted.
        """
        if not self._waiting:
            self._waiting.extend(self.source.take())
        while self._waiting:
            if self._under_way is None:
                self._under_way = await self._send(await self._opened())
                if self._under_way is None:
                    return
            items, sent = self._under_way
            await self._wait_for(sent)
            if sent.cancelled():
                raise KafkaError("the producer was closed")
            if isinstance(sent.exception(), MessageSizeTooLargeError):
                self._under_way = None
                self.source.unwritten += self._drop(items)
            sent.result()
            self._under_way = None
            self.source.written_items += self._drop(items)

    async def _send(self, producer: Producer) -> "tuple[int, asyncio.Future[SentBatch]] | None":
        """Hands on as much as a batch takes: how many items, and when they are written."""
        batch: Batch = producer.create_batch()
        items = 0
        while items < len(self._waiting):
            count, item = self._waiting[items]
            try:
                entry = self.source.encode(item)
            except Exception:  # a value that no record can have: the others are written
                logger.exception(
                    "Dropped %d %s that no record can have; the others are written",
                    *(count, self.source.name),
                )
                self.source.unwritten += count
                del self._waiting[items]
                continue
            if len(entry.value) > RECORD_SEND_BYTES_MAX:
                self.source.unwritten += count
                logger.warning("Dropped %d %s: too large for a message", count, self.source.name)
                del self._waiting[items]
                continue
            if batch.append(key=entry.key, value=entry.value, timestamp=None) is None:
                break
            items += 1
        if not items:
            return None
        topic = self._topic
        return items, await producer.send_batch(batch, topic.spec.name, partition=topic.partition)

    async def _wait_for(self, sent: "asyncio.Future[SentBatch]") -> None:
        """Until it is written or refused, however long Kafka is away."""
        while not (await asyncio.wait({sent}, timeout=KAFKA_ATTEMPT_MS / 1000))[0]:
            self._note(UNREACHABLE, self._said(TimeoutError()))
            # The topic may have been deleted: the producer would wait for it for ever.
            with suppress(*AWAY):
                await self._prepare()

    def _drop(self, items: int) -> int:
        """These do not wait any more; how much they are."""
        return sum(self._waiting.popleft()[0] for _ in range(items))

    async def _opened(self) -> Producer:
        if not self._producer.is_started:
            await self._prepare()
        return await self._producer.started()

    async def _ensure_topic(self) -> None:
        await ensure_topics_now(self._topic.settings, [self._topic.spec])

    async def _abandon(self) -> None:
        """Gives the producer up, and what is under way, unless that may be written again."""
        producer = self._producer.taken()
        if self._under_way is not None:
            items, _ = self._under_way
            self._under_way = None
            if not self._topic.is_idempotent:
                self.source.unwritten += self._drop(items)
        if producer is not None:
            await abandon_producer(producer, CLIENT_LEAVE_S)

    async def close(self) -> None:
        """Ends `run`, writes what is left and disconnects; within a bound."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=WINDOW_LEAVE_S)
        with suppress(ConfigurationError, *AWAY):
            async with asyncio.timeout(WINDOW_LEAVE_S):
                await self.write()
                await self.write()  # what came while the first one was under way
        await self._abandon()
        self._waiting.extend(self.source.take())
        left = self._drop(len(self._waiting))
        self.source.unwritten += left
        if left:
            logger.warning(
                "Kafka did not take %d %s in time; they are dropped", left, self.source.name
            )

    def _said(self, error: BaseException) -> str:
        topic = self._topic
        return (
            f"cannot write {self.source.name} to {topic.spec.name} at {topic.settings.bootstrap}:"
            f" {describe(error)}; {topic.bound}"
        )
