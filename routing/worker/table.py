"""The fold of the routing log as a worker has it: what replicas begin with.

It writes a checkpoint every ROUTING_CHECKPOINT_S while records come, and before the partition goes
to another worker. Where to read on is what the checkpoint covers, whatever the group has committed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from brokers.availability import describe
from brokers.errors import AWAY
from brokers.options import ClientOptions
from logs.interface import LogEntry
from logs.topic import read_past_corruption
from routing.bounds import ROUTING_CHECKPOINT_S
from routing.fold.fold import RoutingFold
from routing.log.topics import ROUTING_PARTITION, RoutingTopics
from routing.worker.state import RoutingStateTopic
from schemas.causes import cause_of
from schemas.clock import REAL_CLOCK
from schemas.codec import decode_routing
from schemas.errors import RecordError, RepriseError
from schemas.folded_work import FoldedWork
from schemas.limits import ENTRIES_NAMED_MAX, SPAN_LINKS_MAX
from schemas.routing_records import RoutingRecord, traces_of
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes
from streams.worker.gaps import check_gap

ROUTING_LEAVE_S: Final = 2.0  # for the last checkpoint, before the partition is given away

logger = logging.getLogger(__name__)


class RoutingTable:
    """See `PartitionOwner`: of the one partition that there is.

    Attributes:
        folded: offset of the last record; -1 while the partition is another worker's.
        kept: of the last record that a checkpoint has; -1 the same.
        counters: `records`, `skipped`, `not_owned`, `checkpoints`.
    """

    def __init__(
        self,
        options: ClientOptions,
        topics: RoutingTopics,
        *,
        state: RoutingStateTopic | None = None,
        clock: Callable[[], float] = REAL_CLOCK.monotonic,
        unix_ns: Callable[[], int] = REAL_CLOCK.unix_ns,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        """Args:
        state: where checkpoints are; None: in their topic.
        clock: monotonic seconds.
        unix_ns: Unix nanoseconds.
        """
        self.counters: Counter[str] = Counter()
        self._options = options
        self._topic = topics.log.name
        self._state = state or RoutingStateTopic(options, topics)
        self._clock = clock
        self._unix_ns = unix_ns
        self._tracer = tracer
        self._wanted: frozenset[int] | None = None
        self._closed = False
        self._assigning = asyncio.Lock()
        self._working = asyncio.Lock()
        self._fold: RoutingFold | None = None
        self._next = 0
        self._kept = -1
        self._checkpoint_at = 0.0

    @property
    def folded(self) -> int:
        """See the class."""
        return -1 if self._fold is None else self._fold.offset

    @property
    def kept(self) -> int:
        """See the class."""
        return -1 if self._fold is None else self._kept

    # PartitionOwner

    async def assign(self, partitions: Iterable[int]) -> bool:
        """See `PartitionOwner`."""
        if self._closed:
            return False  # a consumer that is being stopped may still call its listener
        wanted = self._wanted = frozenset(partitions)
        async with self._assigning:
            if self._wanted is not wanted:
                return False
            await self._give_up()
            if wanted:
                recovered = await self._state.take()
                self._fold, self._next = recovered.fold, recovered.start
                self._kept = recovered.fold.offset
                self._checkpoint_at = self._clock() + ROUTING_CHECKPOINT_S
                logger.info("The routing log is folded from %d", self._next)
        return self._wanted is wanted

    async def release(self) -> None:
        """See `PartitionOwner`; keeps a checkpoint, where Kafka takes it in time."""
        self._wanted = None
        async with self._working:
            try:
                async with asyncio.timeout(ROUTING_LEAVE_S):
                    await self._keep()
            except (RepriseError, *AWAY) as error:
                logger.info(
                    "Left the routing fold without a checkpoint: %s. Its next owner folds from the"
                    " one before",
                    describe(error),
                )

    async def close(self) -> None:
        """See `PartitionOwner`."""
        self._closed, self._wanted = True, None
        async with self._assigning:
            await self._give_up()

    async def _give_up(self) -> None:
        async with self._working:
            self._fold = None
            await self._state.stop()

    def next_offset(self, partition: int) -> int | None:
        """See `PartitionOwner`."""
        return None if self._fold is None or partition != ROUTING_PARTITION else self._next

    def covered(self, partition: int) -> int | None:
        """See `PartitionOwner`."""
        return None if self._fold is None or partition != ROUTING_PARTITION else self._kept + 1

    def last_work(self, partition: int) -> FoldedWork | None:
        """See `PartitionOwner`: nothing, for who writes the log waits for no fold."""
        return None

    async def check(self) -> None:
        """See `PartitionOwner`: nothing, for whoever finds no checkpoint reads the log."""

    async def fold(self, records: Mapping[int, Sequence[LogEntry]]) -> None:
        """Folds records, and keeps a checkpoint now and then.

        Raises:
            TableLostError, KafkaError, StorageError: the fold has to be opened anew.
        """
        entries = records.get(ROUTING_PARTITION, ())
        async with self._working:
            if self._fold is None or self._wanted is None:
                self.counters["not_owned"] += len(entries)
                return
            began_ns, traces = self._unix_ns(), dict[str, None]()
            for entry in entries:
                if entry.offset > self._next:
                    await check_gap(
                        self._options, self._topic, ROUTING_PARTITION, self._next, entry.offset
                    )
                record = self._apply(self._fold, entry)
                if self._tracer.is_on and record is not None and len(traces) < SPAN_LINKS_MAX:
                    traces.update(dict.fromkeys(traces_of((record,))))
                await asyncio.sleep(0)  # a record may have thousands of candidates
            if self._tracer.is_on and entries:
                self._trace(entries, traces, began_ns)
            if self._clock() >= self._checkpoint_at:
                await self._keep()

    async def read_past(self, partition: int, start: int) -> list[LogEntry]:
        """See `PartitionOwner`."""
        logger.error("Corrupt records of the routing log from %d on; reading past them", start)
        return await read_past_corruption(self._options, self._topic, partition, start)

    def _trace(self, entries: Sequence[LogEntry], traces: Iterable[str], began_ns: int) -> None:
        last = entries[-1].offset
        attributes = batch_attributes(
            "routing", len(entries), ROUTING_PARTITION, last, topic=self._topic
        )
        self._tracer.batch(SpanName.FOLD, began_ns, traces, attributes)

    def _apply(self, fold: RoutingFold, entry: LogEntry) -> RoutingRecord | None:
        """What was folded; None where nothing was."""
        if entry.offset < self._next:
            return None
        record = None
        try:
            record = decode_routing(entry.value)
            fold.apply(entry.offset, record)
            self.counters["records"] += 1
        except RecordError as error:
            self._skip(entry.offset, str(error))
        except Exception as error:
            logger.exception(
                "Unexpected error in the fold of the routing log; leaving the record out"
            )
            self._skip(entry.offset, cause_of(error))
        self._next = entry.offset + 1
        return record

    def _skip(self, offset: int, problem: str) -> None:
        self.counters["skipped"] += 1
        level = logging.WARNING if self.counters["skipped"] <= ENTRIES_NAMED_MAX else logging.DEBUG
        logger.log(
            level, "Cannot read record %d of the routing log: %s. It is left out", offset, problem
        )

    async def _keep(self) -> None:
        """A checkpoint, where there is something new."""
        fold = self._fold
        if fold is None or fold.offset == self._kept:
            return
        offset, pieces = fold.offset, []
        for piece in fold.pieces():  # nothing is folded meanwhile: the caller has `_working`
            pieces.append(piece)
            await asyncio.sleep(0)
        await self._state.write(offset, b"".join(pieces))
        self._kept = offset
        self.counters["checkpoints"] += 1
        self._checkpoint_at = self._clock() + ROUTING_CHECKPOINT_S
