"""The whole cluster: engines, bridges, a broker, workers, replicas, and clients that are routed by
them, in one process. All of it fails, and these hold:

- no replica calls a publisher `exact` that has not what its engine had within the last seconds;
- a replica has at each offset the blocks that a fold of the log has there, unless it says not to;
- what one replica decides counts there at once, once, and is taken back by one report;
- once all is quiet every replica has the table that the log comes to, and under way what the
  routing log says: each decision of a replica that lives is in it, and so is each report.

The parts are put together as the roles do it: `Bridge`, `ReplicaService`, and what `FoldWorker` and
`RoutingWorker` make for Faust, whose part `faust` plays.
"""

import asyncio
import operator
import os
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bridge import service as bridge_service
from bridge.delivery.registrations_watch import LOG_START_LOOK_S
from bridge.heartbeats import HEARTBEAT_COMPLETE_S
from brokers import clients
from brokers import topics as broker_topics
from brokers.client_types import Partition
from brokers.group_offsets import GroupOffsets
from brokers.options import ClientOptions, client_options
from doctor.watch import OutcomeWatch
from logs.loop_thread import LoopThread
from query_api.replica.snapshot import Topic, TopicPartition
from reprise.roles import serve
from reprise.roles.role_settings import ServeSettings
from reprise.roles.serve import ReplicaService
from routing.decisions.interface import RoutedDecision, RouteRequest
from routing.decisions.router import ClientReport, Router
from routing.log.topics import RoutingTopics
from routing.worker.worker import RoutingWorker
from schemas.answer_states import AnswerState
from schemas.codec import decode_routing
from schemas.errors import ConfigurationError
from schemas.identities import ModelContext, PrefixScope, StreamKey
from schemas.limits import STALE_S
from schemas.routing_records import (
    DecisionsRecord,
    FeedbackReport,
    OutcomeEvent,
    OutcomesRecord,
    Refusal,
    decision_id,
)
from schemas.topics import Topics, encode_stream
from streams.table import store
from streams.table import table as tables
from streams.table.fold import Fold
from streams.table.rows.format import CONTEXT, COVERED_KEY, FACT, MARK, PUBLISHER, REGISTRATION
from streams.table.rows.reader import RowReader
from streams.table.topic import KafkaTableTopic
from streams.worker import tables as worker_tables
from streams.worker.worker import FoldWorker
from streams.worker.worker_settings import StreamsSettings
from tests.building import u32s
from tests.simulation.broker import KeyAndValue, Message
from tests.simulation.crowd import FAULTS_S, Step
from tests.simulation.disk import Database, SimulatedDisk, WriteBatch
from tests.simulation.engines import BLOCK_SIZE, MODEL
from tests.simulation.faust import FaustPart, FoldedTopic
from tests.simulation.history import History
from tests.simulation.ledgers import held_by
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop, State, current
from tests.simulation.oracle import StateOracle
from tests.simulation.row_order import shuffled_rows
from tests.simulation.watches import Leases, SpooledBatches, TableOwners
from tests.simulation.world_bridges import KAFKA, SESSION_S, BridgeWorld, Host, Observer

_SEED: Final = 1337
_EVENTS, _TABLE = KAFKA.topics.events, KAFKA.topics.table
_ROUTING: Final[RoutingTopics] = RoutingTopics.of(KAFKA)
_SCOPE: Final = PrefixScope("default", MODEL, "", BLOCK_SIZE, "")
_FIRST_LOOKS: Final = 5
_WORK: Final = 20
"""The weight of what no world is without; faults weigh less."""

_ENDS: Final = (OutcomeEvent.COMPLETED, OutcomeEvent.COMPLETED, OutcomeEvent.CANCELLED)

DecisionKey = tuple[int, int]
"""Run and number."""


class WorkerHost:
    """A machine with a worker on it: one process after the other on the same disk."""

    def __init__(self, name: str, disk: SimulatedDisk) -> None:
        self.name, self.disk = name, disk
        self.process = Process(name)
        self.process.state = State.DEAD
        self.worker: FoldWorker | None = None
        self.routing: RoutingWorker | None = None


