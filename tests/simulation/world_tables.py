"""Workers and replicas over a log of events and a table topic, all of which fail: at no time is an
answer exact and wrong, and in the end every replica has what a fresh fold of the log has.
"""

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from brokers import clients
from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.clients import partition_of
from brokers.options import client_options
from query_api.replica.replica import Replica
from query_api.replica.snapshot import Topic
from query_api.replica.topic_reader import TopicReader
from schemas.answer_states import AnswerState
from schemas.errors import ConfigurationError
from schemas.identities import ModelContext, Offset, PublisherKey, StreamKey
from schemas.limits import STALE_S
from schemas.positions import PublisherState
from schemas.topics import encode_stream
from streams.kernel import open_kernel
from streams.table import store
from streams.table import table as tables
from streams.table.fold import Fold
from streams.table.rows.format import CONTEXT, FACT, MARK, PUBLISHER, REGISTRATION
from streams.table.rows.reader import RowReader
from streams.table.topic import KafkaTableTopic
from streams.worker import tables as worker_tables
from streams.worker.tables import PartitionTables
from tests.building import BLOCK, SCOPE, u32s
from tests.simulation.broker import SimulatedBroker
from tests.simulation.crowd import FAULTS_S, Step
from tests.simulation.disk import Database, SimulatedDisk, WriteBatch
from tests.simulation.events_writer import Known, WrittenBridge, WrittenPublisher
from tests.simulation.faust import FaustPart, FoldedTopic
from tests.simulation.history import History
from tests.simulation.loop import Process, SimulatedLoop, State, current
from tests.simulation.oracle import reasons_of
from tests.simulation.row_order import shuffled_rows
from tests.slices import WHOLE, bounds_for

KAFKA: Final = KafkaSettings(bootstrap="simulated:1", events_partitions=2, registry_partitions=1)
SESSION_S: Final = 3.0
QUIET_S: Final = 120.0
"""Virtual seconds within which a world that is no longer disturbed must come to rest."""

_EVENTS, _TABLE = KAFKA.topics.events, KAFKA.topics.table
_PART: Final = FoldedTopic(
    client_options(KAFKA), KAFKA.group("streams"), _EVENTS.name, session_s=SESSION_S
)


class Expected(NamedTuple):
    """What a fold of one partition has, up to some offset."""

    digests: dict[ModelContext, int]
    publishers: dict[PublisherKey, PublisherState]
    known: Mapping[PublisherKey, Known]


class Host:
    """A machine with one worker on it: one process after the other on the same disk."""

    def __init__(self, name: str, disk: SimulatedDisk) -> None:
        self.name, self.disk = name, disk
        self.process = Process(name)
        self.process.state = State.DEAD
        self.worker: FaustPart[PartitionTables] | None = None


