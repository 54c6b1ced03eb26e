"""`reprise streams` as processes on a real broker: shared, killed, paused, disk or topic lost.

Each time, once quiet: a follower that reads the table topic from its beginning has the digests of a
fresh fold of the events.
"""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from schemas.events import BlockEvent
from schemas.identities import Offset
from schemas.topics import TopicSpec, encode_stream
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.reader import RowReader
from tests.building import STREAM, cleared, events_record, registered_record, registration, stored
from tests.building import removed as removed_event

pytestmark = pytest.mark.timeout(180)

QUIET_S = 90.0
INSTANCES = 6


class Worker:
    """One `reprise streams` with a data directory of its own."""

    def __init__(self, settings: KafkaSettings, data: Path) -> None:
        self.data = data
        self.directory = data.with_name(data.name + ".cwd")  # the working directory
        self.directory.mkdir()
        self._settings = settings
        self._log = data.with_name(data.name + ".stderr")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        settings = self._settings
        command = [sys.executable, "-m", "reprise", "streams", "--kafka", settings.bootstrap]
        command += ["--topic-prefix", settings.topic_prefix, "--data", str(self.data)]
        command += ["--set", f"kafka.events_partitions={settings.events_partitions}"]
        command += ["--set", f"kafka.registry_partitions={settings.registry_partitions}"]
        command += ["--set", "kafka.session_timeout_s=3", "--metrics-port", "0", *options]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, stderr=log, cwd=self.directory)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.process = None
        return code

    def log(self) -> str:
        return self._log.read_text()

    def metric(self, name: str, label: str = "") -> float:
        """The sum over partitions of the metric's samples with the label."""
        with urllib.request.urlopen(self.metrics_url(), timeout=5) as response:
            lines = response.read().decode().splitlines()
        samples = [line for line in lines if line.startswith(name + "{") and label in line]
        return sum(float(line.split()[-1]) for line in samples)

    def metrics_url(self) -> str:
        line = next(line for line in self.log().splitlines() if "Metrics on" in line)
        return line.split("Metrics on ")[1]