class ReplicaHost:
    """One replica, in one process after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = Process(name)
        self.process.state = State.DEAD
        self.service: ReplicaService | None = None
        self.oracle: StateOracle | None = None
        self.covered: dict[int, int] = {}  # what it has answered from, by partition


@dataclass
class ClientRequest:
    """A request that was routed, as its client sees it.

    Attributes:
        left: what the client has yet to report.
    """

    key: DecisionKey
    instance_id: str
    left: list[OutcomeEvent]


@dataclass
class RoutingLedger:
    """What the routing log says, read without a fold."""

    instances: dict[DecisionKey, str] = field(default_factory=dict)
    reports: dict[DecisionKey, set[OutcomeEvent]] = field(default_factory=lambda: defaultdict(set))

    def put(self, value: bytes) -> None:
        """The next record."""
        record = decode_routing(value)
        if isinstance(record, DecisionsRecord):
            for one in record.decisions:
                if one.chosen >= 0:
                    target = one.target(one.chosen)
                    self.instances[record.run, one.number] = target.instance_id
        elif isinstance(record, OutcomesRecord):
            for told in record.outcomes:
                self.reports[record.run, told.number].add(told.event)

    @property
    def under_way(self) -> set[DecisionKey]:
        """The decisions that have not ended."""
        return {key for key in self.instances if self.reports[key].isdisjoint(_ENDS)}


class Truth(Observer):
    """Folds what is in the log, and knows what it came to at each offset."""

    def __init__(self, world: "ClusterWorld") -> None:
        super().__init__(world)
        self.digests: list[dict[int, dict[ModelContext, int]]] = [
            {-1: {}} for _ in self._partitions
        ]
        self.messages: list[list[Message]] = [[] for _ in self._partitions]

    @property
    def folds(self) -> list[Fold]:
        """By partition."""
        return self._folds

    def look(self) -> None:
        """Takes what there is."""
        for number in self._partitions:
            self._look(number)

    def _note_folded(self, number: int, message: Message) -> None:
        views = self._folds[number].kernel.contexts()
        self.digests[number][message.offset] = {view.context: view.digest for view in views}
        self.messages[number].append(message)


class _LoopOfTheWorld(LoopThread):
    """Runs on the loop of the simulation in place of a thread."""

    def __init__(self) -> None:
        super().__init__("kafka", unended="")

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop = asyncio.get_running_loop()
        self.serving = asyncio.ensure_future(work)

    @property
    def is_running(self) -> bool:
        return True


class ClusterWorld(BridgeWorld):
    """See the module."""

    def __init__(self, loop: SimulatedLoop, history: History) -> None:
        shape = history.source("shape")
        super().__init__(loop, history, harsh=shape.random() < 0.3)
        self.shape = shape
        self.observer: Truth = Truth(self)
        topics: Topics = KAFKA.topics
        for spec in topics:
            self.broker.settings[spec.name] = {"cleanup.policy": spec.cleanup, **spec.configs}
        self.kinds_ratio = shape.choice((0.15, 0.4, 1.0))  # of faults, that this world has
        self.losing = shape.random() < 0.4  # whether something may be lost for good
        self.workers_hosts = [
            WorkerHost(f"worker-{number}", SimulatedDisk(history.source(f"table disk {number}")))
            for number in range(shape.randint(1, 2))
        ]
        self.replicas = [ReplicaHost(f"replica-{number}") for number in range(shape.randint(1, 3))]
        self.batch_bytes = shape.choice((600, 3_000, 1_000_000))
        self.generation_bytes = shape.choice((100, 1_500))
        if shape.random() < 0.25:  # nobody goes on with what the only bridge has begun
            self.hosts = dict(list(self.hosts.items())[:1])
        self.table_owners = TableOwners(_TABLE.name)
        self.leases = Leases(self.broker, KAFKA.group("bridge"), _EVENTS.name)
        self.spooled = SpooledBatches()
        self.broker.when_appended = self._watch_appended
        self.broker.when_sent = self._watch_sent
        self.broker.fetch_max = shape.choice((2, 20, 500))
        self.requests: list[ClientRequest] = []
        self.told: dict[DecisionKey, set[OutcomeEvent]] = defaultdict(set)
        self.tellers: dict[tuple[DecisionKey, OutcomeEvent], int] = {}
        self.lost_routing = False
        self.has_damaged_rows = False
        self.is_cleared = False  # at the second check: that heals whatever was lost
        self._names = 0
        history.note(
            f"{len(self.hosts)} bridges, {len(self.workers_hosts)} workers, {len(self.replicas)}"
            f" replicas, batches of {self.batch_bytes} bytes, generations after"
            f" {self.generation_bytes} bytes, {self.broker.fetch_max} records at a time,"
            f" losing: {self.losing}"
        )

    # What is put in place of real parts

    @contextmanager
    def patches(self) -> Iterator[None]:
        """See `World`."""
        topic = partial(KafkaTableTopic, batch_bytes_max=self.batch_bytes)
        names = self.history.source("names")
        with super().patches(), ExitStack() as stack:
            for module, name, made in (
                (clients, "AIOKafkaAdminClient", self.broker.admin),
                (clients, "_EpochProducer", self.broker.producer),
                (broker_topics, "check_access", self._check_access),
                (bridge_service, "GroupOffsets", GroupOffsets),
                (store, "Database", self._table_database),
                (store, "new_batch", WriteBatch),
                (worker_tables, "KafkaTableTopic", topic),
                (tables, "TOPIC_GENERATION_MIN_BYTES", self.generation_bytes),
                (os, "urandom", names.randbytes),
                (serve, "kafka_thread", _LoopOfTheWorld),
                (OutcomeWatch, "start", lambda watch: None),
            ):
                stack.enter_context(mock.patch.object(module, name, made))
            stack.enter_context(shuffled_rows(self.history.source("rows")))
            yield

    async def _check_access(self, options: ClientOptions) -> None:
        await self.broker.reach(2.0)

    def _table_database(self, path: Path, preset: Any) -> Database:
        process = current()
        host = next(one for one in self.workers_hosts if one.process is process)
        return host.disk.database(path, preset)

    # What is watched as it happens

    def _watch_appended(self, message: Message) -> None:
        self._note_wrong(self.table_owners.look(message))

    def _watch_sent(self, part: Partition, messages: Sequence[KeyAndValue]) -> None:
        process = current()
        host = None if process is None else self.hosts.get(process.name)
        # One that has none sends what others have left to it in its spool.
        if host is not None and host.bridge is not None and host.bridge.registry.partitions:
            self._note_wrong(self.leases.look(part, messages))

    def _note_wrong(self, problem: str) -> None:
        if problem:
            self.loop.failures.append(AssertionError(problem))  # the product would catch it

    # Processes

    def kill(self, host: Host, *, power: bool = False) -> None:
        """See `BridgeWorld`."""
        if host.bridge is not None and len(self.hosts) == 1:
            counts = {one.publisher: self.registrations[one.number] for one in self.engines}
            self.spooled.add(host.bridge.spool, counts)
        if power:
            self.spooled.forget()
        super().kill(host, power=power)

    def start_worker(self, host: WorkerHost) -> None:
        """Starts the worker, where it does not run."""
        if host.process.state is State.DEAD:
            self.history.note(f"{host.name} starts")
            host.process = Process(host.name)
            self.loop.spawn(host.process, self._run_worker(host))

    async def _run_worker(self, host: WorkerHost) -> None:
        settings = StreamsSettings(
            kafka=KAFKA, data=Path(f"/{host.name}"), seed=_SEED, kernel="reference"
        )
        worker = host.worker = FoldWorker(settings)
        routing = host.routing = RoutingWorker(settings, worker.conditions)
        options = client_options(KAFKA)
        parts: list[FaustPart[Any]] = [
            FaustPart(
                worker.make_owner,
                FoldedTopic(options, KAFKA.group("streams"), _EVENTS.name, SESSION_S),
            ),
            FaustPart(
                routing.make_owner,
                FoldedTopic(options, KAFKA.group("routing"), _ROUTING.log.name, SESSION_S),
            ),
        ]
        await broker_topics.ensure_topics(KAFKA, specs=(*KAFKA.topics, *_ROUTING))
        await asyncio.gather(*(one.run() for one in parts))

    def start_replica(self, host: ReplicaHost) -> None:
        """Starts the replica, where it does not run."""
        if host.process.state is State.DEAD:
            self.history.note(f"{host.name} starts")
            host.process, host.covered = Process(host.name), {}
            self.loop.spawn(host.process, self._run_replica(host))
            looking = self.loop.create_task(self._look_at_first(host, host.process))
            looking.add_done_callback(self._note_end)

    def _note_end(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.loop.failures.append(error)  # nothing awaits it

    async def _look_at_first(self, host: ReplicaHost, process: Process) -> None:
        """What it answers once it is ready: it has read the table as that was at its start."""
        logs, looks = self.broker.topics[_TABLE.name], 0
        ends = [log.stable_end for log in logs]
        while looks < _FIRST_LOOKS and process.state is not State.DEAD:
            await asyncio.sleep(0.01)
            if host.process is process and host.service is not None and host.service.replica.ready:
                looks += 1
                self.observer.look()
                self._check_answers_of(host)
                places = host.service.replica.current.next_offsets
                found = [places[TopicPartition(Topic.TABLE, number)] for number in range(len(ends))]
                is_lost = self.broker.topics[_TABLE.name] is not logs
                assert is_lost or all(map(operator.ge, found, ends)), (
                    f"{host.name} is ready and has read up to {found}, but {ends} was there"
                )

    async def _run_replica(self, host: ReplicaHost) -> None:
        settings = ServeSettings(kafka=KAFKA, seed=_SEED, kernel="reference")
        await asyncio.sleep(self.shape.random())  # a run is named by the microsecond of its start
        host.service = ReplicaService(settings, when_refused=_refused)
        host.oracle = StateOracle(self.engines, self.loop.time)
        host.service.start()
        await asyncio.Event().wait()

    def _kill_machine(self, host: WorkerHost | ReplicaHost) -> None:
        if host.process.state is State.DEAD:
            return
        self.history.note(f"{host.name} is killed")
        self.loop.kill(host.process)
        if isinstance(host, ReplicaHost):
            host.service = None
        else:
            self._check_worker(host)
            host.disk.strains_left = 0

    def _check_worker(self, host: WorkerHost) -> None:
        if host.worker is not None:
            assert not host.worker.internal_errors, f"{host.name}: the fold has failed"
        table = None if host.routing is None else host.routing.table
        if table is not None and not self.lost_routing:
            assert not table.counters["skipped"], f"{host.name} has left out routing records"

    # Steps

    async def _begin(self) -> None:
        for worker in self.workers_hosts:
            self.start_worker(worker)
        for replica in self.replicas:
            self.start_replica(replica)

    def _steps(self) -> list[tuple[int, Step]]:
        return [
            *super()._steps(),
            (30, self.route),
            (20, self.report),
            (2, self.kill_worker),
            (1, self.kill_worker_within),
            (2, self.pause_machine),
            (2, self.starve_machine),
            (2, self.cut_machine_off),
            (1, self.lose_disk),
            (1, self.fill_worker_disk),
            (2, self.kill_replica),
            (1, self.lose_table_topic),
            (1, self.lose_table),
            (1, self.lose_checkpoints),
            (1, self.compact_table),
            (2, self.refuse_writes),
            (1, self.lose_table_topic_unseen),
            *(self._losing_steps() if self.losing else ()),
        ]

    def _losing_steps(self) -> list[tuple[int, Step]]:
        return [
            (1, self._retire),
            (1, self._retire_unnoted),
            (1, self._poison_table),
            (2, self._damage_rows),
            (1, self._lose_routing_log),
        ]

    def _drawn(self, steps: list[tuple[int, Step]]) -> list[tuple[int, Step]]:
        """Some kinds of faults, and each of them more often: with all of them at once hardly any
        answer is exact, and few faults meet twice.
        """
        often = self.shape.choice((1, 3))
        return [
            (weight if weight >= _WORK else often * weight, step)
            for weight, step in steps
            if weight >= _WORK or self.shape.random() < self.kinds_ratio
        ]

    def _any_worker(self) -> WorkerHost:
        return self.rng.choice(self.workers_hosts)

    def _any_machine(self) -> WorkerHost | ReplicaHost:
        machines: list[WorkerHost | ReplicaHost] = [*self.workers_hosts, *self.replicas]
        return self.rng.choice(machines)

    def kill_worker(self) -> None:
        """A worker is killed at some time, and started later."""
        host = self._any_worker()
        self.crowd.later(0.2, "", partial(self._kill_and_start, host))

    def _kill_and_start(self, host: WorkerHost) -> None:
        self._kill_machine(host)
        self.crowd.later(FAULTS_S, "", partial(self.start_worker, host))

    def kill_worker_within(self) -> None:
        """A worker dies between two of its next writes."""
        host = self._any_worker()
        if host.process.state is State.RUNNING:
            host.disk.strains_left = self.rng.randint(1, 6)
            self.history.note(f"{host.name} is to die at write {host.disk.strains_left}")
            self.crowd.later(FAULTS_S, "", partial(self.start_worker, host))

    def kill_replica(self) -> None:
        """A replica is killed, and another one started."""
        host = self.rng.choice(self.replicas)
        self._kill_machine(host)
        self.crowd.later(3.0, "", partial(self.start_replica, host))

    def pause_machine(self) -> None:
        """A worker or replica stands still, often for longer than its session."""
        host = self._any_machine()
        self.history.note(f"{host.name} is paused")
        process = host.process
        self.loop.pause(process)
        most_s = self.rng.choice((0.5, 2 * SESSION_S))
        self.crowd.later(most_s, f"{host.name} goes on", partial(self.loop.resume, process))

    def starve_machine(self) -> None:
        """A worker or replica gets a core now and then."""
        host = self._any_machine()
        if host.process.state is State.RUNNING:
            self.history.note(f"{host.name} gets hardly any core")
            self.loop.starve(host.process, self.rng.choice((1.0, FAULTS_S - 1.0)), self.rng)

    def cut_machine_off(self) -> None:
        """A worker or replica does not reach the broker."""
        host = self._any_machine()
        self.history.note(f"{host.name} is cut off")
        process = host.process
        self.broker.cut.add(process)
        self.crowd.later(
            FAULTS_S, f"{host.name} is connected", partial(self.broker.cut.discard, process)
        )

    def lose_disk(self) -> None:
        """A worker is killed, and its disk is gone."""
        host = self._any_worker()
        self._kill_and_start(host)
        self.history.note(f"the disk of {host.name} is lost")
        host.disk.clear()

    def fill_worker_disk(self) -> None:
        """A worker's disk takes nothing for a while."""
        host = self._any_worker()
        self.history.note(f"the disk of {host.name} is full")
        host.disk.full = True
        self.crowd.later(3.0, f"the disk of {host.name} has room", host.disk.make_room)

    def lose_table_topic(self) -> None:
        """The table topic is deleted and made again, empty."""
        self._make_again(_TABLE.name)

    def lose_table_topic_unseen(self) -> None:
        """The same while all workers stand still for longer than their sessions."""
        processes = [host.process for host in self.workers_hosts]
        for process in processes:
            self.loop.pause(process)

        def end() -> None:
            self.lose_table_topic()
            for process in processes:
                self.loop.resume(process)

        self.history.note("the workers are paused")
        unheard_s = SESSION_S + 1.0
        self.loop.call_later(unheard_s + self.rng.random() * (FAULTS_S - unheard_s), end)

    def lose_table(self) -> None:
        """All that a table is made of is lost: the workers' disks, and its topic."""
        for host in self.workers_hosts:
            self._kill_and_start(host)
            host.disk.clear()
        self._make_again(_TABLE.name)

    def lose_checkpoints(self) -> None:
        """The topic of routing's checkpoints is deleted and made again, empty."""
        self._make_again(_ROUTING.state.name)

    def _make_again(self, topic: str) -> None:
        logs = self.broker.topics.get(topic)
        if logs is not None:
            self.history.note(f"{topic} is deleted and made again")
            self.broker.make(topic, len(logs))
            self.broker.changed()
            if topic == _TABLE.name:
                self.table_owners.forget()

    def compact_table(self) -> None:
        """The cleaner has passed over the table and the checkpoints."""
        self.history.note("the table and the checkpoints are compacted")
        for topic in (_TABLE.name, _ROUTING.state.name):
            for log in self.broker.topics.get(topic, ()):
                log.compact(self.rng)

    def refuse_writes(self) -> None:
        """Brokers answer writes with errors for a while, whether they have written them or not."""
        self.history.note("brokers refuse writes")
        self.broker.refused_ratio = self.rng.choice((0.1, 0.5))
        self.crowd.later(2.0, "brokers take writes", self._take_writes)

    def _take_writes(self) -> None:
        self.broker.refused_ratio = 0.0

    def _retire(self, *, all_of_it: bool = False) -> None:
        """Retention, be it of what no bridge has noted yet."""
        self.observer.look()
        self.retired += 1
        for log in self.broker.topics[_EVENTS.name]:
            log.retire(log.end if all_of_it else self.rng.randint(log.start, log.end))
            self.history.note(f"events {log.number} begin at {log.start}")

    def _retire_unnoted(self) -> None:
        """Engines begin again, and so they do when all bridges have died before they had noted it
        and the log has dropped it.
        """
        self._restart_engines()

        def end() -> None:
            for host in self.hosts.values():
                self._kill(host)
            self._retire(all_of_it=True)
            self._restart_engines()

        self.loop.call_later(1.0, self.crowd.send_last)  # links are up
        self.loop.call_later(1.0 + self.rng.random(), end)

    def _restart_engines(self) -> None:
        for engine in self.engines:
            if engine.up:
                self.crowd.stop(engine)
                self.crowd.start(engine)

    def _poison_table(self) -> None:
        self.history.note("poison in the table topic")
        part = Partition(_TABLE.name, self.rng.randrange(_TABLE.partitions))
        kind = self.rng.choice((b"", b"x", CONTEXT, MARK, PUBLISHER, REGISTRATION, FACT))
        self.broker.append(part, [(kind + self.rng.randbytes(12), self.rng.randbytes(20))])

    def _damage_rows(self) -> None:
        """Some rows that count, or all that have blocks, before a replica reads them."""
        log = max(self.broker.topics[_TABLE.name], key=operator.attrgetter("end"))
        rows = {one.key: one for one in log.records if one.visible and one.key != COVERED_KEY}
        found = [row for row in rows.values() if row.value]
        blocks = [row for row in found if (row.key or b"").startswith(CONTEXT)]
        for row in self.rng.choice((blocks, self.rng.sample(found, min(len(found), 3)))):
            self.history.note(f"row {row.offset} of the table is damaged")
            row.value = self.rng.randbytes(20)
            self.has_damaged_rows = True
        host = self.rng.choice(self.replicas)
        self._kill_machine(host)
        self.start_replica(host)  # soon, so that much of the history is left with what it has read

    def _lose_routing_log(self) -> None:
        self.lost_routing = True
        self._make_again(_ROUTING.log.name)

    # Clients

    def _answering(self) -> list[tuple[ReplicaHost, ReplicaService]]:
        """The replicas that a client may ask."""
        return [
            (host, host.service)
            for host in self.replicas
            if host.service is not None
            and host.process.state is State.RUNNING
            and host.service.replica.ready
        ]

    def route(self) -> None:
        """A request is routed by some replica, and sent to where it says."""
        answering = self._answering()
        if not answering:
            return
        host, service = self.rng.choice(answering)
        base, blocks = self.rng.randint(0, 3), self.rng.randint(1, 6)
        prompt = [1000 * base + place for place in range(BLOCK_SIZE * blocks)]
        prompt += [self.rng.randint(0, 5)] * BLOCK_SIZE
        self._names += 1
        asked = self._asked(f"request {self._names}", service, prompt)
        before = carried_by(service.router)
        routed = host.process.context.run(service.router.route, asked)
        decision = routed.decision
        if decision.refused is not Refusal.NO:
            return
        instance = decision.target(decision.chosen).instance_id
        self.history.note(f"{host.name} sends {asked.request_id} to {instance}")
        self._check_counted_once(host, service.router, routed, asked, before)
        ends = [self.rng.choice(_ENDS)] * (self.rng.random() < 0.8)
        key = routed.run, decision.number
        first = [OutcomeEvent.FIRST_TOKEN] * self.rng.randrange(2)
        self.requests.append(ClientRequest(key, instance, [*first, *ends]))
        for engine in self.engines:
            if engine.registration.instance_id == instance and engine.up:
                engine.serve(prompt)
                break

    def _asked(self, name: str, service: ReplicaService, prompt: list[int]) -> RouteRequest:
        kernel, tokens = service.replica.kernel, u32s(prompt)
        matches = kernel.query(_SCOPE, tokens, (), None)
        prefixes = kernel.prefix_hashes(_SCOPE, tokens, (), 64)
        return RouteRequest(name, _SCOPE, len(prompt), matches, prefixes)

    def _check_counted_once(
        self,
        host: ReplicaHost,
        router: Router,
        routed: RoutedDecision,
        asked: RouteRequest,
        before: dict[str, int],
    ) -> None:
        instance = routed.decision.target(routed.decision.chosen).instance_id
        due = {**before, instance: before.get(instance, 0) + 1}
        found = carried_by(router)
        assert found == due, f"{host.name} carries {found} after its decision, {due} is due"
        again = host.process.context.run(router.route, asked)
        assert again.decision.number == routed.decision.number, f"{host.name} decides twice"
        assert carried_by(router) == due, f"{host.name} has booked a repeated request"

    def report(self) -> None:
        """A client says what came of its request, to any replica, until one has taken it."""
        due = [one for one in self.requests if one.left]
        answering = self._answering()
        if not due or not answering:
            return
        request = self.rng.choice(due)
        host, service = self.rng.choice(answering)
        outcome = FeedbackReport(request.key[1], request.left[0], 0.0)
        told = ClientReport(decision_id(*request.key), None, outcome, None)
        live = service.router.live
        was_under_way = live.is_under_way(*request.key)
        before = carried_by(service.router)
        taken = host.process.context.run(service.router.take, [told])
        assert not taken.unknown, f"{host.name} does not wait for another one's decision"
        event = request.left.pop(0)
        self.history.note(f"{host.name} is told {event} of {request.key[1]}")
        if taken.accepted:
            self.told[request.key].add(event)
            self.tellers[request.key, event] = service.router.run
        ended = was_under_way and event in _ENDS
        found = carried_by(service.router)
        lost = sum(before.values()) - sum(found.values())
        assert lost == ended, f"{host.name}: a report of {event} has ended {lost} bookings"
        again = host.process.context.run(service.router.take, [told])
        assert not again.accepted, f"{host.name} has taken a report twice"
        assert carried_by(service.router) == found, f"{host.name} has counted a report twice"

    def _between(self) -> None:
        self.check_answers()

    # What must hold all the time

    def check_answers(self) -> None:
        """No replica says what is not so."""
        self.observer.look()
        for host in self.replicas:
            self._check_answers_of(host)

    def _check_answers_of(self, host: ReplicaHost) -> None:
        if host.service is not None and host.service.replica.ready:
            self._check_states(host, host.service)
            self._check_blocks(host, host.service)

    def _check_states(self, host: ReplicaHost, service: ReplicaService) -> None:
        replica, oracle = service.replica, host.oracle
        assert oracle is not None
        table = replica.current.table
        assert isinstance(table, RowReader)
        registered = table.registrations.keys()
        state = replica.state(_SCOPE)
        assert replica.reachable or state is AnswerState.STALE, (
            f"{host.name} is cut off and {state}"
        )
        self._check_goes_on(host, table)
        oracle.look(
            sorted(registered - self.disputed),
            replica.standing,
            lambda engine: held_by(table, engine),
            registered=registered,
        )
        if state is not AnswerState.EXACT:
            return
        then_ms = 1000 * (EPOCH_S + self.loop.now - STALE_S)
        for number, messages in enumerate(self.observer.messages):
            past = (one.offset for one in reversed(messages) if one.timestamp <= then_ms)
            last = next(past, -1)
            covered = table.covered(number)
            assert covered >= last, (
                f"{host.name} is exact and covers {number}:{covered}, but {last} was there"
                f" {STALE_S:g} s ago"
            )

    def _check_goes_on(self, host: ReplicaHost, table: RowReader) -> None:
        for number in range(_EVENTS.partitions):
            before, found = host.covered.get(number, -1), table.covered(number)
            assert found >= before, f"{host.name} has answered from {before} on, and now {found}"
            host.covered[number] = found

    def _check_blocks(self, host: ReplicaHost, service: ReplicaService) -> None:
        if self.losing:
            return  # a table that was begun in the middle of the log has less, and says so
        table = service.replica.current.table
        assert isinstance(table, RowReader)
        found: list[dict[ModelContext, int]] = [{} for _ in self.observer.digests]
        for view in table.kernel.contexts():
            found[_home(view.context.stream)][view.context] = view.digest
        for number, digests in enumerate(found):
            covered = table.covered(number)
            due = self.observer.digests[number].get(covered)
            assert due is not None, f"{host.name} covers {covered} of partition {number}"
            assert digests == due, f"{host.name} has other blocks at {number}:{covered}"

    # The end

    async def _heal(self) -> None:
        self._take_writes()
        if self.has_damaged_rows:
            self.lose_table_topic()  # the disks have it, or the events do
        for worker in self.workers_hosts:
            worker.disk.full, worker.disk.strains_left = False, 0
            self.loop.resume(worker.process)
        for replica in self.replicas:
            self.loop.resume(replica.process)
        await super()._heal()
        if self.losing:  # who is registered is written again once the log begins behind it
            await asyncio.sleep(LOG_START_LOOK_S + HEARTBEAT_COMPLETE_S)
            await self._until_quiet()

    def _restart(self) -> None:
        for worker in self.workers_hosts:
            self.start_worker(worker)
        for replica in self.replicas:
            self.start_replica(replica)

    def _busy(self) -> str:
        self.check_answers()
        ends = [log.end - 1 for log in self.broker.topics[_EVENTS.name]]
        for host in self.replicas:
            if host.service is None or not host.service.replica.ready:
                return f"{host.name} is not ready"
            replica = host.service.replica
            if replica.current is not replica.loading:
                return f"{host.name} reads the table again"
            found = [replica.current.table.covered(number) for number in range(len(ends))]
            if found != ends:
                return f"{host.name} covers {found} of {ends}"
            if replica.state(_SCOPE) is AnswerState.STALE:
                return f"{host.name} is stale"
        return super()._busy() or self._routing_busy()

    def _routing_busy(self) -> str:
        """Whose bookings are not yet those of the routing log, or what is not in that."""
        if self.lost_routing:
            return ""
        ledger = RoutingLedger()
        for log in self.broker.topics.get(_ROUTING.log.name, ()):
            for message in log.records:
                ledger.put(message.value or b"")
        runs = {host.service.router.run for host in self.replicas if host.service is not None}
        for request in self.requests:
            if request.key[0] in runs and request.key not in ledger.instances:
                return f"decision {request.key} is not in the log"
        for key, events in self.told.items():
            for event in events:
                if self.tellers[key, event] in runs and event not in ledger.reports[key]:
                    return f"the report of {event} of {key} is not in the log"
        for host in self.replicas:
            assert host.service is not None
            problem = self._other_bookings(host, host.service.router, ledger)
            if problem:
                return problem
        return ""

    def _other_bookings(self, host: ReplicaHost, router: Router, ledger: RoutingLedger) -> str:
        due = ledger.under_way
        keys = sorted({*ledger.instances, *(one.key for one in self.requests)})
        found = {key for key in keys if router.live.is_under_way(*key)}
        if found != due:
            return f"{host.name} has {found - due} under way too many, {due - found} too few"
        counts: defaultdict[str, int] = defaultdict(int)
        for key in due:
            counts[ledger.instances[key]] += 1
        carried = carried_by(router)
        return "" if carried == counts else f"{host.name} carries {carried}, not {dict(counts)}"

    def _logged(self) -> list[Message]:
        return [message for messages in self.observer.messages for message in messages]

    def check(self) -> None:
        """Once all is quiet."""
        self.check_answers()
        for worker in self.workers_hosts:
            self._check_worker(worker)
        super().check()
        self._check_spooled()
        for host in self.replicas:
            assert host.service is not None
            replica = host.service.replica
            assert not replica.internal_errors, f"{host.name} has met unknown errors"
            table = replica.current.table
            assert isinstance(table, RowReader)
            if not self.losing:
                folds = self.observer.folds
                states = {key: one for fold in folds for key, one in fold.publishers.items()}
                assert table.publishers == states, f"{host.name}: {table.publishers}"
                ledgers = {key: one for fold in folds for key, one in fold.ledgers.current.items()}
                assert table.ledgers == ledgers, f"{host.name}: {table.ledgers}"
            assert host.oracle is not None
            if self.is_cleared or not self.losing:
                host.oracle.rest(self.whole, replica.standing)
        self.is_cleared = True

    def _check_spooled(self) -> None:
        if self.retired:
            return  # nobody knows how the log has gone on: what a spool had is told to be lost
        records = self._records()
        for number in sorted(self.registered):
            engine = self.engines[number]
            own = [one for one in records if one.publisher == engine.publisher]
            lost = self.spooled.lost(engine, own, self.registrations[number])
            assert not lost or engine.publisher in self.disputed, (
                f"of engine {number} the spool of a bridge that died had {lost}"
            )


def _home(stream: StreamKey) -> int:
    return clients.partition_of(encode_stream(stream), _EVENTS.partitions)


def carried_by(router: Router) -> dict[str, int]:
    """How many requests each instance has under way, by a router."""
    found: defaultdict[str, int] = defaultdict(int)
    for target, carried in router.carried():
        found[target.instance_id] += carried.requests
    return {instance: count for instance, count in found.items() if count}


def _refused(error: ConfigurationError) -> None:
    raise AssertionError(f"the replica has given up: {error}")
