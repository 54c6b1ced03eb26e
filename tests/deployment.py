"""The distributed form as processes, and what must hold of it once it is quiet, whatever happened.

    the engines' own truth  ==  a fresh fold of the events topic  ==  every replica

The fold is made here, by the reference kernel, of every record from the topic's beginning on.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import Broker
from schemas.identities import MEDIA, Offset
from schemas.setting import changed
from streams.index_settings import DEFAULT_SEED
from streams.kernel import open_kernel
from streams.kernel.changes import decode_changes
from streams.table.fold import DUPLICATE, Fold
from tests.kafka_fixtures import settings_for
from tests.load import Engine, Load
from tests.processes import THIS, until
from tests.roles import Role

_OF_PUBLISHERS = ("InstanceID", "State", "Reason", "Since", "Activity", "Incarnation", "Sequence")
QUIET_S = 120.0
SESSION_S = 3
"""After so long without a sign of life a bridge or a worker is replaced."""


class Deployment:
    """Two of each role on one broker."""

    def __init__(
        self,
        directory: Path,
        kafka: KafkaSettings,
        broker: Broker,
        bootstraps: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = THIS,
    ) -> None:
        """Makes the topics and starts nothing yet.

        Args:
            bootstraps: by the role's name, such as `bridge-1`: where it reaches Kafka, for those
                that reach it elsewhere than `kafka` says.
            program: what has the roles as commands.
        """
        asyncio.run(ensure_topics(kafka))

        def two(role: str, environment: Mapping[str, str] | None = None) -> list[Role]:
            names = [f"{role}-{number}" for number in (1, 2)]
            return [
                Role(
                    role,
                    directory / name,
                    settings_of(name),
                    program=program,
                    environment=environment,
                )
                for name in names
            ]

        def settings_of(name: str) -> KafkaSettings:
            bootstrap = (bootstraps or {}).get(name, kafka.bootstrap)
            return changed(kafka, bootstrap=bootstrap)

        self.broker = broker
        self.kafka = kafka
        self.bridges = two("bridge", {"REPRISE_SESSION_TIMEOUT_S": str(SESSION_S)})
        self.workers = two("streams", {"REPRISE_SESSION_TIMEOUT_S": str(SESSION_S)})
        self.replicas = two("serve")

    @property
    def roles(self) -> list[Role]:
        return [*self.bridges, *self.workers, *self.replicas]

    def start(self, load: Load) -> None:
        """Starts the roles, registers the engines, and starts the load; returns once its first
        batches have been folded.
        """
        for role in self.roles:
            role.start()
        for replica in self.replicas:
            until(replica.is_ready, what=f"{replica.name} ready", timeout_s=60)
        for engine in load.engines:
            self.replicas[0].post("/register", engine.registration())
        load.start()
        self.until_moving()

    def kill_and_restart(self, victim: Role | Broker, pause_s: float) -> None:
        victim.kill()
        time.sleep(pause_s)
        victim.start()

    def replace(self, role: Role, program: Sequence[str]) -> None:
        """Ends the role in order, and starts what another program has in its place, on its data."""
        roles = next(all_ for all_ in (self.bridges, self.workers, self.replicas) if role in all_)
        code = role.stop()
        assert code == 0, f"{role.name} has ended with {code}:\n{role.output()[-3000:]}"
        other = role.by(program)
        roles[roles.index(role)] = other
        other.start()
        self.until(other.is_ready, what=f"{other.name} ready")

    def folded(self, replica: Role) -> int:
        """The sum of the last batches in the replica's table, of all publishers; 0 where it is
        away.
        """
        try:
            return int(replica.metric("reprise_publisher_folded_sequence"))
        except OSError:
            return 0

    def until_moving(self) -> None:
        """Waits until what is published now reaches every replica."""
        goals = {replica.name: self.folded(replica) + 20 for replica in self.replicas}
        self.until(
            lambda: all(self.folded(one) > goals[one.name] for one in self.replicas),
            what="what is published now reaches every replica",
        )

    def until(self, holds: Callable[[], object], *, what: str) -> None:
        """`until`, with what every role says of itself where it does not come to hold."""
        try:
            until(holds, what=what, timeout_s=QUIET_S)
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.report()}")

    def report(self) -> str:
        """What every role says of itself, for a failure's text."""
        lines = []
        for role in self.roles:
            try:
                health = json.dumps(role.health())[:1500]
            except OSError as error:
                health = str(error)
            # The client's library repeats itself while the broker is away.
            said = [line for line in role.output().splitlines() if " aiokafka" not in line]
            lines.append("\n".join([f"{role.name}: {health}", *said[-8:]]))
        return "\n".join([*self._publishers(), *lines])

    def _publishers(self) -> list[str]:
        """What the first replica says of each publisher."""
        try:
            services = self.replicas[0].get("/services")["services"]
        except OSError as error:
            return [str(error)]
        return [json.dumps({key: one.get(key) for key in _OF_PUBLISHERS}) for one in services]

    def end(self) -> None:
        for role in self.roles:
            role.kill()


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    """Of three engines that can replay all that they send."""
    opened = Load(seed, [Engine(f"engine-{number}") for number in range(3)])
    yield opened
    opened.close()


