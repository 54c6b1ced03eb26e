"""Hands publishers from bridge to bridge so that at any time one of them is linked. One loop.

An engine that has no replay socket cannot be asked for what it sent while nobody listened. So the
owner of such a publisher, the *keeper*, keeps its link and what comes until its *successor* has
linked to it. What they say to each other stands in the publisher's note, as a
`schemas.topics.Handover`:

    Step 1. Keeper: before it gives its partitions up it holds its publishers, and notes that it
            keeps them. It writes nothing more of them unless step 3 comes.
    Step 2. Successor: reads that when it is given the partition, connects, and holds what comes.
            Once its subscription has arrived, it notes that it has linked.
    Step 3. Keeper: writes what it has kept and what still comes, until both have received the same:
            HANDOVER_OVERLAP_S at least, and of a publisher that sends nothing as long as it takes
            to know that the engine is still there. Then it notes how far the log is, and unfollows.
    Step 4. Successor: drops what it has in common with the log, and goes on behind it.

Who may write: the keeper until HANDOVER_S after it began step 1, by its own clock; the successor
once the keeper is done, or HANDOVER_WAIT_S after it has read of step 1. The note of step 1 is
acknowledged while the keeper holds the lease of its partitions, so whoever owns them next reads it.
Where either dies, or the keeper's link does, the successor goes on from what the log has: what it
received itself is not lost, what nobody received is a gap.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec

from bridge.bounds import BRIDGE_RETRY_S
from bridge.delivery.lease import Lease
from bridge.delivery.writer import Writer
from bridge.link_numbers import NO_LINK, LinkNumber
from bridge.membership.bounds import (
    HANDOVER_FINISH_S,
    HANDOVER_FLUSH_S,
    HANDOVER_LOOK_S,
    HANDOVER_S,
    HANDOVER_WAIT_S,
)
from bridge.membership.cursors import Cursors, fingerprint
from bridge.membership.handover import Arrival, Departure
from bridge.membership.note_reader import NoteReader
from bridge.publisher.anchor import Joint
from bridge.publisher.follower import PublisherFollower
from bridge.publisher.stream import BatchStream
from bridge.supervision import cancel
from brokers.availability import describe
from brokers.errors import AWAY
from logs.producer import ReplaceableProducer
from schemas.codec import CursorEntry
from schemas.identities import PublisherKey
from schemas.limits import BRIDGE_LEAVE_S
from schemas.topics import Handover

_logger = logging.getLogger(__name__)


class Handovers:
    """See the module.

    Args:
        name: of this bridge; no other run has it.
        lease: of this bridge.
        when_changed: called once something is ready (`take_ready`), or has departed.

    Attributes:
        ended: how many publishers were kept and are no more, by whether another bridge has linked
            to them: `linked`, `unlinked`.
    """

    def __init__(
        self,
        *,
        name: str,
        lease: Lease,
        follower: PublisherFollower,
        writer: Writer,
        producer: ReplaceableProducer,
        cursors: Cursors,
        when_changed: Callable[[], None],
        unfollow: Callable[[Iterable[PublisherKey]], Awaitable[None]],
    ) -> None:
        self.ended: Counter[str] = Counter()
        self._step_faults = 0
        self._name = name
        self._lease = lease
        self._follower = follower
        self._writer = writer
        self._producer = producer
        self._cursors = cursors
        self._when_changed = when_changed
        self._unfollow = unfollow
        self._passing: dict[PublisherKey, Departure | Arrival] = {}
        self._notes = NoteReader(
            cursors, lambda: {one.home for one in self._underway()}, self._take
        )
        self._running: asyncio.Task[None] | None = None

    def _departures(self, *, departing: bool = True) -> list[tuple[PublisherKey, Departure]]:
        """Those that depart; or those of which it is not known yet who is whose."""
        return [
            (publisher, one)
            for publisher, one in self._passing.items()
            if isinstance(one, Departure) and one.is_departing == departing
        ]

    def _arrivals(self, *, ready: bool = False) -> list[tuple[PublisherKey, Arrival]]:
        """Those that arrive; or those that have."""
        return [
            (publisher, one)
            for publisher, one in self._passing.items()
            if isinstance(one, Arrival) and (one.ready is not None) == ready
        ]

    # The keeper

    async def keep(self, homes: Mapping[PublisherKey, int]) -> None:
        """Step 1, of held publishers of ours, with their partition of the registry. Of those of
        which something is in the spool nothing is kept: the log does not have it.
        """
        began = self._lease.clock.monotonic()  # before that nobody was told
        homes = {one: home for one, home in homes.items() if not self._writer.has_waiting(one)}
        for publisher, kept in self._departures(departing=False):
            if began >= kept.until or publisher not in self._follower.followed:
                del self._passing[publisher]
        links = {publisher: self._follower.receiver.links(publisher) for publisher in homes}
        for publisher, link in links.items():
            is_proven = self._stream(publisher).proven_link == link
            self._cursors.set_handover(publisher, Handover(self._name, is_proven=is_proven))
        try:
            async with asyncio.timeout(BRIDGE_LEAVE_S):
                offsets = await self._cursors.store(self._producer, homes)
        except AWAY as error:
            _logger.info(
                "Cannot tell other bridges that publishers are kept for them: %s. They begin"
                " without this bridge's batches",
                describe(error),
            )
            return
        if not self._lease.may_write or any(offset < 0 for offset in offsets.values()):
            return  # another bridge may have begun without having read it
        self._notes.read_behind(offsets)
        for publisher, home in homes.items():
            self._passing[publisher] = Departure(home, links[publisher], began + HANDOVER_S)

    def depart(self, publishers: Iterable[PublisherKey]) -> set[PublisherKey]:
        """These are another bridge's now: those that are kept depart from here on; returns them."""
        now, theirs = self._lease.clock.monotonic(), set(publishers)
        for publisher, kept in self._departures(departing=False):
            kept.is_departing = publisher in theirs and now < kept.until - HANDOVER_FINISH_S
            if not kept.is_departing:
                del self._passing[publisher]
        self._start()
        return set(self.departing)

    def reclaim(self, partitions: Collection[int]) -> None:
        """These are ours again: nothing of them departs."""
        for publisher, departure in self._departures():
            if departure.home in partitions:
                self._end([publisher])

    @property
    def has_kept(self) -> bool:
        """Whether anything is kept, and nobody knows yet whose it will be."""
        return bool(self._departures(departing=False))

    @property
    def departing(self) -> Collection[PublisherKey]:
        """The publishers that are kept for another bridge."""
        return dict(self._departures()).keys()

    def is_departing(self, publisher: PublisherKey) -> bool:
        """Whether it is one of them."""
        one = self._passing.get(publisher)
        return isinstance(one, Departure) and one.is_departing

    def _end(self, departures: Iterable[PublisherKey]) -> None:
        """These depart no more: they are gone, or ours again."""
        for publisher in departures:
            del self._passing[publisher]
            self._lease.give_up(publisher)

    async def depart_all(self) -> None:
        """Everything that is kept departs; returns once it has."""
        self.depart([publisher for publisher, _ in self._departures(departing=False)])
        self.expect_none()
        if self._running is not None:
            await asyncio.wait((self._running,))

    # The successor

    def expect(self, homes: Mapping[PublisherKey, int]) -> set[PublisherKey]:
        """Those of these that another bridge keeps for us, and that are followed as it does: they
        arrive from here on.
        """
        now = self._lease.clock.monotonic()
        for publisher, home in homes.items():
            state, followed = self._cursors.state(publisher), self._follower.followed[publisher]
            handover = None if state is None else state.handover
            if (
                state is None
                or handover is None
                or handover.is_done
                or handover.keeper == self._name
                or state.registered != fingerprint(followed.registration)
                or followed.can_replay
            ):
                continue
            self._passing[publisher] = Arrival(
                home, handover.keeper, handover.is_proven, now + HANDOVER_WAIT_S
            )
            self._notes.read_behind({home: self._cursors.read_to(home)})
        self._start()
        return {publisher for publisher in homes if self.is_arriving(publisher)}

    def is_arriving(self, publisher: PublisherKey) -> bool:
        """Whether another bridge keeps it for us."""
        one = self._passing.get(publisher)
        return isinstance(one, Arrival) and one.ready is None

    async def joined(self) -> None:
        """Returns once nothing arrives to which we have linked, within HANDOVER_FLUSH_S: its keeper
        may be done already, and nobody else may have the rest.
        """
        until = self._lease.clock.monotonic() + HANDOVER_FLUSH_S
        while self._lease.clock.monotonic() < until:
            if not self.has_ready and not any(one.told_link for _, one in self._arrivals()):
                return
            await asyncio.sleep(HANDOVER_LOOK_S)

    @property
    def has_ready(self) -> bool:
        """Whether there is something to take over."""
        return bool(self._arrivals(ready=True))

    def take_ready(self) -> dict[PublisherKey, Joint]:
        """Those that have arrived since the last call."""
        ready = {
            publisher: arrival.ready
            for publisher, arrival in self._arrivals(ready=True)
            if arrival.ready is not None
        }
        for publisher in ready:
            del self._passing[publisher]
        return ready

    def expect_none(self) -> None:
        """The partitions are given up: whoever is given them expects what is kept."""
        for publisher, one in list(self._passing.items()):
            if isinstance(one, Arrival):
                del self._passing[publisher]

    # What is done meanwhile

    def _start(self) -> None:
        if self._underway() and (self._running is None or self._running.done()):
            self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Ends; what is kept is dropped."""
        running, self._running = self._running, None
        if running is not None:
            await cancel(running)
        self._end(dict(self._departures()))
        self._passing.clear()

    @property
    def faults(self) -> int:
        """Unexpected errors."""
        return self._step_faults + self._notes.faults

    async def _run(self) -> None:
        reading = asyncio.create_task(self._notes.run())
        try:
            while self._underway():
                try:
                    await self._step(self._lease.clock.monotonic())
                except Exception:
                    self._step_faults += 1
                    _logger.exception("Unexpected error in a handover; continuing")
                    await asyncio.sleep(BRIDGE_RETRY_S)
                await asyncio.sleep(HANDOVER_LOOK_S)
        finally:
            await cancel(reading)

    def _underway(self) -> list[Departure | Arrival]:
        departures = [one for _, one in self._departures()]
        return [*departures, *(one for _, one in self._arrivals())]

    def _take(self, entry: CursorEntry) -> None:
        publisher, handover = entry.publisher, entry.note.handover
        one = self._passing.get(publisher)
        if isinstance(one, Departure) and one.is_departing and handover is not None:
            is_news = not one.successor and handover.successor not in ("", self._name)
            if is_news and handover.keeper == self._name and not handover.is_done:
                self._begin_last(publisher, one, handover)
        is_done = handover is None or handover.is_done
        if isinstance(one, Arrival) and one.ready is None and is_done:
            self._cursors.adopt(publisher, entry.note)
            one.done = handover or Handover(one.keeper, is_done=True)
            one.done_at = self._lease.clock.monotonic()

    def _begin_last(self, publisher: PublisherKey, departure: Departure, noted: Handover) -> None:
        """Step 3: the successor has linked."""
        departure.successor, departure.linked_at = noted.successor, self._lease.clock.monotonic()
        departure.messages = self._stream(publisher).arrivals.messages
        self._lease.keep(publisher, departure.until)
        self._cursors.set_handover(publisher, noted)
        self._follower.release(self._follower.followed[publisher])

    async def _step(self, now: float) -> None:
        finished = {
            publisher: one
            for publisher, one in self._departures()
            if one.is_late(now) or self._has_common(publisher, one)
        }
        if finished:
            await self._finish(finished)
        linked = {}
        for publisher, arrival in self._arrivals():
            if publisher not in self._follower.followed:
                del self._passing[publisher]
                continue
            arrival.look(now, self._link(publisher))
            if arrival.is_to_tell(now):
                linked[publisher] = arrival
            elif self._has_arrived(publisher, arrival, now):
                arrival.ready = arrival.joint(self._name)
        if linked:
            await self._tell(linked)
        if self.has_ready:
            self._when_changed()

    def _stream(self, publisher: PublisherKey) -> BatchStream:
        return self._follower.followed[publisher].sequencer.stream

    def _link(self, publisher: PublisherKey) -> LinkNumber:
        receiver = self._follower.receiver
        return receiver.links(publisher) if receiver.connected(publisher) else NO_LINK

    def _has_common(self, publisher: PublisherKey, departure: Departure) -> bool:
        """Whether the log has what both have received, and nobody else could have."""
        common_at = departure.common_at(
            is_linked=self._link(publisher) == departure.link,
            messages=self._stream(publisher).arrivals.messages,
        )
        return self._follower.has_written(self._follower.followed[publisher], common_at)

    async def _finish(self, departures: Mapping[PublisherKey, Departure]) -> None:
        """The end of step 3, or of the wait for it."""

        def kept() -> list[PublisherKey]:  # some may be ours again
            return [key for key, one in departures.items() if self._passing.get(key) is one]

        last: dict[PublisherKey, Handover] = {}
        for publisher, departure in departures.items():
            stream = self._stream(publisher)
            is_idle = stream.arrivals.messages == departure.messages
            is_proven = (
                bool(departure.successor)
                and self._link(publisher) == departure.link
                and stream.proven_link == departure.link
                and self._has_common(publisher, departure)
            )
            last[publisher] = Handover(self._name, departure.successor, True, is_proven, is_idle)
            self._follower.hold(self._follower.followed[publisher])
        if unlinked := sum(not handover.successor for handover in last.values()):
            _logger.info(
                "No other bridge has linked to %d publishers within %g s: giving them up",
                unlinked,
                HANDOVER_S,
            )
        until = min(departure.until for departure in departures.values())
        await self._settle(departures.keys(), until)
        for publisher, handover in last.items():
            is_written = not self._writer.has_waiting(publisher)
            self.ended["linked" if handover.successor else "unlinked"] += 1
            done = msgspec.structs.replace(handover, is_proven=handover.is_proven and is_written)
            if self._passing.get(publisher) is departures[publisher]:
                self._cursors.set_handover(publisher, done)
        # Later, the next owner has its own note.
        if self._lease.clock.monotonic() < until + HANDOVER_FINISH_S:
            try:
                async with asyncio.timeout(BRIDGE_LEAVE_S):
                    await self._cursors.store(self._producer, kept())
            except AWAY as error:
                _logger.info(
                    "Cannot note that publishers are handed over: %s. Their next owner goes by the"
                    " log",
                    describe(error),
                )
        gone = kept()
        self._end(gone)
        for publisher in gone:
            self._cursors.drop(publisher)
        await self._unfollow(gone)
        self._when_changed()  # what is spooled of them has waited for it

    async def _settle(self, publishers: Collection[PublisherKey], until: float) -> None:
        """Waits until nothing of these is yet to be written, or may be: what is left is in the
        spool then, and stays there.
        """
        try:
            async with asyncio.timeout(max(0.0, until - self._lease.clock.monotonic())):
                await self._writer.settle(publishers)
        except TimeoutError:
            await self._writer.withdraw(withhold=False)
        for publisher in publishers:
            self._writer.withhold(publisher)

    def _has_arrived(self, publisher: PublisherKey, arrival: Arrival, now: float) -> bool:
        state = self._cursors.state(publisher)
        sequencer = self._follower.followed[publisher].sequencer
        is_common = (
            arrival.done is not None and state is not None and sequencer.has_in_common(state.anchor)
        )
        return arrival.is_over(now, is_common=is_common)

    async def _tell(self, arrivals: Mapping[PublisherKey, Arrival]) -> None:
        """Step 2: these are linked."""
        for publisher, arrival in arrivals.items():
            linked = Handover(arrival.keeper, self._name, is_proven=arrival.is_whole)
            self._cursors.set_handover(publisher, linked)
        try:
            async with asyncio.timeout(BRIDGE_LEAVE_S):
                await self._cursors.store(self._producer, arrivals)
        except AWAY as error:
            _logger.debug("Cannot say that publishers are linked, retrying: %r", error)
            return
        for arrival in arrivals.values():
            arrival.told_link = arrival.link
