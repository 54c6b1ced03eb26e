r"""Appends records to a log in this process; where the disk fails, they wait and are retried.

    append -> log -> `on_appended`, which folds them
          \-> (an append failed) -> waiting -> reopen the log, append -> the same

How they wait is `logs.waiting_appends`. While records wait, `ready` and `room` wait too, so what
the sockets receive stays in the inbox. Records that are appended all the same wait behind, up to
LOG_WAITING_BYTES_MAX; above it they are dropped and counted in `dropped`, and the fold finds the
hole.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bridge.bounds import LOG_WAITING_BYTES_MAX
from logs.interface import RecordLog
from logs.waiting_appends import WaitingAppends
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import StorageError
from schemas.identities import Offset, PublisherKey
from schemas.limits import TURN_BYTES_MAX
from schemas.records import BridgeRecord, LogRecord, encode_record
from schemas.tracing import NO_TRACER, Tracer

BULK_IDLE_WAIT_S: Final = 0.02  # each part of a large message goes when the fold is idle, or then
BULK_IDLE_LOOK_S: Final = 0.001  # between two looks whether the fold has nothing to do

LOG_FULL: Final = "log_full"


class LogSink:
    """See the module; implements `RecordSink`. One loop; the log's only writer.

    Args:
        log: open.
        on_appended, on_failure, on_recovered: see `WaitingAppends`.
        is_idle: whether nothing that `on_appended` was given waits.
        turn_bytes: see `RecordSink`.

    Attributes:
        appends: what waits for the disk.
        dropped: records that had no room there, by publisher and reason.
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
        self.appends = WaitingAppends(
            log,
            on_appended=on_appended,
            on_failure=on_failure,
            on_recovered=on_recovered,
            tracer=tracer,
            clock=clock,
        )
        self.dropped: Counter[tuple[PublisherKey, str]] = Counter()
        self._lost: dict[PublisherKey, None] = {}  # by drops since `take_lost`
        self._is_idle = is_idle
        self._turn_bytes = turn_bytes
        self._clock = clock

    def append(self, records: Iterable[LogRecord]) -> None:
        """See `RecordSink`. Cost: one write. What is of no publisher is dropped where
        others wait: it will be said again.
        """
        records = list(records)
        if not records:
            return
        if self.appends.is_waiting:
            self._wait(records)
        else:
            self.appends.append([encode_record(record) for record in records])

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`: of every publisher, while the disk fails."""
        return self.appends.is_waiting

    @property
    def turn_bytes(self) -> int:
        """See `RecordSink`."""
        return self._turn_bytes()

    @property
    def is_ready(self) -> bool:
        """See `RecordSink`: whether nothing waits for the disk."""
        return not self.appends.is_waiting

    async def ready(self) -> None:
        """See `RecordSink`: until nothing waits."""
        await self.appends.appended()

    def holds_back(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`: nobody; `ready` and `turn_bytes` follow the fold."""
        return False

    def let_overflow(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: nobody is held back."""

    async def room(self, publisher: PublisherKey) -> None:
        """See `RecordSink`: until nothing waits."""
        await self.appends.appended()

    def take_lost(self) -> list[PublisherKey]:
        """The publishers of which records were dropped since the last call; none while others wait
        for the disk.
        """
        if self.appends.is_waiting:
            return []
        lost, self._lost = self._lost, {}
        return list(lost)

    async def idle(self) -> None:
        """See `RecordSink`."""
        end = self._clock.monotonic() + BULK_IDLE_WAIT_S
        while not self._is_idle() and self._clock.monotonic() < end:  # noqa: ASYNC110 -- another thread
            await asyncio.sleep(BULK_IDLE_LOOK_S)

    def _wait(self, records: Sequence[LogRecord]) -> None:
        kept = []
        room_bytes = LOG_WAITING_BYTES_MAX - self.appends.waiting_bytes
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
            self.appends.append(kept)
