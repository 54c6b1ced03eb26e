"""Follows publishers: connects to them, holds them, asks their engines for what is missing, and
lets what waited go on. The object decides when (`bridge.publisher.publisher`).

A repair holds one publisher: its live batches wait while its engine is asked for what is missing;
then they follow. It starts at a gap, when the link comes up again (what was sent meanwhile may show
no gap), and when the owner of the publisher says at which batch the log ends. A check is the same,
but for what comes live meanwhile: that ends it.
"""

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from bridge.bounds import BRIDGE_RETRY_S, HELD_TURN_S, WATCH_LATE_S
from bridge.engine_http.discovery import EndpointDiscovery
from bridge.engine_http.engine import check_http
from bridge.engine_http.inquiries import Inquiries
from bridge.engine_http.watch import EngineWatch, Life
from bridge.link_numbers import NO_LINK, LinkNumber, next_of
from bridge.publisher.anchor import NO_JOINT, Anchor, Joint
from bridge.publisher.appender import Appender
from bridge.publisher.bulk import BulkQueue
from bridge.publisher.causes import MISSED, NOT_FOLLOWED, RECONNECTED
from bridge.publisher.held_batches import IntakeTotals
from bridge.publisher.ports import EngineAccess, RecordSink
from bridge.publisher.publisher import EngineQuestion, Look, Publisher
from bridge.publisher.repair import RepairResult
from bridge.publisher.replay_client import Emit
from bridge.publisher.sequencer import Sequencer
from bridge.sockets.curve import CURVE
from bridge.sockets.endpoints import check_replay_endpoint
from bridge.sockets.inbox import Inbox
from bridge.supervision import cancel, outlasting
from bridge.wire.drop_reasons import DropReason
from schemas.answer_states import Doubt
from schemas.arrays import ArrayPacker
from schemas.clock import REAL_CLOCK, Clock
from schemas.errors import RegistrationConflictError
from schemas.identities import PublisherKey
from schemas.positions import NO_CURSOR, Cursor, ProcessMark
from schemas.records import SequencedRecord
from schemas.registration import Registration, facts_of

