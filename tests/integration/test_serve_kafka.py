"""Query replicas as processes, on a real broker; the test itself writes what workers would."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import Broker
from query_api.http.health import total_digest
from schemas.codec import decode_publisher
from schemas.identities import StreamKey
from schemas.registration import Registration
from schemas.setting import changed
from schemas.topics import TopicSpec, encode_publisher
from streams.kernel import open_kernel
from streams.table.fold import Fold
from streams.table.rows.format import RowWrite
from tests.building import (
    events_record,
    gap_record,
    heartbeat_record,
    registered_record,
    registration,
    report,
    stored,
)
from tests.fakes import FlushingWorker
from tests.kafka_fixtures import settings_for
from tests.processes import Service, until

TOKENS = list(range(16))


class ReplicaProcess(Service):
    """`reprise serve` on a port of the system's choice."""

    def __init__(self, directory: Path, kafka: KafkaSettings, *options: str) -> None:
        super().__init__(directory / "data")
        self._command = [sys.executable, "-m", "reprise", "serve", "--port", "0"]
        self._command += ["--kafka", kafka.bootstrap, "--topic-prefix", kafka.topic_prefix]
        self._command += ["--set", f"kafka.events_partitions={kafka.events_partitions}"]
        self._command += ["--set", f"kafka.registry_partitions={kafka.registry_partitions}"]
        self._command += ["--data", str(self.data), *options]

    def start(self) -> None:
        """Starts the process and waits until it answers requests; it need not be ready then."""
        environment = os.environ | {"CONDUCTOR_CONFIG_PATH": str(self.data / "none")}
        with self._log_path.open("a") as log:
            self.process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Reprise answers on "), self.log()
        self.base_url = line.split()[3]

    def await_ready(self) -> None:
        until(self.is_ready, what=f"readiness:\n{self.log()}")

    def health(self) -> dict[str, object]:
        document: dict[str, object] = self.get("/health")[1]
        return document

    def ask(self, tokens: list[int] = TOKENS) -> tuple[int, str, str]:
        """Tokens of `a` that match, position and state."""
        body = json.dumps({"model": "m", "block_size": 4, "token_ids": tokens}).encode()
        headers = {"Content-Type": "application/json"}
        status, answer, answered = self.request("POST", "/query", body, headers)
        assert status == 200, answer
        found = json.loads(answer).get("default", {}).get("a", {}).get("longest_matched", -1)
        return found, answered["reprise-position"], answered["reprise-state"]

    def register_one(self, one: Registration) -> tuple[int, dict[str, object]]:
        return self.post(
            "/register",
            {
                "endpoint": one.endpoint,
                "type": "vLLM",
                "modelname": one.model_name,
                "instance_id": one.instance_id,
                "block_size": one.block_size,
                "dp_rank": one.dp_rank,
            },
        )

    def service_names(self) -> list[str]:
        return [one["InstanceID"] for one in self.get("/services")[1]["services"]]

    def await_answer(self, matched: int, position: str, state: str = "unconfirmed") -> None:
        wanted = (matched, position, state)
        until(lambda: self.ask() == wanted, what=f"{wanted}, got {self.ask()}:\n{self.log()}")

    def await_services(self, *names: str) -> None:
        until(lambda: self.service_names() == list(names), what=f"services: {names}")

    def await_log(self, text: str) -> None:
        until(lambda: text in self.log(), what=f"in the log: {text}")


class Worker(FlushingWorker):
    """Stands in for the stream worker of one partition."""

    def __init__(self, settings: KafkaSettings, partition: int, *, table: bytes = b"t1") -> None:
        super().__init__(Fold(open_kernel(1337)), table=table)
        self._settings = settings
        self._partition = partition

    def write(self, *records: bytes) -> None:
        """One flush."""
        self.write_rows(self.flush(*records))

    def write_rows(self, written: list[RowWrite]) -> None:
        entries = [(row.key, row.value) for row in written]
        produce(self._settings, self._settings.topics.table, self._partition, entries)


def produce(
    settings: KafkaSettings,
    topic: TopicSpec,
    partition: int | None,
    entries: list[tuple[bytes, bytes | None]],
) -> None:
    async def send() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=settings.servers, acks="all")
        await producer.start()
        try:
            for key, value in entries:
                await producer.send_and_wait(topic.name, key=key, value=value, partition=partition)
        finally:
            await producer.stop()

    asyncio.run(send())


