"""Bytes that nobody can use, in every topic at once, before the roles start and while they run."""

import asyncio
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.clients import partition_of
from schemas.positions import PublisherState
from schemas.records import NEWEST_VERSION, EventsRecord, ResetRecord, encode_record
from schemas.registration import PublisherKind, Registration
from schemas.topics import (
    TopicSpec,
    encode_publisher,
    encode_registration,
    encode_stream,
)
from streams.table.rows import format as rows
from streams.table.rows.format import RowKind
from tests.deployment import (
    Deployment,
    answers_are_right,
    digests_by_fold,
    digests_of,
    fresh_fold,
    held_by_fold,
    states_of,
)
from tests.kafka_fixtures import Kafka, own_topics
from tests.load import Engine, Load
from tests.processes import until

pytestmark = pytest.mark.timeout(300)

INVALID_UTF8 = b"\xa4\xff\xfe\xfd\xfc"
DEEP = b"\x91" * 20_000
HOSTILE = (-1, 0, 2**31, 2**63, 2**64 - 1)


class Message(NamedTuple):
    """One message to write."""

    topic: TopicSpec
    key: bytes
    value: bytes | None


def registration(engine: Engine) -> Registration:
    fields = engine.registration()
    return Registration(
        endpoint=str(fields["endpoint"]),
        kind=PublisherKind("vLLM"),
        model_name="m",
        instance_id=engine.instance_id,
        block_size=16,
        replay_endpoint=str(fields["replay_endpoint"]),
    )


def poisoned_map(valid: bytes, **fields: object) -> bytes:
    """A map with other values under right keys."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(valid) | fields)


class Poison:
    """What is written of one engine's publisher, under its right key, and under keys of nobody.

    Attributes:
        seed: the random bytes follow from it.
    """

    def __init__(self, kafka: KafkaSettings, engine: Engine, seed: int) -> None:
        self._topics = kafka.topics
        self._random = random.Random(seed)
        self._registration = registration(engine)

    def _values(self, valid: bytes, numbers: Sequence[str]) -> list[bytes]:
        """Values of which none can be used."""
        return [
            INVALID_UTF8,
            DEEP,
            b"",
            self._random.randbytes(60).replace(b"\x80", b"\xc1"),
            valid[:-1],
            msgspec.msgpack.encode({"version": NEWEST_VERSION + 1, "kind": "novelty"}),
            *(poisoned_map(valid, **{name: 2**64 - 1}) for name in numbers),
        ]

    def registry(self) -> list[Message]:
        topic, one = self._topics.registry, self._registration
        valid, key = encode_registration(one), encode_publisher(one.publisher)
        other = msgspec.structs.replace(one, instance_id="another")
        values = self._values(valid, ["block_size"])
        values += [poisoned_map(valid, dp_rank=rank) for rank in (-1, 2**31)]
        values += [poisoned_map(valid, model_name="x" * 900_000), poisoned_map(valid, block_size=0)]
        values += [encode_registration(other)]
        keys = [b"\xc1", b"\x92\x95" + INVALID_UTF8, DEEP, self._random.randbytes(9) + b"\xc1"]
        return [
            *(Message(topic, key, value) for value in values),
            *(Message(topic, bad, valid) for bad in keys),
        ]

    def cursors(self) -> list[Message]:
        topic, key = self._topics.cursors, encode_publisher(self._registration.publisher)
        note = {"incarnation": 1, "sequence": 3, "partition": 0, "offset": 5}
        valid = msgspec.msgpack.encode(note)
        values = self._values(valid, list(note))
        values += [poisoned_map(valid, offset=-5), poisoned_map(valid, engine_time=float("nan"))]
        return [
            *(Message(topic, b"\x92\x95" + INVALID_UTF8, value) for value in (valid, b"")),
            # The last note of the publisher is none: its records are read from the beginning.
            *(Message(topic, key, value) for value in values),
        ]

    def events(self) -> list[Message]:
        topic, stream = self._topics.events, self._registration.stream
        valid = encode_record(
            EventsRecord(
                stream=stream,
                dp_rank=0,
                bridge_time=1.0,
                incarnation=1,
                first_sequence=0,
                last_sequence=0,
                engine_time=1.0,
                events=msgspec.Raw(b"\x90"),
            )
        )
        reset = ResetRecord(
            stream=stream,
            dp_rank=0,
            bridge_time=1.0,
            incarnation=2**63,
            first_sequence=-1,
            last_sequence=-1,
        )
        values = self._values(valid, ["dp_rank", "incarnation", "first_sequence", "last_sequence"])
        values += [poisoned_map(valid, engine_time=float("nan")), encode_record(reset)]
        values += [poisoned_map(valid, first_sequence=9), poisoned_map(valid, dp_rank=-1)]
        values += [poisoned_map(valid, reason=1, events=[{"type": "stored", "sequence": "x"}])]
        return [Message(topic, encode_stream(stream), value) for value in values]

    def table(self) -> list[Message]:
        topic, publisher = self._topics.table, self._registration.publisher
        key = rows.publisher_key(rows.PUBLISHER, publisher)
        state = msgspec.msgpack.encode(PublisherState(incarnation=1, sequence=3))
        bodies = [INVALID_UTF8, DEEP, b"", *(poisoned_map(state, sequence=n) for n in HOSTILE[3:])]
        intact = rows.encode_row(RowKind.DELTA, 0, state)
        bare = self._random.randbytes(50)
        values = [bare, intact[:-1], *(rows.encode_row(RowKind.DELTA, 0, one) for one in bodies)]
        keys = [b"", b"?", b"C" + bare, b"P\x00\x05" + INVALID_UTF8, b"R\x00\x00"]
        far = b"\0" * 8 + (2**63 - 1).to_bytes(8, "little")
        far = b"\x01\0\0\0" + zlib.crc32(far[8:]).to_bytes(4, "little") + far[8:]
        # Of another publisher, whose rows nobody waits for: a replica may not believe that this
        # one has no state.
        strange = publisher._replace(stream=publisher.stream._replace(instance_id="strange"))
        key = rows.publisher_key(rows.PUBLISHER, strange)
        return [
            *(Message(topic, key, value) for value in (*values, far)),
            *(Message(topic, bad, intact) for bad in keys),
        ]

    def messages(self) -> list[Message]:
        return [*self.registry(), *self.cursors(), *self.events(), *self.table()]


def write(kafka: KafkaSettings, messages: Sequence[Message]) -> None:
    asyncio.run(_write(kafka, messages))


async def _write(kafka: KafkaSettings, messages: Sequence[Message]) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.servers, acks="all", max_request_size=8 * 2**20
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic.name, value, key=key, partition=partition_of(key, topic.partitions)
            )
            for topic, key, value in messages
        ]
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


@pytest.fixture
def poisoned(tmp_path: Path, kafka: Kafka) -> Iterator[Deployment]:
    with own_topics(kafka) as prefix:
        settings = KafkaSettings(
            bootstrap=kafka.bootstrap,
            topic_prefix=prefix,
            events_partitions=2,
            registry_partitions=2,
        )
        # The broker is the session's: nothing here kills it.
        opened = Deployment(tmp_path, settings, kafka.broker)  # type: ignore[arg-type]
        yield opened
        opened.end()


def check_arrived(deployment: Deployment, load: Load, *, what: str) -> None:
    """All that the engines hold is in the log, in a fresh fold, and in every replica's answers."""
    truth = {engine.instance_id: engine.held() for engine in load.engines}

    def everything_arrived() -> bool:
        fold = fresh_fold(deployment.kafka).fold
        return held_by_fold(fold) == truth and all(
            digests_of(replica) == digests_by_fold(fold) for replica in deployment.replicas
        )

    deployment.until(everything_arrived, what=what)
    assert answers_are_right(deployment, load), deployment.report()


