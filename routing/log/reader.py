"""Follows the routing log: what all replicas decided, and what came of it.

It begins with the last checkpoint and folds the log behind it. Decisions go by what was folded, and
by what this replica has told the log and not read back. Until the reader has reached where the log
ended at its start, and after each time that it could not read, what is folded is of the past, and
says nothing of what has come to be known lately.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.client_internals import start_client
from brokers.clients import Clients
from brokers.errors import (
    AWAY,
    CorruptRecordException,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from brokers.interface import Consumer, Partition
from brokers.options import ClientOptions
from brokers.outages import UNREACHABLE
from brokers.reading import stop_consumer
from brokers.settings import KafkaSettings
from brokers.tasks import first_of
from brokers.topics import ensure_topics_now
from query_api.replica.shared_condition import SharedCondition
from routing.decisions.live import LiveLoad
from routing.log.recovery import ROUTING_PARTITION, Recovered, recover_fold
from schemas.causes import cause_of
from schemas.codec import decode_routing
from schemas.errors import ConfigurationError, RecordError
from schemas.identities import Offset
from schemas.limits import (
    ENTRIES_NAMED_MAX,
    LAG_CHECK_S,
    LAG_CHECK_WAIT_S,
    REPLICA_POLL_MS,
    REPLICA_RETRY_S,
    ROUTING_READ_WAIT_S,
    ROUTING_RECORDS_PER_TURN_MAX,
)
from schemas.routing_records import RoutingRecord
from streams.log.events_topic import read_past_corruption
from streams.log.interface import LogEntry

READER: Final = "reader"
_MEANWHILE: Final = "decisions go by what this replica knows of what others decided"
logger = logging.getLogger(__name__)


class _LogLostError(Exception):
    """The log does not have the offsets that follow on what was folded."""


class RoutingReader:
    """Folds and follows the log; on the loop that calls `run`.

    Attributes:
        next: the offset to be folded next.
        end: where the log ended when it was last asked; -1 before.
        skipped: records that cannot be used.
        is_following: whether decisions go by all that the log has.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        live: LiveLoad,
        condition: SharedCondition,
        *,
        make_consumer: Callable[[], Consumer] | None = None,
        prepare: Callable[[], Awaitable[None]] | None = None,
        recover: Callable[[], Awaitable[Recovered]] | None = None,
        read_past: Callable[[int], Awaitable[list[LogEntry]]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Args:
        settings: of the deployment.
        options: of its clients.
        live: what is kept up to date.
        condition: set while the log cannot be read.
        make_consumer, prepare, recover, read_past: in place of Kafka.
        clock: Unix seconds.
        """
        topics = settings.routing
        name = topics.log.name
        self.next = 0
        self.end = -1
        self.skipped = 0
        self.is_following = False
        self._servers = settings.bootstrap
        self._part = Partition(name, ROUTING_PARTITION)
        self._live = live
        self._folded = live.folded
        self._condition = condition
        clients = Clients(options)
        self._make_consumer = make_consumer or (lambda: clients.replica_reader(every_offset=True))
        self._prepare = prepare or (lambda: ensure_topics_now(settings, topics))
        self._recover = recover or (lambda: recover_fold(options, topics))
        self._read_past = read_past or (
            lambda start: read_past_corruption(options, name, ROUTING_PARTITION, start)
        )
        self._clock = clock
        self._is_begun = False

    @property
    def lag(self) -> int:
        """Records that the log had beyond what is folded, when it was last asked."""
        return max(self.end - self.next, 0)

    async def run(self) -> None:
        """Reads until it is cancelled."""
        backoff = Backoff(REPLICA_RETRY_S, REPLICA_RETRY_S)
        self._condition.note(READER, "recovering", "reading the routing log", logged=False)
        while True:
            try:
                await self._prepare()
                await self._follow()
            except ConfigurationError as error:
                self._condition.note(READER, "refused", str(error))
            except (OffsetOutOfRangeError, NoOffsetForPartitionError, _LogLostError) as error:
                logger.warning(
                    "Cannot read the routing log on: %s. Reading it again from its checkpoint",
                    error,
                )
                self._is_begun = False
            except AWAY as error:
                self._note_away(error)
            except Exception as error:
                logger.exception("Unexpected error while reading the routing log; it goes on")
                self._condition.note(READER, "unexpected", f"unexpected error: {cause_of(error)}")
            await backoff.wait()

    def _note_away(self, error: BaseException) -> None:
        text = f"cannot read {self._part.topic} at {self._servers}: {describe(error)}"
        # That Kafka is away is logged by the reader of the table.
        problem = f"{text}; {_MEANWHILE}"
        self._condition.note(READER, UNREACHABLE, problem, logged=False)

    async def _follow(self) -> None:
        consumer = self._make_consumer()
        try:
            await start_client(consumer)
            consumer.assign([self._part])
            await self._begin(consumer)
            await first_of(self._read(consumer), self._check(consumer))
        finally:
            await stop_consumer(consumer)

    async def _begin(self, consumer: Consumer) -> None:
        """Goes on where it was, or from the checkpoint where the log no longer has that."""
        self.is_following = False
        begin = (await consumer.beginning_offsets([self._part]))[self._part]
        end = await self._ask_end(consumer)
        if not self._is_begun or not begin <= self.next <= end:
            recovered = await self._recover()
            self._live.rebase(recovered.fold)
            self.next, end = recovered.start, recovered.end
            self._is_begun = True
        self.end = end
        consumer.seek(self._part, self.next)
        self._note_when_there()

    async def _ask_end(self, consumer: Consumer) -> int:
        return (await consumer.end_offsets([self._part]))[self._part]

    async def _read(self, consumer: Consumer) -> None:
        while True:
            await self._turn(consumer)
            await asyncio.sleep(0)  # where there is much, others have their turn

    async def _turn(self, consumer: Consumer) -> None:
        try:
            batches = await consumer.getmany(
                timeout_ms=REPLICA_POLL_MS, max_records=ROUTING_RECORDS_PER_TURN_MAX
            )
        except CorruptRecordException as error:
            logger.error("%s; reading past it", error)
            await self._take(await self._read_past(self.next))
            consumer.seek(self._part, self.next)
        else:
            for messages in batches.values():
                await self._take(
                    LogEntry(Offset(message.offset), message.value or b"") for message in messages
                )
        self._note_when_there()

    async def _check(self, consumer: Consumer) -> None:
        """Asks where the log ends, and with that whether Kafka is there."""
        while True:
            await asyncio.sleep(LAG_CHECK_S)
            folded = self.next  # before it is asked for: some may come meanwhile
            async with asyncio.timeout(LAG_CHECK_WAIT_S):
                end = await self._ask_end(consumer)
            if end < folded:
                raise _LogLostError(f"it ends at {end}, before {folded}")
            self.end = end

    async def _take(self, entries: Iterable[LogEntry]) -> None:
        # Somebody reads all of it, and this loop has other work. An event would be set by a thread.
        while not self._folded.begin():  # noqa: ASYNC110
            await asyncio.sleep(ROUTING_READ_WAIT_S)
        try:
            for offset, value in entries:
                self._take_one(offset, value)
        finally:
            self._folded.end()

    def _take_one(self, offset: Offset, value: bytes) -> None:
        try:
            self._apply(offset, decode_routing(value))
        except RecordError as error:
            self._skip(offset, str(error))
        except Exception as error:
            logger.exception(
                "Unexpected error in the fold of the routing log; leaving the record out"
            )
            self._skip(offset, cause_of(error))
        self.next = offset + 1

    def _apply(self, offset: int, record: RoutingRecord) -> None:
        if self.is_following:
            self._live.follow(offset, record, self._clock())
        else:
            self._live.apply(offset, record)

    def _skip(self, offset: int, problem: str) -> None:
        self.skipped += 1
        level = logging.WARNING if self.skipped <= ENTRIES_NAMED_MAX else logging.DEBUG
        logger.log(
            level, "Cannot read record %d of the routing log: %s. It is left out", offset, problem
        )

    def _note_when_there(self) -> None:
        if self.is_following or self.next < self.end:
            return
        self._live.note_samples()
        self.is_following = True
        self._condition.clear(READER)
