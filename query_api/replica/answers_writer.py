"""Answers that a replica keeps go to the topic PREFIX.answers, window by window.

What waits is bounded by the queue: one window of it at most is here, the next one is taken once
Kafka has that. While Kafka is away the queue fills, and what it has no room for is dropped and
counted; a query never waits for any of it.

All of one run goes to one partition, in the order of its numbers.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.client_internals import abandon_producer, start_client
from brokers.clients import Clients, partition_of
from brokers.errors import AWAY, KafkaError
from brokers.interface import Batch, Producer, SentBatch
from brokers.options import ClientOptions
from brokers.outages import UNREACHABLE, Outage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from query_api.replica.topic_reader import TopicReader
from schemas.answer_records import encode_answers
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError
from schemas.limits import (
    AUDIT_LEAVE_S,
    AUDIT_QUEUE_BYTES,
    CLIENT_LEAVE_S,
    KAFKA_ATTEMPT_MS,
    KAFKA_RETRY_FIRST_S,
    KAFKA_RETRY_MAX_S,
    MIB,
    RECORD_SEND_BYTES_MAX,
    WINDOW_LOG_S,
)
from schemas.topics import encode_run
from streams.kernel.interface import AuditQueue

logger = logging.getLogger(__name__)


class AnswersWriter:
    """Writes what a queue has; on the reader's loop, from `start` to `stop`.

    Args:
        settings: of the deployment.
        options: of its clients.
        queue: of answers.
        seed: of the prefix hash.
        replica: what tells this replica from others: host and port.
        conditions: set while answers cannot be written.
        make_producer: makes the producer; None: of the clients' options.
        prepare: makes and checks the topic, within a bound; None: as `brokers.topics` does.

    Attributes:
        queue: of answers.
        unwritten: answers that were taken from the queue and could not be written.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        queue: AuditQueue,
        *,
        seed: int,
        replica: str,
        conditions: Conditions,
        make_producer: Callable[[], Producer] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.queue = queue
        self.unwritten = 0
        self._settings = settings
        self._topic = settings.answers
        self._seed = seed
        self._replica = replica
        self._conditions = conditions
        self._make_producer = make_producer or Clients(options).answers_producer
        self._prepare = prepare or self._ensure_topic
        self._run_number = int(time.time() * 1e6)
        self._key = encode_run(self._run_number)
        self._partition = partition_of(self._key, self._topic.partitions)
        self._producer: Producer | None = None
        self._running: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._under_way: tuple[int, asyncio.Future[SentBatch]] | None = None

    @property
    def written(self) -> int:
        """Answers in the topic, of this run, or about to be."""
        return self.queue.counts()[0] - self.unwritten

    @property
    def dropped(self) -> int:
        """Answers that were to be kept, and are not: the queue was full, or Kafka refused them."""
        return self.queue.counts()[1] + self.unwritten

    @property
    def unsettled(self) -> int:
        """Answers that were to be kept, and were given while rows were half applied."""
        return self.queue.counts()[2]

    def start(self, reader: TopicReader) -> None:
        """Starts writing on the reader's loop."""
        reader.run(self.run())

    def stop(self, reader: TopicReader) -> None:
        """Writes what is left; within a bound. Before the reader's end, which ends all clients."""
        try:
            reader.run(self.close()).result(2 * AUDIT_LEAVE_S + 2 * CLIENT_LEAVE_S)
        except (TimeoutError, CancelledError, RuntimeError) as error:
            logger.error("Cannot write the last answers: %r", error)

    # On the reader's loop

    async def run(self) -> None:
        """Writes until it is cancelled."""
        self._running = asyncio.current_task()
        backoff = Backoff(KAFKA_RETRY_FIRST_S, KAFKA_RETRY_MAX_S)
        while True:
            try:
                await self._opened()
                await self.write()
                self._conditions.clear(Part.AUDIT)
                backoff.reset()
                await asyncio.sleep(WINDOW_LOG_S)
                continue
            except ConfigurationError as error:
                self._note("refused", str(error))
            except AWAY as error:
                self._note(UNREACHABLE, self._said(error))
            except Exception as error:
                logger.exception("Unexpected error while writing answers; it goes on")
                self._note("unexpected", f"unexpected error: {error!r}")
            await self._abandon()
            await backoff.wait()

    async def write(self) -> None:
        """Writes what the queue has now; waits for Kafka.

        Raises:
            ConfigurationError: the topic is not as it must be, or may not be made.
            KafkaError, OSError, TimeoutError: Kafka is away, or it refused what was under way,
                which is dropped and counted then.
        """
        if not self._waiting:
            self._take()
        while self._waiting:
            if self._under_way is None:
                self._under_way = await self._send(await self._opened())
            records, sent = self._under_way
            await self._wait_for(sent)
            self._under_way = None
            answers = sum(self._waiting.popleft()[0] for _ in range(records))
            if sent.cancelled():
                self.unwritten += answers
                raise KafkaError("the producer was closed")
            if sent.exception() is not None:
                self.unwritten += answers
            sent.result()

    def _take(self) -> None:
        for count, answers in self.queue.take():
            record = encode_answers(
                self._run_number, self._seed, count, answers, replica=self._replica
            )
            if len(record) <= RECORD_SEND_BYTES_MAX:
                self._waiting.append((count, record))
            else:
                self.unwritten += count
                logger.warning("Dropped %d answers of %d bytes: too large", count, len(record))

    async def _send(self, producer: Producer) -> tuple[int, "asyncio.Future[SentBatch]"]:
        """Hands on as much as a batch takes: how many records, and when they are written."""
        batch: Batch = producer.create_batch()
        records = 0
        for _, record in self._waiting:
            if batch.append(key=self._key, value=record, timestamp=None) is None:
                break
            records += 1
        sent = await producer.send_batch(batch, self._topic.name, partition=self._partition)
        return records, sent

    async def _wait_for(self, sent: "asyncio.Future[SentBatch]") -> None:
        """Until it is written or refused, however long Kafka is away."""
        while not (await asyncio.wait({sent}, timeout=KAFKA_ATTEMPT_MS / 1000))[0]:
            self._note(UNREACHABLE, self._said(TimeoutError()))
            # The topic may have been deleted: the producer would wait for it for ever.
            with suppress(*AWAY):
                await self._prepare()

    async def _opened(self) -> Producer:
        if self._producer is None:
            await self._prepare()
            producer = self._make_producer()
            try:
                await start_client(producer)
            except BaseException:
                await producer.stop()
                raise
            self._producer = producer
        return self._producer

    async def _ensure_topic(self) -> None:
        silent = Outage(self._settings.bootstrap, conditions=Conditions(time.time))
        async with asyncio.timeout(KAFKA_ATTEMPT_MS / 1000):
            await ensure_topics(self._settings, silent, specs=[self._topic])

    async def _abandon(self) -> None:
        producer, self._producer = self._producer, None
        if self._under_way is not None:
            records, _ = self._under_way
            self._under_way = None
            self.unwritten += sum(self._waiting.popleft()[0] for _ in range(records))
        if producer is not None:
            await abandon_producer(producer, CLIENT_LEAVE_S)

    async def close(self) -> None:
        """Ends `run`, writes what is left and disconnects; within a bound."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running}, timeout=AUDIT_LEAVE_S)
        with suppress(ConfigurationError, *AWAY):
            async with asyncio.timeout(AUDIT_LEAVE_S):
                await self.write()
                await self.write()  # what came while the first one was under way
        await self._abandon()
        self._take()
        left = sum(count for count, _ in self._waiting)
        self._waiting.clear()
        self.unwritten += left
        if left:
            logger.warning("Dropped %d answers that Kafka did not take in time", left)

    def _said(self, error: BaseException) -> str:
        return (
            f"cannot write answers to {self._topic.name} at {self._settings.bootstrap}:"
            f" {describe(error)}; once {AUDIT_QUEUE_BYTES // MIB} MiB wait, the next are dropped"
        )

    def _note(self, reason: str, problem: str) -> None:
        self._conditions.set(Part.AUDIT, reason, problem)
