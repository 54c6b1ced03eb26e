"""Bridges as processes between real publishers and a real broker."""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from bridge.sequencing.sequencer import Sequencer
from bridge.sockets.raw_message import RawMessage
from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import Broker
from schemas.codec import decode_record
from schemas.identities import ModelContext, Offset, PublisherKey
from schemas.records import (
    EventsRecord,
    GapRecord,
    Record,
    RegisteredRecord,
    ResetRecord,
    UnregisteredRecord,
    encode_record,
)
from schemas.registration import PublisherKind, Registration
from schemas.topics import encode_publisher, encode_registration, encode_stream
from simulation.engines.cache import CacheSizes, EngineCache, Offload
from simulation.engines.publisher import Publisher, PublisherOptions
from streams.kernel import open_kernel
from streams.table.fold import DUPLICATE, Fold
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
        self._published = 0
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
            self._published += 1

    def messages(self) -> list[RawMessage]:
        return [
            RawMessage(self.registration.publisher, [b"", number.to_bytes(8, "big"), payload], 0.0)
            for number, payload in list(self.publisher._buffer)
        ]

    def published(self) -> int:
        """Batches of this life; the publisher numbers them a moment later."""
        return self._published

    def restart(self) -> None:
        """A new process at the same addresses, with an empty cache."""
        self._published = 0
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

    def write_events(self, *entries: tuple[bytes, bytes | None]) -> None:
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
            skipped = fold.apply(Offset(place), encode_record(one.record))
            assert skipped is None or skipped.reason == DUPLICATE
        return fold


def digests(fold: Fold) -> dict[ModelContext, int]:
    return {view.context: view.digest for view in fold.kernel.contexts() if view.digest}


def truth(*engines: Engine) -> dict[ModelContext, int]:
    """The digests of a fold of what the engines published in this life, nothing lost."""
    fold = Fold(open_kernel(1337))
    sequencer = Sequencer()
    offset = 0
    for engine in engines:
        sequencer.add(engine.registration)
        for record in sequencer.process(engine.messages(), 0.0):
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
    until(lambda: engine.publisher.published == 200, what="200 batches")
    deployment.register(engine.registration)
    bridges(deployment.kafka)
    deployment.until_logged(engine)
    fold = deployment.fold()
    assert fold.counters["gaps"] == 0
    assert digests(fold) == truth(engine)


class Load:
    """Some hundred batches a second, over all engines."""

    def __init__(self, *engines: Engine, pause_s: float = 0.004) -> None:
        self._engines = engines
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            for one in self._engines:
                one.publish()

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def go_on_for(self, batches: int) -> None:
        """Waits until each engine has published that many more."""
        goals = {one: one.published() + batches for one in self._engines}
        until(
            lambda: all(one.published() >= goal for one, goal in goals.items()),
            what="more batches",
        )


def assert_exact(deployment: Deployment, *engines: Engine) -> Fold:
    fold = deployment.fold()
    assert (fold.counters["gaps"], fold.counters["log_holes"]) == (0, 0)
    assert digests(fold) == truth(*engines)
    return fold


def shares(*bridges: BridgeProcess) -> list[set[str]]:
    return [set(bridge.states()) for bridge in bridges]


def until_shared(first: BridgeProcess, second: BridgeProcess, *engines: Engine) -> None:
    names = {one.registration.instance_id for one in engines}

    def holds() -> bool:
        one, two = shares(first, second)
        return bool(one and two) and one | two == names and not one & two

    until(holds, what=f"the bridges share the publishers:\n{first.log()}\n{second.log()}")