class Reader:
    """One replica, in one process after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.process = Process(name)
        self.process.state = State.DEAD
        self.replica: Replica | None = None


def make_fold() -> Fold:
    """An empty one."""
    return Fold(open_kernel(1337, name="reference"))


class TableWorld:
    """See the module."""

    def __init__(self, loop: SimulatedLoop, history: History) -> None:
        self.loop, self.history = loop, history
        self.rng = rng = history.source("steps")
        self.broker = SimulatedBroker(loop, history.source("broker"))
        self.broker.trace = history.trace
        for topic in KAFKA.topics:
            self.broker.make(topic.name, topic.partitions)
        self.hosts = [
            Host(f"worker-{number}", SimulatedDisk(history.source(f"disk {number}")))
            for number in range(rng.randint(1, 3))
        ]
        self.readers = [Reader(f"replica-{number}") for number in range(rng.randint(1, 2))]
        source = history.source("publishers")
        sound = source.random() < 0.5
        self.publishers = [
            WrittenPublisher(number, source, partial(self.append, number), sound=sound)
            for number in range(4)
        ]
        self.publishers += [
            WrittenPublisher(4, source, partial(self.append, 4 + rank), shard=rank, sound=sound)
            for rank in range(2)
        ]
        self.prompts = history.source("prompts")
        self.bridge = WrittenBridge(
            self.publishers,
            self._append_to,
            lambda one: self._home(one.registration.stream),
            loop.time,
        )
        self.states: Counter[AnswerState] = Counter()
        self.appended: list[list[tuple[float, int]]] = [[] for _ in range(_EVENTS.partitions)]
        self.folds = [make_fold() for _ in range(_EVENTS.partitions)]
        self.expected: list[dict[int, Expected]] = [
            {-1: Expected({}, {}, {})} for _ in range(_EVENTS.partitions)
        ]
        self.proven_from = [-1] * _EVENTS.partitions  # before it, what was retired is not known
        self.losing = rng.random() < 0.5  # whether something may be lost for good
        self.batch_bytes = rng.choice((600, 3_000, 1_000_000))
        self.slice_entries = history.source("slices").choice((3, 40, WHOLE))
        history.note(
            f"{len(self.hosts)} workers, {len(self.readers)} replicas, batches of"
            f" {self.batch_bytes} bytes, losing: {self.losing},"
            f" slices of {self.slice_entries} entries"
        )

    @contextmanager
    def patches(self) -> Iterator[None]:
        """See `World`."""
        topic = partial(KafkaTableTopic, batch_bytes_max=self.batch_bytes)
        names = self.history.source("names")
        with ExitStack() as stack:
            for module, name, made in (
                (clients, "AIOKafkaConsumer", self.broker.consumer),
                (clients, "AIOKafkaProducer", self.broker.producer),
                (clients, "_EpochProducer", self.broker.producer),
                (store, "Database", self._database),
                (store, "new_batch", WriteBatch),
                (worker_tables, "KafkaTableTopic", topic),
                (tables, "TOPIC_GENERATION_MIN_BYTES", 1_500),
                *bounds_for(self.slice_entries),
                (os, "urandom", names.randbytes),
            ):
                stack.enter_context(mock.patch.object(module, name, made))
            stack.enter_context(shuffled_rows(self.history.source("rows")))
            yield

    def _database(self, path: Path, preset: Any) -> Database:
        process = current()
        host = next(one for one in self.hosts if one.process is process)
        return host.disk.database(path, preset)

    # The log

    def append(self, number: int, value: bytes) -> None:
        """A record of one publisher."""
        self._append_to(self._home(self.publishers[number].registration.stream), value)

    def _home(self, stream: StreamKey) -> int:
        return partition_of(encode_stream(stream), _EVENTS.partitions)

    def _append_to(self, partition: int, value: bytes) -> None:
        offset = self.broker.append(Partition(_EVENTS.name, partition), [(b"", value)])
        self.appended[partition].append((self.loop.now, offset))
        fold = self.folds[partition]
        fold.apply(Offset(offset), value)
        digests = {view.context: view.digest for view in fold.kernel.contexts()}
        known = {
            one.registration.publisher: one.known
            for one in self.publishers
            if self._home(one.registration.stream) == partition
        }
        self.expected[partition][offset] = Expected(digests, dict(fold.publishers), known)

    # Processes

    def start(self, host: Host) -> None:
        """Starts the worker, where it does not run."""
        if host.process.state is State.DEAD:
            self.history.note(f"{host.name} starts")
            host.process = Process(host.name)
            host.worker = FaustPart(partial(self._make_tables, Path(f"/{host.name}")), _PART)
            self.loop.spawn(host.process, host.worker.run())

    def _make_tables(self, data: Path) -> PartitionTables:
        return PartitionTables(
            data,
            _PART.options,
            events_topic=_EVENTS.name,
            table_topic=_TABLE.name,
            make_fold=make_fold,
        )

    def start_reader(self, reader: Reader) -> None:
        """Starts the replica, where it does not run."""
        if reader.process.state is not State.DEAD:
            return
        self.history.note(f"{reader.name} starts")
        reader.process = Process(reader.name)
        partitions = {
            Topic.TABLE: _TABLE.partitions,
            Topic.REGISTRY: KAFKA.topics.registry.partitions,
        }
        reader.replica = Replica(
            lambda: RowReader(open_kernel(1337, name="reference")), partitions, clock=self.loop.time
        )
        feed = TopicReader(
            KAFKA, client_options(KAFKA), reader.replica, prepare=_prepare, when_refused=_refused
        )
        self.loop.spawn(reader.process, feed.run())

    def kill(self, host: Host) -> None:
        """kill -9."""
        self.history.note(f"{host.name} is killed")
        self.loop.kill(host.process)
        self._check_worker(host)
        host.disk.strains_left = 0

    def _check_worker(self, host: Host) -> None:
        if host.worker is not None and host.worker.owner is not None:
            assert not host.worker.owner.internal_errors, f"{host.name}: the fold has failed"

    # Steps

    async def run(self) -> None:
        """See `World`."""
        for host in self.hosts:
            self.start(host)
        for reader in self.readers:
            self.start_reader(reader)
        steps: list[tuple[int, Step]] = [
            (40, self.write),
            (2, self.kill_worker),
            (1, self.kill_within),
            (2, self.pause_worker),
            (1, self.lose_disk),
            (1, self.fill_disk),
            (2, self.broker_away),
            (1, self.cut_off),
            (2, self.compact),
            (2, self.restart_replica),
            (1, self.pause_replica),
            (2, self.starve),
            (1, self.poison_events),
            (1, self.make_topic_again),
            (1, self.retire),
            (1, self.poison_table),
            (1, self._bridge_leaves),
        ]
        beating = self.loop.create_task(self.bridge.run())
        beating.add_done_callback(_raise)
        weights, choices = zip(*steps, strict=True)
        for _ in range(self.rng.randint(40, 80)):
            self.rng.choices(choices, weights)[0]()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.02, 0.3, 1.5)))
            self.check_answers()
        beating.cancel()
        await self._heal()
        self.check()

    def later(self, most_s: float, what: str, do: Step) -> None:
        """Does something at some time, which may be any await of any process."""

        def run() -> None:
            self.history.note(what)
            do()

        assert most_s <= FAULTS_S
        self.loop.call_later(self.rng.random() * most_s, run)

    def write(self) -> None:
        """Some records."""
        for _ in range(self.rng.choice((1, 3, 10))):
            self.rng.choice(self.publishers).step()

    def kill_worker(self) -> None:
        """A worker is killed, and started later."""
        host = self.rng.choice(self.hosts)
        self.later(0.2, f"{host.name} is to die", partial(self._kill, host))

    def _kill(self, host: Host) -> None:
        self.kill(host)
        self.later(FAULTS_S, f"{host.name} is to start", partial(self.start, host))

    def kill_within(self) -> None:
        """A worker is killed between two of its next writes."""
        host = self.rng.choice(self.hosts)
        if host.process.state is State.RUNNING:
            host.disk.strains_left = self.rng.randint(1, 6)
            self.history.note(f"{host.name} is to die at write {host.disk.strains_left}")
            self.later(FAULTS_S, f"{host.name} is to start", partial(self.start, host))

    def pause_worker(self) -> None:
        """A worker stands still, often for longer than its session."""
        self._pause(self.rng.choice(self.hosts))

    def pause_replica(self) -> None:
        """A replica stands still."""
        self._pause(self.rng.choice(self.readers))

    def _pause(self, host: Host | Reader) -> None:
        self.history.note(f"{host.name} is paused")
        process = host.process
        self.loop.pause(process)
        most_s = self.rng.choice((0.5, 2 * SESSION_S))
        self.later(most_s, f"{host.name} goes on", partial(self.loop.resume, process))

    def starve(self) -> None:
        """A process gets a core now and then."""
        machines: list[Host | Reader] = [*self.hosts, *self.readers]
        host = self.rng.choice(machines)
        if host.process.state is State.RUNNING:
            self.history.note(f"{host.name} gets hardly any core")
            self.loop.starve(host.process, self.rng.choice((1.0, FAULTS_S - 1.0)), self.rng)

    def lose_disk(self) -> None:
        """A worker is killed, and its disk is gone."""
        host = self.rng.choice(self.hosts)
        self._kill(host)
        self.history.note(f"the disk of {host.name} is lost")
        host.disk.clear()

    def fill_disk(self) -> None:
        """A worker's disk takes nothing for a while."""
        host = self.rng.choice(self.hosts)
        self.history.note(f"the disk of {host.name} is full")
        host.disk.full = True
        self.later(3.0, f"the disk of {host.name} has room", host.disk.make_room)

    def broker_away(self) -> None:
        """Nobody reaches the broker for a while."""
        self.history.note("the broker is away")
        self.broker.away = True
        self.later(self.rng.choice((0.5, 6.0)), "the broker is back", self._broker_back)

    def _broker_back(self) -> None:
        self.broker.away = False
        self.broker.changed()

    def cut_off(self) -> None:
        """One process does not reach the broker."""
        machines: list[Host | Reader] = [*self.hosts, *self.readers]
        host = self.rng.choice(machines)
        self.history.note(f"{host.name} is cut off")
        process = host.process
        self.broker.cut.add(process)
        self.later(FAULTS_S, f"{host.name} is connected", partial(self.broker.cut.discard, process))

    def compact(self) -> None:
        """The cleaner has passed over the table topic."""
        self.history.note("the table topic is compacted")
        for log in self.broker.topics[_TABLE.name]:
            log.compact(self.rng)

    def restart_replica(self) -> None:
        """A replica is killed, and another one started."""
        reader = self.rng.choice(self.readers)
        self.loop.kill(reader.process)
        self.start_reader(reader)

    def poison_events(self) -> None:
        """Something that is no record."""
        self.history.note("poison among the events")
        self._append_to(self.rng.randrange(_EVENTS.partitions), self.rng.randbytes(20))

    def poison_table(self) -> None:
        """Something that is no row."""
        if self.losing:
            self.history.note("poison in the table topic")
            part = Partition(_TABLE.name, self.rng.randrange(_TABLE.partitions))
            kind = self.rng.choice((b"", b"x", CONTEXT, MARK, PUBLISHER, REGISTRATION, FACT))
            key = kind + self.rng.randbytes(12)
            self.broker.append(part, [(key, self.rng.randbytes(20))])

    def make_topic_again(self) -> None:
        """The table topic is deleted and made again, empty."""
        self.history.note("the table topic is deleted and made again")
        self.broker.make(_TABLE.name, _TABLE.partitions)
        self.broker.changed()

    def retire(self) -> None:
        """Retention of events; who is registered has been written again since."""
        if not self.losing:
            return
        ends = [log.end for log in self.broker.topics[_EVENTS.name]]
        for publisher in self.publishers:
            if publisher.registered:
                publisher.register()
        self.proven_from = [log.end - 1 for log in self.broker.topics[_EVENTS.name]]
        for log, end in zip(self.broker.topics[_EVENTS.name], ends, strict=True):
            log.retire(self.rng.randint(log.start, end))
            self.history.note(f"events {log.number} begin at {log.start}")

    # The end

    async def _heal(self) -> None:
        self.history.note("all is well from here on")
        self.bridge.come()
        self._broker_back()
        self.broker.cut.clear()
        for host in self.hosts:
            host.disk.full, host.disk.strains_left = False, 0
            self.loop.resume(host.process)
        for reader in self.readers:
            self.loop.resume(reader.process)
        await asyncio.sleep(FAULTS_S)
        for host in self.hosts:
            self.start(host)
        for publisher in self.publishers:
            publisher.step()
        end = self.loop.now + QUIET_S
        while busy := self._busy():
            await asyncio.sleep(0.5)
            self.check_answers()
            assert self.loop.now < end, f"no rest within {QUIET_S:g} s: {busy}"

    def _busy(self) -> str:
        ends = [log.end - 1 for log in self.broker.topics[_EVENTS.name]]
        for reader in self.readers:
            replica = reader.replica
            assert replica is not None
            if replica.current is not replica.loading or not replica.ready:
                return f"{reader.name} reads the table again"
            found = [replica.current.table.covered(number) for number in range(len(ends))]
            if found != ends:
                return f"{reader.name} covers {found} of {ends}"
            if replica.state(SCOPE) is AnswerState.STALE:
                return f"{reader.name} is stale"
        return ""

    # What must hold

    def check_answers(self) -> None:
        """No replica answers what is exact and wrong."""
        for reader in self.readers:
            replica = reader.replica
            if replica is None or not replica.ready:
                continue
            self.states[replica.state(SCOPE)] += 1
            self._check_age(reader.name, replica)
            self._check_exact(reader.name, replica)
            # While a table is built again, after retention, it says that it is behind.
            if not self.losing or replica.state(SCOPE) is not AnswerState.STALE:
                self._check_replica(reader.name, replica)

    def _check_age(self, name: str, replica: Replica) -> None:
        """An `exact` answer has all that was in the log STALE_S ago, when the bridge was there."""
        if replica.state(SCOPE) is not AnswerState.EXACT:
            return
        if not replica.current.table.registrations:
            return  # of a log without its beginning: the registry, which is empty here, has them
        then = self.loop.now - STALE_S
        away_since = self.bridge.away_since
        assert away_since is None or away_since >= then, (
            f"{name} is exact though the bridge left {self.loop.now - away_since:.1f} s ago"
        )
        for partition, appended in enumerate(self.appended):
            covered = replica.current.table.covered(partition)
            last = next((offset for at, offset in reversed(appended) if at <= then), -1)
            assert covered >= last, (
                f"{name} is exact and covers {partition}:{covered}, but {last} was there"
                f" {STALE_S:g} s ago"
            )

    def _check_exact(self, name: str, replica: Replica) -> None:
        """What is `exact` is known to be so, and is what the publishers hold of a prompt."""
        if replica.state(SCOPE) is not AnswerState.EXACT:
            return
        table = replica.current.table
        assert isinstance(table, RowReader)
        known: dict[PublisherKey, Known] = {}
        for partition, expected in enumerate(self.expected):
            covered = table.covered(partition)
            if covered < self.proven_from[partition]:
                return
            known |= {key: one for key, one in expected[covered].known.items() if one.registered}
        for publisher, one in known.items():
            who = f"{publisher.stream.instance_id}, rank {publisher.dp_rank}"
            assert not one.reasons, f"{name} is exact, but {who} is degraded: {set(one.reasons)}"
            is_hybrid = one.sparse_blocks is not None and not self.losing
            assert not is_hybrid, f"{name} is exact, but {who} is of a hybrid model"
            lacks = [
                rank for rank in one.other_ranks if publisher._replace(dp_rank=rank) not in known
            ]
            assert not lacks, f"{name} is exact, but {who} lacks the ranks {lacks}"
        first = self.prompts.choice((1, self.prompts.randint(2, 12)))
        blocks = range(first, first + 4)
        prompt = u32s(range(BLOCK * first, BLOCK * (first + 4)))
        found = {
            one.instance_id: one.longest for one in table.kernel.query(SCOPE, prompt, (), None)
        }
        assert found == longest_of(known, blocks), f"{name} is exact and wrong about {blocks}"

    def _bridge_leaves(self) -> None:
        if self.bridge.away_since is None:
            self.history.note("the bridge is away")
            self.bridge.leave()
            self.loop.call_later(self.rng.random() * 12, self._bridge_back)

    def _bridge_back(self) -> None:
        self.history.note("another bridge is there")
        self.bridge.come()

    def _check_replica(self, name: str, replica: Replica) -> None:
        table = replica.current.table
        assert isinstance(table, RowReader)
        exact = replica.state(SCOPE) is AnswerState.EXACT  # then nothing is excused
        found = {view.context: view.digest for view in table.kernel.contexts()}
        for partition in range(_EVENTS.partitions):
            covered = table.covered(partition)
            if covered < self.proven_from[partition]:
                continue
            expected = self.expected[partition].get(covered)
            assert expected is not None, f"{name} covers {covered} of partition {partition}"
            doubted = {
                publisher.stream
                for publisher, state in table.publishers.items()
                if state.degraded_since is not None
            } | table._skipped.damaged
            if partition in table._spoiled and not exact:
                continue
            for context in found.keys() | expected.digests.keys():
                stream = context.stream
                if self._home(stream) != partition or (stream in doubted and not exact):
                    continue
                assert found.get(context) == expected.digests.get(context), (
                    f"{name} at {partition}:{covered} has the wrong blocks of"
                    f" {context.instance_id} and does not say so"
                )

    def check(self) -> None:
        """Once all is quiet."""
        for host in self.hosts:
            self._check_worker(host)
        for reader in self.readers:
            assert reader.replica is not None
            assert not reader.replica.internal_errors, f"{reader.name} has met unknown errors"
            if not self.losing:
                table = reader.replica.current.table
                expected = {
                    key: state for fold in self.folds for key, state in fold.publishers.items()
                }
                assert table.publishers == expected, f"{reader.name}: {table.publishers}"
                for one in self.publishers:
                    state = table.publishers.get(one.registration.publisher)
                    assert reasons_of(state) == one.known.reasons, (
                        f"{reader.name}: {set(one.known.reasons)} is due, but {state}"
                    )
                    found = None if state is None else state.sparse_blocks
                    assert found == one.known.sparse_blocks, f"{reader.name}: {one.known}, {state}"
                assert table.ledgers == {
                    key: one for fold in self.folds for key, one in fold.ledgers.current.items()
                }, f"{reader.name}: {table.ledgers}"


def longest_of(known: Mapping[PublisherKey, Known], blocks: range) -> dict[str, int]:
    """How many tokens of a prompt of these blocks each instance has; of one whose ranks have a part
    of each block, what all of them have.
    """
    found: defaultdict[str, list[int]] = defaultdict(list)
    for publisher, one in known.items():
        depth = 0
        while depth < len(blocks) and tuple(blocks[: depth + 1]) in one.held:
            depth += 1
        found[publisher.stream.instance_id].append(BLOCK * depth)
    return {instance: min(depths) for instance, depths in found.items()}


async def _prepare() -> None: ...


def _raise(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.result()


def _refused(error: ConfigurationError) -> None:
    raise AssertionError(f"the replica has given up: {error}")
