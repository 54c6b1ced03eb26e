"""Bridges over engines and a broker, all of which fail; in the end the log has the truth.

Some worlds are *covered*: every engine has a replay socket and a buffer that holds all it has ever
sent. In those nothing may be lost, whatever is dropped, cut off or restarted.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bridge import heartbeats, pump, service
from bridge.bounds import SPOOL_BYTES_MAX, TURN_S
from bridge.bridge_settings import BridgeSettings
from bridge.delivery import lag_watch, partition_lag, spool, writer
from bridge.delivery.lag_watch import LAG_LOOK_MAX_S
from bridge.delivery.partition_lag import LAG_BYTES_FIRST
from bridge.publisher import follower, held_batches, sequencer, stream, window
from bridge.publisher.held_batches import HELD_BATCHES_MAX
from bridge.service import Bridge
from bridge.sockets import inbox
from bridge.sockets.inbox import INBOX_HELD_BACK_RATIO, Inbox
from bridge.sockets.reader import MessageReader
from bridge.wire import batch
from brokers import clients
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.group_offsets import GroupOffset
from brokers.options import client_options
from query_api.replica.heartbeat_watch import HeartbeatWatch
from schemas.answer_states import Standing
from schemas.clock import Clock
from schemas.codec import decode_log_record, decode_record
from schemas.errors import RecordError, StorageError
from schemas.identities import Offset, PublisherKey
from schemas.records import BridgeRecord, EventsRecord, Record
from schemas.topics import encode_publisher
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.simulation.broker import Message, SimulatedBroker
from tests.simulation.crowd import (
    FAULTS_S,
    RECORD_BYTES,
    Crowd,
    Step,
    check_engine,
)
from tests.simulation.disk import Database, SimulatedDisk, WriteBatch
from tests.simulation.engines import SimulatedEngine
from tests.simulation.history import History
from tests.simulation.ledgers import held_by
from tests.simulation.links import SimulatedEngineHttp, SimulatedReplayer, SimulatedSubscriber
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, State, current
from tests.simulation.oracle import StateOracle

KAFKA: Final = KafkaSettings(bootstrap="simulated:1", events_partitions=2, registry_partitions=3)
SESSION_S: Final = 3.0
QUIET_S: Final = 120.0
"""Virtual seconds within which a world that is no longer disturbed must come to rest."""


class Host:
    """A machine with one bridge on it: one process after the other on the same disk."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.disk = SimulatedDisk(rng)
        self.process = Process(name)
        self.process.state = State.DEAD
        self.bridge: Bridge | None = None
        self.subscriber: SimulatedSubscriber | None = None
        self.task: asyncio.Task[Any] | None = None


