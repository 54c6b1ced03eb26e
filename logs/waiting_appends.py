"""Appends to a log on this disk in order; where the disk fails they wait, and are tried again."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from logs.attempts import Attempts
from logs.interface import RecordLog
from schemas.clock import Clock
from schemas.errors import StorageError
from schemas.identities import Offset
from schemas.limits import LOG_RETRY_S
from schemas.tracing import SpanName, Tracer, batch_attributes


class WaitingAppends(Attempts):
    """See the module. One loop; the log's only writer.

    Args:
        log: open.
        on_appended: given the first offset and the records of each write; may not raise. It is
            given nothing that is not in the log.
        on_failure: called for each attempt that failed.
        on_recovered: called once nothing waits.

    Attributes:
        waiting_bytes: of what waits; its user bounds them.
        traceparent: of the span of the write that `on_appended` is given; "" where it has none.
    """

    def __init__(
        self,
        log: RecordLog,
        *,
        on_appended: Callable[[Offset, Sequence[bytes]], None],
        on_failure: Callable[[StorageError], None],
        on_recovered: Callable[[], None],
        tracer: Tracer,
        clock: Clock,
    ) -> None:
        super().__init__(retry_first_s=LOG_RETRY_S, retry_max_s=LOG_RETRY_S)
        self.waiting_bytes = 0
        self.traceparent = ""
        self._log = log
        self._on_appended = on_appended
        self._on_failure = on_failure
        self._on_recovered = on_recovered
        self._tracer = tracer
        self._clock = clock
        self._waiting: deque[Sequence[bytes]] = deque()
        self._attempted = Offset(0)  # where the first of those that wait was to be appended
        self._failed = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits for the disk."""
        return bool(self._waiting)

    async def appended(self) -> None:
        """Returns once nothing waits."""
        await self._free.wait()

    def append(self, encoded: Sequence[bytes]) -> None:
        """Appends records by one write, or behind those that wait."""
        if self._waiting:
            self._keep(encoded)
            return
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

    def _keep(self, encoded: Sequence[bytes]) -> None:
        self._waiting.append(encoded)
        self.waiting_bytes += sum(map(len, encoded))

    # What waits

    async def attempt(self) -> None:
        """See `Attempts`: tries again, once an append has failed, and after a pause."""
        await self._failed.wait()
        await self.pause()
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

    def _written(self, first: Offset) -> None:
        encoded = self._waiting.popleft()
        self.waiting_bytes -= sum(map(len, encoded))
        self._on_appended(first, encoded)
