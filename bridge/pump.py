"""The write path, the same in every form: what engines send becomes records, in order.

    sockets -> inbox -> sequencer -> sink       a turn
    gap -> hold -> replay -> resume             a repair, beside the turns (`publisher/follower.py`)
    large -> decode -> one record at a time     a large message, beside the turns

A turn; the order is the guarantee:

    Step 1. wait until the sink takes what was received: until then it waits in the bounded inbox.
    Step 2. take it, and make records of it.
    Step 3. hand the records to the sink, in order.
    Step 4. start to repair the publishers that are held at a gap.

What an unexpected error of ours costs is replayed like a gap, or reported as one: see
`bridge.publisher.sequencer`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from bridge.bounds import RELINK_CHECK_S, TURN_S
from bridge.engine_http.engine import EngineHttp
from bridge.engine_http.facts_watch import FactsWatch
from bridge.engine_http.load_watch import OnSamples, ignore_samples
from bridge.pace import TurnPace
from bridge.publisher.bulk import BulkPump
from bridge.publisher.counters import PublisherCounters
from bridge.publisher.follower import PublisherFollower
from bridge.publisher.ports import EngineAccess, RecordSink
from bridge.publisher.replay_client import Replayer
from bridge.publisher.sequencer import Intake
from bridge.receivers import Receivers
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import Received, behind
from bridge.sockets.reader import MessageReader
from bridge.sockets.subscriber import Subscriber
from bridge.supervision import cancel, keep, keep_all
from bridge.wire.batch import read_sequence
from schemas.arrays import ArrayPacker
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import FrameError
from schemas.identities import PublisherKey
from schemas.limits import SHUTDOWN_S, TURN_MESSAGES_MAX

TURN_MESSAGES_MIN: Final = 2  # of a turn, where they take long: bad events are read one by one

_logger = logging.getLogger(__name__)


class Pump:
    """See the module. All methods are called on its loop, but for `start`.

    Args:
        packer: of hashes and tokens; the kernel's where there is one.
        window_s: how long batches are collected for one record, 0 for not at all.
        loop: that it will run on; None: the running one.
        engines: how they are reached; None: by sockets and streams.

    Attributes:
        on_load: takes what engines say in their streams that they carry; may be replaced.
    """

    def __init__(
        self,
        sink: RecordSink,
        *,
        packer: ArrayPacker | None = None,
        reader: MessageReader | None = None,
        window_s: float = 0.0,
        loop: asyncio.AbstractEventLoop | None = None,
        engines: EngineAccess | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self.inbox = Inbox(when_filled=self._wake)
        self.on_load: OnSamples = ignore_samples
        if engines is None:
            receivers = Receivers(Subscriber(self.inbox, reader, clock), self.inbox, clock)
            replayer = Replayer(clock=clock)
            self.engines = EngineAccess(receivers, replayer, EngineHttp(), receivers)
        else:
            self.engines = engines
        self.follower = PublisherFollower(sink, self.inbox, self.engines, packer, clock)
        self.followed, self.appender = self.follower.followed, self.follower.appender
        self.intake = Intake(self.follower.sequencer_of, clock)
        self._bulk = self.follower.bulk
        self._bulk_pump = BulkPump(
            self._bulk,
            self.intake,
            sink,
            self.appender,
            clock,
            on_progress=self.follower.end_turn,
            on_fault=self._count_fault,
        )
        self._facts: FactsWatch | None = None
        if engines is None:
            self._facts = FactsWatch(
                EngineHttp(requests=self.engines.http.requests),
                self.followed.values,
                on_fault=self._count_fault,
                clock=clock.monotonic,
            )
        self._clock = clock
        self._sink = sink
        self._window_s = window_s
        self._pace = TurnPace(TURN_S, least=TURN_MESSAGES_MIN, most=TURN_MESSAGES_MAX)
        self._arrived = asyncio.Event()
        self._is_idle = False  # the turns wait for an arrival, and for nothing else

    @property
    def faults(self) -> int:
        """Unexpected errors of the whole write path."""
        return self.follower.totals.faults + self.engines.receiver.unexpected_errors

    def counters(self) -> dict[PublisherKey, PublisherCounters]:
        """The counters of every publisher that is followed; live, so read them only."""
        followed = list(self.followed.items())
        return {key: publisher.sequencer.stream.counters for key, publisher in followed}

    def _count_fault(self) -> None:
        self.follower.totals.count_fault()

    def _wake(self) -> None:
        """Called by the socket thread when there is something to take again."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrive)

    # Start and end

    def start(self) -> None:
        """Starts the socket thread, without a publisher yet; any thread may call it, once."""
        self.engines.receiver.start()

    async def run(self) -> None:
        """Turns and repairs until it is cancelled; no error ends it."""
        count = self._count_fault
        beside = {"watch over links": self._watch}
        if self._facts is not None:
            beside["watch over what engines are"] = self._facts.run
        watching = keep_all(beside, on_fault=count)
        try:
            await keep("write path", self._turn_until_cancelled, on_fault=count)
        finally:
            await cancel(*watching)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RELINK_CHECK_S)
            self.follower.watch()
            streams = self.engines.streams
            if streams is not None and (loads := streams.take_loads()):
                self.on_load(loads)

    async def drain(self) -> None:
        """Ends receiving and the repairs; what was received by then becomes records, in time.

        What is held for a repair is left to the next start, which asks for it.
        """
        self.appender.at_once = True
        await asyncio.to_thread(self.engines.receiver.stop)
        self.follower.stop()
        try:
            async with asyncio.timeout(SHUTDOWN_S / 2):
                await self._sink.ready()
                is_more = True
                while is_more:
                    is_more = self._turn()
                    await asyncio.sleep(0)
                    await self._sink.ready()
                    if tasks := self._bulk_pump.tasks:
                        await asyncio.wait(tasks)
                        is_more = True  # what has waited for it
        except TimeoutError:
            _logger.warning(
                "Dropping %d received messages: they could not be written in time",
                len(self.inbox) + len(self._bulk),
            )

    async def close(self) -> None:
        """Ends; closes the sockets."""
        self._bulk_pump.close()
        await cancel(*self._bulk_pump.tasks)
        await self.follower.close()

    # Turns

    async def _turn_until_cancelled(self) -> None:
        while True:
            # Looks before it waits: an error may have left messages behind.
            self._arrived.clear()
            await self._sink.ready()  # Step 1.
            while self._turn():
                await asyncio.sleep(0)
                await self._sink.ready()
            await self._wait_for_arrival()
            if self._window_s:
                await self.appender.gather(self._window_s)

    async def _wait_for_arrival(self) -> None:
        self._is_idle = not self._window_s
        try:
            await self._arrived.wait()
        finally:
            self._is_idle = False

    def _arrive(self) -> None:
        """There is something to take: a turn at once, where nothing has to be waited for.

        Waking the task that waits costs a further pass of the loop, and the interpreter's lock
        twice; where messages come one by one that is a fifth of the CPU time.
        """
        if not self._is_idle or not self._sink.is_ready:
            self._arrived.set()
            return
        try:
            is_more = self._turn()
        except Exception:
            self._count_fault()
            _logger.exception("Unexpected error in a turn; continuing with the next one")
            is_more = True
        if is_more:
            self._arrived.set()

    def _turn(self) -> bool:
        """Steps 2 to 4; False where nothing more has been received."""
        received = self.inbox.take(self._pace.amount, bytes_max=self._sink.turn_bytes)
        if received:
            if (
                self.inbox.large_messages
            ):  # until the first one comes, nobody looks for what is large
                self._process(self._bulk.sort(received))
                self._bulk_pump.start()
            else:
                self._process(received)
        self._ask_for_overflow()
        return bool(self.inbox)

    def _process(self, received: Sequence[Received]) -> None:
        began = self._clock.monotonic()
        # What the last turns took says little of what another publisher sends.
        records, count = self.intake.process_until(received, self._clock.unix(), began + TURN_S)
        if received:  # else all of them are large
            self._pace.note(count, self._clock.monotonic() - began)
        if left := behind(received, count):
            self.inbox.give_back(self._bulk.put_back(left))
        self.appender.append(records, request_replay=True)
        self.follower.end_turn()

    def _ask_for_overflow(self) -> None:
        """What the inbox had no room for is asked for, or a gap."""
        for publisher, heads in self.inbox.take_overflowed().items():
            try:
                sequence = read_sequence(heads)
            except FrameError:
                continue  # it had no place in the stream
            self.follower.ask_for(publisher, sequence)
