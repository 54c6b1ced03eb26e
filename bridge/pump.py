"""The write path, the same in every form: what engines send becomes records, in order.

    sockets -> inbox -> sequencer -> sink       a turn
    gap -> hold -> replay -> resume             a repair, beside the turns

A turn; the order is the guarantee:

    Step 1. wait until the sink takes what was received: until then it waits in the bounded inbox.
    Step 2. take it, and make records of it.
    Step 3. hand the records to the sink, in order.
    Step 4. start to repair the publishers that are held at a gap.

A repair holds one publisher: its live batches wait while its engine is asked for what is missing;
then they follow. It starts at a gap, when the link comes up again (what was sent meanwhile may show
no gap), and when the owner of the publisher says at which batch the log ends.

What an unexpected error of ours costs is replayed like a gap, or reported as one: see
`bridge.sequencing.sequencer`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bridge.ports import Receiver, RecordSink, ReplaySource
from bridge.sequencing.lane import Anchor
from bridge.sequencing.replay_client import Replayer
from bridge.sequencing.sequencer import Sequencer
from bridge.sockets.inbox import Inbox
from bridge.sockets.subscriber import Subscriber
from bridge.supervision import cancel, keep
from bridge.wire.batch import read_frames
from bridge.wire.drop_reasons import DropReason
from schemas.arrays import ArrayPacker
from schemas.errors import FrameError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import RELINK_CHECK_S, SHUTDOWN_S, TURN_BYTES_MAX, TURN_MESSAGES_MAX
from schemas.positions import Cursor
from schemas.records import SequencedRecord
from schemas.registration import Registration

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Followed:
    """One publisher that is ours.

    Attributes:
        live: its place in the log is known: `Pump.begin` or `Pump.go_on` has been called.
        links: how often its link had come up when its engine was last asked.
        repair: under way.
        interrupted: whether a repair was ended before its engine had said all.
    """

    __slots__ = ("interrupted", "links", "live", "registration", "repair")

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self.live = False
        self.links = 0
        self.repair: asyncio.Task[None] | None = None
        self.interrupted = False

    @property
    def can_replay(self) -> bool:
        """Whether its engine can be asked for what it has sent."""
        return bool(self.registration.replay_endpoint)

    def cancel_repair(self) -> None:
        """Ends the repair under way, if there is one; what waits goes on waiting."""
        if self.repair is not None:
            self.repair.cancel()
            self.repair = None
            self.interrupted = True


class Pump:
    """See the module. All methods are called on its loop, but for `start`.

    Args:
        sink: of the same loop.
        packer: of hashes and tokens; the kernel's where there is one.
        window_s: how long batches are collected for one record, 0 for not at all.
        turn_messages_max: bound on the messages of a turn.
        loop: that it will run on; None: the running one.
        receiver, replayer: others than sockets, for tests.
    """

    def __init__(
        self,
        sink: RecordSink,
        *,
        packer: ArrayPacker | None = None,
        window_s: float = 0.0,
        turn_messages_max: int = TURN_MESSAGES_MAX,
        loop: asyncio.AbstractEventLoop | None = None,
        receiver: Receiver | None = None,
        replayer: ReplaySource | None = None,
    ) -> None:
        self.inbox = Inbox(when_filled=self._wake)
        self.subscriber = Subscriber(self.inbox) if receiver is None else receiver
        self.sequencer = Sequencer(packer)
        self.replayer = Replayer(self.sequencer) if replayer is None else replayer
        self.followed: dict[PublisherKey, Followed] = {}
        self._own_faults = 0
        self._calls = ThreadPoolExecutor(1, "reprise-links")
        self._sink = sink
        self._window_s = window_s
        self._turn_messages_max = turn_messages_max
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._arrived = asyncio.Event()
        self._is_idle = False  # the turns wait for an arrival, and for nothing else

    @property
    def faults(self) -> int:
        """Unexpected errors of the whole write path."""
        return self._own_faults + self.sequencer.faults + self.subscriber.unexpected_errors

    def _count_fault(self) -> None:
        self._own_faults += 1

    def _wake(self) -> None:
        """Called by the socket thread when there is something to take again."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrive)

    # Start and end

    def start(self) -> None:
        """Starts the socket thread, without a publisher yet; any thread may call it, once."""
        self.subscriber.start()

    async def run(self) -> None:
        """Turns and repairs until it is cancelled; no error ends it."""
        count = self._count_fault
        watching = asyncio.create_task(keep("watch over links", self._watch, on_fault=count))
        try:
            await keep("write path", self._turn_until_cancelled, on_fault=count)
        finally:
            await cancel(watching)

    async def drain(self) -> None:
        """Ends receiving and the repairs; what was received by then becomes records, in time.

        What is held for a repair is left to the next start, which asks for it.
        """
        await asyncio.to_thread(self.subscriber.stop)
        for publisher, followed in self.followed.items():
            followed.cancel_repair()
            if followed.live and not followed.can_replay:
                self.resume(publisher)
            followed.live = False
        try:
            async with asyncio.timeout(SHUTDOWN_S / 2):
                await self._sink.ready()
                while self._turn():
                    await asyncio.sleep(0)
                    await self._sink.ready()
        except TimeoutError:
            _logger.warning(
                "Dropping %d received messages: they could not be written in time", len(self.inbox)
            )

    async def close(self) -> None:
        """Ends; closes the sockets."""
        repairs = [
            followed.repair for followed in self.followed.values() if followed.repair is not None
        ]
        await cancel(*repairs)
        await asyncio.to_thread(self.subscriber.stop)
        self._calls.shutdown(wait=False)
        self.replayer.close()

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
                await asyncio.sleep(self._window_s)

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
        messages = self.inbox.take(self._turn_messages_max, bytes_max=TURN_BYTES_MAX)
        is_more = bool(self.inbox)
        if messages:
            self._append(self.sequencer.process(messages, time.time()), ask_again=True)
            self._repair_gaps()
        if not is_more:
            self._ask_for_overflow()
        return is_more

    def _ask_for_overflow(self) -> None:
        """What the inbox had no room for is asked for, or a gap: the batch that would show it may
        never come. Once the inbox is empty, all that came before it has been taken.
        """
        for publisher, heads in self.inbox.take_overflowed().items():
            try:
                sequence, _ = read_frames([*heads, b""])
            except FrameError:
                continue  # it had no place in the stream
            followed = self.followed.get(publisher)
            if followed is None or sequence <= self.sequencer.cursor(publisher).sequence:
                continue  # a later batch has shown the gap
            incarnation = max(self.sequencer.cursor(publisher).incarnation, 1)
            _logger.warning(
                "The inbox was full: batches of %s up to %d were dropped; a gap, or replayed",
                publisher,
                sequence,
            )
            self.sequencer.hold(publisher)
            lost_to = Cursor(incarnation, sequence)
            self.sequencer.expect(publisher, lost_to, DropReason.INBOX_FULL)
            if followed.live:
                self.repair(publisher)

    def _append(self, records: Sequence[SequencedRecord], *, ask_again: bool = False) -> None:
        """Hands the records to the sink; where that fails, they are asked for again, or a gap."""
        if not records:
            return
        try:
            self._sink.append(records)
        except Exception:
            self._count_fault()
            _logger.exception(
                "Unexpected error with %d records; replaying them, or writing a gap for them",
                len(records),
            )
            for publisher in dict.fromkeys(record.publisher for record in records):
                self._take_back(publisher, ask_again=ask_again)

    def _take_back(self, publisher: PublisherKey, *, ask_again: bool) -> None:
        try:
            self._sink.append(self.sequencer.take_back(publisher, time.time(), ask_again=ask_again))
        except Exception:
            self._count_fault()
            _logger.exception(
                "Unexpected error with the gap of %s; the fold will find a hole", publisher
            )

    # Publishers

    async def follow(self, registration: Registration) -> None:
        """Connects to the publisher; what it sends waits until `begin` or `go_on`.

        Raises:
            RegistrationConflictError: it is followed already; nothing has changed.
            RegistrationError: it cannot be connected to; it is followed all the same, and
                `unfollow` forgets it.
        """
        publisher = registration.publisher
        self.sequencer.add(registration, repairs=bool(registration.replay_endpoint))
        self.sequencer.hold(publisher)
        self.followed[publisher] = Followed(registration)
        await self._call(self.subscriber.follow, registration)

    async def connect_again(self, registration: Registration) -> None:
        """Connects to a followed publisher, where that has failed before.

        Raises:
            RegistrationError: it failed again.
        """
        with contextlib.suppress(RegistrationConflictError):  # it has not failed
            await self._call(self.subscriber.follow, registration)

    async def unfollow(self, publisher: PublisherKey) -> None:
        """Forgets the publisher and what of it waits.

        Raises:
            KeyError: it is not followed; so for all below.
        """
        self.followed.pop(publisher).cancel_repair()
        self.sequencer.remove(publisher)
        await self._call(self.subscriber.unfollow, publisher)

    async def _call(self, call: Callable[[T], None], argument: T) -> None:
        """Calls the receiver; once begun it is done, in order, also where the caller is cancelled.

        A publisher that is followed but was never connected to would stay silent for good.
        """
        await asyncio.shield(self._loop.run_in_executor(self._calls, call, argument))

    def hold(self, publisher: PublisherKey) -> None:
        """Lets what the publisher sends wait again, until `begin` or `go_on`."""
        followed = self.followed[publisher]
        followed.live = False
        followed.cancel_repair()
        self.sequencer.hold(publisher)

    def begin(self, publisher: PublisherKey, anchor: Anchor) -> None:
        """The log has the publisher's batches up to `anchor`: what came after it is asked for."""
        self.sequencer.place(publisher, anchor)
        self.followed[publisher].live = True
        self.repair(publisher)

    def go_on(self, publisher: PublisherKey) -> None:
        """The log has all that was taken of the publisher: what waits follows. Its engine is asked
        first where something is missing before that, or a repair was interrupted.
        """
        followed = self.followed[publisher]
        followed.live = True
        if followed.interrupted or self.sequencer.misses(publisher):
            self.repair(publisher)
        else:
            self.resume(publisher)

    def resume(self, publisher: PublisherKey) -> None:
        """The log has all that is to be had of the publisher: what waits follows."""
        self.followed[publisher].live = True
        self._append(self.sequencer.resume(publisher, time.time()))
        self._repair_gaps()

    # Repairs

    def repair(self, publisher: PublisherKey) -> None:
        """Holds the publisher, asks its engine for what came after its cursor, then goes on."""
        followed = self.followed[publisher]
        if followed.repair is None or followed.repair.done():
            self.sequencer.hold(publisher)
            followed.repair = asyncio.create_task(self._repair(publisher, followed))

    async def _repair(self, publisher: PublisherKey, followed: Followed) -> None:
        async def emit(records: Sequence[SequencedRecord]) -> None:
            self._append(records)
            await self._sink.room()

        try:
            if followed.can_replay:
                await self.replayer.repair(publisher, followed.registration.replay_endpoint, emit)
        except Exception:
            self._count_fault()
            _logger.exception(
                "Unexpected error in the replay of %s; continuing without it", publisher
            )
        await self._sink.ready()
        followed.repair, followed.interrupted = None, False
        self.resume(publisher)

    def _repair_gaps(self) -> None:
        """Starts to repair the publishers that the sequencer now holds at a gap."""
        for publisher in self.sequencer.take_gaps():
            followed = self.followed.get(publisher)
            if followed is not None and followed.live:
                self.repair(publisher)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RELINK_CHECK_S)
            self.watch_links()

    def watch_links(self) -> None:
        """Starts a repair where a link has come up: what was sent meanwhile may show no gap."""
        for publisher, followed in self.followed.items():
            links = self.subscriber.links(publisher)
            if links == followed.links or not followed.live or followed.repair is not None:
                continue
            followed.links = links
            if followed.can_replay:
                self.repair(publisher)
