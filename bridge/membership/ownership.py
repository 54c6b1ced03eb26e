"""Takes publishers over, keeps them across rebalances, and gives them up. One loop.

Taking over one publisher; the order is the guarantee:

    Step 1. hold it and connect to it: from here on nothing that it sends is missed.
    Step 2. read what the log has of it, and what the spool has beyond that: its cursor.
    Step 3. write a note of the cursor where there is none yet, then that it is registered where
    the log does not say so.
    Step 4. ask its engine for what came after the cursor, and write that.
    Step 5. write what came live meanwhile, and go on live.

Steps 1, 4 and 5 are the pump's.

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
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from bridge.delivery.dropped_records import SPOOL_FULL
from bridge.delivery.producer import ReplaceableProducer
from bridge.delivery.writer import Writer
from bridge.membership.cursors import UNREGISTERED, Cursors, LogState, fingerprint
from bridge.membership.registry_reader import RegistryPartition
from bridge.membership.spool_recovery import prune, resolve
from bridge.pump import Pump
from bridge.sequencing.anchor import Anchor
from brokers.clients import partition_of
from brokers.errors import KafkaError
from schemas.errors import RegistrationError, StorageError
from schemas.identities import PublisherKey
from schemas.limits import BRIDGE_FLUSH_S, BRIDGE_RETRY_S, PUBLISHERS_MAX
from schemas.positions import Cursor
from schemas.records import (
    RegisteredRecord,
    UnregisteredRecord,
)
from schemas.registration import Registration
from schemas.topics import encode_publisher

_logger = logging.getLogger(__name__)


class _Change(NamedTuple):
    """What is to be done for one publisher: at most this, however often the registry changes.

    Attributes:
        home: its partition of the registry.
        registration: to be followed from now on, or None.
        forget: whether to forget all that was known of it first.
    """

    home: int
    registration: Registration | None
    forget: bool


class Ownership:
    """See the module; implements `bridge.membership.registry_reader.Owner`."""

    def __init__(
        self,
        *,
        pump: Pump,
        writer: Writer,
        producer: ReplaceableProducer,
        cursors: Cursors,
        registry_partitions: int,
    ) -> None:
        self.takeovers = 0
        self.refused = 0
        self.faults = 0
        self._pump = pump
        self._writer = writer
        self._producer = producer
        self._cursors = cursors
        self._registry_partitions = registry_partitions
        self._owned: set[int] = set()
        self._assignment: Mapping[int, RegistryPartition] | None = None
        self._has_foreign = False
        self._changes: dict[PublisherKey, _Change] = {}
        self._running: asyncio.Task[None] | None = None
        self._stopped = False

    # Called by the registry

    async def revoke(self) -> None:
        """See `Owner`."""
        self._assignment = None
        self._has_foreign = False
        self._owned.clear()
        self._changes.clear()
        await self._stop_running()
        await self._pump.held_back.write_all(BRIDGE_FLUSH_S)
        for publisher in self._pump.followed:
            self._pump.hold(publisher)
        await self._writer.flush(BRIDGE_FLUSH_S)
        await self._writer.withdraw(withhold=True)

    def assign(self, partitions: dict[int, RegistryPartition]) -> None:
        """See `Owner`."""
        self._assignment = partitions
        self._order()

    def change(
        self, partition: int, publisher: PublisherKey, registration: Registration | None
    ) -> None:
        """See `Owner`."""
        waiting = self._changes.pop(publisher, None)
        forget = registration is None or (waiting is not None and waiting.forget)
        self._changes[publisher] = _Change(partition, registration, forget)
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
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run_orders(self) -> None:
        while self._assignment is not None or self._changes or self._has_foreign:
            try:
                await self._run_order()
            except StorageError as error:
                _logger.warning("Taking over again once the spool can be written: %s", error)
                await asyncio.sleep(BRIDGE_RETRY_S)
            except Exception:
                self.faults += 1
                _logger.exception(
                    "Unexpected error in a takeover; continuing with the next publishers"
                )

    async def _run_order(self) -> None:
        assignment, self._assignment = self._assignment, None
        if assignment is not None:
            await self._assigned(assignment)
            return
        if not self._changes:
            await self._release_foreign_or_skip()
            return
        publisher, change = next(iter(self._changes.items()))
        if change.home not in self._owned:  # it was read while the partition was given up
            del self._changes[publisher]
            return
        try:
            if change.forget:
                await self._changed(change.home, publisher, None)
                change = self._forgotten(publisher, change)
            if change.registration is not None:
                await self._changed(change.home, publisher, change.registration)
        except StorageError:
            self._wait_behind(publisher)
            raise
        except Exception:
            self._carried_out(publisher, change)
            raise
        self._carried_out(publisher, change)

    async def _release_foreign_or_skip(self) -> None:
        try:
            await self._release_foreign()
        except StorageError:
            raise  # it is tried again
        except Exception:
            self._has_foreign = False
            raise

    def _try_again(self, publisher: PublisherKey, change: _Change) -> None:
        """Carries the change out once it is its turn, unless there is a later one."""
        latest = self._changes.pop(publisher, change)
        if latest.registration == change.registration:
            latest = change._replace(forget=change.forget or latest.forget)
        self._changes[publisher] = latest

    def _wait_behind(self, publisher: PublisherKey) -> None:
        """Lets the others' changes go first: this one waits until its lane can be written."""
        change = self._changes.pop(publisher, None)
        if change is not None:
            self._changes[publisher] = change

    def _forgotten(self, publisher: PublisherKey, change: _Change) -> _Change:
        """The change without its first half, of which one that comes now must know."""
        latest = self._changes.get(publisher, change)
        if latest.registration is not None:
            self._changes[publisher] = rest = latest._replace(forget=False)
            return rest if latest is change else change
        return change

    def _carried_out(self, publisher: PublisherKey, change: _Change) -> None:
        if self._changes.get(publisher) is change:
            del self._changes[publisher]

    async def _assigned(self, partitions: Mapping[int, RegistryPartition]) -> None:
        self._owned = set(partitions)
        wanted = {
            publisher: (registration, home)
            for home, partition in partitions.items()
            for publisher, registration in partition.publishers.items()
        }
        gone = [
            publisher
            for publisher in self._pump.followed
            if publisher not in wanted and self._is_gone(publisher, partitions)
        ]
        await self._unfollow(gone)
        while True:
            try:
                await self._cursors.load(partitions)
                break
            except (KafkaError, OSError, TimeoutError) as error:
                await _wait_for_kafka(error)
        await self._take_over(wanted)
        for publisher in self._writer.withheld():
            # Unregistered while nobody owned it: after its records no other would be written.
            home = self._home_of(publisher)
            if home in partitions and self._is_gone(publisher, partitions):
                self._try_again(publisher, _Change(home, None, forget=True))
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
        for publisher, state in (await self._recover(others)).items():
            if state.registered != UNREGISTERED:
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
        if registration is not None:
            await self._take_over({publisher: (registration, home)})
            return
        if publisher in self._pump.followed:
            await self._unfollow([publisher])
        self._writer.discard(publisher)
        self._write_unregistered(publisher)

    async def _unfollow(self, publishers: Iterable[PublisherKey]) -> None:
        for publisher in publishers:
            self._writer.forget(publisher)
            await self._pump.unfollow(publisher)

    def _write_unregistered(self, publisher: PublisherKey) -> None:
        self._writer.append(
            [
                UnregisteredRecord(
                    stream=publisher.stream, dp_rank=publisher.dp_rank, bridge_time=time.time()
                )
            ]
        )

    # Taking over

    async def _take_over(self, wanted: Mapping[PublisherKey, tuple[Registration, int]]) -> None:
        if not wanted:
            return
        followed = self._pump.followed
        kept = {
            publisher
            for publisher, (registration, _) in wanted.items()
            if publisher in self._pump.followed
            and self._pump.followed[publisher].registration == registration
        }
        await self._unfollow(
            [publisher for publisher in wanted if publisher in followed and publisher not in kept]
        )
        for publisher, (registration, _) in wanted.items():  # Step 1.
            if publisher in kept:
                self._pump.hold(publisher)
            else:
                await self._follow(registration)
        homes = {
            publisher: home for publisher, (_, home) in wanted.items() if publisher in followed
        }
        await self._writer.settle(homes)
        states = await self._recover(homes)  # Step 2.
        spool = self._writer.spool
        anchors: dict[PublisherKey, Anchor] = {}
        for publisher, state in states.items():
            try:
                anchors[publisher] = resolve(spool, publisher, state)
            except StorageError as error:
                _logger.warning(
                    "Taking over %s once its spool can be written: %s", publisher, error
                )
                registration, home = wanted[publisher]
                self._try_again(publisher, _Change(home, registration, forget=False))
        await self._note(
            [publisher for publisher in anchors if not states[publisher].noted]
        )  # Step 3.
        for publisher, anchor in anchors.items():
            self._begin(publisher, states[publisher], anchor, kept=publisher in kept)
            await asyncio.sleep(0)
        if len(anchors) < len(states):
            await asyncio.sleep(BRIDGE_RETRY_S)

    async def _follow(self, registration: Registration) -> None:
        publisher = registration.publisher
        if len(self._pump.followed) >= PUBLISHERS_MAX:
            self.refused += 1
            _logger.error(
                "Not following %s: %d publishers are followed already", publisher, PUBLISHERS_MAX
            )
            return
        try:
            await self._pump.follow(registration)
        except RegistrationError as error:
            self.refused += 1
            key = registration.service_key
            _logger.warning("Cannot follow the registered publisher %s: %s", key, error)

    async def _recover(self, homes: Mapping[PublisherKey, int]) -> dict[PublisherKey, LogState]:
        while True:
            try:
                return await self._cursors.recover(homes)
            except (KafkaError, OSError, TimeoutError) as error:
                await _wait_for_kafka(error)

    async def _note(self, publishers: Sequence[PublisherKey]) -> None:
        for home, notes in self._cursors.take_notes(publishers).items():
            while True:
                try:
                    await self._producer.send(
                        self._cursors.topic, home, [(key, value) for _, key, value in notes]
                    )
                    break
                except (KafkaError, OSError, TimeoutError) as error:
                    await _wait_for_kafka(error)
            self._cursors.noted([publisher for publisher, _, _ in notes])

    def _begin(
        self, publisher: PublisherKey, state: LogState, anchor: Anchor, *, kept: bool
    ) -> None:
        """Steps 3 to 5, once the cursor is known."""
        registration = self._pump.followed[publisher].registration
        writer, pump = self._writer, self._pump
        if state.registered != fingerprint(registration):
            self.write_registered(registration)
        writer.place(publisher, anchor)
        writer.release(publisher)
        ours = pump.sequencer.anchor(publisher)
        continues = kept and _same(ours.cursor, anchor.cursor) and ours.begun == anchor.begun
        if continues and publisher not in writer.losses:
            pump.go_on(publisher)
            return
        self.takeovers += 1
        writer.forget(publisher)
        writer.place(publisher, anchor)
        pump.begin(publisher, anchor, process=state.process)

    def write_registered(self, registration: Registration) -> None:
        """Writes into the log that the publisher is registered."""
        self._writer.append(
            [
                RegisteredRecord(
                    stream=registration.stream,
                    dp_rank=registration.dp_rank,
                    bridge_time=time.time(),
                    registration=registration,
                )
            ]
        )

    # Losses

    def end_losses(self) -> None:
        """Replays what the spool had no room for, or reports it in the log where that cannot be."""
        for publisher in self._writer.losses_to_end():
            followed = self._pump.followed.get(publisher)
            if followed is None:
                self._writer.end_loss(publisher)
            elif followed.live and followed.repair is None:
                loss = self._writer.end_loss(publisher)
                if followed.can_replay:
                    lost_to = Cursor(loss.incarnation, loss.last)
                    self._pump.begin(publisher, loss.before)
                    self._pump.sequencer.expect(publisher, lost_to, SPOOL_FULL)
                else:
                    self._writer.append(loss.records(publisher, time.time()))

    # What an earlier process or session spooled of publishers that another bridge owns now

    async def _release_foreign(self) -> None:
        homes = {publisher: self._home_of(publisher) for publisher in self._writer.withheld()}
        homes = {publisher: home for publisher, home in homes.items() if home not in self._owned}
        if not homes:
            self._has_foreign = False
            return
        try:
            await self._cursors.load(set(homes.values()))
            states = await self._cursors.recover(homes)
        except (KafkaError, OSError, TimeoutError) as error:
            await _wait_for_kafka(error)
            return
        finally:
            self._cursors.forget(set(homes.values()))
        for publisher, state in states.items():
            prune(self._writer.spool, publisher, state)
            self._writer.release(publisher)
        self._has_foreign = False

    async def stop(self) -> None:
        """Ends takeovers, and begins no more, although the registry is read on, for the lease; the
        next owner does what they had left to do.
        """
        self._stopped = True
        await self._stop_running()


def _same(ours: Cursor, logged: Cursor) -> bool:
    """Whether both are equal; before its first batch, a publisher is in incarnation 0 or 1."""
    return ours == logged or (ours.sequence == logged.sequence == -1 and logged.incarnation == 0)


async def _wait_for_kafka(error: BaseException) -> None:
    _logger.debug("Waiting for Kafka: %r", error)
    await asyncio.sleep(BRIDGE_RETRY_S)
