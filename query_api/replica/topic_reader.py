"""Reads the table and the registry from Kafka into a replica, on a thread of its own.

A thread, because a query must not wait for what is read: the kernel releases Python's lock while it
loads long rows. While 50,000 blocks a second come in small flushes, the p99 of a query is a
third to a half of what it is with the reader on the loop that answers. The thread has an event
loop, on which everything that touches Kafka runs:

    follow   prepares the topics, then reads; retries after a pause whenever that fails
    read     a consumer of all partitions, without a group, from where the snapshot stands
    check    asks every `LAG_CHECK_S` where the topics end: lag, and whether Kafka is there
    run      what other threads hand in: writes to the registry

aiokafka reconnects by itself, so an outage ends nothing here. A consumer that stalls or fails is
replaced, and so is a snapshot whose offsets no longer belong to the topics.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from time import monotonic, time
from typing import Any, TypeVar

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.client_internals import start_client
from brokers.clients import Clients
from brokers.errors import AWAY, NoOffsetForPartitionError, OffsetOutOfRangeError
from brokers.interface import Consumer, Message, Partition
from brokers.options import ClientOptions
from brokers.reading import stop_consumer
from brokers.settings import KafkaSettings
from brokers.tasks import first_of
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Snapshot, Topic, TopicPartition
from schemas.causes import cause_of
from schemas.errors import ConfigurationError, EntryError
from schemas.limits import (
    ENTRIES_NAMED_MAX,
    LAG_CHECK_S,
    LAG_CHECK_WAIT_S,
    MAINTAINED_ENTRIES,
    REPLICA_AWAY_S,
    REPLICA_POLL_MS,
    REPLICA_RETRY_S,
    REPLICA_ROWS_PER_TURN_MAX,
    REPLICA_STALL_S,
    SHUTDOWN_S,
)
from streams.table.releasing import release_some
from streams.table.rows.contexts import MISSING_ROWS, NEWER_ROWS
from streams.table.rows.format import as_found

T = TypeVar("T")
logger = logging.getLogger(__name__)


class _OffsetsLostError(Exception):
    """The offsets read so far no longer belong to the topics: read them from the beginning."""


class _StalledError(Exception):
    """The consumer returns nothing although there is more to read."""


class TopicReader:
    """Keeps one replica up to date. `start` and `stop` it from one thread; call `run` from any."""

    def __init__(
        self,
        settings: KafkaSettings,
        options: ClientOptions,
        replica: Replica,
        *,
        prepare: Callable[[], Awaitable[None]],
        when_refused: Callable[[ConfigurationError], None],
    ) -> None:
        """Args:
        prepare: makes and checks the topics; waits while Kafka is away.
        when_refused: called where Kafka or its topics cannot be used as they are and nothing
            was read yet; reading has ended then.
        """
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
        self._answered_at = monotonic()
        self._loop = asyncio.new_event_loop()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run_loop, name="kafka", daemon=True)

    # Starting and stopping

    def start(self) -> None:
        """Starts reading; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends reading and what was handed in; waits for it within a bound."""
        self._stopping = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._cancel)
            self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error(
                "The Kafka reader did not stop within %.0f s; stopping without it", SHUTDOWN_S
            )
        else:
            self._loop.close()  # of a thread that never ran, too

    @property
    def is_running(self) -> bool:
        """Whether what is handed in is run."""
        return self._thread.is_alive()

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        """Has something closed on the reader's loop when it ends."""
        self._closers.append(close)

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs it on the reader's loop, beside the reading."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except asyncio.CancelledError:
            if not self._stopping:
                logger.error("The Kafka reader stopped unexpectedly; restart the replica")
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            await self._follow()
            await asyncio.Event().wait()  # refused; what was handed in is still answered
        finally:
            for close in self._closers:
                await close()

    # Reading

    async def _follow(self) -> None:
        # Growing pauses would make answers older.
        backoff = Backoff(REPLICA_RETRY_S, REPLICA_RETRY_S)
        while True:
            self._replica.note_unreachable()
            try:
                await self._prepare()
                await self._read_and_check()
            except _OffsetsLostError as error:
                logger.warning(
                    "Cannot read the topics on: %s. Reading the table and the registry from the"
                    " beginning",
                    error,
                )
                self._replica.reload()
                continue
            except ConfigurationError as error:
                self._replica.note_unreachable(str(error), "refused")
                if not self._replica.ready:
                    self._when_refused(error)
                    return
            except (*AWAY, _StalledError) as error:
                self._note_failure(describe(error))
            except Exception as error:
                logger.exception("Unexpected error while reading from Kafka; trying again")
                self._replica.internal_errors += 1
                self._note_failure(f"unexpected error: {cause_of(error)}")
            await backoff.wait()

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

    async def _read_and_check(self) -> None:
        snapshot = self._replica.loading
        consumer = Clients(self._options).replica_reader()
        try:
            await start_client(consumer)
            consumer.assign(self._read_from)
            await self._seek(consumer, snapshot)
            await self._note_ends(consumer, snapshot)
            await first_of(self._read(consumer, snapshot), self._check(consumer, snapshot))
        finally:
            await stop_consumer(consumer)

    async def _seek(self, consumer: Consumer, snapshot: Snapshot) -> None:
        """Seeks to where the snapshot stands, or to the beginning for a new one."""
        first = await consumer.beginning_offsets(self._read_from)
        for name in self._read_from:
            offset = snapshot.next_offsets[self._places[name]]
            if snapshot.begun and offset < first[name]:
                raise _OffsetsLostError("a topic begins after the offsets read")
            consumer.seek(name, max(offset, first[name]))

    async def _read(self, consumer: Consumer, snapshot: Snapshot) -> None:
        moved_at = monotonic()
        while True:
            try:
                batches = await consumer.getmany(
                    timeout_ms=REPLICA_POLL_MS, max_records=REPLICA_ROWS_PER_TURN_MAX
                )
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                raise _OffsetsLostError(f"Kafka no longer has the offsets: {error}") from error
            for name, records in batches.items():
                await self._apply(snapshot, self._places[name], records)
            for name in self._read_from:
                # Beyond the last record where those after it were compacted away.
                await self._advance(snapshot, self._places[name], await consumer.position(name))
            self._tell_skipped(snapshot, had_caught_up=False)
            self._replica.note_progress()
            release_some(snapshot.table.release_left, MAINTAINED_ENTRIES)
            if batches or not snapshot.unread():
                moved_at = monotonic()
                self._replica.note_read()
            elif self._replica.reachable and monotonic() - moved_at > REPLICA_STALL_S:
                raise _StalledError(f"no record for {REPLICA_STALL_S:.0f} s, but there are more")

    async def _apply(
        self, snapshot: Snapshot, place: TopicPartition, records: Sequence[Message]
    ) -> None:
        had_caught_up = snapshot.has_caught_up(place)
        for record in records:
            if had_caught_up and _ends_table(snapshot, place, record):
                # Answers go on from the old one until the new one is as far. And in a topic that
                # was recreated, what is read may begin in the middle of the new table.
                raise _OffsetsLostError("the table was rebuilt")
            try:
                self._put(snapshot, place, record)
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
        await self._advance(snapshot, place, records[-1].offset + 1)
        self._tell_skipped(snapshot, had_caught_up=had_caught_up)

    def _tell_skipped(self, snapshot: Snapshot, *, had_caught_up: bool) -> None:
        """Logs rows that were skipped.

        Raises:
            _OffsetsLostError: some are missing, of a partition that had caught up.
        """
        for skipped in snapshot.table.take_skipped():
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
                raise _OffsetsLostError("rows are missing")

    def _put(self, snapshot: Snapshot, place: TopicPartition, record: Message) -> None:
        if place.topic is Topic.TABLE:
            age_s = max(time() - record.timestamp / 1000, 0.0)
            key = record.key or b""
            value = as_found(key, record.value, record.offset)
            snapshot.put_row(place, key, value, as_of=monotonic() - age_s)
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

    async def _advance(self, snapshot: Snapshot, place: TopicPartition, next_offset: int) -> None:
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

    async def _check(self, consumer: Consumer, snapshot: Snapshot) -> None:
        answered_at = monotonic()
        while True:
            await asyncio.sleep(LAG_CHECK_S)
            try:
                await self._note_ends(consumer, snapshot)
                answered_at = monotonic()
            except AWAY as error:
                self._note_away(describe(error))
            if monotonic() - answered_at > REPLICA_STALL_S:
                raise _StalledError(f"no answer for {REPLICA_STALL_S:.0f} s")

    async def _note_ends(self, consumer: Consumer, snapshot: Snapshot) -> None:
        needed = snapshot.needed_ends()  # before they are asked for: some may come meanwhile
        async with asyncio.timeout(LAG_CHECK_WAIT_S):
            found = await consumer.end_offsets(list(self._places))
        now = monotonic()
        if snapshot.begun and now - self._answered_at > REPLICA_AWAY_S:
            raise _OffsetsLostError("tombstones may be gone after so long without Kafka")
        ends = {self._places[name]: offset for name, offset in found.items()}
        if any(ends[place] < offset for place, offset in needed.items()):
            raise _OffsetsLostError("a topic ends before the offsets read, or to be read")
        self._answered_at = now
        self._replica.note_ends(ends)


def _ends_table(snapshot: Snapshot, place: TopicPartition, record: Message) -> bool:
    key = record.key or b""
    return place.topic is Topic.TABLE and snapshot.table.is_of_another_table(
        place.partition, key, as_found(key, record.value, record.offset)
    )
