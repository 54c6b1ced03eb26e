"""The write path, the same in every form: what engines send becomes records, in order.

    sockets -> inbox -> sequencer -> sink       a turn
    gap -> hold -> replay -> resume             a repair, beside the turns
    large -> decode -> one record at a time     a large message, beside the turns

A turn; the order is the guarantee:

    Step 1. wait until the sink takes what was received: until then it waits in the bounded inbox.
    Step 2. take it, and make records of it.
    Step 3. hand the records to the sink, in order.
    Step 4. start to repair the publishers that are held at a gap.

A repair holds one publisher: its live batches wait while its engine is asked for what is missing;
then they follow. It starts at a gap, when the link comes up again (what was sent meanwhile may show
no gap), and when the owner of the publisher says at which batch the log ends. A check is the same,
but for what comes live meanwhile: that ends it (`bridge.publisher.confirmation`).

What an unexpected error of ours costs is replayed like a gap, or reported as one: see
`bridge.publisher.sequencer`.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bridge.engine_http.discovery import Discovery
from bridge.engine_http.engine import EngineHttp, check_http
from bridge.engine_http.facts_watch import FactsWatch
from bridge.engine_http.inquiries import EngineSource, Inquiries
from bridge.engine_http.watch import EngineWatch, Life
from bridge.pace import Pace
from bridge.publisher.anchor import NO_JOINT, Anchor, Joint
from bridge.publisher.answers import Repaired
from bridge.publisher.bulk import Bulk
from bridge.publisher.bulk_pump import BulkPump
from bridge.publisher.causes import MISSED, NOT_FOLLOWED, RECONNECTED
from bridge.publisher.confirmation import Ask, Followed
from bridge.publisher.held_back import HeldBack
from bridge.publisher.look import Look
from bridge.publisher.paced_append import PacedAppend
from bridge.publisher.ports import Receiver, RecordSink, ReplaySource
from bridge.publisher.replay_client import Emit, Replayer
from bridge.publisher.sequencer import Sequencer
from bridge.sockets.curve import CURVE
from bridge.sockets.endpoints import check_replay_endpoint
from bridge.sockets.inbox import Inbox
from bridge.sockets.raw_message import RawMessage
from bridge.sockets.reader import MessageReader
from bridge.sockets.subscriber import Subscriber
from bridge.supervision import cancel, keep, keep_all
from bridge.wire.batch import read_sequence
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import Doubt
from schemas.arrays import ArrayPacker
from schemas.errors import FrameError, RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.limits import (
    ARRIVED_LOOK_S,
    ARRIVED_WAIT_S,
    CHECKS_AT_ONCE_MAX,
    HELD_TURN_S,
    RELINK_CHECK_S,
    SHUTDOWN_S,
    TURN_MESSAGES_MAX,
    TURN_MESSAGES_MIN,
    TURN_S,
    WATCH_LATE_S,
    WATCH_PAUSED_S,
)
from schemas.positions import NO_CURSOR, Cursor, ProcessMark
from schemas.records import SequencedRecord
from schemas.registration import Registration

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Pump:
    """See the module. All methods are called on its loop, but for `start`.

    Args:
        sink: of the same loop.
        packer: of hashes and tokens; the kernel's where there is one.
        reader: of sockets; likewise.
        window_s: how long batches are collected for one record, 0 for not at all.
        loop: that it will run on; None: the running one.
        receiver, replayer, engines: others than sockets, for tests.

    Attributes:
        followed: the publishers.
        held_back: those that wait because the sink says so.
        watched_at: when all of them were last looked at, monotonic seconds.
    """

    def __init__(
        self,
        sink: RecordSink,
        *,
        packer: ArrayPacker | None = None,
        reader: MessageReader | None = None,
        window_s: float = 0.0,
        loop: asyncio.AbstractEventLoop | None = None,
        receiver: Receiver | None = None,
        replayer: ReplaySource | None = None,
        engines: EngineSource | None = None,
    ) -> None:
        self.inbox = Inbox(when_filled=self._wake)
        self.subscriber = Subscriber(self.inbox, reader) if receiver is None else receiver
        self.sequencer = Sequencer(packer)
        self._bulk = Bulk(self.sequencer)
        self._paced = PacedAppend(
            sink,
            self._hand_over,
            when_begun=self.inbox.pause,
            when_ended=self._end_pause,
            on_fault=self._count_fault,
        )
        self.held_back = HeldBack(sink, self.inbox, when_ended=self._end_pause)
        self._bulk_pump = BulkPump(
            self._bulk,
            self.sequencer,
            sink,
            self._paced,
            on_progress=self._end_turn,
            on_written=self._end_pause,
            on_fault=self._count_fault,
        )
        self.replayer = Replayer(self.sequencer) if replayer is None else replayer
        self.engine_http: EngineSource = EngineHttp() if engines is None else engines
        self.inquiries = Inquiries(
            self.engine_http,
            self.subscriber,
            on_answer=self._engine_answered,
            on_fault=self._count_fault,
        )
        self.discovery = Discovery(
            self.engine_http,
            self.subscriber,
            connect=self._connect_found,
            on_fault=self._count_fault,
        )
        self.followed: dict[PublisherKey, Followed] = {}
        self._facts: FactsWatch | None = None
        if engines is None:
            self._facts = FactsWatch(
                EngineHttp(requests=self.engine_http.requests),
                lambda: self.followed.values(),
                on_fault=self._count_fault,
            )
        self._own_faults = 0
        self._calls = ThreadPoolExecutor(1, "reprise-links")
        self._sink = sink
        self._window_s = window_s
        self._pace = Pace(TURN_S, least=TURN_MESSAGES_MIN, most=TURN_MESSAGES_MAX)
        self._loop = asyncio.get_running_loop() if loop is None else loop
        self._arrived = asyncio.Event()
        self.watched_at = time.monotonic()
        self._checks: dict[PublisherKey, None] = {}  # under way
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
        beside = {"watch over links": self._watch}
        if self._facts is not None:
            beside["watch over what engines are"] = self._facts.run
        watching = keep_all(beside, on_fault=count)
        try:
            await keep("write path", self._turn_until_cancelled, on_fault=count)
        finally:
            await cancel(*watching)

    async def drain(self) -> None:
        """Ends receiving and the repairs; what was received by then becomes records, in time.

        What is held for a repair is left to the next start, which asks for it.
        """
        self._paced.at_once = True
        await asyncio.to_thread(self.subscriber.stop)
        self.held_back.end()
        for publisher, followed in self.followed.items():
            is_resuming = self.sequencer.is_resuming(publisher)
            followed.cancel_repair()
            if followed.live and (is_resuming or not followed.can_replay):
                self.resume(publisher)
            followed.live = False
        self._paced.finish_all()
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
        repairs = [
            followed.repair for followed in self.followed.values() if followed.repair is not None
        ]
        self._bulk_pump.close()
        await cancel(*repairs, *self._bulk_pump.tasks)
        await self.inquiries.close()
        await self.discovery.close()
        await self._paced.close()
        await asyncio.to_thread(self.subscriber.stop)
        self._calls.shutdown(wait=False, cancel_futures=True)
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
                await self.held_back.gather(self._window_s)

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
        messages = self.inbox.take(self._pace.amount, bytes_max=self._sink.turn_bytes)
        if messages:
            # Until the first one comes, nobody looks for what is large.
            self._process(self._sort(messages) if self.inbox.bulk else messages)
            if self._bulk:
                self._bulk_pump.go_on()
        self._ask_for_overflow()
        return bool(self.inbox)

    def _sort(self, messages: Sequence[RawMessage]) -> Sequence[RawMessage]:
        """What can be decoded now; who has sent what is large waits in the inbox until it is
        written, so that it does not fill the memory.
        """
        small = self._bulk.sort(messages)
        if len(small) < len(messages):
            for publisher in dict.fromkeys(message.publisher for message in messages):
                if publisher in self._bulk:
                    self.inbox.pause(publisher)
        return small

    def _process(self, messages: Sequence[RawMessage]) -> None:
        began = time.monotonic()
        # What the last turns took says little of what another publisher sends.
        records, count = self.sequencer.process_until(messages, time.time(), began + TURN_S)
        if messages:  # else all of them are large
            self._pace.note(count, time.monotonic() - began)
        if count < len(messages):
            self.inbox.give_back(self._bulk.put_back(messages[count:]))
        self._paced.append(records, ask_again=True)
        self._end_turn()

    def _end_turn(self) -> None:
        self._repair_gaps()
        if self._checks:
            self._end_checks(time.monotonic())

    def _end_pause(self, publisher: PublisherKey) -> None:
        if (
            not self.sequencer.is_resuming(publisher)
            and publisher not in self._bulk
            and publisher not in self._paced
            and publisher not in self.held_back
        ):
            self.inbox.go_on(publisher)

    def _ask_for_overflow(self) -> None:
        """What the inbox had no room for is asked for, or a gap: the batch that would show it may
        never come.
        """
        for publisher, heads in self.inbox.take_overflowed().items():
            try:
                sequence = read_sequence(heads)
            except FrameError:
                continue  # it had no place in the stream
            followed = self.followed.get(publisher)
            if followed is None or sequence <= self.sequencer.cursor(publisher).sequence:
                continue  # a later batch has shown the gap
            incarnation = max(self.sequencer.cursor(publisher).incarnation, 1)
            _logger.warning(
                "The inbox was full: batches of %s up to %d were dropped; they are replayed, or a"
                " gap stands for them",
                publisher,
                sequence,
            )
            self.sequencer.hold(publisher)
            lost_to = Cursor(incarnation, sequence)
            self.sequencer.expect(publisher, lost_to, DropReason.INBOX_FULL)
            if followed.live:
                self.repair(publisher)

    def _hand_over(self, records: Sequence[SequencedRecord], *, ask_again: bool) -> None:
        """Hands the records to the sink; where that fails, they are asked for again, or a gap."""
        if not records:
            return
        try:
            self._sink.append(records)
            self.held_back.look({record.publisher: None for record in records})
        except Exception:
            self._count_fault()
            _logger.exception(
                "Unexpected error with %d records; replaying them, or writing a gap for them",
                len(records),
            )
            for publisher in dict.fromkeys(record.publisher for record in records):
                self._take_back(publisher, ask_again=ask_again)

    def _take_back(self, publisher: PublisherKey, *, ask_again: bool) -> None:
        self._paced.discard(publisher)  # they come again, or the gap stands for them
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
        followed = Followed(registration)
        self.sequencer.add(registration, repairs=followed.can_ask)
        self.sequencer.hold(publisher)
        self.followed[publisher] = followed
        check_http(registration)
        check_replay_endpoint(registration.replay_endpoint)
        CURVE.check(registration.curve_server_key)
        if registration.has_url:
            self.discovery.add(followed)
        else:
            await self._call(self.subscriber.follow, registration)

    async def _connect_found(self, found: Registration) -> None:
        """Connects to where a followed publisher is, as its engine has said."""
        publisher = found.publisher
        if not self.followed[publisher].registration.replay_endpoint:
            self.sequencer.vouch_for_replay(publisher)
        await self._call(self.subscriber.follow_once, found)

    async def connect_again(self, registration: Registration) -> None:
        """Connects to a followed publisher, where that has failed before.

        Raises:
            RegistrationError: it failed again.
        """
        if registration.has_url:
            return
        with contextlib.suppress(RegistrationConflictError):  # it has not failed
            await self._call(self.subscriber.follow, registration)

    async def unfollow(self, publisher: PublisherKey) -> None:
        """Forgets the publisher and what of it waits.

        Raises:
            KeyError: it is not followed; so for all below.
        """
        self.followed.pop(publisher).cancel_repair()
        self._checks.pop(publisher, None)
        self.inquiries.forget(publisher)
        self.discovery.remove(publisher)
        self._bulk.discard(publisher)
        self._paced.discard(publisher)
        self.held_back.discard(publisher)
        self.sequencer.remove(publisher)
        await self._call(self.subscriber.unfollow, publisher)

    async def _call(self, call: Callable[[T], None], argument: T) -> None:
        """Calls the receiver; once begun it is done, in order, also where the caller is cancelled.

        A publisher that is followed but was never connected to would stay silent for good.
        """
        calling = self._loop.run_in_executor(self._calls, call, argument)
        calling.add_done_callback(_retrieve)  # the caller may be gone by then
        await asyncio.shield(calling)

    def hold(self, publisher: PublisherKey) -> None:
        """Lets what the publisher sends wait again, until `begin` or `go_on`."""
        self._paced.finish(publisher)
        self.followed[publisher].hold(time.time())
        self._checks.pop(publisher, None)
        self.sequencer.hold(publisher)

    def begin(
        self,
        publisher: PublisherKey,
        anchor: Anchor,
        *,
        process: ProcessMark | None = None,
        joint: Joint = NO_JOINT,
    ) -> None:
        """The log has the publisher's batches up to `anchor`: what came after it is asked for.

        Args:
            publisher: followed.
            anchor: that batch.
            process: what the log says of the engine's process, or None.
            joint: what the bridge knows that followed it until now.
        """
        engine = self.followed[publisher].engine
        if engine is not None and process is not None:
            engine.remember(process)
        if anchor != self.sequencer.anchor(publisher):
            self.followed[publisher].begin_again()  # what was confirmed is not what the log has
        self.sequencer.place(publisher, anchor, away=NOT_FOLLOWED)
        self.sequencer.join(publisher, joint)
        self.followed[publisher].live = True
        self.repair(publisher, begins=anchor.cursor != NO_CURSOR, cause=NOT_FOLLOWED)

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

    def can_keep(self, publisher: PublisherKey) -> bool:
        """Whether what the publisher sends, while its next owner is not there yet, can be had from
        us and from nobody else.
        """
        followed = self.followed[publisher]
        is_linked = self.subscriber.connected(publisher)
        return followed.live and is_linked and not followed.can_replay

    def has_written(self, publisher: PublisherKey, until: float) -> bool:
        """Whether the sink has all that had arrived of the publisher by then, monotonic seconds."""
        followed = self.followed[publisher]
        is_at_rest = followed.live and followed.repair is None
        if not is_at_rest or self.sequencer.is_held(publisher):
            return False
        return self._received_until(publisher)[0] >= until

    def resume(self, publisher: PublisherKey, *, since: float | None = None) -> None:
        """The log has all that is to be had of the publisher: what waits follows.

        Args:
            publisher: followed.
            since: when the first of that came, monotonic seconds; None where that is not known: the
                publisher is not confirmed then before all of it has been handed over.
        """
        followed = self.followed[publisher]
        followed.live = True
        records = self._resume_some(publisher)
        is_unknown = since is None and not self._paced.has_room_for(records)
        if self.sequencer.is_resuming(publisher) or is_unknown:
            followed.repair = asyncio.create_task(self._resume_rest(publisher, followed, records))
        else:
            self._paced.begin_paced(records, time.monotonic() if since is None else since)
            self._repair_gaps()

    def _resume_some(self, publisher: PublisherKey) -> Sequence[SequencedRecord]:
        """Lets what waited of the publisher follow, as much as a turn takes. While the rest waits,
        so does in the inbox what comes: it would be behind it.
        """
        until = math.inf if self._paced.at_once else time.monotonic() + HELD_TURN_S
        records = self.sequencer.resume(publisher, time.time(), until=until)
        if self.sequencer.is_resuming(publisher):
            self.inbox.pause(publisher)
        return records

    async def _resume_rest(
        self, publisher: PublisherKey, followed: Followed, records: Sequence[SequencedRecord]
    ) -> None:
        """The same, of all that is left after these records."""
        try:
            await self._resume_after(publisher, records)
        except Exception:
            self._count_fault()
            _logger.exception(
                "Unexpected error while records of %s waited; all were handed over", publisher
            )
        followed.repair = None
        self._go_on_repairing(publisher)

    async def _resume_after(
        self, publisher: PublisherKey, records: Sequence[SequencedRecord]
    ) -> None:
        try:
            await self._paced.append_paced(records)
            while self.sequencer.is_resuming(publisher):
                await asyncio.sleep(0)
                await self._sink.room(publisher)
                await self._paced.append_paced(self._resume_some(publisher))
        finally:
            self._end_pause(publisher)

    def _go_on_repairing(self, publisher: PublisherKey) -> None:
        if self.sequencer.is_held(publisher):  # at a further gap, while this was under way
            self.repair(publisher)
        self._repair_gaps()

    # Repairs

    def repair(
        self,
        publisher: PublisherKey,
        *,
        is_check: bool = False,
        begins: bool = False,
        cause: str = MISSED,
    ) -> None:
        """Holds the publisher, asks its engine for what came after its cursor, then goes on.

        Args:
            publisher: followed.
            is_check: see `Followed`.
            begins: what has arrived of it, from before its place in the log was known, comes first.
            cause: why batches may be missing, where it does not wait for another one.
        """
        followed = self.followed[publisher]
        if followed.repair is None or followed.repair.done():
            self.sequencer.hold(publisher, cause)
            followed.is_check, followed.held_since = is_check, None
            if is_check:
                self._checks[publisher] = None
            followed.repair = asyncio.create_task(self._repair(publisher, followed, begins))

    async def _repair(self, publisher: PublisherKey, followed: Followed, begins: bool) -> None:
        async def emit(records: Sequence[SequencedRecord]) -> None:
            self._promote(publisher, followed)
            self._note_link(publisher)  # the next request may be the first that a link is up for
            await self._paced.append_paced(records)
            await asyncio.sleep(0)  # the others have their turn
            await self._sink.room(publisher)

        if begins:
            await self._arrived_taken(publisher)
        now = time.monotonic()
        self._look(publisher, followed, now, time.time())
        link = followed.begin_asking(now, heard=self.sequencer.link(publisher))
        repaired = Repaired(Doubt.NO_REPLAY, heard_all=False)
        try:
            if followed.engine is not None:
                await self._settle_process(publisher, followed, followed.engine, emit)
            if followed.can_replay:
                repaired = await self.replayer.repair(
                    publisher,
                    followed.replay_endpoint,
                    emit,
                    followed.registration.curve_server_key,
                )
        except Exception:
            self._count_fault()
            repaired = Repaired(Doubt.CATCHING_UP, heard_all=False)
            _logger.exception(
                "Unexpected error in the replay of %s; continuing without it", publisher
            )
        self._promote(publisher, followed)
        await self._sink.ready()
        followed.interrupted, followed.live = False, True
        now = time.monotonic()
        await self._resume_after(publisher, self._resume_some(publisher))
        followed.repair = None
        followed.answered(now, link, repaired.doubt, heard_all=repaired.heard_all)
        self._go_on_repairing(publisher)

    async def _settle_process(
        self, publisher: PublisherKey, followed: Followed, engine: EngineWatch, emit: Emit
    ) -> None:
        """Asks which process the engine is, where this link has not told. Where it is not the one
        that the log has, its incarnation begins, of which everything is to be replayed.
        """
        await self.inquiries.process_read(followed.registration, engine)
        self._note_link(publisher)
        life, link = self._judge(publisher, engine), self.subscriber.links(publisher)
        if life is not Life.OTHER:
            if engine.has_read(link) and life is not Life.CHANGED:
                self.sequencer.begin_at(publisher, link)
            return
        key = followed.registration.service_key
        _logger.info("%s is of another process than before: beginning a new incarnation", key)
        began = self.sequencer.begin_process(
            publisher, time.time(), last_link=engine.known_link, link=link
        )
        for records in began:
            await emit(records)
        engine.begin(self.sequencer.cursor(publisher).incarnation, has_batches=False)

    def _judge(self, publisher: PublisherKey, engine: EngineWatch) -> Life:
        """What its HTTP address says of what comes of the publisher now."""
        sequencer, link = self.sequencer, self.subscriber.links(publisher)
        if not self.subscriber.connected(publisher):
            return Life.UNKNOWN
        life = engine.judge(
            link,
            sequencer.cursor(publisher).incarnation,
            sequencer.proven(publisher),
            is_proven=sequencer.proven_link(publisher) == link,
        )
        if life is Life.SAME:
            sequencer.know_link(publisher, link)
        return life

    def _inquire(self, publisher: PublisherKey, followed: Followed, now: float) -> None:
        """Asks its engine over HTTP what is to be asked now, and judges by what it has said."""
        engine = followed.engine
        if engine is None or self.inquiries.is_asking(publisher):
            return
        if followed.reads_process(now):
            self.inquiries.read_process(followed.registration, engine)
        elif followed.probes(now):
            self.inquiries.probe(followed.registration, engine)
        is_at_rest = followed.live and followed.repair is None
        if is_at_rest and self._judge(publisher, engine) is Life.OTHER:
            self.repair(publisher)

    def _engine_answered(self, publisher: PublisherKey) -> None:
        followed = self.followed.get(publisher)
        if followed is not None:
            followed.rests_until = 0.0

    async def _arrived_taken(self, publisher: PublisherKey) -> None:
        """Waits until what has arrived of the publisher is held: another bridge may have written it
        meanwhile, and behind a replay it would look like another incarnation. Bounded, for what
        comes without end.
        """
        since = time.monotonic()
        while time.monotonic() < since + ARRIVED_WAIT_S:
            if self._received_until(publisher)[0] >= since:
                return
            await asyncio.sleep(ARRIVED_LOOK_S)

    def _promote(self, publisher: PublisherKey, followed: Followed) -> None:
        """A check has found that something is missing, or has ended: it is no longer cut short."""
        followed.is_check = False
        self._checks.pop(publisher, None)

    def _end_checks(self, now: float) -> None:
        """Lets what waits for a check go on: what follows on over a live link is as good an answer.
        Where it does not, the check is the repair of that gap.

        The engine of a publisher that is not confirmed has CHECK_HOLD_S for its answer.
        """
        for publisher in list(self._checks):
            followed = self.followed[publisher]
            if not self.sequencer.waiting(publisher):
                continue
            if self.sequencer.misses(publisher):
                self._promote(publisher, followed)
                continue
            if followed.held_since is None:
                followed.held_since = now
            patience_s = followed.patience_s
            if now < followed.held_since + patience_s:
                continue
            followed.cancel_repair()
            followed.interrupted = False
            self._promote(publisher, followed)
            if patience_s:
                followed.answered(now, 0, Doubt.REPLAY_SILENT)
            self.resume(publisher, since=followed.held_since)

    def _repair_gaps(self) -> None:
        """Starts to repair the publishers that the sequencer now holds at a gap."""
        for publisher in self.sequencer.take_gaps():
            followed = self.followed.get(publisher)
            if followed is not None and followed.live:
                self.repair(publisher)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RELINK_CHECK_S)
            self.watch()

    def watch(self) -> None:
        """Looks at every publisher that does not rest, and asks the engines that are to be asked
        now: where a link has come up, what was sent meanwhile may show no gap. Cost O(publishers),
        some 0.1 us for one that rests.
        """
        now, wall_now = time.monotonic(), time.time()
        if now - self.watched_at > WATCH_PAUSED_S:
            for followed in self.followed.values():
                followed.distrust(now)
        if self._checks:
            self._end_checks(now)
        self.held_back.watch()
        self.discovery.watch(now)
        received_until, changed = self.subscriber.changed()
        for publisher in changed:
            if publisher in self.followed:
                self.followed[publisher].rests_until = 0.0
        may_rest = now - received_until < WATCH_LATE_S
        as_of = min(received_until, self.watched_at)
        for publisher, followed in list(self.followed.items()):
            if may_rest and now < followed.rests_until and followed.repair is None:
                followed.as_of = as_of
                continue
            self._look(publisher, followed, now, wall_now)
            ask = followed.asks(now)
            if ask is Ask.REPAIR:
                self.repair(publisher, cause=RECONNECTED)
            elif ask is Ask.CHECK and self._may_check(followed):
                self.repair(publisher, is_check=True)
            self._inquire(publisher, followed, now)
        self.watched_at = now

    def _received_until(self, publisher: PublisherKey) -> tuple[float, bool]:
        """As of when all that had arrived has been decoded, and whether something has not."""
        received_until = self.subscriber.received_until(publisher)
        waiting_since = self._bulk.waiting_since(publisher)
        if waiting_since is None:
            waiting_since = self._paced.waiting_since(publisher)
        if waiting_since is None:
            waiting_since = self.inbox.waiting_since(publisher)
        if waiting_since is None:
            return received_until, False
        return min(received_until, waiting_since), True

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `Watched`."""
        return self._sink.has_waiting(publisher)

    def _may_check(self, followed: Followed) -> bool:
        """Engines that do not answer leave places to those that do."""
        alike = [one for one in self._checks if self.followed[one].fails == followed.fails]
        return len(alike) < CHECKS_AT_ONCE_MAX

    def _look(
        self, publisher: PublisherKey, followed: Followed, now: float, wall_now: float
    ) -> None:
        followed.look(now, wall_now, self._look_at(publisher))
        self._note_link(publisher)

    def _note_link(self, publisher: PublisherKey) -> None:
        is_up = self.subscriber.connected(publisher)
        links = self.subscriber.links(publisher)
        self.sequencer.note_link(publisher, links if is_up else links + 1, is_up=is_up)

    def _look_at(self, publisher: PublisherKey) -> Look:
        receiver = self.subscriber
        received_until, is_waiting = self._received_until(publisher)
        return Look(
            connected=receiver.connected(publisher),
            links=receiver.links(publisher),
            is_silent=receiver.is_silent(publisher),
            messages=self.sequencer.messages(publisher),
            unplaced=self.sequencer.unplaced(publisher),
            proven_link=self.sequencer.proven_link(publisher),
            is_doubted=self.sequencer.is_doubted(publisher),
            received_until=min(received_until, self.watched_at),
            is_waiting=is_waiting,
            late_s=self.sequencer.late_s(publisher),
            has_waiting=self.has_waiting(publisher),
            behind_s=self.sequencer.behind_s(publisher, time.time() - time.monotonic()),
        )


def _retrieve(calling: "asyncio.Future[None]") -> None:
    """Retrieves the error of a call that nobody waits for any more."""
    if not calling.cancelled():
        calling.exception()
