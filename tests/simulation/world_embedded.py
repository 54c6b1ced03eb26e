"""The embedded form over engines and one disk, all of which fail; in the end the table has the
truth, and after each start it is what its log says.
"""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bridge import heartbeats, pump
from bridge.bounds import TURN_S
from bridge.delivery import log_sink
from bridge.delivery.log_sink import LogSink
from bridge.heartbeats import Heartbeats
from bridge.membership.loop_commands import Commands
from bridge.membership.registrar import Registrar
from bridge.publisher import follower, held_batches, sequencer, stream, window
from bridge.publisher.held_batches import HELD_BATCHES_MAX
from bridge.pump import Pump
from bridge.sockets.inbox import Inbox
from bridge.sockets.reader import MessageReader
from bridge.supervision import keep
from bridge.wire import batch
from logs import embedded
from logs.embedded import EmbeddedLog
from logs.interface import LogEntry
from schemas.answer_states import Doubt, Standing
from schemas.clock import Clock
from schemas.codec import decode_log_record
from schemas.errors import DiskError, NotRegisteredError, StorageError
from schemas.identities import Offset, PublisherKey
from schemas.limits import HEARTBEAT_S, STALE_S
from schemas.positions import PublisherState
from schemas.records import BridgeRecord
from schemas.registration import Registration
from streams.kernel import open_kernel
from streams.table import store
from streams.table.driver import FlushPace, FoldDriver, recover
from streams.table.fold import Fold
from streams.table.scope_states import ConfirmationSource, FreshUntil
from streams.table.table import Table
from tests.simulation.crowd import (
    FAULTS_S,
    RECORD_BYTES,
    Crowd,
    Step,
    check_engine,
)
from tests.simulation.disk import Database, KilledError, SimulatedDisk, WriteBatch
from tests.simulation.history import History
from tests.simulation.ledgers import held_by
from tests.simulation.links import SimulatedEngineHttp, SimulatedReplayer, SimulatedSubscriber
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, State
from tests.simulation.oracle import StateOracle
from tests.simulation.row_order import shuffled_rows
from tests.slices import WHOLE, bounds_for

QUIET_S: Final = 60.0
"""Virtual seconds within which a world that is no longer disturbed must come to rest."""

_LOG, _TABLE = Path("/serve/log"), Path("/serve/table")


def make_fold() -> Fold:
    """An empty one."""
    return Fold(open_kernel(1337, name="reference"))


