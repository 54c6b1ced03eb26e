"""Keeps the past of the distributed form: folds the events topic into tables of this process alone,
whose rows are kept.

    DATA/history/                   rows, past ones included: `streams.history.store`
    DATA/history-tables/table-P/    rows as of now, by which a restart goes on

The rows of the table topic would say the same, but a compacted topic no longer has the past that a
follower missed while it was away; the log has.

A thread with an event loop of its own: what it reads and folds, no query waits for.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from brokers.availability import describe
from brokers.backoff import Backoff
from brokers.client_internals import start_client
from brokers.clients import Clients
from brokers.errors import AWAY, DamagedError, NoOffsetForPartitionError, OffsetOutOfRangeError
from brokers.interface import Consumer, Partition
from brokers.options import ClientOptions
from brokers.reading import stop_consumer
from brokers.tasks import first_of
from logs.interface import LogEntry
from logs.topic_logs import EventsLogs
from schemas.causes import cause_of
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError, StorageError, TableLostError
from schemas.identities import Offset
from schemas.limits import (
    HISTORY_PAUSED_S,
    HISTORY_RECORDS_PER_TURN_MAX,
    HISTORY_RETAIN_S,
    HISTORY_RETRY_S,
    LAG_CHECK_WAIT_S,
    REPLICA_POLL_MS,
    SHUTDOWN_S,
    WORKER_STALL_CHECK_S,
)
from streams.history.past import Past
from streams.history.past_tables import PastTables
from streams.history.recorder import HistoryRecorder
from streams.history.retention import HistoryRetention
from streams.history.store import HistoryStore
from streams.kernel.interface import Kernel
from streams.table.fold import Fold
from streams.worker.stall_watch import StalledError, StallWatch
from streams.worker.tables import PartitionTables

HISTORY: Final = "history"
TABLES: Final = "history-tables"
T = TypeVar("T")
logger = logging.getLogger(__name__)


class HistoryFollower:
    """See the module. `start` and `stop` it from one thread.

    Attributes:
        logs: of the topic.
        tables: past ones.
        is_recording: whether records are read, and kept.
        internal_errors: unexpected ones.
    """

    def __init__(
        self,
        data: Path,
        options: ClientOptions,
        *,
        topic: str,
        partitions: int,
        make_kernel: Callable[[], Kernel],
        bytes_max: int,
        conditions: Conditions,
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        """Args:
        data: the directory.
        options: of Kafka's clients.
        topic: the events.
        partitions: how many it has.
        make_kernel: an empty one, of the seed of all roles.
        bytes_max: how much is kept.
        conditions: where it is said that the past is not kept now.
        prepare: waits for the topics.

        Raises:
            DataDirectoryInUseError: another process has it.
            StorageError: it cannot be opened.
        """
        self.is_recording = False
        self.internal_errors = 0
        self._data = data
        self._options = options
        self._topic = topic
        self._make_kernel = make_kernel
        self._conditions = conditions
        self._prepare = prepare
        self._places = [Partition(topic, number) for number in range(partitions)]
        self._store = HistoryStore(data / HISTORY)
        self._retention = HistoryRetention(self._store, bytes_max)
        seed = make_kernel().seed
        self._recorders = [
            HistoryRecorder(self._store, seed=seed, partition=number)
            for number in range(partitions)
        ]
        self._owned: PartitionTables | None = None
        self._next: dict[int, int] = {}
        self._stopping = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="history", daemon=True)
        self.logs = EventsLogs(options, topic, partitions, self.run)
        self.tables = PastTables(
            [
                Past(self._store, partial(self._log, number), make_kernel, partition=number)
                for number in range(partitions)
            ],
            make_kernel,
        )

    def _log(self, partition: int) -> Any:
        return self.logs.logs[partition]

    # Starting and stopping

    def start(self) -> None:
        """Starts following; returns at once."""
        self._thread.start()

    def begin_stop(self) -> None:
        """Has it end, and returns at once; call `stop` next."""
        self._stopping = True
        if self._thread.is_alive():
            with suppress(RuntimeError):  # it has ended just now
                self._loop.call_soon_threadsafe(self._cancel)

    def stop(self) -> None:
        """Writes what was folded, and closes what is on the disk; within a bound."""
        self.begin_stop()
        if self._thread.is_alive():
            self._thread.join(SHUTDOWN_S)
        if self._thread.is_alive():
            logger.error(
                "The thread that records the past did not end within %.0f s; stopping without it",
                SHUTDOWN_S,
            )
            return
        self._loop.close()  # of a thread that never ran, too
        self.tables.forget()
        self._store.close()

    def run(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs it on the loop, beside what is followed."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _cancel(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._follow())
        except asyncio.CancelledError:
            if not self._stopping:
                logger.error("The past is no longer recorded: its thread has ended; restart")
        finally:
            self.is_recording = False
            with suppress(Exception):
                self._loop.run_until_complete(self.logs.close())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    # Following

    async def _follow(self) -> None:
        backoff = Backoff(HISTORY_RETRY_S, HISTORY_RETRY_S)
        while True:
            try:
                await self._prepare()
                await self._record()
            except (*AWAY, StalledError, TableLostError) as error:
                self._note_failure("kafka", describe(error))
            except (StorageError, ConfigurationError) as error:
                self._note_failure("disk", str(error))
            except Exception as error:
                logger.exception("Unexpected error while the past is recorded; trying again")
                self.internal_errors += 1
                self._note_failure("internal_error", cause_of(error))
            await backoff.wait()
            with suppress(*AWAY):  # how far it is behind meanwhile
                await self.logs.fetch_bounds()

    def _note_failure(self, reason: str, problem: str) -> None:
        self.is_recording = False
        text = (
            f"the past is not recorded now: {problem}; it is tried again every"
            f" {HISTORY_RETRY_S:.0f} s, from the log"
        )
        self._conditions.set(Part.HISTORY, reason, text)

    async def _record(self) -> None:
        """Until something fails. What is open then is closed, and opened again from its rows."""
        consumer = Clients(self._options).replica_reader(every_offset=True)
        owned = PartitionTables(
            self._data / TABLES,
            self._options,
            events_topic=self._topic,
            table_topic=None,
            make_fold=lambda: Fold(self._make_kernel()),
            history=self._recorders.__getitem__,
        )
        try:
            await owned.assign(range(len(self._places)))
            await start_client(consumer)
            consumer.assign(self._places)
            for place in self._places:
                consumer.seek(place, owned.next_offset(place.partition) or 0)
            self._owned = owned
            await first_of(self._read(consumer, owned), self._watch(owned))
        finally:
            self._note_next()
            self._owned = None
            await stop_consumer(consumer, timeout_s=SHUTDOWN_S / 2)
            await owned.close()

    async def _read(self, consumer: Consumer, owned: PartitionTables) -> None:
        while True:
            try:
                batches = await consumer.getmany(
                    timeout_ms=REPLICA_POLL_MS, max_records=HISTORY_RECORDS_PER_TURN_MAX
                )
            except DamagedError as error:
                partition = error.partition.partition
                entries = await owned.read_past(partition, error.offset)
                await owned.fold({partition: entries})
                if entries:
                    consumer.seek(error.partition, entries[-1].offset + 1)
                continue
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                raise TableLostError(f"the log no longer has what comes next: {error}") from error
            await owned.fold(
                {
                    place.partition: [
                        LogEntry(Offset(message.offset), message.value or b"")
                        for message in messages
                    ]
                    for place, messages in batches.items()
                    if messages
                }
            )

    async def _watch(self, owned: PartitionTables) -> None:
        """Looks whether it stands still, and drops what is old."""
        stalls = StallWatch()
        retain_at, looked_at = 0.0, time.monotonic()
        while True:
            if time.monotonic() - looked_at > HISTORY_PAUSED_S:
                raise TableLostError("this process stood still: the log may be another one by now")
            looked_at = time.monotonic()
            async with asyncio.timeout(WORKER_STALL_CHECK_S + LAG_CHECK_WAIT_S):
                bounds = await self.logs.fetch_bounds()
            now = time.monotonic()
            places = {number: owned.next_offset(number) or 0 for number in bounds}
            stalled = stalls.note(places, bounds, now)
            if stalled is not None:
                raise stalled
            problem = next(filter(None, (one.problem for one in self._recorders)), "")
            self.is_recording = not problem
            if problem:
                self._note_failure("disk", problem)
            else:
                self._conditions.clear(Part.HISTORY)
            if now >= retain_at:
                retain_at = now + HISTORY_RETAIN_S
                starts = {number: log.start for number, log in bounds.items()}
                await asyncio.to_thread(self._retention.apply, starts)
            await asyncio.sleep(WORKER_STALL_CHECK_S)

    # What is known

    def size_bytes(self) -> int:
        """About how much of the past is on the disk; 0 where that cannot be read."""
        with suppress(StorageError):
            return self._store.live_bytes()
        return 0

    def behind(self) -> int:
        """Records of the log that are not kept yet, as of the last look."""
        self._note_next()
        return sum(
            max(log.end - self._next.get(number, log.start), 0)
            for number, log in dict(self.logs.bounds).items()
        )

    def _note_next(self) -> None:
        """Where to go on, of each partition; as before where the tables are not open now."""
        if self._owned is None:
            return
        for place in self._places:
            found = self._owned.next_offset(place.partition)
            if found is not None:
                self._next[place.partition] = found
