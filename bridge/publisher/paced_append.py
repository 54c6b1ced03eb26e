"""Hands records to a sink, each publisher's in order: what is small at once, what is large one
record at a time, so that what others send comes between. One loop.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bridge.publisher.ports import RecordSink
from bridge.supervision import cancel
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, SequencedRecord

_logger = logging.getLogger(__name__)


class HandOver(Protocol):
    """Hands records to the sink; no error leaves it."""

    def __call__(self, records: Sequence[SequencedRecord], *, ask_again: bool) -> None:
        """See `PacedAppend.append`."""
        ...


@dataclass(slots=True)
class _Waiting:
    """What is left of one publisher, and since when it waits, monotonic seconds."""

    records: deque[SequencedRecord]
    since: float = field(default_factory=time.monotonic)


class PacedAppend:
    """See the module.

    Args:
        sink: asked when a record may come; `hand_over` is what appends to it.
        when_begun, when_ended: called with the publisher whose records wait, and when none does.
        on_fault: counts an unexpected error.

    Attributes:
        at_once: whether only the sink's being ready is waited for: at the end.
    """

    def __init__(
        self,
        sink: RecordSink,
        hand_over: HandOver,
        *,
        when_begun: Callable[[PublisherKey], None],
        when_ended: Callable[[PublisherKey], None],
        on_fault: Callable[[], None],
    ) -> None:
        self.at_once = False
        self._sink = sink
        self._hand_over = hand_over
        self._when_begun = when_begun
        self._when_ended = when_ended
        self._on_fault = on_fault
        self._waiting: dict[PublisherKey, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __contains__(self, publisher: object) -> bool:
        """Whether records of the publisher wait."""
        return publisher in self._waiting

    def waiting_since(self, publisher: PublisherKey) -> float | None:
        """When the publisher's records began to wait, monotonic seconds; None where none does."""
        waiting = self._waiting.get(publisher)
        return None if waiting is None else waiting.since

    def append(self, records: Sequence[SequencedRecord], *, ask_again: bool = False) -> None:
        """Hands over all of them now, behind what waits of their publishers.

        Args:
            records: of any publishers.
            ask_again: where that fails, whether their engines are asked for them again.
        """
        if self._waiting:
            for publisher in dict.fromkeys(record.publisher for record in records):
                self.finish(publisher)
        self._hand_over(records, ask_again=ask_again)

    async def append_paced(
        self, records: Sequence[SequencedRecord], *, ask_again: bool = False
    ) -> None:
        """Hands over records of one publisher, one at a time where they are large; what follows on
        them has to be appended here, too.
        """
        if self._is_small(records):
            self.append(records, ask_again=ask_again)
        else:
            await self._write(*self._take(records), ask_again=ask_again)

    def begin_paced(self, records: Sequence[SequencedRecord], since: float) -> None:
        """The same, in a task of its own.

        Args:
            records: of one publisher.
            since: when the first of what they say came, monotonic seconds.
        """
        if self.has_room_for(records):
            self.append(records)
        else:
            publisher, waiting = self._take(records)
            waiting.since = since
            task = asyncio.create_task(self._write_alone(publisher, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_alone(self, publisher: PublisherKey, waiting: _Waiting) -> None:
        try:
            await self._write(publisher, waiting, ask_again=False)
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error while records of %s waited; all were handed over", publisher
            )

    def _take(self, records: Sequence[SequencedRecord]) -> tuple[PublisherKey, _Waiting]:
        publisher = records[0].publisher
        self.finish(publisher)
        waiting = self._waiting[publisher] = _Waiting(deque(records))
        self._when_begun(publisher)
        return publisher, waiting

    async def _write(self, publisher: PublisherKey, waiting: _Waiting, *, ask_again: bool) -> None:
        records = waiting.records
        try:
            while records:
                if self.at_once:
                    await self._sink.ready()
                else:
                    await self._sink.idle()
                    await self._sink.room(publisher)
                if records:  # else they were finished or discarded meanwhile
                    self._hand_over([records.popleft()], ask_again=ask_again)
        finally:
            if self._waiting.get(publisher) is waiting:
                self.finish(publisher)  # some are left where this was cancelled

    def finish(self, publisher: PublisherKey) -> None:
        """Hands over what waits of the publisher, all of it: something is to follow."""
        waiting = self._waiting.pop(publisher, None)
        if waiting is not None:
            records = list(waiting.records)
            waiting.records.clear()
            if records:
                self._hand_over(records, ask_again=False)
            self._when_ended(publisher)

    def finish_all(self) -> None:
        """The same, of all publishers."""
        for publisher in list(self._waiting):
            self.finish(publisher)

    def discard(self, publisher: PublisherKey) -> None:
        """Forgets what waits of the publisher."""
        waiting = self._waiting.pop(publisher, None)
        if waiting is not None:
            waiting.records.clear()
            self._when_ended(publisher)

    def has_room_for(self, records: Sequence[SequencedRecord]) -> bool:
        """Whether the records would be handed over at once."""
        return self.at_once or self._is_small(records)

    def _is_small(self, records: Sequence[SequencedRecord]) -> bool:
        return sum(map(_size, records)) <= self._sink.turn_bytes

    async def close(self) -> None:
        """Ends; what waits is handed over."""
        await cancel(*self._tasks)
        self.finish_all()


def _size(record: SequencedRecord) -> int:
    return memoryview(record.events).nbytes if isinstance(record, EventsRecord) else 0