class Service:
    """One process of the embedded form: what `reprise.embedded` does on threads, on one loop."""

    def __init__(self, loop: SimulatedLoop, flush_s: float, segment_bytes: int) -> None:
        self.loop = loop
        self.log = EmbeddedLog(_LOG, segment_bytes=segment_bytes)
        self.table = Table(_TABLE, make_fold, log=self.log, generation_min_bytes=2_000)
        self.flush_s = flush_s
        self.ready = False
        self.appended: Callable[[int, Sequence[bytes]], None] = lambda _, __: None
        self.commands: Commands[None] = Commands(loop)
        self._queue: deque[LogEntry] = deque()
        self._changed = asyncio.Event()

    async def recover(self) -> None:
        """Until the disk lets it."""
        while True:
            try:
                recover(self.table, self.log)
                break
            except DiskError:
                await asyncio.sleep(0.5)
                for database in (self.log, self.table):
                    with suppress(StorageError):
                        database.reopen()
        self.driver = FoldDriver(
            self.table,
            pace=FlushPace(flush_s=self.flush_s, sync_s=1.0),
            on_flush=lambda _: None,
            clock=self.loop.time,
        )
        clock = self.loop.clock
        self.sink = LogSink(
            self.log,
            on_appended=self._take,
            on_failure=lambda _: None,
            on_recovered=lambda: None,
            clock=clock,
        )
        self.pump = Pump(self.sink, clock=clock)
        self.heartbeats = Heartbeats(self.pump.follower, clock=clock)
        self.fresh_until: FreshUntil = {}
        self.registrar = Registrar(
            follower=self.pump.follower,
            sink=self.sink,
            table=self,
            sync=self._sync,
            clock=clock.unix,
        )

    def _take(self, first: Offset, encoded: Sequence[bytes]) -> None:
        self.appended(first, encoded)
        self._queue.extend(LogEntry(Offset(at), one) for at, one in enumerate(encoded, first))
        self._changed.set()

    async def run(self) -> None:
        """Until it is killed."""
        self.pump.start()
        await self.registrar.follow_registered()
        self.ready = True
        await asyncio.gather(
            self.pump.run(),
            keep("log writer", self.sink.appends.run, on_fault=self._fail),
            keep("commands", self.commands.run, on_fault=self._fail),
            self._fold(),
            self._sync_often(),
            self._beat(),
        )

    async def _beat(self) -> None:
        while True:
            as_of = self.heartbeats.write_news(self.sink)
            if as_of is not None:
                await self.folded()
                self.fresh_until = {ConfirmationSource(0, self.heartbeats.bridge): as_of + STALE_S}
            await asyncio.sleep(HEARTBEAT_S)

    def standing(self, publisher: PublisherKey) -> Standing:
        """As `EmbeddedService`'s, where the disk works."""
        return self.table.fold.states.standing(publisher, self.fresh_until, self.loop.now)

    def _fail(self) -> None:
        raise AssertionError("the log writer or the commands have failed")

    async def _fold(self) -> None:
        while True:
            if not self._queue:
                self._changed.clear()
                with suppress(TimeoutError):
                    wait_s = self.driver.flush_in() if self.driver.has_unflushed else None
                    if self.driver.needs_maintenance:
                        wait_s = 0.001
                    await asyncio.wait_for(self._changed.wait(), wait_s)
            if not self._queue and self.driver.needs_maintenance:
                await self.driver.maintain()
            while self._queue:
                await asyncio.sleep(0)
                await self.driver.fold([self._queue.popleft()])
            await self.driver.flush_if_due()

    async def _sync_often(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            with suppress(StorageError):
                self.log.sync()

    async def _sync(self) -> None:
        self.log.sync()

    # `PublisherTable`

    def registrations(self) -> Mapping[PublisherKey, Registration]:
        """See `PublisherTable`."""
        return {key: one.registration for key, one in self.table.fold.registrations.items()}

    def state(self, publisher: PublisherKey) -> PublisherState | None:
        """See `PublisherTable`."""
        return self.table.fold.publishers.get(publisher)

    async def folded(self) -> None:
        """See `PublisherTable`."""
        end = self.log.end_offset
        while self.table.next_offset < end:  # noqa: ASYNC110 -- one waits at a time
            await asyncio.sleep(0.01)


_UNDER_WAY: Final = frozenset({Doubt.LINK_DOWN, Doubt.NO_ENDPOINT, Doubt.CATCHING_UP})


_ANSWERS: Final = (State.RUNNING, State.STARVED)


class EmbeddedWorld:
    """See the module.

    Attributes:
        written: by offset, every record that the log has ever had, whatever it retired since.
    """

    def __init__(self, loop: SimulatedLoop, history: History, *, harsh: bool = False) -> None:
        self.loop, self.history = loop, history
        self.rng = history.source("steps")
        self.crowd = Crowd(loop, history, self.rng, harsh=harsh)
        self.disk = SimulatedDisk(history.source("disk"))
        self.process = Process("serve")
        self.process.state = State.DEAD
        self.service: Service | None = None
        self.subscriber: SimulatedSubscriber | None = None
        self.registered: set[int] = set()
        self.bridges = 0  # processes that have been, each with a name of its own
        self.registrations: Counter[int] = Counter()  # how often, by engine
        self.written: dict[int, bytes] = {}
        self.lost = False  # the table, since the last start
        self.proven_from = 0
        self.oracle = StateOracle(self.crowd.engines, loop.time)
        self.flush_s = self.rng.choice((0.25, 1.0, 5.0))
        self.segment_bytes = self.rng.choice((2_000, 10_000))
        self.held_max = history.source("held").choice((3, HELD_BATCHES_MAX))
        self.turn_s = history.source("turns").choice((-1.0, TURN_S))  # a batch at a time, or many
        self.record_bytes = history.source("records").choice(RECORD_BYTES)
        self.slice_entries = history.source("slices").choice((3, 40, WHOLE))
        history.note(
            f"{len(self.crowd.engines)} engines, covered: {self.crowd.covered},"
            f" flush: {self.flush_s:g} s, segments: {self.segment_bytes}, held: {self.held_max},"
            f" turns: {self.turn_s:g} s,"
            f" records of {self.record_bytes} bytes, slices of {self.slice_entries} entries"
        )

    @contextmanager
    def patches(self) -> Iterator[None]:
        """See `World`."""
        names = self.history.source("names")
        with ExitStack() as stack:
            for module, name, made in (
                (pump, "Subscriber", self._subscriber),
                (pump, "Replayer", self._replayer),
                (pump, "EngineHttp", self._engine_http),
                (embedded, "Database", self._database),
                (embedded, "new_batch", WriteBatch),
                (store, "Database", self._database),
                (store, "new_batch", WriteBatch),
                (held_batches, "HELD_BATCHES_MAX", self.held_max),
                (sequencer, "HELD_TURN_S", self.turn_s),
                (follower, "HELD_TURN_S", self.turn_s),
                (pump, "TURN_S", self.turn_s),
                (batch, "RECORD_BYTES_MAX", self.record_bytes),
                (window, "RECORD_BYTES_MAX", self.record_bytes),
                (log_sink, "TURN_BYTES_MAX", self.record_bytes),
                (heartbeats, "new_bridge_name", self._bridge_name),
                (stream, "PublisherCounters", self.crowd.open_counters),
                *bounds_for(self.slice_entries),
                (os, "urandom", names.randbytes),
            ):
                stack.enter_context(mock.patch.object(module, name, made))
            stack.enter_context(shuffled_rows(self.history.source("rows")))
            yield

    def _subscriber(
        self, inbox: Inbox, reader: MessageReader | None, clock: Clock
    ) -> SimulatedSubscriber:
        source = self.history.source(f"links {self.loop.now}")
        self.subscriber = SimulatedSubscriber(self.loop, source, self.crowd.engines, inbox)
        return self.subscriber

    def _bridge_name(self) -> str:
        self.bridges += 1
        return f"bridge-{self.bridges}"

    def _engine_http(self, requests: object = None) -> SimulatedEngineHttp:
        source = self.history.source(f"http {self.loop.now}")
        return SimulatedEngineHttp(self.loop, source, self.crowd.engines)

    def _replayer(self, *, clock: object) -> SimulatedReplayer:
        return SimulatedReplayer(self.crowd.replays)

    def _database(self, path: Path, preset: Any) -> Database:
        return self.disk.database(path, preset)

    # The service

    def start(self) -> None:
        """Starts the service, where it does not run."""
        if self.process.state is State.DEAD:
            self.history.note("the service starts")
            self.process = Process("serve")
            self.loop.spawn(self.process, self._run())

    async def _run(self) -> None:
        while True:
            try:
                service = Service(self.loop, self.flush_s, self.segment_bytes)
                break
            except StorageError:
                assert self.disk.full, "the disk refuses, but is not full"
                self.disk.abandon(self.process)
                await asyncio.sleep(0.5)
        self.check_log(service.log)
        await service.recover()
        service.appended = self._appended
        self.check_recovered(service)
        self.service = service
        await service.run()

    def _appended(self, first: int, encoded: Sequence[bytes]) -> None:
        for offset, value in enumerate(encoded, first):
            self.history.trace(value)
            self.written[offset] = value

    def kill(self, *, power: bool = False) -> None:
        """kill -9, or a power cut."""
        self.history.note("power cut" if power else "the service is killed")
        self.loop.kill(self.process)
        self.crowd.forget(self.process)
        if self.service is not None:
            self.check_faults(self.service)
        self.service = None
        self.disk.strains_left = 0
        if power:
            self.disk.cut_power()
        self.crowd.later(2.0, "", self.start)

    # Steps

    async def run(self) -> None:
        """See `World`."""
        self.start()
        for number in range(len(self.crowd.engines)):
            self._command(number, register=True)
        steps: list[tuple[int, Step]] = [
            (2, self.kill_service),
            (2, self.kill_within),
            (1, self.cut_power),
            (1, self.lose_table),
            (3, self.starve),
            (2, self.fill_disk),
            (3, self.retain),
            (2, self.change_registry),
        ]
        watching = self.loop.create_task(self._watch())
        await self.crowd.take_steps([*self.crowd.steps(), *steps])
        await self._heal()
        if watching.done():
            watching.result()
        assert self.service is not None
        self.check(self.service)
        self.crowd.clear_all()
        await asyncio.sleep(1.0)
        await self._until_quiet()
        if watching.done():
            watching.result()
        watching.cancel()
        self.check(self.service)

    async def _watch(self) -> None:
        """Starts again what has died within a write."""
        while True:
            await asyncio.sleep(0.25)
            if self.process.state is State.DEAD and self.service is not None:
                self.kill()
            self._check_states()

    def _check_states(self) -> None:
        """Whoever answers may have a core where the loop has none."""
        service = self.service
        if service is None or self.process.state not in _ANSWERS or not service.sink.is_ready:
            return
        fold = service.table.fold
        with suppress(KilledError):
            self.oracle.look(
                fold.registrations,
                service.standing,
                lambda engine: held_by(fold, engine),
                registered=fold.registrations.keys(),
            )

    def kill_service(self) -> None:
        """At some time the service is killed."""
        self.crowd.later(0.3, "", self._kill)

    def _kill(self) -> None:
        if self.process.state is not State.DEAD:
            self.kill()

    def kill_within(self) -> None:
        """The service is killed between two of its next writes."""
        if self.process.state is not State.DEAD:
            self.disk.strains_left = self.rng.randint(1, 8)
            self.history.note(f"the service is to die at write {self.disk.strains_left}")

    def cut_power(self) -> None:
        """The machine dies."""
        if self.process.state is not State.DEAD:
            self.kill(power=True)

    def starve(self) -> None:
        """The service gets a core now and then."""
        if self.process.state is State.RUNNING:
            self.crowd.starve(self.process, self.subscriber)

    def lose_table(self) -> None:
        """The service is killed, and its table is gone."""
        if self.rng.random() < 0.5 and self.process.state is not State.DEAD:
            self.kill()
            self.history.note("the table is lost")
            self.disk.lose(_TABLE)
            self.lost = True
            self.history.note(f"{len(self.written)} records are known")

    def fill_disk(self) -> None:
        """The disk takes nothing for a while."""
        self.history.note("the disk is full")
        self.disk.full = True
        self.crowd.later(3.0, "the disk has room", self.disk.make_room)

    def retain(self) -> None:
        """The log drops what is old."""
        service = self.service
        if service is None or self.process.state is not State.RUNNING:
            return
        bytes_max = self.rng.choice((1_000, 20_000))
        fold = service.table.fold
        with suppress(StorageError, KilledError):
            dropped = self.process.context.run(
                service.log.retain,
                bytes_max=bytes_max,
                age_max_s=1e9,
                now=EPOCH_S + self.loop.now,
                floor=Offset(service.table.durable + 1),
                exempt=[one.offset for one in fold.registrations.values()],
            )
            if dropped:
                self.history.note(f"the log begins at {service.log.complete_from}")

    def change_registry(self) -> None:
        """A publisher is registered, or unregistered."""
        number = self.rng.randrange(len(self.crowd.engines))
        self._command(number, register=number not in self.registered)

    def _command(self, number: int, *, register: bool) -> None:
        name = "registered" if register else "unregistered"
        self.history.note(f"engine {number} is to be {name}")
        self.loop.create_task(self._carry_out(number, register=register))

    async def _carry_out(self, number: int, *, register: bool) -> None:
        """As clients do: again until it has been done."""
        (self.registered.add if register else self.registered.discard)(number)
        self.registrations[number] += register
        while (number in self.registered) == register:
            service = self.service
            if service is None or not service.ready or not service.sink.is_ready:
                await asyncio.sleep(0.1)
                continue
            work = service.commands.submit(partial(self._try, service, number, register=register))
            for _ in range(200):
                await asyncio.sleep(0.05)
                if work.done() or self.service is not service:
                    break
            if work.done() and work.exception() is None:
                return

    async def _try(self, service: Service, number: int, *, register: bool) -> None:
        registration = self.crowd.engines[number].registration
        if register:
            await service.registrar.register(registration)
            return
        with suppress(NotRegisteredError):
            await service.registrar.unregister(
                lambda one: one.publisher == registration.publisher, registration.service_key
            )

    # The end

    async def _heal(self) -> None:
        self.history.note("all is well from here on")
        self.disk.full = False
        self.disk.strains_left = 0
        await asyncio.sleep(FAULTS_S)
        self.start()
        await self._until_quiet()
        self.crowd.heal()
        await self._until_quiet()
        self.crowd.send_last()
        await asyncio.sleep(1.0)
        await self._until_quiet()
        if self.rng.random() < 0.5:
            self.kill(power=self.rng.random() < 0.5)
            await asyncio.sleep(3.0)
            await self._until_quiet()

    async def _until_quiet(self) -> None:
        end = self.loop.now + QUIET_S
        while busy := self._busy():
            await asyncio.sleep(0.5)
            assert self.loop.now < end, f"no rest within {QUIET_S:g} s: {busy}"

    def _busy(self) -> str:
        service = self.service
        if service is None or not service.ready:
            return "the service is not ready"
        followed = service.pump.followed
        if followed.keys() != {self.crowd.engines[one].publisher for one in self.registered}:
            return "not all are followed that are registered"
        if not all(one.is_at_rest for one in followed.values()):
            return "a repair is under way"
        if any(one.doubted.doubt in _UNDER_WAY for one in followed.values()):
            return "a link is not up, or its engine is to be asked"
        if service.table.flushed + 1 < service.log.end_offset:
            return "not all is flushed"
        return ""

    # What must hold

    def check_log(self, log: EmbeddedLog) -> None:
        """What was synced is there; what is there is what was written."""
        if self.lost:
            # All that is known now is what the log has kept.
            self.lost, self.proven_from = False, int(log.complete_from)
            self.written = {entry.offset: entry.value for entry in log.read(Offset(0))}
        for entry in log.read(Offset(0)):
            assert self.written.get(entry.offset, entry.value) == entry.value, entry.offset
            self.written[entry.offset] = entry.value
        for offset in [one for one in self.written if one >= log.end_offset]:
            del self.written[offset]

    def check_recovered(self, service: Service) -> None:
        """The table is a fresh fold of all that the log has had since the table was last lost, what
        it has retired included.
        """
        self.history.note(f"recovered {service.table.flushed + 1} of {service.log.end_offset}")
        assert service.table.next_offset >= service.log.end_offset, "not all is folded"
        fold = self._folded()
        for engine in self.crowd.engines:
            found, expected = held_by(service.table.fold, engine), held_by(fold, engine)
            assert found == expected, (
                f"engine {engine.number} after recovery: {len(found - expected)} blocks more and"
                f" {len(expected - found)} less than its log says"
            )
        assert service.table.fold.publishers == fold.publishers, (
            f"recovered {service.table.fold.publishers}, but the log says {fold.publishers}"
        )
        assert service.table.fold.ledgers.current == fold.ledgers.current
        assert service.table.fold.registrations.keys() == fold.registrations.keys()

    def _folded(self) -> Fold:
        fold = make_fold()
        if self.proven_from:
            fold.distrust(Offset(self.proven_from))
        for offset in sorted(self.written):
            fold.apply(Offset(offset), self.written[offset])
        return fold

    def check_faults(self, service: Service) -> None:
        """No part has met an error that it does not know."""
        if service.ready:
            assert not service.pump.faults, "the pump has counted faults"
            assert not service.driver.faults, "the fold has counted faults"

    def check(self, service: Service) -> None:
        """Once all is quiet."""
        self.check_faults(service)
        if not self.proven_from:
            assert not service.table.fold.counters["log_holes"], "the log has holes"
        logged = [decode_log_record(self.written[offset]) for offset in sorted(self.written)]
        records = [one for one in logged if not isinstance(one, BridgeRecord)]
        whole = {
            engine.publisher: check_engine(
                service.table.fold,
                engine,
                records,
                registered=engine.number in self.registered,
                registrations=self.registrations[engine.number],
                counters=self.crowd.counters,
                covered=self.crowd.covered and not self.proven_from,
                known=not self.proven_from,
            )
            for engine in self.crowd.engines
        }
        registered = {self.crowd.engines[one].publisher for one in self.registered}
        self.oracle.rest(
            {one: found for one, found in whole.items() if one in registered}, service.standing
        )