class Deployment:
    """Topics of a test's own, and what is known of them."""

    def __init__(self, settings: KafkaSettings, directory: Path) -> None:
        self.settings = settings
        self.directory = directory
        self.workers: list[Worker] = []
        self.sequence = 0
        self._rng = random.Random(4)
        asyncio.run(ensure_topics(settings))

    def worker(self, *options: str) -> Worker:
        worker = Worker(self.settings, self.directory / f"worker-{len(self.workers)}")
        self.workers.append(worker)
        worker.start(*options)
        return worker

    def logs(self) -> str:
        return "\n".join(
            f"== {worker.data.name}\n{worker.log()[-6000:]}" for worker in self.workers
        )

    # Records

    def records(self, rounds: int) -> list[tuple[bytes, bytes]]:
        """Batches of several instances with stores, removals, adapters and a clear now and then."""
        made = []
        for _ in range(rounds):
            sequence = self.sequence
            self.sequence += 1
            for number in range(INSTANCES):
                stream = STREAM._replace(instance_id=f"i{number}")
                first = self._rng.randrange(1, 400)
                lora = self._rng.choice(["", "", "adapter"])
                hashes = range(first, first + 8)
                batch: list[BlockEvent] = [
                    stored(sequence, hashes, range(4 * first, 4 * first + 32), lora_name=lora),
                    removed_event(sequence, [self._rng.randrange(1, 400) for _ in range(3)]),
                ]
                if self._rng.random() < 0.01:
                    batch.append(cleared(sequence))
                record = events_record(sequence, sequence, batch, stream=stream)
                made.append((encode_stream(stream), record))
        return made

    def produce(self, records: list[tuple[bytes, bytes]], *, pause_s: float = 0.0) -> None:
        asyncio.run(self._produce(records, pause_s))

    async def _produce(self, records: list[tuple[bytes, bytes]], pause_s: float) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.settings.bootstrap, acks="all", enable_idempotence=True
        )
        await producer.start()
        try:
            sent = []
            for key, value in records:
                topic = self.settings.topics.events.name
                sent.append(await producer.send(topic, key=key, value=value))
                await asyncio.sleep(pause_s)
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    async def _rows(self, spec: TopicSpec) -> AsyncIterator[tuple[int, int, bytes, bytes | None]]:
        """Everything committed in a topic now: partition, offset, key, value."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.settings.bootstrap,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        parts = [TopicPartition(spec.name, number) for number in range(spec.partitions)]
        await consumer.start()
        try:
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            for _ in range(600):
                if all([await consumer.position(part) >= ends[part] for part in parts]):
                    return
                for part, rows in (await consumer.getmany(timeout_ms=200)).items():
                    for row in rows:
                        yield part.partition, row.offset, row.key, row.value
            raise AssertionError(f"{spec.name} does not end")
        finally:
            await consumer.stop()

    # Truth

    async def _follow(self) -> tuple[RowReader, int]:
        follower = RowReader(open_kernel(1337))
        count = 0
        async for partition, _, key, value in self._rows(self.settings.topics.table):
            follower.put(partition, key, value)
            count += 1
        for partition in range(self.settings.events_partitions):
            follower.caught_up(partition)
        return follower, count

    async def _fresh(self) -> dict[int, Fold]:
        folds = {n: Fold(open_kernel(1337)) for n in range(self.settings.events_partitions)}
        async for partition, offset, _, value in self._rows(self.settings.topics.events):
            folds[partition].apply(Offset(offset), value or b"")
        return folds

    def follower(self) -> RowReader:
        return asyncio.run(self._follow())[0]

    def row_count(self) -> int:
        return asyncio.run(self._follow())[1]

    def check(self) -> RowReader:
        """Waits until every event is covered, then compares with a fresh fold of them."""
        folds = asyncio.run(self._fresh())
        wanted = {number: fold.offset for number, fold in folds.items()}
        deadline = time.monotonic() + QUIET_S
        while True:
            follower = self.follower()
            found = {number: follower.covered(number) for number in wanted}
            if found == wanted:
                break
            assert time.monotonic() < deadline, f"{found}\n{wanted}\n{self.logs()}"
            time.sleep(0.3)
        contexts = sorted(view for fold in folds.values() for view in fold.kernel.contexts())
        assert follower.kernel.contexts() == contexts, self.logs()
        states = {key: state for fold in folds.values() for key, state in fold.publishers.items()}
        assert follower.publishers == states, self.logs()
        ledgers = {key: one for fold in folds.values() for key, one in fold.ledgers.current.items()}
        assert follower.ledgers == ledgers, self.logs()
        return follower


@pytest.fixture
def deployment(kafka_settings: KafkaSettings, tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(kafka_settings, tmp_path)
    yield deployment
    for worker in deployment.workers:
        worker.kill()


def until(done: Callable[[], bool], deployment: Deployment) -> None:
    deadline = time.monotonic() + QUIET_S
    while not done():
        assert time.monotonic() < deadline, deployment.logs()
        time.sleep(0.2)


def test_records_become_rows_and_a_follower_has_the_digests_of_a_fresh_fold(
    deployment: Deployment,
) -> None:
    one = registration("i0")
    deployment.produce([(encode_stream(one.stream), registered_record(one))])
    deployment.produce(deployment.records(50))
    worker = deployment.worker()
    follower = deployment.check()
    assert [known.registration for known in follower.registrations.values()] == [one]
    assert worker.metric("reprise_table_entries") > 0
    assert worker.metric("reprise_fold_records_total", 'outcome="records"') == 50 * INSTANCES + 1
    assert worker.metric("reprise_kernel_blocks_total", 'outcome="stored"') > 0
    health = worker.metrics_url().replace("/metrics", "/health")
    with urllib.request.urlopen(health, timeout=5) as response:
        assert msgspec.json.decode(response.read())["ready"] is True
    assert worker.stop() == 0
    lines = worker.log().splitlines()
    lines = [line for line in lines if "GroupCoordinatorNotAvailable" not in line]  # a new broker's
    assert not [line for line in lines if " ERROR " in line or "Trace" in line]
    assert list(worker.directory.iterdir()) == []


@pytest.mark.smoke
def test_corrupt_and_newer_records_are_skipped_and_named_by_partition_and_offset(
    deployment: Deployment,
) -> None:
    key, good = deployment.records(1)[0]
    newer = good.replace(b"\xa7version\x01", b"\xa7version\x09")
    assert newer != good
    deployment.produce([(key, b"\xc1 not a record"), (key, newer), (key, good)])
    worker = deployment.worker()
    follower = deployment.check()
    assert len(follower.publishers) == 1
    named = [line for line in worker.log().splitlines() if "Cannot use the record at" in line]
    assert len(named) == 2
    assert ":0 (malformed_record)" in named[0]
    assert ":1 (newer_version)" in named[1]


@pytest.mark.smoke
def test_two_workers_share_the_partitions_and_a_third_changes_nothing(
    deployment: Deployment,
) -> None:
    first, second = deployment.worker(), deployment.worker()
    until(lambda: "Opened" in first.log() and "Opened" in second.log(), deployment)
    deployment.produce(deployment.records(40))
    deployment.worker()
    deployment.produce(deployment.records(40))
    deployment.check()


def test_workers_killed_paused_and_robbed_of_their_disks_under_load_miss_and_repeat_nothing(
    deployment: Deployment,
) -> None:
    rng = random.Random(11)
    workers = [deployment.worker(), deployment.worker()]
    for fault in ["kill", "kill", "pause", "stop", "disk", "kill"]:
        deployment.produce(deployment.records(25), pause_s=0.004)
        victim = rng.choice(workers)
        assert victim.process is not None, deployment.logs()
        assert victim.process.poll() is None, deployment.logs()
        if fault == "pause":  # longer than its session: another worker takes what it has
            os.kill(victim.process.pid, signal.SIGSTOP)
            deployment.produce(deployment.records(25), pause_s=0.03)
            os.kill(victim.process.pid, signal.SIGCONT)
            continue
        if fault == "stop":
            assert victim.stop() == 0, deployment.logs()
        victim.kill()
        if fault == "disk":
            shutil.rmtree(victim.data)
        deployment.produce(deployment.records(10), pause_s=0.004)
        victim.start()
    deployment.check()


@pytest.mark.smoke
def test_a_lost_table_topic_is_published_again_from_the_disk(deployment: Deployment) -> None:
    worker = deployment.worker()
    deployment.produce(deployment.records(30))
    deployment.check()
    assert worker.stop() == 0
    asyncio.run(_delete_table(deployment.settings))
    worker.start()
    deployment.check()
    until(lambda: "publish (" in worker.log(), deployment)


def test_a_lost_table_topic_and_disk_are_folded_again_from_the_events(
    deployment: Deployment,
) -> None:
    worker = deployment.worker()
    deployment.produce(deployment.records(30))
    deployment.check()
    worker.kill()
    shutil.rmtree(worker.data)
    asyncio.run(_delete_table(deployment.settings))
    worker.start()
    deployment.check()
    until(lambda: "rebuild (" in worker.log(), deployment)


async def _delete_table(settings: KafkaSettings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([settings.topics.table.name])
        for _ in range(100):
            if settings.topics.table.name not in await admin.list_topics():
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the topic is not deleted")
    finally:
        await admin.close()


async def _compact_eagerly(settings: KafkaSettings) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(2**20),
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "delete.retention.ms": "1000",
        "max.message.bytes": str(8 * 2**20),
    }
    resource = ConfigResource(ConfigResourceType.TOPIC, settings.topics.table.name, configs=configs)
    await admin.start()
    try:
        await admin.alter_configs([resource])
    finally:
        await admin.close()


def test_a_compacted_table_topic_gives_a_cold_follower_the_same_table(
    deployment: Deployment,
) -> None:
    asyncio.run(_compact_eagerly(deployment.settings))
    worker = deployment.worker("--set", "streams.flush_ms=1")
    until(lambda: worker.log().count("Opened") == 2, deployment)
    for _ in range(8):
        deployment.produce(deployment.records(25), pause_s=0.002)

    def is_compacted() -> bool:
        deployment.produce(deployment.records(1))  # a segment ends only where another begins
        written = worker.metric("reprise_table_flushed_rows_total")
        return deployment.row_count() < 0.75 * written

    until(is_compacted, deployment)
    deployment.check()
    worker.kill()
    shutil.rmtree(worker.data)
    worker.start()
    deployment.produce(deployment.records(5))
    deployment.check()