CHECKS_AT_ONCE_MAX: Final = 16  # of those whose last check failed; as many of the others
ARRIVED_WAIT_S: Final = 1.0  # a takeover asks the engine after this, whatever still waits
ARRIVED_LOOK_S: Final = 0.02  # how often it is looked whether what had arrived has been decoded
WATCH_PAUSED_S: Final = 5.0  # not looked at for this long: the process was paused; all are asked

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class PublisherFollower:
    """See the module. All methods are called on one loop.

    Args:
        inbox: has what was received.

    Attributes:
        followed: the publishers; the one look-up by key.
        totals: of all of them.
        bulk, appender: what waits of them besides.
        watched_at: when all of them were last looked at, monotonic seconds.
    """

    def __init__(
        self,
        sink: RecordSink,
        inbox: Inbox,
        engines: EngineAccess,
        packer: ArrayPacker | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.receiver, self.replayer, engine_http, self.streams = engines
        self._packer, self._clock = packer, clock
        self.followed: dict[PublisherKey, Publisher] = {}
        self._at_address: defaultdict[str, set[Publisher]] = defaultdict(set)
        self.totals = IntakeTotals(clock)
        self.bulk = BulkQueue(self.followed)
        self.appender = Appender(
            sink, inbox, self.followed, clock, on_fault=self.totals.count_fault
        )
        self.inquiries = Inquiries(
            engine_http,
            self.receiver,
            on_answer=self._engine_answered,
            on_named=self._engine_named,
            on_fault=self.totals.count_fault,
            clock=clock.monotonic,
        )
        self.discovery = EndpointDiscovery(
            engine_http,
            self.receiver,
            connect=self._connect_found,
            on_fault=self.totals.count_fault,
            clock=clock.monotonic,
        )
        self._sink = sink
        self._inbox = inbox
        self._calls = ThreadPoolExecutor(1, "reprise-links")
        self._checks: dict[Publisher, None] = {}  # under way
        self.watched_at = self._clock.monotonic()

    def sequencer_of(self, key: PublisherKey) -> Sequencer | None:
        """The order of the publisher's batches; None where it is not followed."""
        publisher = self.followed.get(key)
        return None if publisher is None else publisher.sequencer

    async def close(self) -> None:
        """Ends."""
        repairs = [one.repair for one in self.followed.values() if one.repair is not None]
        await cancel(*repairs)
        await self.inquiries.close()
        await self.discovery.close()
        await self.appender.close()
        await asyncio.to_thread(self.receiver.stop)
        self._calls.shutdown(wait=False, cancel_futures=True)
        self.replayer.close()

    # Publishers

    async def follow(self, registration: Registration) -> None:
        """Connects to the publisher; what it sends waits until `begin` or `release`.

        Raises:
            RegistrationConflictError: it is followed already; nothing has changed.
            RegistrationError: it cannot be connected to; it is followed all the same, and
                `unfollow` forgets it.
        """
        key = registration.publisher
        if key in self.followed:
            raise RegistrationConflictError(f"Expected a new publisher, got: {key}")
        publisher = Publisher(
            registration, packer=self._packer, totals=self.totals, inbox=self._inbox
        )
        self.followed[key] = publisher
        self._note_address(publisher)
        check_http(registration)
        check_replay_endpoint(registration.replay_endpoint)
        if registration.has_stream:  # it is resumed by who has sent the log's batches
            publisher.sequencer.stream.pairing.vouch()
        CURVE.check(registration.curve_server_key)
        if registration.has_url:
            self.discovery.add(publisher)
        else:
            await self._call(self.receiver.follow, registration)

    def _note_address(self, publisher: Publisher) -> None:
        """Several ranks that are registered at one socket, each with its own numbers, share it."""
        one = publisher.registration
        if one.has_url or one.has_stream or not facts_of(one.kind).counts_by_rank:
            return
        there = self._at_address[one.endpoint]
        there.add(publisher)
        for other in there if len(there) > 1 else ():
            other.sequencer.stream.is_shared = True

    async def _connect_found(self, found: Registration, leaves: bool) -> None:
        """Connects to where a followed publisher is, as its engine has said."""
        publisher = self.followed[found.publisher]
        if not publisher.registration.replay_endpoint:
            publisher.sequencer.stream.pairing.vouch()
        await self._call(partial(self.receiver.follow_once, leaves=leaves), found)

    async def connect_again(self, registration: Registration) -> None:
        """Connects to a followed publisher, where that has failed before.

        Raises:
            RegistrationError: it failed again.
        """
        if registration.has_url:
            return
        with contextlib.suppress(RegistrationConflictError):  # it has not failed
            await self._call(self.receiver.follow, registration)

    def restate(self, registration: Registration) -> None:
        """The registration says other things of its publisher (`Registration.restates`)."""
        publisher = self.followed.get(registration.publisher)
        if publisher is not None:
            publisher.registration = registration

    async def unfollow(self, publisher: Publisher) -> None:
        """Forgets the publisher and what of it waits."""
        del self.followed[publisher.key]
        there = self._at_address[publisher.registration.endpoint]
        there.discard(publisher)
        if not there:
            del self._at_address[publisher.registration.endpoint]
        if publisher.engine is not None:
            self.inquiries.forget(publisher.engine)
        self.discovery.remove(publisher)
        self.bulk.discard(publisher)
        self.appender.discard(publisher)
        publisher.leave()
        self._inbox.discard(publisher.key)
        await self._call(self.receiver.unfollow, publisher.key)

    async def _call(self, call: Callable[[T], None], argument: T) -> None:
        """Calls the receiver; once begun it is done, in order, also where the caller is cancelled.

        A publisher that is followed but was never connected to would stay silent for good.
        """
        loop = asyncio.get_running_loop()
        await outlasting(loop.run_in_executor(self._calls, call, argument))

    def hold(self, publisher: Publisher) -> None:
        """Lets what the publisher sends wait again, until `begin` or `release`."""
        self.appender.finish(publisher)
        publisher.unplace(self._clock.unix())

    def begin(
        self,
        publisher: Publisher,
        anchor: Anchor,
        *,
        process: ProcessMark | None = None,
        joint: Joint = NO_JOINT,
        is_emptied: bool = False,
    ) -> None:
        """The log has the publisher's batches up to `anchor`: what came after it is asked for.

        Args:
            publisher: followed.
            process: what the log says of the engine's process, or None.
            joint: what the bridge knows that followed it until now.
            is_emptied: whether its engine had slept, and nothing had come of it since.
        """
        if publisher.engine is not None and process is not None:
            publisher.engine.remember(process)
        if anchor != publisher.sequencer.stream.anchor:
            publisher.begin_again()  # what was confirmed is not what the log has
        publisher.sequencer.set_anchor(anchor, away=NOT_FOLLOWED)
        publisher.sequencer.join(joint)
        if is_emptied:
            publisher.note_emptied()
        publisher.place()
        if self.streams is not None and publisher.registration.has_stream:
            self.streams.place(publisher.key, anchor.cursor.sequence)
        self.repair(publisher, begins=anchor.cursor != NO_CURSOR, cause=NOT_FOLLOWED)

    def release(self, publisher: Publisher) -> None:
        """The log has all that was taken of the publisher: what waits follows. Its engine is asked
        first where something is missing before that, or a repair was interrupted.
        """
        publisher.place()
        if publisher.interrupted or publisher.sequencer.misses():
            self.repair(publisher)
        else:
            self.resume(publisher)

    def stop(self) -> None:
        """Ends the repairs. What waits follows where nothing else is to be had of its publisher;
        the rest is left to the next start, which asks for it.
        """
        self.appender.end_holding_back()
        for publisher in self.followed.values():
            is_resuming = publisher.sequencer.is_resuming
            if not is_resuming:
                publisher.cancel_repair()
            if publisher.is_placed and (is_resuming or not publisher.can_replay):
                self.resume(publisher)
            publisher.stop()
        self.appender.finish_all()

    def can_keep(self, publisher: Publisher) -> bool:
        """Whether what the publisher sends, while its next owner is not there yet, can be had from
        us and from nobody else.
        """
        is_linked = self.receiver.connected(publisher.key)
        return publisher.is_placed and is_linked and not publisher.can_replay

    def has_written(self, publisher: Publisher, until: float) -> bool:
        """Whether the sink has all that had arrived of the publisher by then, monotonic seconds."""
        if not publisher.is_at_rest or publisher.sequencer.is_held:
            return False
        return self.received_until(publisher)[0] >= until

    # What waited follows

    def resume(self, publisher: Publisher, *, since: float | None = None) -> None:
        """The log has all that is to be had of the publisher: what waits follows.

        Args:
            publisher: followed.
            since: when the first of that came, monotonic seconds; None where that is not known: the
                publisher is not confirmed then before all of it has been handed over.
        """
        publisher.place()
        records = self._resume_some(publisher)
        is_unknown = since is None and not self.appender.has_room_for(records)
        if publisher.sequencer.is_resuming or is_unknown:
            publisher.resume()
            publisher.repair = asyncio.create_task(self._resume_rest(publisher, records))
        else:
            since = self._clock.monotonic() if since is None else since
            self.appender.begin_paced(publisher, records, since)
            self.repair_gaps()

    def _resume_some(self, publisher: Publisher) -> Sequence[SequencedRecord]:
        """Lets what waited of the publisher follow, as much as a turn takes."""
        until = math.inf if self.appender.at_once else self._clock.monotonic() + HELD_TURN_S
        return publisher.sequencer.resume(self._clock.unix(), until=until)

    async def _resume_rest(self, publisher: Publisher, records: Sequence[SequencedRecord]) -> None:
        """The same, of all that is left after these records."""
        try:
            await self._resume_after(publisher, records)
        except Exception:
            self.totals.count_fault()
            _logger.exception(
                "Unexpected error while records of %s waited; all were handed over",
                publisher.key,
            )
        publisher.end()
        self._repair_next(publisher)

    async def _resume_after(self, publisher: Publisher, records: Sequence[SequencedRecord]) -> None:
        await self.appender.append_paced(publisher, records)
        while publisher.sequencer.is_resuming:
            await asyncio.sleep(0)
            await self._sink.room(publisher.key)
            await self.appender.append_paced(publisher, self._resume_some(publisher))

    def _repair_next(self, publisher: Publisher) -> None:
        if publisher.sequencer.is_held:  # at a further gap, while this was under way
            self.repair(publisher)
        self.repair_gaps()

    # Repairs

    def repair(
        self,
        publisher: Publisher,
        *,
        is_check: bool = False,
        begins: bool = False,
        cause: str = MISSED,
    ) -> None:
        """Holds the publisher, asks its engine for what came after its cursor, then goes on.

        Args:
            publisher: placed.
            is_check: whether it is only asked whether anything is missing.
            begins: what has arrived of it, from before its place in the log was known, comes first.
            cause: why batches may be missing, where it does not wait for another one.
        """

        def asking() -> asyncio.Task[None]:
            return asyncio.create_task(self._repair(publisher, begins))

        if publisher.ask(asking, cause, is_check=is_check) and is_check:
            self._checks[publisher] = None

    async def _repair(self, publisher: Publisher, begins: bool) -> None:
        """Repairs the publisher, and again where an unexpected error prevents it."""
        while True:
            try:
                await self._repair_once(publisher, begins)
                break
            except Exception:
                self.totals.count_fault()
                _logger.exception(
                    "Unexpected error in the repair of %s; repairing it again in %g s",
                    publisher.key,
                    BRIDGE_RETRY_S,
                )
            publisher.restart_repair()
            await asyncio.sleep(BRIDGE_RETRY_S)
        publisher.end()
        self._repair_next(publisher)

    async def _repair_once(self, publisher: Publisher, begins: bool) -> None:
        async def emit(records: Sequence[SequencedRecord]) -> None:
            publisher.promote()
            self._note_link(publisher)  # the next request may be the first that a link is up for
            await self.appender.append_paced(publisher, records)
            await asyncio.sleep(0)  # the others have their turn
            await self._sink.room(publisher.key)

        if begins:
            await self._arrived_taken(publisher)
        now = self._clock.monotonic()
        self._look(publisher, now, self._clock.unix())
        link = publisher.begin_asking(now, heard=publisher.sequencer.stream.links.last)
        repaired = await self._ask(publisher, emit)
        publisher.promote()
        await self._sink.ready()
        publisher.interrupted = False
        now = self._clock.monotonic()
        publisher.resume()
        await self._resume_after(publisher, self._resume_some(publisher))
        publisher.answered(now, link, repaired.doubt, heard_all=repaired.heard_all)

    async def _ask(self, publisher: Publisher, emit: Emit) -> RepairResult:
        """Asks the publisher's engine; no error leaves it."""
        try:
            if publisher.engine is not None:
                await self._settle_process(publisher, publisher.engine, emit)
            if publisher.can_replay:
                return await self.replayer.repair(publisher.sequencer, publisher.replay, emit)
        except Exception:
            self.totals.count_fault()
            _logger.exception(
                "Unexpected error in the replay of %s; continuing without it",
                publisher.key,
            )
            return RepairResult(Doubt.CATCHING_UP, heard_all=False)
        return RepairResult(Doubt.NO_REPLAY, heard_all=False)

    async def _settle_process(self, publisher: Publisher, engine: EngineWatch, emit: Emit) -> None:
        """Asks which process the engine is, where this link has not told. Where it is not the one
        that the log has, its incarnation begins, of which everything is to be replayed.
        """
        sequencer = publisher.sequencer
        await self.inquiries.process_read(publisher.registration, engine)
        self._note_link(publisher)
        life = self._judge(publisher, engine)
        link = self.receiver.links(publisher.key)
        if life is not Life.OTHER:
            if engine.has_read(link) and life is not Life.CHANGED:
                sequencer.begin_at(link)
            return
        key = publisher.registration.service_key
        _logger.info("%s is of another process than before: beginning a new incarnation", key)
        began = sequencer.begin_process(self._clock.unix(), last_link=engine.known_link, link=link)
        for records in began:
            await emit(records)
        engine.begin(sequencer.stream.cursor.incarnation, has_batches=False)

    def _judge(self, publisher: Publisher, engine: EngineWatch) -> Life:
        """What its HTTP address says of what comes of the publisher now."""
        key, stream = publisher.key, publisher.sequencer.stream
        link = self.receiver.links(key)
        if not self.receiver.connected(key):
            return Life.UNKNOWN
        life = engine.judge(
            link,
            stream.cursor.incarnation,
            stream.proven,
            is_proven=stream.proven_link == link,
        )
        if life is Life.SAME:
            stream.prove(link)  # and so is what came since over others
        return life

    def _inquire(self, publisher: Publisher, now: float) -> None:
        """Asks its engine over HTTP what is to be asked now, and judges by what it has said."""
        engine, registration = publisher.engine, publisher.registration
        if engine is None or engine.inquiry is not None:
            return
        if publisher.reads_process(now):
            self.inquiries.read_process(registration, engine)
        elif publisher.probes(now):
            self.inquiries.probe(registration, engine)
        if publisher.is_at_rest and self._judge(publisher, engine) is Life.OTHER:
            self.repair(publisher)

    def _engine_answered(self, key: PublisherKey) -> None:
        publisher = self.followed.get(key)
        if publisher is not None:
            publisher.wake()

    def _engine_named(self, key: PublisherKey, endpoint: str, link: LinkNumber) -> bool:
        publisher = self.followed.get(key)
        if publisher is None:
            return False
        if endpoint != publisher.endpoint:
            self.discovery.leave(publisher)
            return False
        publisher.own(link)
        return True

    async def _arrived_taken(self, publisher: Publisher) -> None:
        """Waits until what has arrived of the publisher is held: another bridge may have written it
        meanwhile, and behind a replay it would look like another incarnation. Bounded, for what
        comes without end.
        """
        since = self._clock.monotonic()
        while self._clock.monotonic() < since + ARRIVED_WAIT_S:
            if self.received_until(publisher)[0] >= since:
                return
            await asyncio.sleep(ARRIVED_LOOK_S)

    def end_checks(self, now: float) -> None:
        """Lets what waits for a check go on: what follows on over a live link is as good an answer.
        Where it does not, the check is the repair of that gap.

        The engine of a publisher that is not confirmed has CHECK_HOLD_S for its answer.
        """
        for publisher in list(self._checks):
            if not publisher.is_checked:
                del self._checks[publisher]
                continue
            if not publisher.sequencer.waiting:
                continue
            if publisher.sequencer.misses():
                publisher.promote()
                continue
            if publisher.held_since is None:
                publisher.held_since = now
            patience_s = publisher.patience_s
            if now < publisher.held_since + patience_s:
                continue
            publisher.cancel_repair()
            publisher.interrupted = False
            if patience_s:
                publisher.answered(now, NO_LINK, Doubt.REPLAY_SILENT)
            self.resume(publisher, since=publisher.held_since)

    def end_turn(self) -> None:
        """Records were made of what had come: begins what that shows, and ends what may end."""
        self.repair_gaps()
        self.end_checks(self._clock.monotonic())

    def repair_gaps(self) -> None:
        """Starts to repair the publishers that are now held at a gap."""
        for key in self.totals.take_gaps() if self.totals.gaps else ():
            publisher = self.followed.get(key)
            if publisher is not None and publisher.is_placed:
                self.repair(publisher)

    def ask_for(self, key: PublisherKey, sequence: int) -> None:
        """The inbox had no room for the publisher's batches up to this one: they are asked for, or
        a gap. The batch that would show it may never come.
        """
        publisher = self.followed.get(key)
        if publisher is None:
            return
        stream = publisher.sequencer.stream
        if not stream.is_shared and sequence <= stream.cursor.sequence:
            return  # a later batch has shown the gap
        _logger.warning(
            "The inbox was full: batches of %s up to %d were dropped; they are replayed, or a"
            " gap stands for them",
            key,
            sequence,
        )
        publisher.sequencer.hold()
        if stream.is_shared:
            stream.note_lost()
        else:
            lost_to = Cursor(max(stream.cursor.incarnation, 1), sequence)
            publisher.sequencer.expect(lost_to, DropReason.INBOX_FULL)
        if publisher.is_placed:
            self.repair(publisher)

    # Looks

    def watch(self) -> None:
        """Looks at every publisher that does not rest, and asks the engines that are to be asked
        now: where a link has come up, what was sent meanwhile may show no gap. Cost O(publishers),
        some 0.1 us for one that rests.
        """
        now, wall_now = self._clock.monotonic(), self._clock.unix()
        if now - self.watched_at > WATCH_PAUSED_S:
            for publisher in self.followed.values():
                publisher.distrust(now)
        if self._checks:
            self.end_checks(now)
        self.appender.watch()
        self.discovery.watch(now)
        received_until, changed = self.receiver.changed()
        for key in changed:
            if key in self.followed:
                self.followed[key].wake()
        may_rest = now - received_until < WATCH_LATE_S
        as_of = min(received_until, self.watched_at)
        for publisher in list(self.followed.values()):
            if may_rest and now < publisher.rests_until and publisher.repair is None:
                publisher.as_of = as_of
                continue
            self._look(publisher, now, wall_now)
            ask = publisher.asks(now)
            if ask is EngineQuestion.REPAIR:
                self.repair(publisher, cause=RECONNECTED)
            elif ask is EngineQuestion.CHECK and self._may_check(publisher):
                self.repair(publisher, is_check=True)
            self._inquire(publisher, now)
            if publisher.misses_events and self.streams is not None:
                self.streams.ask_whole(publisher.key)
        self.watched_at = now

    def received_until(self, publisher: Publisher) -> tuple[float, bool]:
        """As of when all that had arrived has been decoded, and whether something has not."""
        key = publisher.key
        received_until = self.receiver.received_until(key)
        waiting_since = publisher.waiting_since
        if waiting_since is None:
            waiting_since = self._inbox.waiting_since(key)
        if waiting_since is None:
            return received_until, False
        return min(received_until, waiting_since), True

    def has_waiting(self, publisher: PublisherKey) -> bool:
        """See `Watched`."""
        return self._sink.has_waiting(publisher)

    def _may_check(self, publisher: Publisher) -> bool:
        """Engines that do not answer leave places to those that do."""
        alike = [one for one in self._checks if one.is_checked and one.fails == publisher.fails]
        return len(alike) < CHECKS_AT_ONCE_MAX

    def _look(self, publisher: Publisher, now: float, wall_now: float) -> None:
        publisher.look(now, wall_now, self._look_at(publisher))
        self._note_link(publisher)

    def _note_link(self, publisher: Publisher) -> None:
        key = publisher.key
        is_up, link = self.receiver.connected(key), self.receiver.links(key)
        publisher.sequencer.stream.links.note(link if is_up else next_of(link), is_up=is_up)

    def _look_at(self, publisher: Publisher) -> Look:
        key, stream = publisher.key, publisher.sequencer.stream
        lateness = stream.arrivals.lateness
        received_until, is_waiting = self.received_until(publisher)
        return Look(
            connected=self.receiver.connected(key),
            link=self.receiver.links(key),
            is_silent=self.receiver.is_silent(key),
            messages=stream.arrivals.messages,
            unplaced=stream.unplaced,
            proven_link=stream.proven_link,
            is_doubted=stream.is_doubted,
            is_partial=stream.is_partial,
            received_until=min(received_until, self.watched_at),
            is_waiting=is_waiting,
            late_s=lateness.late_s,
            has_waiting=self.has_waiting(key),
            behind_s=lateness.behind_s(self._clock.unix() - self._clock.monotonic()),
            troubles=stream.counters.troubles(self.receiver.trouble(key), stream.other_ranks),
        )
