r"""LMCache's controller over one log: the thread of its sockets, and what reaches the log of it.

    sockets' thread: message -> controller -> answer
                                     \-> Told -> waiting -> this loop: file, sink, heartbeats

Who is there, and of which locations, is noted in a file before the log has it: else the next run
would not know what it has lost. The thread never waits for the loop. What waits between them is
bounded; above that, and where the sink has dropped something, the controller is asked to write the
worker anew: it has in memory all that the log must have.
"""

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from lmcache_adapter.confirmed import FollowedWorkers
from lmcache_adapter.controller.controller import Controller
from lmcache_adapter.controller.counters import LmcacheCounters
from lmcache_adapter.controller.member import WorkerAddress, WorkerView
from lmcache_adapter.journal import WorkerReport
from lmcache_adapter.settings import Address, Models
from lmcache_adapter.sockets.server import ControllerSockets
from lmcache_adapter.state_file import State, StateFile, begin_run
from schemas.answer_states import Doubt
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import StorageError
from schemas.identities import PublisherKey
from schemas.limits import HOUSEKEEPING_S, MIB
from schemas.records import EventsRecord, Record

LMCACHE_WAITING_BYTES_MAX: Final = 64 * MIB  # of records on their way to the log's loop
LMCACHE_NOTE_S: Final = 1.0  # between two notes of who is there, for the next run
LMCACHE_STOP_S: Final = 2.0  # for the sockets' thread to end, or to answer

_logger = logging.getLogger(__name__)

T = TypeVar("T")
WAITING_FULL: Final = "waiting_full"


