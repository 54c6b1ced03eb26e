"""The bridge as a service: registry -> pump (sockets, sequencer) -> writer -> log. One loop.

startup     opens the spool; needs no broker, and waits for one for as long as it takes
main loop   the pump turns what the sockets received into records; beside it the registry is
            read, records are sent, and every HOUSEKEEPING_S the rest is checked
drain       hand over what another bridge can take over, and leave the group for that; stop
            receiving; write what was received; store the cursors; leave the group
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Final

import msgspec

from bridge.bridge_settings import BridgeSettings
from bridge.delivery.delivery import Delivery
from bridge.delivery.lag_watch import LagWatch
from bridge.delivery.lease import Lease
from bridge.delivery.registrations_watch import RegistrationsWatch
from bridge.delivery.spool import Spool
from bridge.delivery.writer import Writer
from bridge.engine_http.load_watch import (
    LoadWatch,
    OnSamples,
    ScrapedPublisher,
    ignore_samples,
    scraped,
)
from bridge.heartbeats import Heartbeats
from bridge.membership.cursors import Cursors
from bridge.membership.ownership import Ownership
from bridge.membership.registry_reader import RegistryReader
from bridge.memory.watch import MemoryStatus, MemoryWatch
from bridge.publisher.counters import PublisherCounters
from bridge.publisher.publisher import Publisher
from bridge.publisher.waits import Wait
from bridge.pump import Pump
from bridge.sockets.reader import MessageReader
from bridge.supervision import cancel, ends_before, keep_all
from bridge.unreached import watch_unreached
from brokers.clients import Clients
from brokers.errors import AWAY
from brokers.group_offsets import GroupOffsets
from brokers.options import ClientOptions
from logs.producer import ReplaceableProducer
from schemas.arrays import ArrayPacker
from schemas.clock import REAL_CLOCK, Clock
from schemas.conditions import Conditions, Level, Part
from schemas.identities import PublisherKey
from schemas.limits import (
    BRIDGE_FLUSH_S,
    BRIDGE_LEAVE_S,
    HOUSEKEEPING_S,
)
from schemas.registration import Registration
from schemas.tracing import NO_TRACER, Tracer

CURSOR_NOTE_S: Final = 1.0  # how often the stored cursors are written

_logger = logging.getLogger(__name__)


class PublisherStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One publisher of this bridge, for `/health` and `/metrics`."""

    registration: Registration
    state: str
    connected: bool
    incarnation: int
    sequence: int


class BridgeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a bridge.

    Attributes:
        partitions: of the registry, that this bridge owns.
        queue_bytes: of records that are neither acknowledged nor in the spool.
        memory: of the segments that it looks at; None where it does not.
    """

    partitions: list[int]
    publishers: list[PublisherStatus]
    spool_records: int
    spool_bytes: int
    queue_bytes: int
    memory: MemoryStatus | None = None


class Bridge:
    """See the module.

    Args:
        options: of the clients, made of `settings.kafka`.
        packer: of hashes and tokens; the kernel's where there is one.
        conditions: of the role; the bridge sets and clears its own.
        on_load: takes what engines say of their load, on the bridge's loop.

    Raises:
        StorageError: the spool cannot be opened.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        options: ClientOptions,
        packer: ArrayPacker | None = None,
        reader: MessageReader | None = None,
        *,
        conditions: Conditions | None = None,
        on_load: OnSamples = ignore_samples,
        tracer: Tracer = NO_TRACER,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self._clock = clock
        self.conditions = Conditions(clock.unix) if conditions is None else conditions
        clients = Clients(options)
        self._settings = settings
        self._stopping = asyncio.Event()
        self._own_faults = 0
        self.cursors = Cursors(clients, settings.kafka.topics)
        self.spool = Spool(
            settings.data / "spool", bytes_max=settings.spool_bytes, monotonic=clock.monotonic
        )
        producer = self._producer = ReplaceableProducer(clients.producer)
        self.lease = Lease(clock)
        self.writer = Writer(
            Delivery(
                topic=settings.kafka.topics.events,
                producer=producer,
                spool=self.spool,
                on_written=self.cursors.written,
                lease=self.lease,
                tracer=tracer,
                clock=clock,
            )
        )
        self.pump = Pump(
            self.writer,
            packer=packer,
            reader=reader,
            window_s=settings.window_ms / 1000,
            clock=clock,
        )
        events = settings.kafka.topics.events.name
        self.lag_watch = LagWatch(
            self.writer.lags,
            GroupOffsets(clients, settings.kafka.group("streams"), events),
            on_released=self._resume_held_back,
            clock=clock.monotonic,
        )
        self.heartbeats = Heartbeats(self.pump.follower, self.writer.partition_of, clock=clock)
        self.memory: MemoryWatch | None = None
        if settings.memory is not None:
            name = self.heartbeats.bridge
            self.memory = MemoryWatch(
                settings.memory, bridge=name, conditions=self.conditions, clock=clock
            )
        self.ownership = Ownership(
            lease=self.lease,
            follower=self.pump.follower,
            writer=self.writer,
            producer=producer,
            cursors=self.cursors,
            registry_partitions=settings.kafka.registry_partitions,
            name=self.heartbeats.bridge,
        )
        self.registrations_watch = RegistrationsWatch(
            options,
            events,
            self.writer.partition_of,
            logged=self.ownership.registered_at,
            register_again=self.ownership.register_again,
        )
        self.registry = RegistryReader(
            clients, settings.kafka, self.ownership, self.lease, session_s=settings.session_s
        )
        self.load: LoadWatch | None = None
        if settings.load.scrape_s:
            self.load = LoadWatch(settings.load.scrape_s, self._scraped, on_load, clock=clock)
            self.pump.on_load = self.load.note_pushed
        self._has_followed = False
        self._check_conditions()
        self._noting: asyncio.Task[None] | None = None
        self._note_at = 0.0

    @property
    def faults(self) -> int:
        """Unexpected errors of all parts."""
        readers = self.registry.skipped.faults + self.cursors.skipped.faults + self.spool.faults
        readers += self.ownership.handovers.faults
        load = 0 if self.load is None else self.load.faults
        return self._own_faults + load + self.pump.faults + self.ownership.faults + readers

    def _scraped(self) -> dict[PublisherKey, ScrapedPublisher]:
        return scraped(self.pump.followed, self.registry.without_events().values())

    def _count_fault(self) -> None:
        self._own_faults += 1

    def _resume_held_back(self, publishers: Sequence[PublisherKey]) -> None:
        self.writer.resume_held_back(publishers)
        self.pump.appender.resume_held_back(publishers)

    # Start and end

    async def run(self, prepare: Callable[[], Coroutine[None, None, None]]) -> None:
        """Runs until `stop` is called, then drains, within SHUTDOWN_S; once.

        Args:
            prepare: done first, for as long as that takes; its errors end the run.
        """
        self.pump.start()
        try:
            if await ends_before(prepare(), self._stopping):
                await self._run()
        finally:
            await self.pump.close()
            self.spool.close()

    async def _run(self) -> None:
        until_drained = {"writer": self.writer.run, "registry": self.registry.run}
        sending, following = keep_all(until_drained, on_fault=self._count_fault)
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "housekeeping": self._keep_up,
            "heartbeats": partial(self.writer.beat, self.heartbeats),
            "watch over workers": self.lag_watch.run,
            "watch over registrations": self.registrations_watch.run,
            "unreached engines": partial(
                watch_unreached, self.pump, self.conditions, clock=self._clock.unix
            ),
        }
        if self.memory is not None:
            tell_memory = partial(self.writer.tell_memory, self.memory)
            parts["watch over memory segments"] = partial(self.memory.run, tell_memory)
        if self.load is not None:
            parts["load"] = self.load.run
        first = keep_all(parts, on_fault=self._count_fault)
        first.append(asyncio.create_task(self.pump.run()))
        try:
            await self._stopping.wait()
            await self._hand_over(following)
            await cancel(*first)
            await self._drain()
            await cancel(following)
        finally:
            await self.ownership.close()
            await cancel(*first, following, sending)

    def stop(self) -> None:
        """Asks `run` to end; from the loop's thread, signal handlers included."""
        self._stopping.set()

    async def _hand_over(self, following: "asyncio.Task[None]") -> None:
        """Leaves the group while all goes on, and gives the publishers to whom it gives them. Not
        where no other bridge is there: then we own everything.
        """
        is_shared = 0 < len(self.registry.partitions) < self._settings.kafka.registry_partitions
        if not is_shared or not self.registry.is_settled or self.writer.is_late:
            return
        if self.lease.is_held and await self.ownership.give_up():
            await cancel(following)
            self.registry.leave()
            await self.ownership.handovers.depart_all()

    async def _drain(self) -> None:
        """See the module; each step is bounded."""
        await self.ownership.stop()
        await self.pump.drain()
        if not await self.writer.flush(BRIDGE_FLUSH_S):
            _logger.warning(
                "Cannot write what was received within %g s; it waits in the spool", BRIDGE_FLUSH_S
            )
            return
        try:
            await asyncio.wait_for(self._write_notes(), BRIDGE_LEAVE_S)
        except TimeoutError:
            _logger.info("Cannot store the cursors in time; the next owner reads the log instead")

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await self.writer.check()
            self.ownership.end_losses()
            self._check_conditions()
            now = self._clock.monotonic()
            if now >= self._note_at and (self._noting is None or self._noting.done()):
                self._note_at = now + CURSOR_NOTE_S
                self._noting = asyncio.create_task(self._write_notes())

    async def _write_notes(self) -> None:
        if self.writer.is_late or not self.lease.is_held:
            return
        self.cursors.advance(self.writer.ends())
        for publisher, followed in self.pump.followed.items():
            if followed.engine is not None:
                self.cursors.note_process(publisher, followed.engine.published)
        try:
            await self.cursors.store(self._producer)
        except AWAY as error:
            _logger.debug("Cannot store cursors, retrying: %r", error)

    # State

    def _check_conditions(self) -> None:
        """Not logged: the writer, the registry reader or the watch over Kafka has done so."""
        conditions = self.conditions
        if self.registry.connected:
            self._has_followed = True
            conditions.clear(Part.REGISTRY)
        else:
            message = "the registry cannot be followed: Kafka is away"
            level = Level.DEGRADED if self._has_followed else Level.UNAVAILABLE
            conditions.set(Part.REGISTRY, "not_followed", message, level, logged=False)
        if self.writer.is_dropping:
            message = "the spool is full: records are dropped"
            conditions.set(Part.SPOOL, "full", message, Level.UNAVAILABLE, logged=False)
        elif self.writer.is_late or not self.lease.is_held:
            message = "records wait in the spool: Kafka is away or slow"
            conditions.set(Part.SPOOL, "spooling", message, logged=False)
        else:
            conditions.clear(Part.SPOOL)

    def status(self) -> BridgeStatus:
        """For `/health`; may be called on the loop's thread only."""
        self._check_conditions()
        return BridgeStatus(
            partitions=self.registry.partitions,
            publishers=[self._status_of(*one) for one in self.pump.followed.items()],
            spool_records=self.spool.records,
            spool_bytes=self.spool.size_bytes,
            queue_bytes=self.writer.delivery.queue_bytes,
            memory=None if self.memory is None else self.memory.status(),
        )

    def _status_of(self, publisher: PublisherKey, followed: Publisher) -> PublisherStatus:
        cursor = followed.sequencer.stream.cursor
        state = "live"
        if self.ownership.handovers.is_departing(publisher):
            state = "handing over"
        elif not followed.is_placed:
            state = "taking over"
        elif not followed.is_at_rest:
            state = "repairing"
        elif self.writer.loss_of(publisher) is not None:
            state = "dropping"
        elif publisher in self.spool:
            state = "spooling"
        elif Wait.WORKERS in followed.waits_for:
            state = "waiting for the workers"
        return PublisherStatus(
            registration=followed.registration,
            state=state,
            connected=self.pump.engines.receiver.connected(publisher),
            incarnation=cursor.incarnation,
            sequence=cursor.sequence,
        )

    def counters(self) -> dict[PublisherKey, PublisherCounters]:
        """Of the publishers that are followed; live, so read them only."""
        return self.pump.counters()