def consume(settings: KafkaSettings, topic: TopicSpec) -> list[tuple[bytes, bytes | None]]:
    """Everything in a topic."""

    async def read() -> list[tuple[bytes, bytes | None]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=settings.servers)
        await consumer.start()
        try:
            places = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
            consumer.assign(places)
            await consumer.seek_to_beginning()
            ends = await consumer.end_offsets(places)
            found: list[tuple[bytes, bytes | None]] = []
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [(record.key, record.value) for record in records]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


def recreate(settings: KafkaSettings, topic: TopicSpec) -> None:
    """Loses a topic, and makes it again."""

    async def lose() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.servers)
        await admin.start()
        try:
            await admin.delete_topics([topic.name])
            for _ in range(600):  # it goes a moment after the answer
                if topic.name not in await admin.list_topics():
                    break
                await asyncio.sleep(0.05)
        finally:
            await admin.close()
        await ensure_topics(settings)

    asyncio.run(lose())


@pytest.fixture
def settings(kafka_settings: KafkaSettings) -> KafkaSettings:
    asyncio.run(ensure_topics(kafka_settings))
    return kafka_settings


StartReplica = Callable[..., ReplicaProcess]


@pytest.fixture
def start_replica(tmp_path: Path) -> Iterator[StartReplica]:
    running: list[ReplicaProcess] = []

    def start(kafka: KafkaSettings, *options: str) -> ReplicaProcess:
        replica = ReplicaProcess(tmp_path / f"replica-{len(running)}", kafka, *options)
        running.append(replica)
        replica.start()
        return replica

    yield start
    for replica in running:
        replica.kill()


OTHER = StreamKey("default", "m", 4, "", "b")


@pytest.mark.smoke
def test_two_replicas_give_the_answers_positions_and_digest_of_the_fold(
    settings: KafkaSettings, start_replica: StartReplica
) -> None:
    first, second = Worker(settings, 0), Worker(settings, 1)
    first.write(
        registered_record(registration("a")), events_record(0, 0, [stored(0, [1], TOKENS[:4])])
    )
    replicas = [start_replica(settings), start_replica(settings)]
    for replica in replicas:
        replica.await_ready()
        assert replica.ask()[:2] == (4, "0:1,1:-1")
    first.write(events_record(1, 1, [stored(1, [2, 3], TOKENS[4:12], parent=1)]))
    second.write(events_record(0, 0, [stored(0, [7], TOKENS[:4])], stream=OTHER))
    for replica in replicas:
        replica.await_answer(12, "0:2,1:0")
        assert replica.query(TOKENS, block_size=4)["b"]["longest_matched"] == 4
        digest = replica.digest()
        folded = [*first.fold.kernel.contexts(), *second.fold.kernel.contexts()]
        assert digest["digest"] == total_digest(folded)
        assert digest["position"] == "0:2,1:0"
        assert replica.metric("reprise_table_folded_offset", partition="0") == 2.0
        assert replica.metric("reprise_publisher_folded_sequence", instance="a") == 1.0


def test_the_state_is_exact_where_all_is_covered_degraded_after_a_gap_and_stale_in_time(
    settings: KafkaSettings, start_replica: StartReplica
) -> None:
    worker = Worker(settings, 0)
    records = [
        registered_record(registration("a")),
        events_record(0, 0, [stored(0, [1], TOKENS[:4])]),
    ]
    worker.write(*records)
    produce(settings, settings.topics.events, 0, [(b"k", record) for record in records])
    replica = start_replica(settings)
    replica.await_ready()
    replica.await_answer(4, "0:1,1:-1")
    assert replica.register_one(registration("a"))[0] == 200
    began = time.monotonic()

    def is_exact() -> bool:
        beat = heartbeat_record("b1", time.monotonic() - began, [report(registration("a"))])
        produce(settings, settings.topics.events, 0, [(b"k", beat)])
        worker.write(beat)
        return replica.ask()[2] == "exact"

    until(is_exact, what="the heartbeats of its bridge confirm the publisher")
    until(lambda: replica.ask()[2] == "unconfirmed", what="there are no more heartbeats")
    assert replica.health()["lag"] == {
        "table_records": 0,
        "source_records": 0,
        "seconds": 0.0,
        "reachable": True,
    }
    worker.write(gap_record(1, 3))
    until(lambda: replica.ask()[2] == "degraded", what="the gap")
    produce(settings, settings.topics.events, 1, [(b"k", b"record")] * 3)
    until(lambda: replica.metric("reprise_source_lag_records") == 3.0, what="the lag in records")
    until(lambda: replica.metric("reprise_table_lag_seconds") > 0, what="the lag in seconds")
    until(lambda: replica.ask()[2] == "stale", what="staleness without a worker")

    def found() -> list[str]:
        return [one["code"] for one in replica.get("/doctor")[1]["findings"]]

    until(lambda: "behind" in found(), what="the doctor's finding")
    assert replica.stop() == 0


