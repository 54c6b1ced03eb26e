"""LMCache's controller beside a bridge of the distributed form: a writer of its own into the log.

A worker belongs to the bridge that it connects to, not to whoever owns a partition of the registry.
So nothing of the bridge's membership concerns it: it has a producer and a queue of its own, and
heartbeats under a name of its own. There is no spool: what Kafka does not take is written anew from
memory, once it does.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bridge.delivery.delivery import Delivery
from bridge.delivery.lease import Lease
from bridge.delivery.registrations_watch import RegistrationsWatch
from bridge.delivery.spool import Spool
from bridge.delivery.writer import Writer
from bridge.heartbeats import Heartbeats
from bridge.supervision import cancel, keep
from brokers.broker_settings import KafkaSettings
from brokers.clients import Clients
from brokers.options import ClientOptions
from lmcache_adapter.commands.executor import Executor
from lmcache_adapter.commands.topic import CommandTopic
from lmcache_adapter.metrics.commands import EXECUTED
from lmcache_adapter.metrics.workers import LMCACHE, LMCACHE_COORDINATOR, LMCACHE_TOPIC, Lmcache
from lmcache_adapter.parts import LmcacheParts
from lmcache_adapter.settings import LmcacheSettings
from logs.producer import ReplaceableProducer
from schemas.identities import PublisherKey
from schemas.limits import BRIDGE_FLUSH_S, HOUSEKEEPING_S
from schemas.metric_family import RoleCollector
from schemas.records import Record, RegisteredRecord, UnregisteredRecord
from schemas.tracing import NO_TRACER, Tracer

_logger = logging.getLogger(__name__)


class LmcacheBridge:
    """See the module. One loop, but for `start` and `stop`.

    Attributes:
        commands: of clients to the controller's workers; None: it is not served.

    Raises:
        ConfigurationError: an address cannot be bound.
        StorageError: something in `data` cannot be opened or written.
    """

    def __init__(
        self,
        settings: LmcacheSettings,
        kafka: KafkaSettings,
        options: ClientOptions,
        data: Path,
        *,
        tracer: Tracer = NO_TRACER,
    ) -> None:
        clients, topics = Clients(options), kafka.topics
        self.own_faults = 0
        self._registered_at: dict[PublisherKey, int] = {}
        self._lost: list[PublisherKey] = []  # the log has dropped that they are registered
        self._spool = Spool(data / "lmcache-spool", bytes_max=0)
        self.writer = Writer(
            Delivery(
                topic=topics.events,
                producer=ReplaceableProducer(clients.producer),
                spool=self._spool,
                on_written=self._written,
                lease=Lease(),
                tracer=tracer,
            )
        )
        for publisher in self.writer.withheld():
            self.writer.release(publisher)  # who came or went while Kafka was away
        try:
            self.parts = LmcacheParts(
                settings,
                data=data,
                sink=self.writer,
                loop=asyncio.get_running_loop(),
                take_lost=self._take_lost,
            )
        except BaseException:
            self._spool.close()
            raise
        self.commands: CommandTopic | None = None
        if self.parts.service is not None:
            executor = Executor(self.parts.service.locate, is_sole=False, tracer=tracer)
            self.commands = CommandTopic(kafka, options, executor)
        self.heartbeats = Heartbeats(self.parts, self.writer.partition_of)
        self.registrations_watch = RegistrationsWatch(
            options,
            topics.events.name,
            self.writer.partition_of,
            logged=self._logged,
            register_again=self._lost.extend,
        )

    @property
    def faults(self) -> int:
        """Unexpected errors."""
        commands = self.commands
        asked = 0 if commands is None else commands.faults + commands.executor.faults
        return self.own_faults + self.parts.faults + self._spool.faults + asked

    def dropped(self) -> Counter[str]:
        """What was dropped, by reason."""
        service = self.parts.service
        dropped = Counter[str]() if service is None else service.dropped_by_reason()
        for (_, reason), count in self.writer.delivery.dropped.items():
            dropped[reason] += count
        if self.commands is not None:
            dropped.update(self.commands.dropped)
        return dropped

    def collect(self, collector: RoleCollector) -> None:
        """Adds the metrics of the room."""
        service, topic, commands = self.parts.service, self.parts.topic, self.commands
        coordinator = self.parts.coordinator
        if coordinator is not None:
            collector.add(LMCACHE_COORDINATOR, lambda: coordinator)
        if service is not None:
            collector.add(LMCACHE, lambda: Lmcache(service.counters, self.dropped()))
        if topic is not None:
            collector.add(LMCACHE_TOPIC, lambda: topic)
        if commands is not None:
            collector.add(EXECUTED, lambda: commands.executor)

    def _count_fault(self) -> None:
        self.own_faults += 1

    def _take_lost(self) -> Sequence[PublisherKey]:
        if self.writer.is_late:
            return []
        lost = self.writer.losses_to_end()
        for publisher in lost:
            self.writer.end_loss(publisher)
        lost += self._lost
        self._lost.clear()
        return lost

    def _written(self, publisher: PublisherKey, record: Record, offset: int) -> None:
        """Where else the log stands is of no interest: each run begins incarnations of its own."""
        if isinstance(record, RegisteredRecord):
            self._registered_at[publisher] = offset
        elif isinstance(record, UnregisteredRecord):
            self._registered_at.pop(publisher, None)

    def _logged(self) -> list[tuple[PublisherKey, int]]:
        followed = self.parts.followed
        return [one for one in self._registered_at.items() if one[0] in followed]

    def start(self) -> None:
        """Starts to answer workers; what is told of them waits for `run`."""
        self.parts.start()

    def close(self) -> None:
        """Ends all; `run` has ended, or was never begun."""
        self.parts.stop()
        self._spool.close()

    async def run(self) -> None:
        """Writes what is told of the workers until it is cancelled; then what has been told."""
        count, beat = self._count_fault, partial(self.writer.beat, self.heartbeats)
        sending = asyncio.create_task(keep("writer for LMCache", self.writer.run, on_fault=count))
        tasks = [
            asyncio.create_task(keep("LMCache", self.parts.run, on_fault=count)),
            asyncio.create_task(keep("heartbeats for LMCache", beat, on_fault=count)),
            asyncio.create_task(keep("checks for LMCache", self._check, on_fault=count)),
            asyncio.create_task(
                keep("registrations of LMCache", self.registrations_watch.run, on_fault=count)
            ),
        ]
        if self.commands is not None:
            run = self.commands.run
            tasks.append(asyncio.create_task(keep("commands to LMCache", run, on_fault=count)))
        try:
            await asyncio.Event().wait()
        finally:
            await cancel(*tasks)
            await self.parts.end()
            if not await self.writer.flush(BRIDGE_FLUSH_S):
                _logger.warning("Cannot write all that LMCache's workers have sent; they are asked")
            await cancel(sending)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            await self.writer.check()