def test_poison_in_every_topic_stops_nothing(poisoned: Deployment, seed: int) -> None:
    deployment, kafka = poisoned, poisoned.kafka
    engines = [Engine("engine-0"), Engine("engine-1")]
    load = Load(seed, engines)
    sources = [Poison(kafka, engine, seed + number) for number, engine in enumerate(engines)]
    try:
        write(kafka, [one for source in sources for one in source.messages()])
        for role in deployment.roles:
            role.start()
        for replica in deployment.replicas:
            until(replica.is_ready, what=f"{replica.name} ready", timeout_s=60)
        # A good registration under a key whose entries were none, through a replica.
        deployment.replicas[0].post("/register", engines[0].registration())
        for number in range(40):
            engines[0].serve(load.prompt(number))
        only = Load(seed, engines[:1])
        check_arrived(deployment, only, what=f"what came after the poison, seed {seed}")
        # While they run, and a bridge takes over what is poisoned.
        write(kafka, [one for source in sources for one in source.messages()[1:]])
        deployment.replicas[1].post("/register", engines[1].registration())
        deployment.bridges[0].kill()
        deployment.workers[0].kill()
        for number in range(40, 80):
            engines[0].serve(load.prompt(number))
            engines[1].serve(load.prompt(number))
        check_arrived(deployment, load, what=f"what came between the poison, seed {seed}")
        for engine in engines:  # a replay confirms nobody before something has come live
            engine.serve(load.prompt(98))
        check_arrived(deployment, load, what=f"what came live, seed {seed}")
        check_what_is_said(deployment, load)
        # A worker opens its tables again where somebody else has written one, and no more than so.
        restarts = deployment.workers[1].metric("reprise_worker_restarts_total")
        for engine in engines:
            engine.serve(load.prompt(99))
        check_arrived(deployment, load, what=f"what came after all, seed {seed}")
        assert deployment.workers[1].metric("reprise_worker_restarts_total") == restarts
    finally:
        load.close()


def check_what_is_said(deployment: Deployment, load: Load) -> None:
    """Nobody is unwell, or met anything unexpected; and what was skipped is counted."""
    bridge, worker = deployment.bridges[1], deployment.workers[1]
    deployment.until(
        lambda: states_of(deployment, load) <= {"exact", "degraded"}, what="no answer is stale"
    )
    assert bridge.metric("reprise_bridge_unusable_entries_total") > 30
    assert worker.metric("reprise_worker_records_total", outcome="skipped_malformed_record") > 10
    assert worker.metric("reprise_worker_records_total", outcome="skipped_newer_version") > 0
    for replica in deployment.replicas:
        assert replica.metric("reprise_registry_skipped_total") > 30
        assert "Cannot use a row of the table (corrupt_rows)" in replica.output()
    for role in (bridge, worker, *deployment.replicas):
        assert role.health()["conditions"] == [], role.name
        assert role.metric("reprise_internal_errors_total") == 0, role.name
        assert "Traceback" not in role.output(), role.output()[-4000:]
