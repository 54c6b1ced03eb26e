"""Every process of the distributed form killed with -9 in random order, under a steady load.

Once quiet, the digests of every replica equal those of a fresh fold of the events topic, and that
equals what the engines themselves hold: nothing was folded twice, and nothing was missed.
"""

import asyncio
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from devtools.broker import Broker
from replay.engine_cache import CacheSizes, EngineCache, Offload
from replay.publisher import Publisher, PublisherOptions
from reprise.kafka_topics import ensure_topics
from reprise.settings import DEFAULT_SEED
from schemas.identities import MEDIA, Offset
from schemas.kafka import KafkaSettings
from streams.kernel import open_kernel
from streams.kernel.changes import decode_changes
from streams.table.fold import Fold
from tests.processes import until
from tests.roles import Role

KILLS = int(os.environ.get("REPRISE_TEST_KILLS", "8"))  # 30 and more by hand: four minutes
ENGINES = 3
QUIET_S = 120.0
SESSION = ("--session-timeout-s", "3")


class Engine:
    """An engine that evicts and offloads, with its own truth."""

    def __init__(self, number: int) -> None:
        self.instance_id = f"engine-{number}"
        sizes = CacheSizes(block_size=16, gpu_blocks=200, cpu_blocks=300)
        self.cache = EngineCache(sizes, offload=Offload.WRITE_THROUGH)
        self.publisher = Publisher(PublisherOptions())

    def registration(self) -> dict[str, object]:
        return {
            "endpoint": self.publisher.endpoint,
            "replay_endpoint": self.publisher.replay_endpoint,
            "type": "vLLM",
            "modelname": "m",
            "instance_id": self.instance_id,
            "block_size": 16,
            "dp_rank": 0,
        }


class Load:
    """Prompts for all engines, some hundred batches a second in all."""

    def __init__(self, seed: int) -> None:
        self.engines = [Engine(number) for number in range(ENGINES)]
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @staticmethod
    def prompt(number: int) -> list[int]:
        return [number % 30] * 32 + [number] * (16 * (number % 9))

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            engine = self._random.choice(self.engines)
            events = engine.cache.run(self.prompt(self._random.randrange(300))).events
            engine.publisher.publish(events)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def close(self) -> None:
        self.stop()
        for engine in self.engines:
            engine.publisher.close()


class Deployment:
    """Two of each role on one broker."""

    def __init__(self, directory: Path, kafka: KafkaSettings, broker: Broker) -> None:
        def two(role: str, *options: str) -> list[Role]:
            return [Role(role, directory / f"{role}-{n}", kafka, *options) for n in (1, 2)]

        self.broker = broker
        self.kafka = kafka
        self.bridges = two("bridge", *SESSION)
        self.workers = two("streams", *SESSION)
        self.replicas = two("serve")

    @property
    def roles(self) -> list[Role]:
        return [*self.bridges, *self.workers, *self.replicas]

    def start(self) -> None:
        for role in self.roles:
            role.start()
        for replica in self.replicas:
            until(replica.is_ready, what=f"{replica.name} ready", timeout_s=60)

    def kill_and_restart(self, victim: Role | Broker, pause_s: float) -> None:
        victim.kill()
        time.sleep(pause_s)
        victim.start()

    def report(self) -> str:
        """What every role says of itself, for a failure's text."""
        lines = []
        for role in self.roles:
            try:
                health = json.dumps(role.get("/health"))[:1500]
            except OSError as error:
                health = str(error)
            lines.append(f"{role.name}: {health}\n{role.output()[-1500:]}")
        return "\n".join(lines)

    def end(self) -> None:
        for role in self.roles:
            role.kill()


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("REPRISE_TEST_SEED", random.SystemRandom().randrange(2**32)))


@pytest.fixture
def load(seed: int) -> Iterator[Load]:
    opened = Load(seed)
    yield opened
    opened.close()


@pytest.fixture
def deployment(tmp_path: Path, own_broker: Broker, topic_prefix: str) -> Iterator[Deployment]:
    kafka = KafkaSettings(
        bootstrap=own_broker.bootstrap,
        topic_prefix=topic_prefix,
        events_partitions=4,
        registry_partitions=4,
    )
    asyncio.run(ensure_topics(kafka))
    opened = Deployment(tmp_path, kafka, own_broker)
    yield opened
    opened.end()


async def read_events(kafka: KafkaSettings) -> list[bytes]:
    """Every record of the events topic; each partition's in order."""
    topic = kafka.topics.events.name
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, n) for n in range(kafka.events_partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        values: list[bytes] = []
        for partition in partitions:
            consumer.assign([partition])
            consumer.seek(partition, 0)
            while await consumer.position(partition) < ends[partition]:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    values.extend(record.value for record in records)
        return values
    finally:
        await consumer.stop()


def fresh_fold(kafka: KafkaSettings) -> Fold:
    fold = Fold(open_kernel(DEFAULT_SEED, name="reference"))
    for offset, value in enumerate(asyncio.run(read_events(kafka))):
        assert fold.apply(Offset(offset), value) is None
    return fold


def digests_of(replica: Role) -> dict[str, str]:
    contexts = replica.get("/digest")["contexts"]
    return {one["instance_id"]: one["digest"] for one in contexts}


def expected_of(fold: Fold) -> dict[str, str]:
    return {view.context.instance_id: f"{view.digest:016x}" for view in fold.kernel.contexts()}


def held_of(fold: Fold) -> dict[str, set[tuple[int, str]]]:
    """What each instance holds by the log: (engine hash, medium), as the engines tell it."""
    return {
        view.context.instance_id: {
            (change.engine_key, str(MEDIA[change.tier]))
            for body in fold.kernel.dump(view.context, 1_000_000)
            for change in decode_changes(body)
        }
        for view in fold.kernel.contexts()
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_folded_twice_however_often_anything_is_killed(
    deployment: Deployment, load: Load, seed: int
) -> None:
    moments = random.Random(seed)
    deployment.start()
    for engine in load.engines:
        deployment.replicas[0].post("/register", engine.registration())
    load.start()
    victims: list[Role | Broker] = [*deployment.roles, deployment.broker]
    for _ in range(KILLS):
        time.sleep(moments.random())
        deployment.kill_and_restart(moments.choice(victims), moments.random())
    load.stop()
    truth = {engine.instance_id: set(engine.cache.snapshot().held) for engine in load.engines}
    folds: list[Fold] = []

    def everything_arrived() -> bool:
        folds[:] = [fresh_fold(deployment.kafka)]
        return held_of(folds[0]) == truth

    until(everything_arrived, what=f"the engines' own truth, seed {seed}", timeout_s=QUIET_S)
    fold = folds[0]
    assert fold.counters["gaps"] == 0, f"seed {seed}"
    expected = expected_of(fold)

    def replicas_agree() -> bool:
        return all(digests_of(replica) == expected for replica in deployment.replicas)

    try:
        until(replicas_agree, what="replicas equal a fresh fold", timeout_s=QUIET_S)
    except AssertionError:
        pytest.fail(f"seed {seed}: replicas differ from a fresh fold\n{deployment.report()}")
    for number in range(0, 300, 7):
        prompt = load.prompt(number)
        for replica in deployment.replicas:
            body = {"model": "m", "block_size": 16, "token_ids": prompt}
            answer = replica.post("/query", body)["default"]
            for engine in load.engines:
                held = answer[engine.instance_id]["longest_matched"]
                assert held == engine.cache.longest_held(prompt), f"seed {seed}"
