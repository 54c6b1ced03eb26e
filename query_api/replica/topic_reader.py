"""Reads the table and the registry from Kafka into a replica.

On a thread of its own (`logs.loop_thread`), because a query must not wait for what is read: the
kernel releases Python's lock while it loads long rows. While 50,000 blocks a second come in small
flushes, the p99 of a query is a third to a half of what it is with the reader on the loop that
answers.

It reads all partitions, in no group, from where the snapshot stands; every `LAG_CHECK_S` it asks
where the topics end: lag, and whether Kafka is there. A consumer that stalls or fails is replaced,
and so is a snapshot whose offsets no longer belong to the topics.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from brokers.availability import describe
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Consumer, Message, Partition
from brokers.clients import Clients
from brokers.errors import AWAY
from brokers.options import ClientOptions
from logs.attempts import LogLostError, StalledError
from logs.follower import Follower, Messages
from logs.loop_thread import LoopThread
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Snapshot, Topic, TopicPartition
from schemas.causes import cause_of
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import ConfigurationError, EntryError
from schemas.limits import (
    ENTRIES_NAMED_MAX,
    LAG_CHECK_S,
    LAG_CHECK_WAIT_S,
    MAINTAINED_ENTRIES,
    REPLICA_AWAY_S,
    REPLICA_POLL_MS,
    REPLICA_RETRY_S,
)
from streams.table.releasing import release_some
from streams.table.rows.contexts import MISSING_ROWS, NEWER_ROWS
from streams.table.rows.format import as_found

REPLICA_ROWS_PER_TURN_MAX: Final = 512  # applied before others have their turn
REGISTRY_READ_WAIT_S: Final = 0.005  # between two looks whether the registry is read
REPLICA_STALL_S: Final = 30.0  # behind for this long without one row: the consumer is replaced

assert REPLICA_POLL_MS < 1000 * REPLICA_STALL_S, "one empty fetch is not a stall"

logger = logging.getLogger(__name__)


def kafka_thread() -> LoopThread:
    """The thread of all that a replica does with Kafka."""

    def ended() -> None:
        logger.error("The Kafka reader stopped unexpectedly; restart the replica")

    return LoopThread("kafka", unended="The Kafka reader did not stop", when_ended=ended)


class TopicReader(Follower):
    """Keeps one replica up to date.

    Args:
        prepare: makes and checks the topics; waits while Kafka is away.
        when_refused: called where Kafka or its topics cannot be used as they are and nothing
            was read yet; reading has ended then.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        replica: Replica,
        *,
        prepare: Callable[[], Awaitable[None]],
        when_refused: Callable[[ConfigurationError], None],
        clock: Clock = REAL_CLOCK,
    ) -> None:
        super().__init__(
            poll_ms=REPLICA_POLL_MS,
            records_max=REPLICA_ROWS_PER_TURN_MAX,
            look_s=LAG_CHECK_S,
            retry_first_s=REPLICA_RETRY_S,
            retry_max_s=REPLICA_RETRY_S,  # growing pauses would make answers older
        )
        self._clock = clock
        self._options = options
        self._replica = replica
        self._prepare = prepare
        self._when_refused = when_refused
        topics = settings.topics
        named = {Topic.TABLE: topics.table, Topic.REGISTRY: topics.registry}
        named[Topic.EVENTS] = topics.events
        self._places = {
            Partition(spec.name, partition): TopicPartition(topic, partition)
            for topic, spec in named.items()
            for partition in range(spec.partitions)
        }
        self._read_from = [
            name for name, place in self._places.items() if place.topic is not Topic.EVENTS
        ]
        self._servers = settings.bootstrap
        self._consumer: Consumer | None = None  # where it reads
        self._answered_at = self._looked_at = self._moved_at = self._clock.monotonic()

    @property
    def _snapshot(self) -> Snapshot:
        return self._replica.loading

    # What goes wrong

    def lost(self, error: LogLostError) -> bool:
        """See `Follower`: reads all of it again."""
        logger.warning(
            "Cannot read the topics on: %s. Reading the table and the registry from the beginning",
            error,
        )
        self._replica.reload()
        return True

    def refused(self, error: ConfigurationError) -> bool:
        """See `Follower`."""
        self._replica.note_unreachable(str(error), "refused")
        if self._replica.ready:
            return False
        self._when_refused(error)
        return True

    def away(self, error: Exception) -> None:
        """See `Follower`."""
        self._note_failure(describe(error))

    def failed(self, error: Exception) -> None:
        """See `Follower`."""
        logger.exception("Unexpected error while reading from Kafka; trying again")
        self._replica.internal_errors += 1
        self._note_failure(f"unexpected error: {cause_of(error)}")

    def _note_failure(self, problem: str) -> None:
        """A failure of the brokers while they do not answer; else of the topics."""
        if self._replica.reachable:
            self._replica.note_read_failure(f"cannot read from Kafka: {problem}")
        else:
            self._note_away(problem)

    def _note_away(self, problem: str) -> None:
        meanwhile = "answers say `stale`" if self._replica.ready else "nothing is answered"
        text = f"cannot use Kafka at {self._servers}: {problem}; meanwhile {meanwhile}"
        self._replica.note_unreachable(text)

    # Reading

    async def prepare(self) -> None:
        """See `Follower`."""
        self._replica.note_unreachable()
        await self._prepare()

    def make_consumer(self) -> Consumer:
        """See `Follower`."""
        return Clients(self._options).replica_reader()

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`: where the snapshot stands, or the beginning for a new one."""
        snapshot = self._snapshot
        consumer.assign(self._read_from)
        first = await consumer.beginning_offsets(self._read_from)
        for name in self._read_from:
            offset = snapshot.next_offsets[self._places[name]]
            if snapshot.begun and offset < first[name]:
                raise LogLostError("a topic begins after the offsets read")
            consumer.seek(name, max(offset, first[name]))
        await self._note_ends(consumer)
        self._moved_at = self._looked_at = self._clock.monotonic()
        self._consumer = consumer

    async def left(self) -> None:
        """See `Follower`."""
        self._consumer = None

    async def read_registry(self) -> None:
        """Returns once all is read that the registry had when this was called: some milliseconds,
        or as long as Kafka is away.
        """
        names = [name for name in self._read_from if self._places[name].topic is Topic.REGISTRY]
        ends: Mapping[Partition, int] | None = None
        while ends is None or any(
            self._snapshot.next_offsets[self._places[name]] < ends[name] for name in names
        ):
            if ends is None and self._consumer is not None:
                with suppress(*AWAY):
                    ends = await self._consumer.end_offsets(names)
                    continue
            await asyncio.sleep(REGISTRY_READ_WAIT_S)

    async def take(self, messages: Messages) -> None:
        """See `Follower`."""
        for name, records in messages.items():
            await self._apply(self._places[name], records)

    async def turned(self, consumer: Consumer, *, has_read: bool) -> None:
        """See `Follower`."""
        snapshot = self._snapshot
        for name in self._read_from:
            # Beyond the last record where those after it were compacted away.
            await self._advance(self._places[name], await consumer.position(name))
        self._tell_skipped(had_caught_up=False)
        self._replica.note_progress()
        release_some(snapshot.table.release_left, MAINTAINED_ENTRIES)
        if has_read or not snapshot.unread():
            self._moved_at = self._clock.monotonic()
            self._replica.note_read()
        elif self._replica.reachable and self._clock.monotonic() - self._moved_at > REPLICA_STALL_S:
            raise StalledError(f"no record for {REPLICA_STALL_S:.0f} s, but there are more")

    async def _apply(self, place: TopicPartition, records: Sequence[Message]) -> None:
        snapshot = self._snapshot
        had_caught_up = snapshot.has_caught_up(place)
        for record in records:
            if had_caught_up and _ends_table(snapshot, place, record):
                # Answers go on from the old one until the new one is as far. And in a topic that
                # was recreated, what is read may begin in the middle of the new table.
                raise LogLostError("the table was rebuilt")
            try:
                self._put(place, record)
            except Exception:
                # A restart would fail at it again; skipping it loses the least.
                self._replica.internal_errors += 1
                snapshot.faulty = snapshot.faulty or place.topic is Topic.TABLE
                self._replica.changed()
                logger.exception(
                    "Unexpected error; skipping the message of the %s at offset %d of partition %d",
                    place.topic,
                    record.offset,
                    place.partition,
                )
        await self._advance(place, records[-1].offset + 1)
        self._tell_skipped(had_caught_up=had_caught_up)

    def _tell_skipped(self, *, had_caught_up: bool) -> None:
        """Logs rows that were skipped.

        Raises:
            LogLostError: some are missing, of a partition that had caught up.
        """
        for skipped in self._snapshot.table.take_skipped():
            self._replica.changed()
            remedy = ": a newer Reprise wrote it, upgrade this one"
            logger.warning(
                "Cannot use a row of the table (%s), in partition %d with key %s; it is left out%s",
                skipped.reason,
                skipped.partition,
                skipped.key.hex(),
                remedy if skipped.reason == NEWER_ROWS else "",
            )
            if skipped.reason == MISSING_ROWS and had_caught_up:
                # A topic read without a break has no holes: this is another of the same name.
                raise LogLostError("rows are missing")

    def _put(self, place: TopicPartition, record: Message) -> None:
        snapshot = self._snapshot
        if place.topic is Topic.TABLE:
            age_s = max(self._clock.unix() - record.timestamp / 1000, 0.0)
            key = record.key or b""
            value = as_found(key, record.value, record.offset)
            snapshot.put_row(place, key, value, as_of=self._clock.monotonic() - age_s)
            return
        try:
            snapshot.registry.put(record.offset, record.key, record.value)
        except EntryError as error:
            self._replica.entries_skipped += 1
            is_named = snapshot.registry.skipped[error.reason] <= ENTRIES_NAMED_MAX
            logger.log(
                logging.WARNING if is_named else logging.DEBUG,
                "Cannot read the registry entry at offset %d of partition %d: %s. It is left out",
                record.offset,
                place.partition,
                error,
            )

    async def _advance(self, place: TopicPartition, next_offset: int) -> None:
        snapshot = self._snapshot
        try:
            for _ in snapshot.advance(place, next_offset):
                await asyncio.sleep(0)
        except Exception:  # the next call continues without the rows that were being loaded
            self._replica.internal_errors += 1
            snapshot.faulty = True
            self._replica.changed()
            logger.exception(
                "Unexpected error; skipping rows of the %s before offset %d of partition %d",
                place.topic,
                next_offset,
                place.partition,
            )

    # Checking

    async def look(self, consumer: Consumer) -> None:
        """See `Follower`."""
        try:
            await self._note_ends(consumer)
            self._looked_at = self._clock.monotonic()
        except AWAY as error:
            self._note_away(describe(error))
        if self._clock.monotonic() - self._looked_at > REPLICA_STALL_S:
            raise StalledError(f"no answer for {REPLICA_STALL_S:.0f} s")

    async def _note_ends(self, consumer: Consumer) -> None:
        snapshot = self._snapshot
        needed = snapshot.needed_ends()  # before they are asked for: some may come meanwhile
        async with asyncio.timeout(LAG_CHECK_WAIT_S):
            found = await consumer.end_offsets(list(self._places))
        now = self._clock.monotonic()
        if snapshot.begun and now - self._answered_at > REPLICA_AWAY_S:
            raise LogLostError("tombstones may be gone after so long without Kafka")
        ends = {self._places[name]: offset for name, offset in found.items()}
        if any(ends[place] < offset for place, offset in needed.items()):
            raise LogLostError("a topic ends before the offsets read, or to be read")
        self._answered_at = now
        self._replica.note_ends(ends)


def _ends_table(snapshot: Snapshot, place: TopicPartition, record: Message) -> bool:
    key = record.key or b""
    return place.topic is Topic.TABLE and snapshot.table.is_of_another_table(
        place.partition, key, as_found(key, record.value, record.offset)
    )
