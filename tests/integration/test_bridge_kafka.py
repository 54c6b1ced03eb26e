"""Bridges as processes between real publishers and a real broker."""

import asyncio
import json
import random
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from bridge.intake import Intake
from bridge.messages import RawMessage
from query_api.registry import encode_registration
from replay.engine_cache import CacheSizes, EngineCache, Offload
from replay.publisher import Publisher, PublisherOptions
from reprise.kafka_topics import ensure_topics
from schemas.identities import ModelContext, Offset, PublisherKey
from schemas.kafka import KafkaSettings, encode_publisher, encode_stream
from schemas.records import (
    EventsRecord,
    Record,
    RegisteredRecord,
    decode_record,
    encode_record,
)
from schemas.registration import PublisherKind, Registration
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.processes import START_S, until

SESSION_S = 2


class BridgeProcess:
    """`reprise bridge` with its metrics on a port of the system's choice."""

    def __init__(self, data: Path, kafka: KafkaSettings, *options: str) -> None:
        self._command = [sys.executable, "-m", "reprise", "bridge", "--kafka", kafka.bootstrap]
        self._command += ["--topic-prefix", kafka.topic_prefix, "--data", str(data)]
        self._command += ["--events-partitions", str(kafka.events_partitions)]
        self._command += ["--registry-partitions", str(kafka.registry_partitions)]
        self._command += ["--session-timeout-s", str(SESSION_S), "--metrics-port", "0", *options]
        self._log_path = data.with_name(data.name + ".stderr")
        self.process: subprocess.Popen[bytes] | None = None
        self._base_url = ""

    def start(self) -> None:
        start = len(self.log()) if self._log_path.exists() else 0
        with self._log_path.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        found: list[str] = []

        def has_port() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            found[:] = re.findall(r"Metrics on (http://\S+)/metrics", self.log()[start:])
            return bool(found)

        until(has_port, what="the metrics port")
        self._base_url = found[-1]

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(START_S)
            self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(START_S)
        self.process = None
        return code

    def log(self) -> str:
        return self._log_path.read_text()

    def _get(self, path: str) -> bytes:
        with urllib.request.urlopen(self._base_url + path, timeout=10) as response:
            body: bytes = response.read()
        return body

    def health(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._get("/health"))
        return document

    def states(self) -> dict[str, str]:
        return {
            one["registration"]["instance_id"]: one["state"] for one in self.health()["publishers"]
        }

    def metric(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for family in text_string_to_metric_families(self._get("/metrics").decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


class Engine:
    """One publisher with a cache behind it, and all that it ever sent."""

    def __init__(self, instance_id: str, *, replay: bool = True, dp_rank: int = 0) -> None:
        self._random = random.Random(instance_id)
        self._cache = EngineCache(
            CacheSizes(block_size=16, gpu_blocks=300, cpu_blocks=500),
            offload=Offload.WRITE_THROUGH,
        )
        options = PublisherOptions(replay_endpoint="tcp://127.0.0.1:0" if replay else "")
        self.publisher = Publisher(options)
        self.registration = Registration(
            endpoint=self.publisher.endpoint,
            replay_endpoint=self.publisher.replay_endpoint,
            kind=PublisherKind.VLLM,
            model_name="m",
            instance_id=instance_id,
            block_size=16,
        )

    def publish(self, batches: int = 1, *, lost: bool = False) -> None:
        for _ in range(batches):
            number = self._random.randrange(400)
            prompt = [number % 40] * 32 + [number] * (16 * (number % 9))
            self.publisher.publish(self._cache.run(prompt).events, lost=lost)

    def messages(self) -> list[RawMessage]:
        return [
            RawMessage(self.registration.publisher, [b"", number.to_bytes(8, "big"), payload], 0.0)
            for number, payload in list(self.publisher._buffer)
        ]

    def published(self) -> int:
        return self.publisher.published

    def restart(self) -> None:
        """A new process at the same addresses, with an empty cache."""
        self.publisher.close()
        self.publisher = Publisher(
            PublisherOptions(
                endpoint=self.registration.endpoint,
                replay_endpoint=self.registration.replay_endpoint,
            )
        )
        self._cache = EngineCache(
            CacheSizes(block_size=16, gpu_blocks=300, cpu_blocks=500),
            offload=Offload.WRITE_THROUGH,
        )


class Logged(NamedTuple):
    partition: int
    offset: int
    key: bytes
    record: Record


async def _read_all(kafka: KafkaSettings) -> list[Logged]:
    topic = kafka.topics.events
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.servers, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    found: list[Logged] = []
    try:
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for messages in (await consumer.getmany(timeout_ms=500)).values():
                for one in messages:
                    record = decode_record(one.value)
                    found.append(Logged(one.partition, one.offset, one.key, record))
    finally:
        await consumer.stop()
    return found


class Deployment:
    """A deployment's topics, seen from outside."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        asyncio.run(ensure_topics(kafka))

    def write_registry(self, *entries: tuple[bytes, bytes | None]) -> None:
        asyncio.run(self._write(self.kafka.topics.registry.name, entries))

    def register(self, *registrations: Registration) -> None:
        self.write_registry(
            *((encode_publisher(one.publisher), encode_registration(one)) for one in registrations)
        )

    def unregister(self, *registrations: Registration) -> None:
        self.write_registry(*((encode_publisher(one.publisher), None) for one in registrations))

    async def _write(self, topic: str, entries: Sequence[tuple[bytes, bytes | None]]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka.servers, acks="all")
        await producer.start()
        try:
            for key, value in entries:
                await producer.send_and_wait(topic, value, key=key)
        finally:
            await producer.stop()

    def append(self, *records: Record) -> None:
        entries = [(encode_stream(one.stream), encode_record(one)) for one in records]
        asyncio.run(self._write(self.kafka.topics.events.name, entries))

    def log(self) -> list[Logged]:
        return asyncio.run(_read_all(self.kafka))

    def records(self, publisher: PublisherKey) -> list[Record]:
        return [one.record for one in self.log() if one.record.publisher == publisher]

    def cursor(self, engine: Engine) -> tuple[int, int]:
        """The last batch in the log."""
        cursors = [
            (record.incarnation, record.last_sequence)
            for record in self.records(engine.registration.publisher)
            if isinstance(record, EventsRecord)
        ]
        return max(cursors, default=(0, -1))

    def until_logged(self, *engines: Engine, timeout_s: float = START_S) -> None:
        """Waits until the log has all that the engines have published."""
        wanted = {one: one.published() - 1 for one in engines}
        until(
            lambda: all(self.cursor(one)[1] == last for one, last in wanted.items()),
            what="the log has all batches",
            timeout_s=timeout_s,
        )

    def fold(self) -> Fold:
        """A fold of the log, its partitions one after the other."""
        fold = Fold(open_kernel(1337))
        for place, one in enumerate(sorted(self.log(), key=lambda one: one[:2])):
            assert fold.apply(Offset(place), encode_record(one.record)) is None
        return fold


def digests(fold: Fold) -> dict[ModelContext, int]:
    return {view.context: view.digest for view in fold.kernel.contexts() if view.digest}


def truth(*engines: Engine) -> dict[ModelContext, int]:
    """The digests of a fold of what the engines published in this life, nothing lost."""
    fold = Fold(open_kernel(1337))
    intake = Intake()
    offset = 0
    for engine in engines:
        intake.add(engine.registration)
        for record in intake.process(engine.messages(), 0.0):
            assert fold.apply(Offset(offset), encode_record(record)) is None
            offset += 1
    return digests(fold)


@pytest.fixture
def deployment(kafka_settings: KafkaSettings) -> Deployment:
    return Deployment(kafka_settings)


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(instance_id: str, **options: Any) -> Engine:
        made.append(Engine(instance_id, **options))
        return made[-1]

    yield make
    for one in made:
        one.publisher.close()


@pytest.fixture
def bridges(tmp_path: Path) -> Iterator[Callable[..., BridgeProcess]]:
    made: list[BridgeProcess] = []

    def make(kafka: KafkaSettings, *options: str) -> BridgeProcess:
        made.append(BridgeProcess(tmp_path / f"bridge-{len(made)}", kafka, *options))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.kill()


Engines = Callable[..., Engine]
Bridges = Callable[..., BridgeProcess]


def until_live(bridge: BridgeProcess, *engines: Engine) -> None:
    names = {one.registration.instance_id for one in engines}
    until(
        lambda: {name for name, state in bridge.states().items() if state == "live"} >= names,
        what=f"the publishers are followed:\n{bridge.log()[-3000:]}",
    )


def test_events_arrive_in_order_and_decode(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    bridge = bridges(deployment.kafka)
    deployment.register(one.registration, two.registration)
    until_live(bridge, one, two)
    for _ in range(50):
        one.publish(3)
        two.publish(2)
    deployment.until_logged(one, two)
    for engine in (one, two):
        records = deployment.records(engine.registration.publisher)
        assert isinstance(records[0], RegisteredRecord)
        sequences = [
            (record.first_sequence, record.last_sequence)
            for record in records[1:]
            if isinstance(record, EventsRecord)
        ]
        assert len(sequences) == len(records) - 1
        assert [first for first, _ in sequences] == [0] + [last + 1 for _, last in sequences[:-1]]
    assert digests(deployment.fold()) == truth(one, two)
    assert bridge.stop() == 0
    assert "Traceback" not in bridge.log()


def test_what_was_sent_before_the_registration_is_replayed(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    engine.publish(200)
    deployment.register(engine.registration)
    bridges(deployment.kafka)
    until(lambda: engine.published() == 200, what="200 batches")
    deployment.until_logged(engine)
    fold = deployment.fold()
    assert fold.counters["gaps"] == 0
    assert digests(fold) == truth(engine)
