"""Follows one partition into a fold that begins with a checkpoint.

The fold stands behind the log until it has reached where that ended at its start, and after each
time that it could not be read; `caught_up` says when it is there again.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Consumer, Partition
from brokers.clients import Clients
from brokers.errors import CorruptRecordException
from brokers.options import ClientOptions
from brokers.outages import UNREACHABLE
from brokers.topics import ensure_topics_now
from logs.attempts import LogLostError
from logs.follower import Follower, Messages
from logs.interface import LogEntry
from logs.shared_condition import SharedCondition
from logs.topic import entries_of, read_past_corruption
from schemas.causes import cause_of
from schemas.errors import ConfigurationError, RecordError
from schemas.identities import Offset
from schemas.limits import (
    ENTRIES_NAMED_MAX,
    LAG_CHECK_S,
    LAG_CHECK_WAIT_S,
    REPLICA_POLL_MS,
    REPLICA_RETRY_S,
)
from schemas.topics import TopicSpec

FOLDED_PER_TURN_MAX: Final = 64  # folded before others have their turn

READER: Final = "reader"
logger = logging.getLogger(__name__)


class FollowedLog(NamedTuple):
    """What is followed.

    Attributes:
        name: of people, as "the log of alarms".
        specs: of the topics that are made where they are missing.
        meanwhile: what follows while it cannot be read, in words.
    """

    name: str
    settings: KafkaSettings
    specs: Sequence[TopicSpec]
    partition: Partition
    meanwhile: str


class LogAccess(NamedTuple):
    """How a followed log is reached.

    Attributes:
        make_consumer: see `Follower`.
        prepare: makes and checks its topics, within a bound.
        read_past: reads from an offset on behind damage.
    """

    make_consumer: Callable[[], Consumer]
    prepare: Callable[[], Awaitable[None]]
    read_past: Callable[[int], Awaitable[list[LogEntry]]]

    @classmethod
    def in_kafka(cls, log: FollowedLog, options: ClientOptions) -> "LogAccess":
        """Of a log that is in Kafka."""
        return cls(
            lambda: Clients(options).replica_reader(every_offset=True),
            lambda: ensure_topics_now(log.settings, log.specs),
            lambda start: read_past_corruption(options, *log.partition, start),
        )


class FoldFollower(Follower):
    """See the module.

    Attributes:
        next: the offset to be folded next.
        end: where the log ended when it was last asked; -1 before.
        skipped: records that cannot be used.
        is_following: whether all that the log has is folded, but for what is under way.
    """

    def __init__(
        self,
        log: FollowedLog,
        access: LogAccess,
        condition: SharedCondition,
    ) -> None:
        """Args:
        condition: set while it cannot be read.
        """
        super().__init__(
            poll_ms=REPLICA_POLL_MS,
            records_max=FOLDED_PER_TURN_MAX,
            look_s=LAG_CHECK_S,
            retry_first_s=REPLICA_RETRY_S,
            retry_max_s=REPLICA_RETRY_S,
        )
        self.next = 0
        self.end = -1
        self.skipped = 0
        self.is_following = False
        self._log = log
        self._part = log.partition
        self._condition = condition
        self._access = access
        self._is_begun = False

    @property
    def lag(self) -> int:
        """Records that the log had beyond what is folded, when it was last asked."""
        return max(self.end - self.next, 0)

    # Of the user

    @abstractmethod
    async def recover(self) -> tuple[int, int]:
        """Begins again with the last checkpoint: where the log is folded on, and where it ends."""

    @abstractmethod
    def apply(self, entry: LogEntry) -> None:
        """Folds one record.

        Raises:
            RecordError: it cannot be read; it is counted, named and left out.
        """

    def caught_up(self) -> None:
        """All that the log had is folded; called again after each attempt."""

    async def run(self) -> None:
        """See `Follower`."""
        name = self._log.name
        self._condition.note(READER, "recovering", f"reading {name}", logged=False)
        await super().run()

    # What goes wrong

    def refused(self, error: ConfigurationError) -> None:
        """See `Follower`."""
        self._condition.note(READER, "refused", str(error))

    def lost(self, error: LogLostError) -> bool:
        """See `Follower`."""
        logger.warning(
            "Cannot read %s on: %s. Reading it again from its checkpoint", self._log.name, error
        )
        self._is_begun = False
        return False

    def away(self, error: Exception) -> None:
        """See `Follower`."""
        servers = self._log.settings.bootstrap
        text = f"cannot read {self._part.topic} at {servers}: {describe(error)}"
        # That Kafka is away is logged by the reader of the table.
        problem = f"{text}; {self._log.meanwhile}"
        self._condition.note(READER, UNREACHABLE, problem, logged=False)

    def failed(self, error: Exception) -> None:
        """See `Follower`."""
        logger.exception("Unexpected error while reading %s; it goes on", self._log.name)
        self._condition.note(READER, "unexpected", f"unexpected error: {cause_of(error)}")

    # Reading

    async def prepare(self) -> None:
        """See `Follower`."""
        await self._access.prepare()

    def make_consumer(self) -> Consumer:
        """See `Follower`."""
        return self._access.make_consumer()

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`: where it was, or the checkpoint where the log does not have that."""
        self.is_following = False
        consumer.assign([self._part])
        begin = (await consumer.beginning_offsets([self._part]))[self._part]
        end = await self._ask_end(consumer)
        if not self._is_begun or not begin <= self.next <= end:
            self.next, end = await self.recover()
            self._is_begun = True
        self.end = end
        consumer.seek(self._part, self.next)
        self._note_caught_up()

    async def take(self, messages: Messages) -> None:
        """See `Follower`."""
        for some in messages.values():
            await self.fold(entries_of(some))

    async def damaged(self, consumer: Consumer, error: CorruptRecordException) -> None:
        """See `Follower`: what cannot be read is left out, and counted."""
        logger.error("%s; reading past it", error)
        await self.fold(await self._access.read_past(self.next))
        consumer.seek(self._part, self.next)

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """See `Follower`."""
        self._note_caught_up()
        await asyncio.sleep(0)  # where there is much, others have their turn

    async def look(self, consumer: Consumer) -> None:
        """See `Follower`: asks where the log ends, and with that whether Kafka is there."""
        folded = self.next  # before it is asked for: some may come meanwhile
        async with asyncio.timeout(LAG_CHECK_WAIT_S):
            end = await self._ask_end(consumer)
        if end < folded:
            raise LogLostError(f"it ends at {end}, before {folded}")
        self.end = end

    async def _ask_end(self, consumer: Consumer) -> int:
        return (await consumer.end_offsets([self._part]))[self._part]

    def _note_caught_up(self) -> None:
        if self.is_following or self.next < self.end:
            return
        self.caught_up()
        self.is_following = True
        self._condition.clear(READER)

    async def fold(self, entries: Iterable[LogEntry]) -> None:
        """Folds records in order."""
        for entry in entries:
            try:
                self.apply(entry)
            except RecordError as error:
                self._skip(entry.offset, str(error))
            except Exception as error:
                logger.exception(
                    "Unexpected error in the fold of %s; leaving the record out", self._log.name
                )
                self._skip(entry.offset, cause_of(error))
            self.next = entry.offset + 1

    def _skip(self, offset: Offset, problem: str) -> None:
        self.skipped += 1
        level = logging.WARNING if self.skipped <= ENTRIES_NAMED_MAX else logging.DEBUG
        logger.log(
            level,
            "Cannot read record %d of %s: %s. It is left out",
            *(offset, self._log.name, problem),
        )
