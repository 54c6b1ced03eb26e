"""Hands records to the sink, each publisher's in order: what is small at once, what is large one
record at a time, so that what others send comes between; and lets those wait that the sink holds
back. One loop.

What the sink cannot take is asked for again, or a gap stands for it.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from bridge.bounds import WRITER_PAUSE_S
from bridge.publisher.ports import RecordSink
from bridge.publisher.publisher import PacedRecords, Publisher
from bridge.publisher.waits import Wait
from bridge.sockets.inbox import Inbox
from bridge.supervision import cancel
from schemas.clock import Clock
from schemas.identities import PublisherKey
from schemas.records import EventsRecord, SequencedRecord

_logger = logging.getLogger(__name__)


class Appender:
    """See the module.

    Args:
        sink: takes the records, and says whom it holds back.
        inbox: where those wait: what they send would stand before what others do.
        on_fault: counts an unexpected error.

    Attributes:
        at_once: whether only the sink's being ready is waited for: at the end.
    """

    def __init__(
        self,
        sink: RecordSink,
        inbox: Inbox,
        followed: Mapping[PublisherKey, Publisher],
        clock: Clock,
        *,
        on_fault: Callable[[], None],
    ) -> None:
        self.at_once = False
        self._sink = sink
        self._inbox = inbox
        self._followed = followed
        self._clock = clock
        self._on_fault = on_fault
        self._waiting = 0  # publishers of which records wait
        self._held_back: dict[Publisher, None] = {}  # a set, in order
        self._holds_back = True
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def append(self, records: Sequence[SequencedRecord], *, request_replay: bool = False) -> None:
        """Hands over all of them now, behind what waits of their publishers.

        Args:
            records: of any publishers.
            request_replay: where that fails, whether their engines are asked for them again.
        """
        if self._waiting:
            for publisher in self._publishers_of(records):
                self.finish(publisher)
        self._hand_over(records, request_replay=request_replay)

    def _publishers_of(self, records: Sequence[SequencedRecord]) -> list[Publisher]:
        found = (self._followed.get(key) for key in dict.fromkeys(one.publisher for one in records))
        return [publisher for publisher in found if publisher is not None]

    async def append_paced(
        self,
        publisher: Publisher,
        records: Sequence[SequencedRecord],
        *,
        request_replay: bool = False,
    ) -> None:
        """Hands over records of the publisher, one at a time where they are large; what follows on
        them has to be appended here, too.
        """
        if self._is_small(records):
            self.append(records, request_replay=request_replay)
        else:
            waiting = self._take(publisher, records, self._clock.monotonic())
            await self._write(publisher, waiting, request_replay=request_replay)

    def begin_paced(
        self, publisher: Publisher, records: Sequence[SequencedRecord], since: float
    ) -> None:
        """The same, in a task of its own.

        Args:
            records: of the publisher.
            since: when the first of what they say came, monotonic seconds.
        """
        if self.has_room_for(records):
            self.append(records)
        else:
            waiting = self._take(publisher, records, since)
            task = asyncio.create_task(self._write_alone(publisher, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write_alone(self, publisher: Publisher, waiting: PacedRecords) -> None:
        try:
            await self._write(publisher, waiting, request_replay=False)
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error while records of %s waited; all were handed over",
                publisher.key,
            )

    def _take(
        self, publisher: Publisher, records: Sequence[SequencedRecord], since: float
    ) -> PacedRecords:
        self.finish(publisher)
        publisher.paced = PacedRecords(deque(records), since)
        self._waiting += 1
        publisher.waits.begin(Wait.LARGE_RECORDS)
        return publisher.paced

    async def _write(
        self, publisher: Publisher, waiting: PacedRecords, *, request_replay: bool
    ) -> None:
        records = waiting.records
        try:
            while records:
                if self.at_once:
                    await self._sink.ready()
                else:
                    await self._sink.idle()
                    await self._sink.room(publisher.key)
                if records:  # else they were finished or discarded meanwhile
                    self._hand_over([records.popleft()], request_replay=request_replay)
        finally:
            if publisher.paced is waiting:
                self.finish(publisher)  # some are left where this was cancelled

    def finish(self, publisher: Publisher) -> None:
        """Hands over what waits of the publisher, all of it: something is to follow."""
        records = self._end(publisher)
        if records:
            self._hand_over(records, request_replay=False)
        publisher.waits.end(Wait.LARGE_RECORDS)

    def discard(self, publisher: Publisher) -> None:
        """Forgets the publisher, and what waits of it."""
        self._discard_records(publisher)
        if publisher in self._held_back:
            self._resume_held_back(publisher)

    def _discard_records(self, publisher: Publisher) -> None:
        self._end(publisher)
        publisher.waits.end(Wait.LARGE_RECORDS)

    def _end(self, publisher: Publisher) -> list[SequencedRecord]:
        """What waited, and waits no more."""
        waiting, publisher.paced = publisher.paced, None
        if waiting is None:
            return []
        self._waiting -= 1
        records = list(waiting.records)
        waiting.records.clear()
        return records

    def finish_all(self) -> None:
        """Hands over what waits of all publishers."""
        for publisher in list(self._followed.values()):
            self.finish(publisher)

    def has_room_for(self, records: Sequence[SequencedRecord]) -> bool:
        """Whether the records would be handed over at once."""
        return self.at_once or self._is_small(records)

    def _is_small(self, records: Sequence[SequencedRecord]) -> bool:
        return sum(map(_size, records)) <= self._sink.turn_bytes

    def _hand_over(self, records: Sequence[SequencedRecord], *, request_replay: bool) -> None:
        if not records:
            return
        try:
            self._sink.append(records)
            self._hold_back({record.publisher: None for record in records})
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error with %d records; replaying them, or writing a gap for them",
                len(records),
            )
            for publisher in self._publishers_of(records):
                self._take_back(publisher, request_replay=request_replay)

    def _take_back(self, publisher: Publisher, *, request_replay: bool) -> None:
        self._discard_records(publisher)  # they come again, or the gap stands for them
        try:
            now = self._clock.unix()
            self._sink.append(publisher.sequencer.take_back(now, request_replay=request_replay))
        except Exception:
            self._on_fault()
            _logger.exception(
                "Unexpected error with the gap of %s; the fold will find a hole",
                publisher.key,
            )

    # Who is held back

    def _hold_back(self, publishers: Iterable[PublisherKey]) -> None:
        """The sink was given records of these: lets those wait that it holds back."""
        for key in publishers:
            if not self._holds_back or not self._sink.holds_back(key):
                continue
            publisher = self._followed.get(key)
            if self._inbox.is_filling(key):
                self._sink.let_overflow(key)
            elif publisher is not None:
                self._held_back[publisher] = None
                publisher.waits.begin(Wait.WORKERS)

    def resume_held_back(self, publishers: Iterable[PublisherKey]) -> None:
        """The sink holds these back no longer."""
        for key in publishers:
            publisher = self._followed.get(key)
            if publisher in self._held_back:
                self._resume_held_back(publisher)

    def _resume_held_back(self, publisher: Publisher) -> None:
        del self._held_back[publisher]
        publisher.waits.end(Wait.WORKERS)
        self._released.set()

    def watch(self) -> None:
        """Lets those go on whose room in the inbox is nearly used up, and those of whom the sink
        has not said that they may. Cost O(publishers that wait).
        """
        for publisher in list(self._held_back):
            key = publisher.key
            is_filling = self._inbox.is_filling(key)
            if is_filling:
                self._sink.let_overflow(key)
            if is_filling or not self._sink.holds_back(key):
                self._resume_held_back(publisher)

    async def gather(self, seconds: float) -> None:
        """Returns after so long, or once somebody goes on who has waited for longer already."""
        self._released.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), seconds)

    async def write_all(self, timeout_s: float) -> None:
        """Lets all that waits now become records, as far as there is time: the publishers may go to
        another bridge, which could only ask their engines for it.
        """
        began = self._clock.monotonic()
        waiting = [publisher.key for publisher in self._held_back]
        self._holds_back = False
        try:
            self.resume_held_back(waiting)
            while self._clock.monotonic() < began + timeout_s:
                oldest = map(self._inbox.waiting_since, waiting)
                if not any(since is not None and since < began for since in oldest):
                    return
                await asyncio.sleep(WRITER_PAUSE_S)
        finally:
            self._holds_back = True

    def end_holding_back(self) -> None:
        """Lets all go on, and nobody wait any more."""
        self._holds_back = False
        for publisher in list(self._held_back):
            self._resume_held_back(publisher)

    async def close(self) -> None:
        """Ends; what waits is handed over."""
        await cancel(*self._tasks)
        self.finish_all()


def _size(record: SequencedRecord) -> int:
    return memoryview(record.events).nbytes if isinstance(record, EventsRecord) else 0