class Sink(Protocol):
    """Where records go; a `bridge.publisher.ports.RecordSink` is one."""

    def append(self, records: Iterable[Record]) -> None:
        """See `RecordSink`."""
        ...

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `RecordSink`."""
        ...


class LmcacheService:
    """See the module. `start` and `stop` may be called by any thread; `run` is of the log's loop.

    Args:
        address, models: see `lmcache_adapter.settings`.
        data: the directory of the file that names the workers.
        loop: on which `run` runs.
        floor: which incarnation of a publisher the log has, as far as that is known here; called by
            the sockets' thread.
        take_lost: the publishers of which the sink has dropped something, where it would take it
            now; each is named once.

    Attributes:
        followed: the workers, for heartbeats.
        watched_at: when the loop was last seen to go on; monotonic seconds.
        dropped: records that found no room on their way to the loop.
        faults: unexpected errors.

    Raises:
        ConfigurationError: an address cannot be bound.
        StorageError: the file cannot be written.
    """

    def __init__(
        self,
        address: Address,
        models: Models,
        *,
        data: Path,
        sink: Sink,
        loop: asyncio.AbstractEventLoop,
        floor: Callable[[PublisherKey], int] = lambda publisher: 0,
        take_lost: Callable[[], Sequence[PublisherKey]] = lambda: (),
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.dropped = 0
        self.own_faults = 0
        self._sink = sink
        self._loop = loop
        self._take_lost = take_lost
        self._waiting: deque[Sequence[WorkerReport]] = deque()
        self._waiting_bytes = 0
        self._lost: dict[PublisherKey, None] = {}
        self._ending: dict[PublisherKey, None] = {}  # unregistered; the thread may not know yet
        self._lock = threading.Lock()
        self._draining = False
        self._heard_until = self.watched_at = clock.monotonic()
        self.followed = FollowedWorkers(self._heard, clock)
        self._file = StateFile(data)
        state = begin_run(self._file, clock.unix())
        self._first = state.incarnations
        self._has_news = False  # that are to be noted; of the sockets' thread
        self._unnoted: State | None = None
        self._failed: State | None = None  # that could not be written
        self._draining_task: asyncio.Task[None] | None = None
        self.controller = Controller(
            models,
            next_incarnation=lambda publisher: max(self._first, floor(publisher) + 1),
            clock=clock.unix,
            known=state.workers,
        )
        self.controller.on_known = self._note_known
        self.sockets = ControllerSockets(address, self.controller, self._hand_over, clock=clock)
        self._thread = threading.Thread(
            target=self.sockets.run, name="reprise-lmcache", daemon=True
        )
        self._is_closed = False

    @property
    def faults(self) -> int:
        """Unexpected errors."""
        return self.own_faults + self.sockets.faults

    @property
    def counters(self) -> LmcacheCounters:
        """What has happened."""
        return self.controller.counters

    # Called by its owner

    def start(self) -> None:
        """Starts to answer workers; what is told of them waits for `run`."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes the sockets, within a bound; may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        self.sockets.stop()
        if self._thread.ident is not None:
            self._thread.join(LMCACHE_STOP_S)
        if self._thread.is_alive():
            _logger.error(
                "LMCache's sockets did not close within %g s; ending without them", LMCACHE_STOP_S
            )
        else:
            self.sockets.close()

    async def end(self) -> None:
        """`run` has ended: stops the thread, hands over what it told, and tells the next run."""
        await asyncio.to_thread(self.stop)
        if self._draining_task is not None:
            await self._draining_task
        await self._drain()
        if not self._thread.is_alive():
            known = self.controller.known(is_last=True)
            await self._note(State(incarnations=self._first, workers=tuple(known)))

    # The sockets' thread

    def _note_known(self) -> None:
        self._has_news = True

    def _hand_over(self, told: Sequence[WorkerReport]) -> None:
        size_bytes = sum(map(_size_of, told))
        unnoted = None
        if self._has_news:
            self._has_news = False
            unnoted = self._state_now()
        with self._lock:
            if unnoted is not None:
                self._unnoted = unnoted
            if self._waiting_bytes + size_bytes > LMCACHE_WAITING_BYTES_MAX:
                for one in told:
                    self.dropped += len(one.records)
                    if one.records and not one.is_gone:
                        self._lost[one.publisher] = None
                # What is no more must be known; the rest is written anew.
                told = [one for one in told if one.is_gone]
                size_bytes = sum(map(_size_of, told))
            self._waiting.append(told)
            self._waiting_bytes += size_bytes
            if self._draining:
                return
            self._draining = True
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._begin_draining)
            except RuntimeError:  # it has just been closed
                return

    def _state_now(self) -> State:
        return State(incarnations=self._first, workers=tuple(self.controller.known()))

    # The log's loop

    def _begin_draining(self) -> None:
        self._draining_task = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        """Hands what waits to the sink, in order."""
        while True:
            with self._lock:
                count = len(self._waiting)
                unnoted, self._unnoted = self._unnoted, None
                if not count and unnoted is None:
                    self._draining = False
                    return
            if unnoted is not None:
                await self._note(unnoted)
            for _ in range(count):
                with self._lock:
                    told = self._waiting.popleft()
                    self._waiting_bytes -= sum(map(_size_of, told))
                try:
                    self._take(told)
                except Exception:
                    self.own_faults += 1
                    _logger.exception(
                        "Unexpected error with records of LMCache; writing them again"
                    )
                    self._rewrite([one.publisher for one in told if not one.is_gone])

    def _take(self, told: Sequence[WorkerReport]) -> None:
        records: list[Record] = []
        for one in told:
            if one.is_gone:
                if one.publisher not in self._ending:
                    records += one.records
                self._ending.pop(one.publisher, None)
            elif one.publisher not in self._ending:
                records += one.records
        self._sink.append(records)
        for one in told:
            if one.is_gone or one.publisher not in self._ending:
                self.followed.take(one)

    def _heard(self) -> float:
        """As of when all that had arrived is in the log, or in the sink."""
        looked_at = self.sockets.looked_at  # before it is looked what waits
        if not self._waiting:
            self._heard_until = max(self._heard_until, looked_at)
        return self._heard_until

    def _rewrite(self, publishers: Sequence[PublisherKey]) -> None:
        if publishers:
            self.sockets.order(lambda: self.controller.rewrite(publishers))

    def forget(self, publishers: Iterable[PublisherKey]) -> None:
        """A client unregisters these: nothing that is on its way of them is written any more."""
        gone = list(publishers)
        for publisher in gone:
            self.followed.pop(publisher, None)
            self._ending[publisher] = None

        def forget() -> None:
            for publisher in gone:
                self.controller.forget_publisher(publisher)

        self.sockets.order(forget)

    async def run(self) -> None:
        """Writes again what was lost, until it is cancelled."""
        note_at = self._clock.monotonic()
        while True:
            self._rewrite(self._take_all_lost())
            now = self.watched_at = self._clock.monotonic()
            unnoted = self._failed
            if unnoted is not None and now >= note_at:
                note_at = now + LMCACHE_NOTE_S
                await self._note(unnoted)
            await asyncio.sleep(HOUSEKEEPING_S)

    def _take_all_lost(self) -> list[PublisherKey]:
        lost = list(self._take_lost())
        with self._lock:
            if not self._waiting:
                lost += self._lost
                self._lost.clear()
        return [publisher for publisher in dict.fromkeys(lost) if publisher in self.followed]

    async def _note(self, state: State) -> None:
        """Writes down who is there, for the next run; where that fails, `run` tries again."""
        try:
            await asyncio.to_thread(self._file.write, state)
        except StorageError as error:
            if self._failed is None:
                _logger.warning("Cannot note the workers of LMCache, retrying: %s", error)
            self._failed = state
        else:
            self._failed = None

    # Views

    async def workers(self) -> list[WorkerView]:
        """All of them, as the sockets' thread knows them. Raises TimeoutError."""
        return await self._asked(self.controller.workers)

    async def locate(self, instance_id: str) -> dict[int, WorkerAddress]:
        """Where the workers of an instance take commands, by rank. Raises TimeoutError."""
        return await self._asked(lambda: self.controller.reachable(instance_id))

    async def _asked(self, question: Callable[[], T]) -> T:
        """What the sockets' thread says, between two of its turns; any loop may ask."""
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[T] = loop.create_future()

        def answer() -> None:
            loop.call_soon_threadsafe(_settle, asked, question())

        self.sockets.order(answer)
        return await asyncio.wait_for(asked, LMCACHE_STOP_S)

    def is_linked(self, publisher: PublisherKey) -> bool:
        """Whether a worker's link is up, as last told; any thread may ask."""
        found = self.followed.get(publisher)
        return found is not None and found.doubted.doubt is not Doubt.LINK_DOWN

    def dropped_by_reason(self) -> Counter[str]:
        """What was dropped."""
        dropped = Counter(self.counters.dropped)
        dropped[WAITING_FULL] += self.dropped
        return dropped


def _settle(asked: "asyncio.Future[T]", value: T) -> None:
    if not asked.done():
        asked.set_result(value)


def _size_of(told: WorkerReport) -> int:
    return sum(
        len(record.events) if isinstance(record, EventsRecord) else 0 for record in told.records
    )
