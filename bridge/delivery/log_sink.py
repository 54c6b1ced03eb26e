r"""Appends records to a log in this process; where the disk fails, they wait and are retried.

    append -> log -> `on_appended`, which folds them
          \-> (an append failed) -> waiting -> reopen the log, append -> the same

`on_appended` is given nothing that is not in the log. While records wait, `ready` and `room` wait
too, so what the sockets receive stays in the inbox. Records that are appended all the same wait
behind, up to LOG_WAITING_BYTES_MAX; above it they are dropped and counted in `dropped`, and the
fold finds the hole.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bridge.bounds import LOG_WAITING_BYTES_MAX
from logs.interface import RecordLog
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import StorageError
from schemas.identities import Offset, PublisherKey
from schemas.limits import LOG_RETRY_S, TURN_BYTES_MAX
from schemas.records import BridgeRecord, LogRecord, encode_record
from schemas.tracing import NO_TRACER, SpanName, Tracer, batch_attributes

BULK_IDLE_WAIT_S: Final = 0.02  # each part of a large message goes when the fold is idle, or then
BULK_IDLE_LOOK_S: Final = 0.001  # between two looks whether the fold has nothing to do

LOG_FULL: Final = "log_full"


class LogSink:
    """See the module; implements `RecordSink`. One loop; the log's only writer.

    Args:
        log: open.
        on_appended: given the first offset and the records of each write; may not raise.
        on_failure: called for each attempt that failed.
        on_recovered: called once nothing waits.
        is_idle: whether nothing that `on_appended` was given waits.
        turn_bytes: see `RecordSink`.
        tracer, clock: of the service.

    Attributes:
        traceparent: of the span of the write that `on_appended` is given; "" where it has none.
    """

    def __init__(
        self,
        log: RecordLog,
        *,
        on_appended: Callable[[Offset, Sequence[bytes]], None],
        on_failure: Callable[[StorageError], None],
        on_recovered: Callable[[], None],
        is_idle: Callable[[], bool] = lambda: True,
        turn_bytes: Callable[[], int] = lambda: TURN_BYTES_MAX,
        tracer: Tracer = NO_TRACER,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.traceparent = ""
        self.dropped: Counter[tuple[PublisherKey, str]] = Counter()
        self.waiting_bytes = 0
        self._lost: dict[PublisherKey, None] = {}  # by drops since `take_lost`
        self._log = log
        self._on_appended = on_appended
        self._on_failure = on_failure
        self._on_recovered = on_recovered
        self._is_idle = is_idle
        self._turn_bytes = turn_bytes
        self._tracer = tracer
        self._waiting: deque[Sequence[bytes]] = deque()
        self._attempted = Offset(0)  # where the first of those that wait was to be appended
        self._failed = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    def append(self, records: Iterable[LogRecord]) -> None:
        """See `RecordSink`. Cost: one write. What is of no publisher is dropped where
        others wait: it will be said again.
        """
        records = list(records)
        if not records:
            return
        if self._waiting:
            self._wait(records)
            return
        encoded = [encode_record(record) for record in records]
        self._attempted = self._log.end_offset
        try:
            first = self._append(encoded)
        except StorageError as error:
            self._keep(encoded)
            self._free.clear()
            self._failed.set()
            self._on_failure(error)
        else:
            self._on_appended(first, encoded)

    def _append(self, encoded: Sequence[bytes]) -> Offset:
        if not self._tracer.is_on:
            return self._log.append(encoded, now=self._clock.unix())
        began_ns = self._clock.unix_ns()
        first = self._log.append(encoded, now=began_ns / 1e9)
        attributes = batch_attributes("events", len(encoded), 0, first + len(encoded) - 1)
        self.traceparent = self._tracer.batch(SpanName.APPEND, began_ns, (), attributes)
        return first

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`: of every publisher, while the disk fails."""
        return bool(self._waiting)

    @property
    def turn_bytes(self) -> int:
        """See `RecordSink`."""
        return self._turn_bytes()

    @property
    def is_ready(self) -> bool:
        """See `RecordSink`: whether nothing waits for the disk."""
        return not self._waiting

    async def ready(self) -> None:
        """See `RecordSink`: until nothing waits."""
        await self._free.wait()

    def holds_back(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`: nobody; `ready` and `turn_bytes` follow the fold."""
        return False

    def let_overflow(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: nobody is held back."""

    async def room(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: until nothing waits."""
        await self._free.wait()

    def take_lost(self) -> list[PublisherKey]:
        """The publishers of which records were dropped since the last call; none while others wait
        for the disk.
        """
        if self._waiting:
            return []
        lost, self._lost = self._lost, {}
        return list(lost)

    async def idle(self) -> None:
        """See `RecordSink`."""
        end = self._clock.monotonic() + BULK_IDLE_WAIT_S
        while not self._is_idle() and self._clock.monotonic() < end:  # noqa: ASYNC110 -- another thread
            await asyncio.sleep(BULK_IDLE_LOOK_S)

    async def run(self) -> None:
        """Retries failed appends until it is cancelled."""
        while True:
            await self._failed.wait()
            await asyncio.sleep(LOG_RETRY_S)
            self.retry()

    def retry(self) -> None:
        """Appends what waits, as far as the disk takes it."""
        try:
            self._log.reopen()
            if self._waiting and self._log.end_offset > self._attempted:
                # The write had reached the disk before its error.
                self.traceparent = ""
                self._written(self._attempted)
            while self._waiting:
                self._attempted = self._log.end_offset
                self._written(self._append(self._waiting[0]))
        except StorageError as error:
            self._on_failure(error)
            return
        self._failed.clear()
        self._free.set()
        self._on_recovered()

    def _wait(self, records: Sequence[LogRecord]) -> None:
        kept = []
        room_bytes = LOG_WAITING_BYTES_MAX - self.waiting_bytes
        for record in records:
            if isinstance(record, BridgeRecord):
                continue
            encoded = encode_record(record)
            room_bytes -= len(encoded)
            if room_bytes < 0:
                self.dropped[record.publisher, LOG_FULL] += 1
                self._lost[record.publisher] = None
            else:
                kept.append(encoded)
        if kept:
            self._keep(kept)

    def _keep(self, encoded: Sequence[bytes]) -> None:
        self._waiting.append(encoded)
        self.waiting_bytes += sum(map(len, encoded))

    def _written(self, first: Offset) -> None:
        encoded = self._waiting.popleft()
        self.waiting_bytes -= sum(map(len, encoded))
        self._on_appended(first, encoded)