@pytest.fixture
def deployment_settings(own_broker: Broker) -> KafkaSettings:
    return settings_for(own_broker, partitions=4)


@pytest.fixture
def deployment(
    tmp_path: Path, own_broker: Broker, deployment_settings: KafkaSettings
) -> Iterator[Deployment]:
    opened = Deployment(tmp_path, deployment_settings, own_broker)
    yield opened
    opened.end()


# The log


class Place(NamedTuple):
    """Where a record is in the events topic."""

    partition: int
    offset: int


class Logged(NamedTuple):
    """A record of the events topic."""

    place: Place
    key: bytes
    value: bytes


class FreshFold(NamedTuple):
    """A fold of the whole log, and why it skipped what it has, by place."""

    fold: Fold
    skipped: dict[Place, str]


def read_events(kafka: KafkaSettings) -> list[Logged]:
    """Every record of the events topic; each partition's in order."""
    return asyncio.run(_read_events(kafka))


async def _read_events(kafka: KafkaSettings) -> list[Logged]:
    topic = kafka.topics.events.name
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, n) for n in range(kafka.events_partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[Logged] = []
        for partition in partitions:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while await consumer.position(partition) < ends[partition]:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found.extend(
                        Logged(Place(one.partition, one.offset), one.key, one.value)
                        for one in records
                    )
        return found
    finally:
        await consumer.stop()


def fresh_fold(kafka: KafkaSettings) -> FreshFold:
    fold = Fold(open_kernel(DEFAULT_SEED, name="reference"))
    skipped: dict[Place, str] = {}
    for number, logged in enumerate(read_events(kafka)):
        problem = fold.apply(Offset(number), logged.value or b"")
        if problem is not None:
            skipped[logged.place] = problem.reason
    return FreshFold(fold, skipped)


def digests_by_fold(fold: Fold) -> dict[str, str]:
    return {view.context.instance_id: f"{view.digest:016x}" for view in fold.kernel.contexts()}


def held_by_fold(fold: Fold) -> dict[str, set[tuple[int, str]]]:
    """What each instance holds by the log: (engine hash, medium), as the engines tell it."""
    return {
        view.context.instance_id: {
            (change.engine_key, str(MEDIA[change.tier]))
            for body in fold.kernel.dump(view.context, 1_000_000)
            for change in decode_changes(body)
        }
        for view in fold.kernel.contexts()
    }


def last_batches(fold: Fold) -> dict[str, int]:
    """The sequence of the last batch of each instance."""
    return {
        publisher.stream.instance_id: state.sequence for publisher, state in fold.publishers.items()
    }


# Once quiet


def check_once_quiet(deployment: Deployment, load: Load, *, seed: int) -> FreshFold:
    """Stops the load and waits until the log, a fresh fold of it and the replicas agree with it.

    Args:
        deployment: all roles run.
        load: of engines that can replay all they sent: nothing may be missing.
        seed: of the faults, for a failure's text.
    """
    load.stop()
    truth = {engine.instance_id: engine.held() for engine in load.engines}
    last = {engine.instance_id: engine.published - 1 for engine in load.engines}
    found: list[FreshFold] = []

    def everything_arrived() -> bool:
        found[:] = [fresh_fold(deployment.kafka)]
        fold = found[0].fold
        return last_batches(fold) == last and held_by_fold(fold) == truth

    deployment.until(everything_arrived, what=f"the log has all that was sent, seed {seed}")
    (fresh,) = found
    fold = fresh.fold
    assert (fold.counters["gaps"], fold.counters["log_holes"]) == (0, 0), f"seed {seed}"
    assert set(fresh.skipped.values()) <= {DUPLICATE}, f"seed {seed}"
    expected = digests_by_fold(fold)

    def replicas_agree() -> bool:
        return all(digests_of(replica) == expected for replica in deployment.replicas)

    for worker in deployment.workers:
        assert "FaustCrashedError" not in worker.output(), deployment.report()
    deployment.until(replicas_agree, what=f"replicas equal a fresh fold, seed {seed}")
    assert answers_are_right(deployment, load), f"seed {seed}\n{deployment.report()}"
    deployment.until(
        lambda: states_of(deployment, load) == {"exact"}, what=f"answers are exact, seed {seed}"
    )
    return fresh


def answers_are_right(deployment: Deployment, load: Load) -> bool:
    """Whether every replica says of every engine how much of a prompt it holds."""
    for prompt in load.sample():
        held = {engine.instance_id: engine.cache.longest_held(prompt) for engine in load.engines}
        for replica in deployment.replicas:
            answer = replica.post("/query", query_for(prompt))["default"]
            if {name: answer[name]["longest_matched"] for name in held} != held:
                return False
    return True


def states_of(deployment: Deployment, load: Load) -> set[str]:
    """What the answers of all replicas say of themselves."""
    query = query_for(load.prompt(0))
    return {replica.state(query) for replica in deployment.replicas}


def query_for(prompt: list[int]) -> dict[str, object]:
    """The body of `POST /query`."""
    return {"model": "m", "block_size": 16, "token_ids": prompt}


def digests_of(replica: Role) -> dict[str, str]:
    try:
        contexts = replica.get("/digest")["contexts"]
    except OSError:  # it has not read the table yet
        return {}
    return {one["instance_id"]: one["digest"] for one in contexts}