class BridgeWorld:
    """See the module.

    Attributes:
        disputed: publishers of which a bridge wrote that no longer owned them: what it had spooled
            and what continued the log, or a request that was under way when it was paused. If the
            engine was started again meanwhile, its next owner may have begun with the same numbers,
            and nothing shows that these are of two lives; or it is not registered any more.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        history: History,
        *,
        harsh: bool = False,
        replays: bool = True,
    ) -> None:
        self.loop, self.history = loop, history
        self.rng = rng = history.source("steps")
        self.broker = SimulatedBroker(loop, history.source("broker"))
        self.broker.trace = self._trace
        for topic in KAFKA.topics:
            self.broker.make(topic.name, topic.partitions)
        self.crowd = Crowd(loop, history, rng, harsh=harsh, replays=replays)
        self.engines = self.crowd.engines
        self.hosts = {
            f"bridge-{number}": Host(f"bridge-{number}", history.source(f"disk {number}"))
            for number in range(rng.randint(2, 3))
        }
        self.spool_bytes = rng.choice((SPOOL_BYTES_MAX, SPOOL_BYTES_MAX, 4096))
        self.window_ms = rng.choice((0, 50))
        self.held_max = history.source("held").choice((3, HELD_BATCHES_MAX))
        self.turn_s = history.source("turns").choice((-1.0, TURN_S))  # a batch at a time, or many
        self.record_bytes = history.source("records").choice(RECORD_BYTES)
        self.lag_bytes = history.source("lag").choice((2048, LAG_BYTES_FIRST))
        self.overflow_ratio = history.source("overflow").choice((0.0, INBOX_HELD_BACK_RATIO))
        self.workers = Workers(loop, self.broker, history.source("workers"))
        self.registered: set[int] = set()
        self.bridges = 0  # processes that have been, each with a name of its own
        self.registrations: Counter[int] = Counter()  # how often, by engine
        self.disputed: set[PublisherKey] = set()
        self.observer = Observer(self)
        self.retired = 0  # how often retention has taken some of the events
        self.whole: dict[PublisherKey, bool | None] = {}  # see `check_engine`, by the last `check`
        history.note(
            f"{len(self.hosts)} bridges, {len(self.engines)} engines,"
            f" covered: {self.crowd.covered}, spool: {self.spool_bytes},"
            f" window: {self.window_ms} ms, held: {self.held_max}, turns: {self.turn_s:g} s,"
            f" records of {self.record_bytes} bytes, before the workers: {self.lag_bytes},"
            f" overflow: {self.overflow_ratio}"
        )

    def _trace(self, value: bytes) -> None:
        """Something was written; see `disputed`."""
        self.history.trace(value)
        process = current()
        host = None if process is None else self.hosts.get(process.name)
        if host is None or (bridge := host.bridge) is None:
            return
        with suppress(RecordError):
            record = decode_record(value)
            owned = record.publisher in bridge.pump.followed and bridge.lease.is_held
            if isinstance(record, EventsRecord) and not owned:
                self.disputed.add(record.publisher)

    # What is put in place of real parts; `current` says whose

    @contextmanager
    def patches(self) -> Iterator[None]:
        """See `World`."""
        with ExitStack() as stack:
            for module, name, made in (
                (clients, "AIOKafkaConsumer", self.broker.consumer),
                (clients, "AIOKafkaProducer", self.broker.producer),
                (pump, "Subscriber", self._subscriber),
                (pump, "Replayer", self._replayer),
                (pump, "EngineHttp", self._engine_http),
                (spool, "Database", self._database),
                (spool, "new_batch", WriteBatch),
                (held_batches, "HELD_BATCHES_MAX", self.held_max),
                (sequencer, "HELD_TURN_S", self.turn_s),
                (follower, "HELD_TURN_S", self.turn_s),
                (pump, "TURN_S", self.turn_s),
                (batch, "RECORD_BYTES_MAX", self.record_bytes),
                (window, "RECORD_BYTES_MAX", self.record_bytes),
                (writer, "TURN_BYTES_MAX", self.record_bytes),
                (heartbeats, "new_bridge_name", self._bridge_name),
                (stream, "PublisherCounters", self.crowd.open_counters),
                (service, "GroupOffsets", lambda *_: self.workers),
                (inbox, "INBOX_HELD_BACK_RATIO", self.overflow_ratio),
                (lag_watch, "LAG_LOOK_S", LAG_LOOK_MAX_S),  # it is most of what a seed costs
                (partition_lag, "LAG_BYTES_FIRST", self.lag_bytes),
                (partition_lag, "LAG_BYTES_MIN", self.lag_bytes),
            ):
                stack.enter_context(mock.patch.object(module, name, made))
            yield

    def _subscriber(
        self, inbox: Inbox, reader: MessageReader | None, clock: Clock
    ) -> SimulatedSubscriber:
        host = self._host()
        source = self.history.source(f"links {host.name} {self.loop.now}")
        host.subscriber = SimulatedSubscriber(self.loop, source, self.engines, inbox)
        return host.subscriber

    def _bridge_name(self) -> str:
        self.bridges += 1
        return f"bridge-{self.bridges}"

    def _engine_http(self, requests: object = None) -> SimulatedEngineHttp:
        source = self.history.source(f"http {self.loop.now}")
        return SimulatedEngineHttp(self.loop, source, self.crowd.engines)

    def _replayer(self, *, clock: object) -> SimulatedReplayer:
        return SimulatedReplayer(self.crowd.replays)

    def _database(self, path: Path, preset: Any) -> Database:
        return self._host().disk.database(path, preset)

    def _host(self) -> Host:
        process = current()
        assert process is not None, "only a bridge has a disk"
        return self.hosts[process.name]

    # Bridges

    def start(self, host: Host) -> None:
        """Starts the bridge's process, where it does not run."""
        if host.process.state is not State.DEAD:
            return
        self.history.note(f"{host.name} starts")
        host.process = Process(host.name)
        host.task = self.loop.spawn(host.process, self._run_bridge(host))

    async def _run_bridge(self, host: Host) -> None:
        process = host.process
        settings = BridgeSettings(
            kafka=KAFKA,
            data=Path(f"/{host.name}"),
            window_ms=self.window_ms,
            spool_bytes=self.spool_bytes,
            session_s=SESSION_S,
        )
        try:
            host.bridge = Bridge(settings, client_options(KAFKA), clock=self.loop.clock)
            await host.bridge.run(_prepare)
        except StorageError:
            if not host.disk.full:
                raise
        self._end(host, process)

    def kill(self, host: Host, *, power: bool = False) -> None:
        """kill -9, or a power cut."""
        if host.process.state is State.DEAD:
            return
        self.history.note(f"{host.name} is killed" + (" by a power cut" if power else ""))
        self.loop.kill(host.process)
        self._end(host, host.process)
        if power:
            host.disk.cut_power()

    def _end(self, host: Host, process: Process) -> None:
        process.state = State.DEAD
        if host.bridge is not None:
            assert not host.bridge.faults, f"{host.name} has counted faults"
        host.bridge = None
        for engine in self.engines:
            engine.links = [one for one in engine.links if one.process is not process]

    # Steps

    async def run(self) -> None:
        """See `World`."""
        for host in self.hosts.values():
            self.start(host)
        for number in range(len(self.engines)):
            if self.rng.random() < 0.8:
                self.register(number)
        await self._begin()
        observing = self.loop.create_task(self.observer.run())
        steps = self._drawn([*self.crowd.steps(), *self._steps()])
        await self.crowd.take_steps(steps, self._between)
        await self._heal()
        if observing.done():
            observing.result()
        self.check()
        self.crowd.clear_all()
        await asyncio.sleep(1.0)
        await self._until_quiet()
        if observing.done():
            observing.result()
        observing.cancel()
        self.check()

    async def _begin(self) -> None:
        """Starts what there is beside bridges."""

    def _drawn(self, steps: list[tuple[int, Step]]) -> list[tuple[int, Step]]:
        """Those of the steps that this world takes."""
        return steps

    def _between(self) -> None:
        """Looks at what is answered, between two steps."""

    def _steps(self) -> list[tuple[int, Step]]:
        """What may happen beside what engines do, with weights."""
        return [
            (2, self.kill_bridge),
            (2, self.pause_bridge),
            (2, self.starve_bridge),
            (1, self.stop_bridge),
            (2, self.broker_away),
            (2, self.cut_bridge_off),
            (1, self.fill_disk),
            (2, self.change_registry),
            (1, self.compact),
        ]

    def _any_host(self) -> Host:
        return self.rng.choice(list(self.hosts.values()))

    def kill_bridge(self) -> None:
        """At some time a bridge is killed, and started later."""
        host = self._any_host()
        self.crowd.later(0.3, "", lambda: self._kill(host))

    def _kill(self, host: Host) -> None:
        self.kill(host, power=self.rng.random() < 0.3)
        self.crowd.later(5.0, "", lambda: self.start(host))

    def stop_bridge(self) -> None:
        """A bridge is stopped in order, and started later."""
        host = self._any_host()
        if host.bridge is not None:
            self.history.note(f"{host.name} is stopped")
            host.bridge.stop()
            self.crowd.later(6.0, "", lambda: self.start(host))

    def pause_bridge(self) -> None:
        """A bridge stands still, often for longer than its session."""
        host = self._any_host()
        self.history.note(f"{host.name} is paused")
        self.loop.pause(host.process)
        process, most_s = host.process, self.rng.choice((0.5, 2 * SESSION_S))
        self.crowd.later(most_s, f"{host.name} goes on", lambda: self.loop.resume(process))

    def starve_bridge(self) -> None:
        """A bridge gets a core now and then."""
        host = self._any_host()
        if host.process.state is State.RUNNING:
            self.crowd.starve(host.process, host.subscriber)

    def broker_away(self) -> None:
        """Nobody reaches the broker for a while."""
        self.history.note("the broker is away")
        self.broker.away = True
        self.crowd.later(self.rng.choice((0.5, 6.0)), "the broker is back", self._broker_back)

    def _broker_back(self) -> None:
        self.broker.away = False
        self.broker.changed()

    def cut_bridge_off(self) -> None:
        """One bridge does not reach the broker, often for longer than its session."""
        host = self._any_host()
        self.history.note(f"{host.name} is cut off")
        process, most_s = host.process, self.rng.choice((0.5, 2 * SESSION_S))
        self.broker.cut.add(process)
        self.crowd.later(
            most_s, f"{host.name} is connected", lambda: self.broker.cut.discard(process)
        )

    def fill_disk(self) -> None:
        """A bridge's disk takes nothing for a while."""
        host = self._any_host()
        self.history.note(f"the disk of {host.name} is full")
        host.disk.full = True
        self.crowd.later(3.0, f"the disk of {host.name} has room", host.disk.make_room)

    def change_registry(self) -> None:
        """A publisher is registered, or unregistered."""
        number = self.rng.randrange(len(self.engines))
        if number in self.registered:
            self.registered.discard(number)
            self.history.note(f"engine {number} is unregistered")
            self._write_entry(number, None)
        else:
            self.register(number)

    def register(self, number: int) -> None:
        """The query API has written an entry."""
        self.registered.add(number)
        self.registrations[number] += 1
        self.history.note(f"engine {number} is registered")
        self._write_entry(number, self.engines[number].encoded_registration)

    def _write_entry(self, number: int, value: bytes | None) -> None:
        topic = KAFKA.topics.registry
        key = encode_publisher(self.engines[number].publisher)
        home = clients.partition_of(key, topic.partitions)
        self.broker.append(Partition(topic.name, home), [(key, value)])

    def compact(self) -> None:
        """The cleaner has passed over the registry and the cursors."""
        self.history.note("the registry and the cursors are compacted")
        for topic in (KAFKA.topics.registry, KAFKA.topics.cursors):
            for log in self.broker.topics[topic.name]:
                log.compact(self.rng)

    # The end

    async def _heal(self) -> None:
        self.history.note("all is well from here on")
        self._broker_back()
        self.broker.cut.clear()
        for host in self.hosts.values():
            host.disk.full = False
            self.loop.resume(host.process)
        await asyncio.sleep(FAULTS_S)
        self.crowd.heal()
        for host in self.hosts.values():
            self.start(host)
        self._restart()
        await self._until_quiet()
        self.crowd.send_last()
        await asyncio.sleep(1.0)
        await self._until_quiet()

    def _restart(self) -> None:
        """Starts what there is beside bridges, where it does not run."""

    async def _until_quiet(self) -> None:
        end = self.loop.now + QUIET_S
        quiet = 0
        while quiet < 2:
            await asyncio.sleep(self.rng.uniform(0.3, 0.7))  # at no fixed phase of heartbeats
            for host in self.hosts.values():
                self.start(host)  # one that was still stopping
            busy = self._busy()
            quiet = 0 if busy else quiet + 1
            assert self.loop.now < end, f"no rest within {QUIET_S:g} s: {busy}"

    def _busy(self) -> str:
        """What is not done yet, or ""."""
        owners: dict[PublisherKey, list[str]] = {one.publisher: [] for one in self.engines}
        for host in self.hosts.values():
            if host.bridge is None:
                return f"{host.name} does not run"
            status = host.bridge.status()
            if status.spool_records or status.queue_bytes or host.bridge.writer.is_dropping:
                return f"{host.name} has records that are not written: {status}"
            for one in status.publishers:
                if one.state != "live" or not one.connected:
                    return f"{host.name} is {one.state} with {one.registration.instance_id}"
                owners[one.registration.publisher].append(host.name)
        for engine in self.engines:
            names = owners[engine.publisher]
            if len(names) != (engine.number in self.registered):
                return f"engine {engine.number} is followed by {names}"
        return ""

    def check(self) -> None:
        """What must hold once all is quiet."""
        for host in self.hosts.values():
            assert host.bridge is not None
            assert not host.bridge.faults, f"{host.name} has counted faults"
        fold = self._folded()
        if not self.disputed:
            assert not fold.counters["log_holes"], "the log has holes"
        records = self._records()
        registered = {self.engines[number].publisher for number in self.registered}
        whole: dict[PublisherKey, bool | None] = dict.fromkeys(registered)
        for engine in self.engines:
            if engine.publisher in self.disputed:
                continue
            found = check_engine(
                fold,
                engine,
                records,
                registered=engine.number in self.registered,
                registrations=self.registrations[engine.number],
                counters=self.crowd.counters,
                covered=self.crowd.covered,
                retired=self.retired,
            )
            if engine.publisher in registered:
                whole[engine.publisher] = found
        self.observer.oracle.rest(whole, self.observer.standings().__getitem__)
        self.whole = whole

    def _folded(self) -> Fold:
        fold = Fold(open_kernel(1337))
        for offset, message in enumerate(self._logged()):
            assert message.value is not None
            skipped = fold.apply(Offset(offset), message.value)
            assert skipped is None or skipped.reason == "duplicate_record", skipped
        return fold

    def _logged(self) -> Iterable[Message]:
        """All events that have ever been in the log, by partition."""
        return [
            message
            for log in self.broker.topics[KAFKA.topics.events.name]
            for message in log.records
        ]

    def _records(self) -> list[Record]:
        records = [decode_log_record(message.value or b"") for message in self._logged()]
        return [one for one in records if not isinstance(one, BridgeRecord)]