def test_a_replica_without_a_broker_is_not_ready_says_why_and_starts_once_there_is_one(
    own_broker: Broker, start_replica: StartReplica
) -> None:
    settings = settings_for(own_broker)
    asyncio.run(ensure_topics(settings))
    Worker(settings, 0).write(
        registered_record(registration("a")), events_record(0, 0, [stored(0, [1], TOKENS[:4])])
    )
    own_broker.kill()
    replica = start_replica(settings)
    status, document = replica.get("/ready")
    assert (status, document["reason"]) == (503, "recovering")

    def is_named() -> bool:
        return own_broker.bootstrap in replica.get("/ready")[1]["error"]

    until(is_named, what="the first attempt has failed, and the broker is named")
    status, document = replica.post("/query", {"model": "m", "block_size": 4, "token_ids": TOKENS})
    assert (status, document["reason"]) == (503, "recovering")
    assert replica.register_one(registration("a"))[0] == 503
    own_broker.start()
    replica.await_ready()
    assert replica.ask()[0] == 4


def test_a_replica_answers_stale_while_the_broker_is_dead_and_goes_on_once_it_is_back(
    own_broker: Broker, start_replica: StartReplica
) -> None:
    settings = settings_for(own_broker)
    asyncio.run(ensure_topics(settings))
    worker = Worker(settings, 0)
    worker.write(
        registered_record(registration("a")), events_record(0, 0, [stored(0, [1], TOKENS[:4])])
    )
    replica = start_replica(settings)
    replica.await_ready()
    replica.await_answer(4, "0:1,1:-1")
    own_broker.kill()
    replica.await_answer(4, "0:1,1:-1", "stale")
    assert replica.is_ready()
    assert own_broker.bootstrap in str(replica.health()["problem"])
    assert replica.metric("reprise_kafka_reachable") == 0.0
    status, document = replica.register_one(registration("a"))
    assert (status, document["reason"]) == (503, "storage")
    own_broker.start()
    worker.write(events_record(1, 1, [stored(1, [2], TOKENS[4:8], parent=1)]))
    replica.await_answer(8, "0:2,1:-1")
    until(lambda: replica.health()["problem"] == "", what="no problem with the routing log either")
    assert replica.register_one(registration("a"))[0] == 200


def test_a_broker_that_falls_silent_makes_answers_stale(
    own_broker: Broker, start_replica: StartReplica
) -> None:
    settings = settings_for(own_broker)
    replica = start_replica(settings)
    replica.await_ready()
    own_broker.pause()
    until(lambda: replica.ask()[2] == "stale", what="stale answers")
    own_broker.resume()
    until(lambda: replica.ask()[2] == "exact", what="exact answers again")


