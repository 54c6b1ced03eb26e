"""Takes publishers over, keeps them across rebalances, and gives them up. One loop.

Taking over one publisher; the order is the guarantee:

    Step 1. hold it and connect to it: from here on nothing that it sends is missed. Where its last
    owner keeps it for us, the rest is done once that has given it up (`handover`).
    Step 2. read what the log has of it, and what the spool has beyond that: its cursor.
    Step 3. write a note of the cursor where there is none yet, then that it is registered where
    the log does not say so.
    Step 4. ask its engine for what came after the cursor, and write that.
    Step 5. write what came live meanwhile, and go on live.

Steps 1, 4 and 5 are the follower's.

A rebalance takes all partitions from all bridges and shares them out again. What we get back is
kept: its socket stays open and its batches wait. If the log still ends where we ended, no other
bridge has written, and step 5 follows at once.

A bridge that was paused for longer than its session finds its lease gone (see `registry_reader`),
so it writes no more of what it had, except by requests that were under way. Such a late record
is skipped by the fold where the new owner has written the same batches; and a new owner writes a
gap only after it has read the log to its end and asked the engine, so what it reports as lost is
in neither. What the paused bridge had spooled is written as far as it continues the log, and never
after a hole.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import TypeVar

from bridge.bounds import BRIDGE_RETRY_S
from bridge.delivery.dropped_records import SPOOL_FULL
from bridge.delivery.lease import Lease
from bridge.delivery.writer import Writer
from bridge.membership.bounds import HANDOVER_FLUSH_S
from bridge.membership.cursors import UNREGISTERED, Cursors, LogState, fingerprint
from bridge.membership.handovers import Handovers
from bridge.membership.registry_changes import RegistryChange, RegistryChanges
from bridge.membership.registry_reader import RegistryPartition
from bridge.membership.spool_recovery import release_foreign, resolve
from bridge.publisher.anchor import NO_JOINT, Anchor, Joint
from bridge.publisher.follower import PublisherFollower
from bridge.supervision import cancel
from brokers.availability import insist
from brokers.backoff import Backoff
from brokers.clients import partition_of
from brokers.errors import AWAY
from logs.producer import ReplaceableProducer
from schemas.errors import RegistrationError, StorageError
from schemas.identities import PublisherKey
from schemas.limits import BRIDGE_FLUSH_S, PUBLISHERS_MAX
from schemas.positions import Cursor
from schemas.records import (
    RegisteredRecord,
    UnregisteredRecord,
)
from schemas.registration import Registration
from schemas.topics import encode_publisher

_logger = logging.getLogger(__name__)

T = TypeVar("T")


class Ownership:
    """See the module; implements `bridge.membership.registry_reader.Owner`."""

    def __init__(
        self,
        *,
        lease: Lease,
        follower: PublisherFollower,
        writer: Writer,
        producer: ReplaceableProducer,
        cursors: Cursors,
        registry_partitions: int,
        name: str = "",
    ) -> None:
        self.takeovers = 0
        self.refused = 0
        self.faults = 0
        self._lease = lease
        self._follower = follower
        self._writer = writer
        self._producer = producer
        self._cursors = cursors
        self.handovers = Handovers(
            name=name,
            lease=lease,
            follower=follower,
            writer=writer,
            producer=producer,
            cursors=cursors,
            when_changed=self._order,
            unfollow=self._unfollow,
        )
        self._registry_partitions = registry_partitions
        self._revoking = asyncio.Lock()
        self._owned: set[int] = set()
        self._assignment: Mapping[int, RegistryPartition] | None = None
        self._has_foreign = False
        self._changes = RegistryChanges()
        self._running: asyncio.Task[None] | None = None
        self._stopped = False

    # Called by the registry

    async def revoke(self, *, flush_s: float = BRIDGE_FLUSH_S) -> None:
        """See `Owner`. One at a time: one that begins while we leave waits until the log has who is
        kept, as long as we have the lease.
        """
        async with self._revoking:
            await self._revoke(flush_s)

    async def _revoke(self, flush_s: float) -> None:
        await self.handovers.joined()
        self._assignment = None
        self._has_foreign = False
        self._owned.clear()
        self._changes.clear()
        self.handovers.expect_none()
        await self._stop_running()
        follower = self._follower
        await follower.appender.write_all(flush_s)
        departing = self.handovers.departing
        ours = [one for key, one in follower.followed.items() if key not in departing]
        keys = [one.registration.publisher for one in ours if follower.can_keep(one)]
        kept = {key: self._home_of(key) for key in keys}
        for publisher in ours:
            follower.hold(publisher)
        is_flushed = await self._writer.flush(flush_s)
        await self._writer.withdraw(withhold=True)
        if is_flushed:
            await self.handovers.keep(kept)

    async def give_up(self) -> bool:
        """Writes what is left of all publishers, before the group is left, and keeps those that
        another bridge may take over; False where there are none: nothing has changed then.
        """
        await self.handovers.joined()
        await self.stop()
        if not any(map(self._follower.can_keep, self._follower.followed.values())):
            return False
        await self.revoke(flush_s=HANDOVER_FLUSH_S)
        return self.handovers.has_kept

    def assign(self, partitions: dict[int, RegistryPartition]) -> None:
        """See `Owner`."""
        self._assignment = partitions
        self._order()

    def change(
        self, partition: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        """See `Owner`."""
        self._changes.add(partition, publisher, registration)
        self._order()

    # Orders, one after the other: the assignment, then one change for each publisher, then what is
    # spooled of others' publishers

    def _order(self) -> None:
        if self._stopped:
            return
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run_orders())

    async def _stop_running(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await cancel(running)

    async def _run_orders(self) -> None:
        while self._has_orders():
            try:
                await self._run_order()
            except StorageError as error:
                _logger.warning(
                    "Cannot write the spool: %s. Taking the publishers over once it can be", error
                )
                await asyncio.sleep(BRIDGE_RETRY_S)
            except Exception:
                self.faults += 1
                _logger.exception(
                    "Unexpected error in a takeover; continuing with the next publishers"
                )

    def _has_orders(self) -> bool:
        return (
            self._assignment is not None
            or self.handovers.has_ready
            or self._next_change() is not None
            or (self._has_foreign and not self.handovers.departing)
        )

    def _next_change(self) -> tuple[PublisherKey, RegistryChange] | None:
        """One that need not wait: of who arrives, another bridge may write yet."""
        arrives = self.handovers.is_arriving
        return next((one for one in self._changes if not arrives(one[0])), None)

    async def _run_order(self) -> None:
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            await self._assigned(assignment)
            return
        if self.handovers.has_ready:
            await self._take_over_ready()
            return
        found = self._next_change()
        if found is None:
            await self._release_foreign()
            return
        publisher, change = found
        if change.home not in self._owned:  # it was read while the partition was given up
            self._changes.carried_out(publisher, change)
            return
        try:
            if change.forget:
                await self._changed(change.home, publisher, None)
                change = self._changes.forgotten(publisher, change)
            if change.registration is not None:
                await self._changed(change.home, publisher, change.registration)
        except StorageError:
            self._changes.wait_behind(publisher)
            raise
        except Exception:
            self._changes.carried_out(publisher, change)
            raise
        self._changes.carried_out(publisher, change)

    async def _assigned(self, partitions: Mapping[int, RegistryPartition]) -> None:
        self._owned = set(partitions)
        wanted = {
            publisher: (registration, home)
            for home, partition in partitions.items()
            for publisher, registration in partition.publishers.items()
        }
        self.handovers.reclaim(self._owned)
        gone = [
            publisher
            for publisher in self._follower.followed
            if publisher not in wanted and self._is_gone(publisher, partitions)
        ]
        departing = self.handovers.depart(
            one for one in gone if self._home_of(one) not in partitions
        )
        await self._unfollow([one for one in gone if one not in departing])
        self._cursors.retain(partitions, departing)
        await _insist(lambda: self._cursors.load(partitions))
        await self._take_over(wanted)
        for publisher in self._writer.withheld():
            # Unregistered while nobody owned it: after its records no other would be written.
            home = self._home_of(publisher)
            if home in partitions and self._is_gone(publisher, partitions):
                self._changes.try_again(publisher, RegistryChange(home, None, forget=True))
        await self._end_registrations(partitions, wanted.keys())
        self._has_foreign = True

    async def _end_registrations(
        self, partitions: Mapping[int, RegistryPartition], registered: Set[PublisherKey]
    ) -> None:
        """Writes for all others that they are unregistered, where the log does not have that yet.

        A note does not tell: what it says was so some records ago.
        """
        others = {
            publisher: home
            for home, partition in partitions.items()
            for publisher in self._cursors.known(home)
            if publisher not in registered and partition.has_forgotten(publisher)
        }
        found = await _insist(lambda: self._cursors.recover(others))
        for publisher, state in found.items():
            if state.registered != UNREGISTERED or state.has_unread:
                self._write_unregistered(publisher)

    def _is_gone(
        self, publisher: PublisherKey, partitions: Mapping[int, RegistryPartition]
    ) -> bool:
        """Whether the publisher is another bridge's now, or certainly no longer registered."""
        return self._home_of(publisher) not in partitions or all(
            partition.has_forgotten(publisher) for partition in partitions.values()
        )

    def _home_of(self, publisher: PublisherKey) -> int:
        return partition_of(encode_publisher(publisher), self._registry_partitions)

    async def _changed(
        self, home: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        followed = self._follower.followed.get(publisher)
        if registration is not None:
            if followed is not None and registration.restates(followed.registration):
                self._follower.restate(registration)
            elif followed is not None and followed.registration != registration:
                # Of another engine, for all we know, but where it is at the same address.
                await self._forget(publisher, registration.continues(followed.registration))
            await self._take_over({publisher: (registration, home)})
            return
        await self._forget(publisher)

    async def _forget(self, publisher: PublisherKey, continues: bool = False) -> None:
        if publisher in self._follower.followed:
            await self._unfollow([publisher])
        self._writer.discard(publisher)
        self._write_unregistered(publisher, continues)

    async def _unfollow(self, publishers: Iterable[PublisherKey]) -> None:
        for publisher in publishers:
            self._writer.forget(publisher)
            await self._follower.unfollow(self._follower.followed[publisher])

    def _write_unregistered(self, publisher: PublisherKey, continues: bool = False) -> None:
        now = self._lease.clock.unix()
        self._writer.append([UnregisteredRecord.of(publisher, now, continues=continues)])

    # Taking over

    async def _take_over_ready(self) -> None:
        joints = self.handovers.take_ready()
        followed = self._follower.followed
        await self._take_over(
            {
                publisher: (followed[publisher].registration, self._home_of(publisher))
                for publisher in joints
                if publisher in followed
            },
            joints=joints,
        )

    async def _take_over(
        self,
        wanted: Mapping[PublisherKey, tuple[Registration, int]],
        *,
        joints: Mapping[PublisherKey, Joint] = MappingProxyType({}),
    ) -> None:
        """Follows these from where the log is, or goes on with them.

        Args:
            wanted: with what is registered, and their partition of the registry.
            joints: of those of them that another bridge has given up for us.
        """
        if not wanted:
            return
        followed = self._follower.followed
        kept = {
            publisher
            for publisher, (registration, _) in wanted.items()
            if publisher in followed and followed[publisher].registration == registration
        }
        ours = kept - joints.keys()
        await self._unfollow(
            [publisher for publisher in wanted if publisher in followed and publisher not in kept]
        )
        for publisher, (registration, _) in wanted.items():  # Step 1.
            if publisher in kept:
                self._follower.hold(followed[publisher])
            else:
                await self._follow(registration)
        homes = {
            publisher: home for publisher, (_, home) in wanted.items() if publisher in followed
        }
        if not joints:
            arriving = self.handovers.expect(homes)
            homes = {one: home for one, home in homes.items() if one not in arriving}
        await self._writer.settle(homes)
        states = await _insist(lambda: self._cursors.recover(homes))  # Step 2.
        spool = self._writer.spool
        anchors: dict[PublisherKey, Anchor] = {}
        for publisher, state in states.items():
            try:
                anchors[publisher] = resolve(spool, publisher, state)
            except StorageError as error:
                _logger.warning(
                    "Cannot write the spool of %s: %s. Taking it over once that can be",
                    *(publisher, error),
                )
                registration, home = wanted[publisher]
                self._changes.try_again(publisher, RegistryChange(home, registration, forget=False))
        fresh = [publisher for publisher in anchors if not states[publisher].noted]
        await _insist(lambda: self._cursors.store(self._producer, fresh))  # Step 3.
        for publisher, anchor in anchors.items():
            self._begin(
                publisher,
                states[publisher],
                anchor,
                kept=publisher in ours,
                joint=joints.get(publisher, NO_JOINT),
            )
            await asyncio.sleep(0)
        if len(anchors) < len(states):
            await asyncio.sleep(BRIDGE_RETRY_S)

    async def _follow(self, registration: Registration) -> None:
        publisher = registration.publisher
        if len(self._follower.followed) >= PUBLISHERS_MAX:
            self.refused += 1
            _logger.error(
                "Not following %s: %d publishers are followed already", publisher, PUBLISHERS_MAX
            )
            return
        try:
            await self._follower.follow(registration)
        except RegistrationError as error:
            self.refused += 1
            key = registration.service_key
            _logger.warning(
                "Cannot follow the registered publisher %s: %s. Register it again", key, error
            )

    def _begin(
        self, publisher: PublisherKey, state: LogState, anchor: Anchor, *, kept: bool, joint: Joint
    ) -> None:
        """Steps 3 to 5, once the cursor is known."""
        followed = self._follower.followed[publisher]
        registration = followed.registration
        self._cursors.set_handover(publisher, None)
        writer = self._writer
        if state.registered != fingerprint(registration):
            self._write_registered(registration)
        writer.place(publisher, anchor)
        writer.release(publisher)
        ours = followed.sequencer.stream.anchor
        continues = kept and _same(ours.cursor, anchor.cursor) and ours.begun == anchor.begun
        if continues and writer.loss_of(publisher) is None:
            self._follower.release(followed)
            return
        self.takeovers += 1
        writer.forget(publisher)
        writer.place(publisher, anchor)
        self._follower.begin(followed, anchor, process=state.process, joint=joint)

    def _write_registered(self, registration: Registration) -> None:
        self._writer.append([RegisteredRecord.of(registration, self._lease.clock.unix())])

    def registered_at(self) -> Iterator[tuple[PublisherKey, int]]:
        """Of each publisher that is followed and registered in the log, the offset of the last
        record that says so, or one below it. Cost O(publishers).
        """
        for publisher in self._follower.followed if self._lease.is_held else ():
            state = self._cursors.state(publisher)
            if state is not None and state.registered != UNREGISTERED:
                yield publisher, state.registered_at

    def register_again(self, publishers: Sequence[PublisherKey]) -> None:
        """Writes again that these are registered: the log has dropped the records that say so."""
        for publisher in publishers:
            self._write_registered(self._follower.followed[publisher].registration)

    # Losses

    def end_losses(self) -> None:
        """Replays what the spool had no room for, or reports it in the log where that cannot be."""
        for publisher in self._writer.losses_to_end():
            followed = self._follower.followed.get(publisher)
            if followed is None:
                self._writer.end_loss(publisher)
            elif followed.is_at_rest:
                loss = self._writer.end_loss(publisher)
                if followed.can_replay:
                    lost_to = Cursor(loss.incarnation, loss.last)
                    self._follower.begin(followed, loss.before)
                    followed.sequencer.expect(lost_to, SPOOL_FULL)
                else:
                    self._writer.append(loss.records(publisher, self._lease.clock.unix()))

    # What an earlier process or session spooled of publishers that another bridge owns now

    async def _release_foreign(self) -> None:
        homes = {publisher: self._home_of(publisher) for publisher in self._writer.withheld()}
        homes = {publisher: home for publisher, home in homes.items() if home not in self._owned}
        try:
            if homes:
                await release_foreign(self._writer, self._cursors, homes)
        except AWAY as error:
            _away(error)
            await asyncio.sleep(BRIDGE_RETRY_S)
            return
        except StorageError:
            raise  # it is tried again
        except Exception:
            self._has_foreign = False
            raise
        self._has_foreign = False

    async def stop(self) -> None:
        """Ends takeovers, and begins no more, although the registry is read on, for the lease; the
        next owner does what they had left to do.
        """
        self._stopped = True
        await self._stop_running()

    async def close(self) -> None:
        """The same, and ends handovers."""
        await self.stop()
        await self.handovers.stop()


def _same(ours: Cursor, logged: Cursor) -> bool:
    """Whether both are equal; before its first batch, a publisher is in incarnation 0 or 1."""
    return ours == logged or (ours.sequence == logged.sequence == -1 and logged.incarnation == 0)


async def _insist(attempt: Callable[[], Awaitable[T]]) -> T:
    return await insist(attempt, Backoff(BRIDGE_RETRY_S, BRIDGE_RETRY_S), _away)


def _away(error: Exception) -> None:
    _logger.debug("Waiting for Kafka: %r", error)