def test_two_bridges_share_the_publishers_and_a_killed_one_is_replaced_without_a_gap(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    ones = [engines(name) for name in "abcdefgh"]
    deployment.register(*(one.registration for one in ones))
    first, second = bridges(deployment.kafka), bridges(deployment.kafka)
    until_shared(first, second, *ones)
    with Load(*ones) as load:
        load.go_on_for(50)
        first.kill()
        load.go_on_for(100)
        until_live(second, *ones)
        load.go_on_for(50)
        first.start()
        until_shared(first, second, *ones)
        load.go_on_for(20)
        second.kill()
        load.go_on_for(20)
    until_live(first, *ones)
    deployment.until_logged(*ones)
    assert_exact(deployment, *ones)


def test_a_rebalance_and_a_stop_under_load_lose_nothing_where_engines_cannot_replay(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    """The bridge that keeps a publisher keeps its socket, whatever happens in the group."""
    ones = [engines(name, replay=False) for name in "ab"]
    deployment.register(*(one.registration for one in ones))
    first = bridges(deployment.kafka)
    until_live(first, *ones)
    kafka = deployment.kafka
    with Load(*ones) as load:
        load.go_on_for(20)
        # A member that is given nothing: it has no partition to own.
        others = [bridges(kafka) for _ in range(kafka.registry_partitions)]
        until(lambda: sum(bool(share) for share in shares(first, *others)) >= 1, what="a share")
        load.go_on_for(50)
        for other in others:
            other.kill()
        load.go_on_for(50)
    until_live(first, *ones)
    for one in ones:
        one.publish()
    deployment.until_logged(*ones)
    fold = deployment.fold()
    assert fold.counters["log_holes"] == 0


def test_a_bridge_that_was_paused_past_its_session_writes_nothing_out_of_order(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    ones = [engines(name) for name in "abcdefgh"]
    deployment.register(*(one.registration for one in ones))
    first = bridges(deployment.kafka)
    until_live(first, *ones)
    with Load(*ones) as load:
        load.go_on_for(30)
        second = bridges(deployment.kafka)
        until_shared(first, second, *ones)
        first.signal(signal.SIGSTOP)
        until_live(second, *ones)
        load.go_on_for(50)
        first.signal(signal.SIGCONT)
        load.go_on_for(50)
        until_shared(first, second, *ones)
        load.go_on_for(20)
    deployment.until_logged(*ones)
    assert_exact(deployment, *ones)


def test_an_engine_that_restarted_while_no_bridge_ran_is_reset_and_exact(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    """The new life has more batches than the log: its numbers alone would look like a gap."""
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(20)
    deployment.until_logged(engine)
    assert bridge.stop() == 0
    engine.restart()
    engine.publish(60)
    bridge.start()
    deployment.until_logged(engine)
    fold = assert_exact(deployment, engine)
    assert fold.counters["resets"] == 1
    assert deployment.cursor(engine) == (2, 59)


def test_a_restart_under_a_bridge_is_a_reset(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(20)
    deployment.until_logged(engine)
    engine.restart()
    engine.publish(5)
    until(lambda: deployment.cursor(engine) == (2, 4), what="the new life")
    assert_exact(deployment, engine)


def test_lost_live_messages_are_replayed_and_the_others_wait_for_nothing(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    deployment.register(one.registration, two.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, one, two)
    for _ in range(10):
        one.publish(5)
        one.publish(3, lost=True)
        two.publish(4)
    one.publish()
    deployment.until_logged(one, two)
    assert_exact(deployment, one, two)
    assert bridge.metric("reprise_bridge_replayed_batches_total") >= 30


def own_deployment(broker: Broker) -> Deployment:
    return Deployment(
        KafkaSettings(
            bootstrap=broker.bootstrap,
            topic_prefix="away",
            events_partitions=2,
            registry_partitions=2,
        )
    )


@pytest.mark.slow
def test_what_comes_while_kafka_is_away_is_spooled_and_drained_in_order(
    own_broker: Broker, engines: Engines, bridges: Bridges
) -> None:
    deployment = own_deployment(own_broker)
    ones = [engines(name, replay=False) for name in "ab"]
    deployment.register(*(one.registration for one in ones))
    bridge = bridges(deployment.kafka)
    until_live(bridge, *ones)
    with Load(*ones) as load:
        load.go_on_for(30)
        own_broker.kill()
        load.go_on_for(100)
        until(lambda: bridge.health()["spool_records"] > 20, what="records in the spool")
        assert bridge.health()["problem"]
        load.go_on_for(100)
        own_broker.start()
        load.go_on_for(100)
    deployment.until_logged(*ones)
    until(lambda: bridge.health()["spool_records"] == 0, what="an empty spool")
    until(lambda: bridge.health()["problem"] == "", what="no problem")
    assert_exact(deployment, *ones)


@pytest.mark.slow
def test_the_spool_survives_a_bridge_that_is_killed_while_kafka_is_away(
    own_broker: Broker, engines: Engines, bridges: Bridges
) -> None:
    deployment = own_deployment(own_broker)
    engine = engines("a", replay=False)
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    with Load(engine) as load:
        load.go_on_for(30)
        own_broker.kill()
        load.go_on_for(200)
    until(lambda: bridge.states()["a"] == "spooling", what="spooling")
    until(
        lambda: bridge.health()["publishers"][0]["sequence"] == engine.published() - 1, what="all"
    )
    until(lambda: bridge.health()["queue_bytes"] == 0, what="an empty queue")
    bridge.kill()
    bridge.start()
    own_broker.start()
    until_live(bridge, engine)
    deployment.until_logged(engine)
    engine.publish(5)
    deployment.until_logged(engine)
    fold = assert_exact(deployment, engine)
    assert fold.counters["resets"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("replay", [False, True])
def test_what_the_spool_has_no_room_for_is_a_gap_of_exactly_that_or_is_replayed(
    own_broker: Broker, engines: Engines, bridges: Bridges, replay: bool
) -> None:
    deployment = own_deployment(own_broker)
    engine = engines("a", replay=replay)
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka, "--spool-gib", str(40_000 / 2**30))
    until_live(bridge, engine)
    with Load(engine) as load:
        load.go_on_for(30)
        own_broker.kill()
        load.go_on_for(50)
        until(lambda: bridge.states()["a"] == "dropping", what="a full spool")
        load.go_on_for(50)
    own_broker.start()
    if replay:
        deployment.until_logged(engine)
        assert_exact(deployment, engine)
        return
    until(lambda: bridge.states()["a"] == "live", what="room in the spool")
    engine.publish(3)
    deployment.until_logged(engine)
    records = deployment.records(engine.registration.publisher)
    sequenced = [one for one in records if isinstance(one, EventsRecord | GapRecord)]
    assert sum(isinstance(one, GapRecord) for one in sequenced) == 1
    ends = [-1, *(one.last_sequence for one in sequenced)]
    assert [one.first_sequence for one in sequenced] == [end + 1 for end in ends[:-1]]
    dropped = bridge.metric("reprise_bridge_dropped_total", reason="spool_full")
    assert dropped > 0


def test_a_tombstone_unregisters_and_a_later_registration_begins_a_new_incarnation(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    publisher = engine.registration.publisher
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(10)
    deployment.until_logged(engine)
    deployment.unregister(engine.registration)
    until(
        lambda: isinstance(deployment.records(publisher)[-1], UnregisteredRecord),
        what="the unregistered record",
    )
    assert digests(deployment.fold()) == {}
    assert bridge.health()["publishers"] == []
    deployment.register(engine.registration)
    until_live(bridge, engine)
    engine.publish(10)
    until(lambda: deployment.cursor(engine) == (2, 19), what="a new incarnation")
    assert_exact(deployment, engine)


def test_a_tombstone_that_came_while_no_bridge_ran_is_found(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    deployment.register(one.registration, two.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, one, two)
    one.publish(5)
    two.publish(5)
    deployment.until_logged(one, two)
    assert bridge.stop() == 0
    deployment.unregister(one.registration)
    bridge.start()
    until(
        lambda: isinstance(deployment.records(one.registration.publisher)[-1], UnregisteredRecord),
        what="the unregistered record",
    )
    until_live(bridge, two)
    assert digests(deployment.fold()) == truth(two)


def test_unusable_entries_are_named_and_the_rest_goes_on(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    one, two = engines("a"), engines("b")
    deployment.write_registry(
        (b"\xc1", b"what?"),
        (encode_publisher(two.registration.publisher), b"\x00"),
        (encode_publisher(two.registration.publisher), encode_registration(one.registration)),
    )
    deployment.register(one.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, one)
    assert set(bridge.states()) == {"a"}
    named = re.findall(
        r"Skipping the entry in \S+\.registry, partition \d+, offset \d+", bridge.log()
    )
    assert len(named) == 3
    deployment.register(two.registration)
    until_live(bridge, one, two)
    two.publish(5)
    deployment.until_logged(two)


def test_a_broken_record_in_the_log_does_not_keep_a_bridge_from_taking_over(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(5)
    deployment.until_logged(engine)
    bridge.kill()
    deployment.write_events((encode_stream(engine.registration.stream), b"\xc1"))
    bridge.start()
    until_live(bridge, engine)
    engine.publish(5)
    until(
        lambda: bridge.metric("reprise_bridge_written_records_total") >= 1, what="written records"
    )
    assert "Skipping the message" in bridge.log()
    assert bridge.metric("reprise_bridge_gaps_total") == 0


def test_a_stopped_bridge_leaves_at_once_and_the_next_one_writes_nothing_twice(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a", replay=False)
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka)
    until_live(bridge, engine)
    engine.publish(50)
    deployment.until_logged(engine)
    assert bridge.stop() == 0
    bridge.start()
    until_live(bridge, engine)
    engine.publish(5)
    deployment.until_logged(engine)
    fold = assert_exact(deployment, engine)
    assert fold.counters["duplicate_records"] == 0
    kinds = [type(one) for one in deployment.records(engine.registration.publisher)]
    assert kinds.count(RegisteredRecord) == 1
    assert ResetRecord not in kinds


def test_without_a_window_each_message_is_a_record_of_its_own_soon(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    engine = engines("a")
    deployment.register(engine.registration)
    bridge = bridges(deployment.kafka, "--window-ms", "0")
    until_live(bridge, engine)
    engine.publish(20)
    deployment.until_logged(engine)
    assert_exact(deployment, engine)


def test_a_bridge_without_kafka_says_so_and_stops_when_it_is_told(
    tmp_path: Path, bridges: Bridges
) -> None:
    bridge = bridges(KafkaSettings(bootstrap="127.0.0.1:9"))
    assert bridge.health()["problem"]
    assert bridge.stop() == 0
