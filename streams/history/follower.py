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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from brokers.availability import describe
from brokers.client_types import Consumer, Partition
from brokers.clients import Clients
from brokers.errors import AWAY, CorruptRecordException, DamagedPartitionError
from brokers.options import ClientOptions
from logs.attempts import LogLostError
from logs.follower import Follower, Messages
from logs.loop_thread import LoopThread
from logs.topic import entries_of
from logs.topic_logs import TopicLogs
from schemas.causes import cause_of
from schemas.conditions import Conditions, Part
from schemas.errors import ConfigurationError, StorageError, TableLostError
from schemas.limits import LAG_CHECK_WAIT_S, REPLICA_POLL_MS, SHUTDOWN_S
from streams.bounds import HISTORY_RETRY_S, WORKER_STALL_CHECK_S
from streams.history.past_fold import Past
from streams.history.past_tables import PastTables
from streams.history.recorder import HistoryRecorder
from streams.history.retention import HistoryRetention
from streams.history.store import HistoryStore
from streams.kernel.interface import Kernel
from streams.table.fold import Fold
from streams.worker.stall_watch import StalledWorkerError, StallWatch
from streams.worker.tables import PartitionTables

HISTORY_RECORDS_PER_TURN_MAX: Final = 4096  # of the events topic, folded at once
HISTORY_PAUSED_S: Final = 45.0  # stood still for so long, it opens its tables anew
HISTORY_RETAIN_S: Final = 60.0  # how often what is old is dropped, in the distributed form

HISTORY: Final = "history"
TABLES: Final = "history-tables"
logger = logging.getLogger(__name__)


class HistoryFollower(Follower):
    """See the module. `start` and `stop` it from one thread.

    Attributes:
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
        make_kernel: an empty one, of the seed of all roles.
        conditions: where it is said that the past is not kept now.
        prepare: waits for the topics.

        Raises:
            DataDirectoryInUseError: another process has it.
            StorageError: it cannot be opened.
        """
        super().__init__(
            poll_ms=REPLICA_POLL_MS,
            records_max=HISTORY_RECORDS_PER_TURN_MAX,
            look_s=WORKER_STALL_CHECK_S,
            retry_first_s=HISTORY_RETRY_S,
            retry_max_s=HISTORY_RETRY_S,
            leave_s=SHUTDOWN_S / 2,
        )
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
        self._stalls = StallWatch()
        self._retain_at = self._looked_at = 0.0
        self._thread = LoopThread(
            "history",
            unended="The thread that records the past did not end",
            when_ended=_say_ended,
        )
        self._thread.close_with(self._closed)
        self.logs = TopicLogs(options, topic, partitions, self._thread.run)
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
        self._thread.start(self.run())

    def begin_stop(self) -> None:
        """Has it end, and returns at once; call `stop` next."""
        self._thread.begin_stop()

    def stop(self) -> None:
        """Writes what was folded, and closes what is on the disk; within a bound."""
        if self._thread.stop():
            self.tables.forget()
            self._store.close()

    async def _closed(self) -> None:
        self.is_recording = False
        with suppress(Exception):
            await self.logs.close()

    # What goes wrong

    def lost(self, error: LogLostError) -> bool:
        """See `Follower`: the tables are opened again from their rows."""
        self.away(error)
        return False

    def refused(self, error: ConfigurationError) -> None:
        """See `Follower`."""
        self._note_failure("disk", str(error))

    def away(self, error: Exception) -> None:
        """See `Follower`."""
        self._note_failure("kafka", describe(error))

    def disk_failed(self, error: StorageError) -> None:
        """See `Follower`."""
        self._note_failure("disk", str(error))

    def failed(self, error: Exception) -> None:
        """See `Follower`."""
        if isinstance(error, StalledWorkerError | TableLostError):
            self.away(error)
            return
        logger.exception("Unexpected error while the past is recorded; trying again")
        self.internal_errors += 1
        self._note_failure("internal_error", cause_of(error))

    def _note_failure(self, reason: str, problem: str) -> None:
        self.is_recording = False
        text = (
            f"the past is not recorded now: {problem}; it is tried again every"
            f" {HISTORY_RETRY_S:.0f} s, from the log"
        )
        self._conditions.set(Part.HISTORY, reason, text)

    async def pause(self) -> None:
        """See `Follower`."""
        await super().pause()
        with suppress(*AWAY):  # how far it is behind meanwhile
            await self.logs.fetch_bounds()

    # Following

    async def prepare(self) -> None:
        """See `Follower`: opens the tables; `left` closes them."""
        await self._prepare()
        self._owned = PartitionTables(
            self._data / TABLES,
            self._options,
            events_topic=self._topic,
            table_topic=None,
            make_fold=lambda: Fold(self._make_kernel()),
            history=self._recorders.__getitem__,
        )
        await self._owned.assign(range(len(self._places)))

    @property
    def _tables(self) -> PartitionTables:
        assert self._owned is not None, "open from `prepare` to `left`"
        return self._owned

    def make_consumer(self) -> Consumer:
        """See `Follower`."""
        return Clients(self._options).replica_reader(every_offset=True)

    async def begin(self, consumer: Consumer) -> None:
        """See `Follower`: behind what the tables have."""
        consumer.assign(self._places)
        for place in self._places:
            consumer.seek(place, self._tables.next_offset(place.partition) or 0)
        self._stalls = StallWatch()
        self._retain_at, self._looked_at = 0.0, asyncio.get_running_loop().time()
        await self.look(consumer)

    async def take(self, messages: Messages) -> None:
        """See `Follower`."""
        found = {place.partition: entries_of(some) for place, some in messages.items() if some}
        await self._tables.fold(found)

    async def damaged(self, consumer: Consumer, error: CorruptRecordException) -> None:
        """See `Follower`: what cannot be read is folded as a record that has no value."""
        if not isinstance(error, DamagedPartitionError):
            raise error
        partition = error.partition.partition
        entries = await self._tables.read_past(partition, error.offset)
        await self._tables.fold({partition: entries})
        if entries:
            consumer.seek(error.partition, entries[-1].offset + 1)

    async def look(self, consumer: Consumer) -> None:
        """See `Follower`: whether it stands still; drops what is old."""
        clock = asyncio.get_running_loop().time
        if clock() - self._looked_at > HISTORY_PAUSED_S:
            raise TableLostError("this process stood still: the log may be another one by now")
        self._looked_at = clock()
        async with asyncio.timeout(WORKER_STALL_CHECK_S + LAG_CHECK_WAIT_S):
            bounds = await self.logs.fetch_bounds()
        now = clock()
        places = {number: self._tables.next_offset(number) or 0 for number in bounds}
        stalled = self._stalls.note(places, bounds, now)
        if stalled is not None:
            raise stalled
        problem = next(filter(None, (one.problem for one in self._recorders)), "")
        self.is_recording = not problem
        if problem:
            self._note_failure("disk", problem)
        else:
            self._conditions.clear(Part.HISTORY)
        if now >= self._retain_at:
            self._retain_at = now + HISTORY_RETAIN_S
            starts = {number: log.start for number, log in bounds.items()}
            await asyncio.to_thread(self._retention.apply, starts)

    async def left(self) -> None:
        """See `Follower`: what is open is opened again from its rows."""
        self._note_next()
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.close()

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


def _say_ended() -> None:
    logger.error("The past is no longer recorded: its thread has ended; restart")
