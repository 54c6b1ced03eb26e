"""Writes what a source has to a topic, window by window; nothing of the process waits for it.

What waits is bounded by the queue: one window of it at most is here, the next one is taken once
Kafka has that. While Kafka is away the queue fills, and what it has no room for is dropped and
counted.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, TypeVar

from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Batch, Producer
from brokers.errors import AWAY, MessageSizeTooLargeError
from brokers.outages import UNREACHABLE
from brokers.topics import ensure_topics_now
from logs.batch_writer import BatchWriter
from logs.bounds import WINDOW_LOG_S
from logs.loop_thread import LoopThread
from logs.producer import ReplaceableProducer
from logs.shared_condition import SharedCondition
from logs.source import RecordSource
from schemas.causes import cause_of
from schemas.clock import REAL_CLOCK
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


def stop_writers(
    thread: LoopThread,
    writers: "Iterable[TopicWriter[Any]]",
    *,
    clock: Callable[[], float] = REAL_CLOCK.monotonic,
) -> None:
    """Has them write what is left, all at once; within a bound. Before the thread's end, which ends
    all clients.
    """
    if not thread.is_running:
        return
    closing = [(writer.source.name, thread.run(writer.close())) for writer in writers]
    end = clock() + 2 * WINDOW_LEAVE_S + 2 * CLIENT_LEAVE_S
    for name, closed in closing:
        try:
            closed.result(max(end - clock(), 0.0))
        except (TimeoutError, CancelledError, RuntimeError) as error:
            logger.error("Cannot write the last %s: %s. They are lost", name, describe(error))


class WrittenTopic(NamedTuple):
    """Where to something is written.

    Attributes:
        spec: of the topic, which is made where it is missing.
        is_idempotent: whether readers drop what comes again: then what Kafka may or may not have
            taken is written again. Else it is dropped and counted.
        bound: what is dropped while it cannot be written, of people.
    """

    settings: KafkaSettings
    spec: TopicSpec
    partition: int
    is_idempotent: bool
    bound: str


class TopicWriter(BatchWriter, Generic[ItemT]):
    """See the module; on a `LoopThread`, from `start` to `stop_writers`.

    Args:
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
        super().__init__(
            ReplaceableProducer(make_producer, leave_s=CLIENT_LEAVE_S),
            topic.spec.name,
            topic.partition,
            retry_first_s=KAFKA_RETRY_FIRST_S,
            retry_max_s=KAFKA_RETRY_MAX_S,
            late_s=KAFKA_ATTEMPT_MS / 1000,
        )
        self.source = source
        self._written_topic = topic
        self._condition = condition
        self._ensure = prepare or self._ensure_topic
        self._running: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[int, ItemT]] = deque()
        self._is_window_over = True
        self._under_way = 0  # of those that wait, the first so many

    def start(self, thread: LoopThread) -> None:
        """Starts writing on the thread."""
        thread.run(self.run())

    # On the thread

    async def run(self) -> None:
        """See `BatchWriter`."""
        self._running = asyncio.current_task()
        await super().run()

    async def write(self) -> None:
        """Writes what there is now; waits for Kafka. See `write_batch` for what it raises."""
        self._is_window_over = True
        while await self.write_batch():
            pass

    async def prepare(self) -> None:
        """See `BatchWriter`."""
        if not self.producer.is_started:
            await self._ensure()

    async def _ensure_topic(self) -> None:
        await ensure_topics_now(self._written_topic.settings, [self._written_topic.spec])

    def fill(self, batch: Batch) -> bool:
        """See `BatchWriter`: as much of the window as a batch takes."""
        if self._is_window_over and not self._waiting:
            self._waiting.extend(self.source.take())
            self._is_window_over = False
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
        self._under_way = items
        return items > 0

    async def wait(self) -> None:
        """See `BatchWriter`: until a window is over in which something came."""
        self._condition.clear(WRITER)
        while not self._waiting:
            await asyncio.sleep(WINDOW_LOG_S)
            self._waiting.extend(self.source.take())

    def written(self, offset: int) -> None:
        """See `BatchWriter`."""
        self.source.written_items += self._drop()

    def _drop(self) -> int:
        """What was under way does not wait any more; how much it is."""
        items, self._under_way = self._under_way, 0
        return sum(self._waiting.popleft()[0] for _ in range(items))

    # What goes wrong

    async def late(self) -> None:
        """See `BatchWriter`."""
        self._note(UNREACHABLE, self._said(TimeoutError()))
        # The topic may have been deleted: the producer would wait for it for ever.
        with suppress(*AWAY):
            await self._ensure()

    def given_up(self) -> None:
        """See `BatchWriter`: what may be written again still waits."""
        if not self._written_topic.is_idempotent:
            self.source.unwritten += self._drop()

    def refused(self, error: ConfigurationError) -> None:
        """See `BatchWriter`."""
        self._note("refused", str(error))

    def away(self, error: Exception) -> None:
        """See `BatchWriter`."""
        if isinstance(error, MessageSizeTooLargeError):
            self.source.unwritten += self._drop()
        self._note(UNREACHABLE, self._said(error))

    def failed(self, error: Exception) -> None:
        """See `BatchWriter`."""
        logger.exception("Unexpected error while writing %s; it goes on", self.source.name)
        self._note("unexpected", f"unexpected error: {cause_of(error)}")

    def _note(self, reason: str, problem: str) -> None:
        self._condition.note(WRITER, reason, problem)

    def _said(self, error: BaseException) -> str:
        topic = self._written_topic
        return (
            f"cannot write {self.source.name} to {topic.spec.name} at {topic.settings.bootstrap}:"
            f" {describe(error)}; {topic.bound}"
        )

    async def close(self) -> None:
        """Ends `run`, writes what is left and disconnects; within a bound."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=WINDOW_LEAVE_S)
        with suppress(ConfigurationError, *AWAY):
            async with asyncio.timeout(WINDOW_LEAVE_S):
                await self.write()
                await self.write()  # what came while the first one was under way
        await self.give_up()
        self._waiting.extend(self.source.take())
        self._under_way = len(self._waiting)
        left = self._drop()
        self.source.unwritten += left
        if left:
            logger.warning(
                "Kafka did not take %d %s in time; they are dropped", left, self.source.name
            )