def test_a_registration_at_one_replica_is_in_the_topic_and_seen_by_all(
    settings: KafkaSettings, start_replica: StartReplica
) -> None:
    replicas = [start_replica(settings), start_replica(settings)]
    for replica in replicas:
        replica.await_ready()
    one = registration("a")
    for _ in range(2):
        assert replicas[0].register_one(one) == (
            200,
            {"status": "registered successfully", "instance_id": "a"},
        )
    entries = consume(settings, settings.topics.registry)
    assert [
        (key, msgspec.msgpack.decode(value or b"", type=Registration)) for key, value in entries
    ] == [(encode_publisher(one.publisher), one)]
    assert replicas[0].service_names() == ["a"]
    replicas[1].await_services("a")
    service = replicas[1].get("/services")[1]["services"][0]
    assert (service["Endpoint"], service["Connected"], service["Sequence"]) == (
        one.endpoint,
        None,
        -1,
    )
    status, answer = replicas[1].register_one(registration("b"))
    assert (status, str(answer["error"]).partition(". GET /services")[0]) == (
        400,
        f"conflicting active registration for endpoint: {one.endpoint}",
    )
    assert replicas[1].register_one(registration("c", port=0))[0] == 400
    target = {"instance_id": "a", "dp_rank": 0}
    status, answer = replicas[1].post("/unregister", target)
    assert (status, answer["removed_instances"]) == (200, ["a|default|0"])
    key, value = consume(settings, settings.topics.registry)[-1]
    assert (decode_publisher(key), value) == (one.publisher, None)
    replicas[0].await_services()
    status, answer = replicas[0].post("/unregister", target)
    text = "service not found: a|default|0. GET /services lists what is registered"
    assert (status, answer["error"]) == (404, text)


def test_a_registration_right_behind_what_another_replica_was_told_is_not_lost(
    settings: KafkaSettings, start_replica: StartReplica
) -> None:
    replicas = [start_replica(settings), start_replica(settings)]
    for replica in replicas:
        replica.await_ready()
    one = registration("a")
    assert replicas[0].register_one(one)[0] == 200
    target = {"instance_id": "a", "dp_rank": 0}
    for number in range(20):
        here, there = replicas[number % 2], replicas[1 - number % 2]
        assert here.post("/unregister", target)[0] == 200, number
        # The same again, or another under its name.
        one = one if number % 3 else registration("a", port=5100 + number)
        assert there.register_one(one)[0] == 200, number
    for replica in replicas:
        replica.await_services("a")
        assert replica.get("/services")[1]["services"][0]["Endpoint"] == one.endpoint


@pytest.mark.smoke
def test_a_table_topic_that_was_lost_is_read_anew_while_the_old_table_answers(
    settings: KafkaSettings, start_replica: StartReplica
) -> None:
    worker = Worker(settings, 0)
    records = [
        registered_record(registration("a")),
        events_record(0, 0, [stored(0, [1], TOKENS[:4])]),
    ]
    for record in records:
        worker.write(record)
    replica = start_replica(settings)
    replica.await_ready()
    assert replica.ask()[:2] == (4, "0:1,1:-1")
    recreate(settings, settings.topics.table)
    until(lambda: replica.metric("reprise_table_rebuilds_total") >= 1.0, what="the rebuilding")
    again = Worker(settings, 0, table=b"t2")
    again.write(*records, events_record(1, 1, [stored(1, [2], TOKENS[4:8], parent=1)]))
    replica.await_answer(8, "0:2,1:-1")


def test_publishers_of_the_configuration_file_are_registered_where_missing(
    settings: KafkaSettings, start_replica: StartReplica, tmp_path: Path
) -> None:
    config = tmp_path / "conductor.json"
    entry = {"type": "vLLM", "modelname": "m", "block_size": 16, "dp_rank": 0}
    entries = {"node1": entry | {"endpoint": "tcp://127.0.0.1:5557"}}
    entries["node2"] = entry | {"endpoint": "tcp://127.0.0.1:5557"}
    config.write_text(json.dumps({"kvevent_instance": entries}))
    for _ in range(2):
        replica = start_replica(settings, "--config", str(config))
        replica.await_ready()
        replica.await_services("node1")
        replica.await_log("Cannot register the configured publisher node2|default|0")
    assert len(consume(settings, settings.topics.registry)) == 1


def test_a_topic_of_the_wrong_shape_ends_the_start_with_a_clear_error(
    settings: KafkaSettings, tmp_path: Path
) -> None:
    wrong = changed(settings, events_partitions=3)
    replica = ReplicaProcess(tmp_path / "wrong", wrong)
    replica.start()
    assert replica.process is not None
    assert replica.process.wait(30) == 1
    assert f"got `2` in topic: {settings.topics.events.name}" in replica.log()
    replica.kill()