class Workers:
    """What they have folded, as bridges see it: they get on at any pace, or stand still."""

    def __init__(self, loop: SimulatedLoop, broker: SimulatedBroker, rng: random.Random) -> None:
        self._loop, self._broker, self._rng = loop, broker, rng
        self._folded: Counter[int] = Counter()
        self._stands_until = 0.0

    async def fetch(self, partitions: Iterable[int]) -> dict[int, GroupOffset]:
        """See `FoldedOffsets`."""
        await self._broker.reach(1.0)
        if self._loop.now >= self._stands_until:
            for number, log in enumerate(self._broker.topics[KAFKA.topics.events.name]):
                left = len(log.records) - self._folded[number]
                self._folded[number] += self._rng.randint(0, max(0, left))
            if self._rng.random() < 0.05:
                self._stands_until = self._loop.now + self._rng.choice((0.1, 5.0))
        folded = self._folded
        return {number: GroupOffset(folded[number]) for number in partitions if folded[number]}

    async def close(self) -> None:
        """See `FoldedOffsets`."""


class Observer:
    """A replica without a network: it folds what is in the log as soon as it is there."""

    def __init__(self, world: "BridgeWorld") -> None:
        self.oracle = StateOracle(world.engines, world.loop.time)
        self._world = world
        self._partitions = range(KAFKA.topics.events.partitions)
        self._folds = [Fold(open_kernel(1337, name="reference")) for _ in self._partitions]
        self._looked_at = [0.0 for _ in self._partitions]
        self._watches = [HeartbeatWatch() for _ in self._partitions]
        self._held: list[dict[PublisherKey, set[int]]] = [{} for _ in self._partitions]

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(0.25)
            for number in self._partitions:
                self._look(number)

    def _look(self, number: int) -> None:
        world, fold, now = self._world, self._folds[number], self._world.loop.now
        watch = self._watches[number]
        log = world.broker.topics[KAFKA.topics.events.name][number]
        for message in log.after(fold.offset):
            fold.apply(Offset(message.offset), message.value or b"")
            self._held[number].clear()
            unix, as_of = EPOCH_S + now, self._looked_at[number]
            watch.note(0, fold.bridges, now=now, unix=unix, as_of=as_of)
            self._note_folded(number, message)

        self._looked_at[number] = now

        def standing(publisher: PublisherKey) -> Standing:
            return fold.states.standing(publisher, watch.fresh_until, now)

        self.oracle.look(
            sorted(fold.registrations.keys() - world.disputed),
            standing,
            lambda engine: self._held_by(number, engine),
            registered=fold.registrations.keys(),
        )

    def _held_by(self, number: int, engine: SimulatedEngine) -> set[int]:
        """Asked for often between two records."""
        found = self._held[number].get(engine.publisher)
        if found is None:
            found = held_by(self._folds[number], engine)
            self._held[number][engine.publisher] = found
        return found

    def _note_folded(self, number: int, message: Message) -> None:
        """A record was folded."""

    def standings(self) -> dict[PublisherKey, Standing]:
        """What is known of each publisher, as of the last look."""
        return {
            publisher: fold.states.standing(publisher, watch.fresh_until, looked_at)
            for fold, watch, looked_at in zip(
                self._folds, self._watches, self._looked_at, strict=True
            )
            for publisher in fold.registrations
        }


async def _prepare() -> None: ...
