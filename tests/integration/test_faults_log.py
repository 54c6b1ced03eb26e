"""What may stand in the events topic besides each batch once: two bridges that write at the same
time, and records that came again, came late or are none.
"""

import asyncio
import random
import re
import struct
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker
from schemas.codec import decode_log_record
from schemas.errors import RecordError
from schemas.records import EventsRecord, encode_record
from streams.table.fold import DUPLICATE
from tests.deployment import (
    SESSION_S,
    Deployment,
    Logged,
    Place,
    answers_are_right,
    check_once_quiet,
    query_for,
    read_events,
    states_of,
)
from tests.load import Load
from tests.roles import Role

pytestmark = pytest.mark.timeout(600)

# Two bridges of one group never write the same publisher for long. No setting names a group of
# its own, so this one has to be told.
OTHER_GROUP = """
from reprise.cli.main import main
from brokers.broker_settings import KafkaSettings
KafkaSettings.group = lambda self, role: f"{self.topic_prefix}.other-{role}"
main()
"""


def publishers_of(bridge: Role) -> set[str]:
    """The instances that it is subscribed to now."""
    found = bridge.health()["publishers"]
    return {one["registration"]["instance_id"] for one in found if one["connected"]}


# Two bridges


def follows(bridge: Role, instances: set[str]) -> bool:
    return publishers_of(bridge) == instances


def test_bridges_that_wake_after_another_has_taken_over_write_nothing_twice(
    deployment: Deployment, load: Load, seed: int
) -> None:
    rng = random.Random(seed)
    deployment.start(load)
    everyone = {engine.instance_id for engine in load.engines}
    first, second = rng.sample(deployment.bridges, 2)
    for zombie, other in [(first, second), (second, first)] * 2:
        zombie.pause()
        deployment.until(partial(follows, other, everyone), what=f"{other.name} takes over")
        deployment.until_moving()
        zombie.resume()  # it is subscribed yet, and has what the engines sent meanwhile
        deployment.until_moving()
    check_once_quiet(deployment, load, seed=seed)


@pytest.fixture
def intruder(tmp_path: Path, deployment_settings: KafkaSettings) -> Iterator[Role]:
    """A third bridge, which shares with the two others nothing but the topics."""
    options = ("--set", f"kafka.session_timeout_s={SESSION_S}")
    data = tmp_path / "bridge-3"
    role = Role(
        "bridge", data, deployment_settings, *options, program=(sys.executable, "-c", OTHER_GROUP)
    )
    yield role
    role.kill()


def test_two_bridges_subscribed_to_one_publisher_write_what_is_folded_once(
    deployment: Deployment, intruder: Role, load: Load, seed: int
) -> None:
    rng = random.Random(seed)
    deployment.start(load)
    intruder.start()
    everyone = {engine.instance_id for engine in load.engines}

    def all_are_followed_twice() -> bool:
        shared = set.union(*map(publishers_of, deployment.bridges))
        return shared == everyone == publishers_of(intruder)

    deployment.until(all_are_followed_twice, what="two bridges follow each publisher")
    deployment.until_moving()
    for victim in rng.sample([intruder, *deployment.bridges], 3):
        deployment.kill_and_restart(victim, rng.random())
        deployment.until(all_are_followed_twice, what=f"{victim.name} follows again")
        deployment.until_moving()
    deployment.until(
        lambda: intruder.metric("reprise_bridge_written_records_total") > 0,
        what="the other bridge writes, too, though it may have been started last",
    )
    fresh = check_once_quiet(deployment, load, seed=seed)
    assert len(fresh.skipped) > 0, "nothing was written twice"


# Records that should not be there


class Injector:
    """Writes into the events topic what no bridge would."""

    def __init__(self, kafka: KafkaSettings, rng: random.Random) -> None:
        self._kafka = kafka
        self._rng = rng
        self.duplicates: set[Place] = set()
        self.corrupt: set[Place] = set()

    def inject(self) -> None:
        """Some of each kind, beside what the bridges write."""
        injected = self.duplicates | self.corrupt
        logged = [
            one
            for one in read_events(self._kafka)
            if one.place not in injected and isinstance(decode_log_record(one.value), EventsRecord)
        ]
        again = self._rng.sample(logged[-30:], 3)
        late = self._rng.sample(logged, 3)
        self.duplicates.update(asyncio.run(self._write([*again, *late])))
        broken = [one._replace(value=value) for one in late for value in self._corruptions(one)]
        self.corrupt.update(asyncio.run(self._write(broken)))

    async def _write(self, records: Sequence[Logged]) -> list[Place]:
        topic = self._kafka.topics.events.name
        producer = AIOKafkaProducer(bootstrap_servers=self._kafka.servers, acks="all")
        await producer.start()
        try:
            sent = [
                await producer.send_and_wait(
                    topic, one.value, key=one.key, partition=one.place.partition
                )
                for one in records
            ]
        finally:
            await producer.stop()
        return [Place(one.partition, one.offset) for one in sent]

    def _corruptions(self, logged: Logged) -> list[bytes]:
        value = logged.value
        return [
            self._rng.randbytes(40),
            b"",
            value[: self._rng.randrange(1, len(value))],
            self._flipped(value),
            broken_events(value, sequences=1_000_000),
            broken_events(value, incarnations=1),
        ]

    def _flipped(self, value: bytes) -> bytes:
        """With one byte changed. Where that leaves a record it is another record, which only the
        checksums of Kafka's batches could tell: those are not meant here.
        """
        while True:
            place = self._rng.randrange(len(value))
            flipped = bytearray(value)
            flipped[place] ^= self._rng.randrange(1, 256)
            try:
                decode_log_record(bytes(flipped))
            except RecordError:
                return bytes(flipped)


def broken_events(value: bytes, *, sequences: int = 0, incarnations: int = 0) -> bytes:
    """A record whose envelope is right, and ahead by so much, and whose last event is none."""
    record = decode_log_record(value)
    assert isinstance(record, EventsRecord)
    last = record.last_sequence + sequences
    events = msgspec.msgpack.decode(record.events)
    body = msgspec.msgpack.encode([*events, {"type": "stored", "sequence": last}])
    ahead = msgspec.structs.replace(
        record,
        incarnation=record.incarnation + incarnations,
        first_sequence=last,
        last_sequence=last,
        events=msgspec.Raw(body),
    )
    return encode_record(ahead)


def named(workers: Sequence[Role]) -> Counter[tuple[Place, str]]:
    """The records that the workers' logs name, with the reasons."""
    found = re.compile(r"Cannot use the record at (\d+):(\d+) \((\w+)\)")
    return Counter(
        (Place(int(partition), int(offset)), reason)
        for worker in workers
        for partition, offset, reason in found.findall(worker.output())
    )


def counted(workers: Sequence[Role], reason: str) -> int:
    outcome = f"skipped_{reason}"
    name = "reprise_worker_records_total"
    return int(sum(worker.metric(name, outcome=outcome) for worker in workers))


def test_duplicated_late_and_corrupt_records_are_skipped_counted_and_named(
    deployment: Deployment, load: Load, seed: int
) -> None:
    rng = random.Random(seed)
    deployment.start(load)
    workers = deployment.workers
    injector = Injector(deployment.kafka, rng)
    for _ in range(4):
        injector.inject()
        deployment.until_moving()

    def all_are_named() -> bool:
        places = {place for place, _ in named(workers)}
        return places >= injector.duplicates | injector.corrupt

    deployment.until(all_are_named, what=f"all are named, seed {seed}")
    reasons = Counter[str]()
    for (_, reason), times in named(workers).items():
        reasons[reason] += times
    assert reasons == {reason: counted(workers, reason) for reason in reasons}
    for bridge in rng.sample(deployment.bridges, 2):
        injector.inject()  # whoever takes its publishers over has to read past these
        deployment.kill_and_restart(bridge, rng.random())
    deployment.until_moving()
    fresh = check_once_quiet(deployment, load, corrupt=injector.corrupt, seed=seed)
    assert {fresh.skipped[place] for place in injector.duplicates} == {DUPLICATE}
    assert set(named(workers)) == set(fresh.skipped.items()), f"seed {seed}"


_BATCH = struct.Struct(">qi")
"""What a batch begins with: its first offset, and the bytes that follow."""

_CHECKED_FROM = 21
"""Of a batch: what its checksum covers begins there."""

DAMAGES = {
    "what its checksum covers": (_CHECKED_FROM + 5, 0xFF),
    "its offset, far too high": (4, 0xFF),
    "its offset, too low": (6, 0xFF),
    "its length, too long": (9, 0x01),
    "its length, negative": (8, 0xFF),
    "its format": (16, 0x02),
}
"""Which byte of a batch, and what of it."""


def damage_batches(broker: Broker, topic: str) -> int:
    """Changes a byte of several batches in the fullest partition's file, as a disk may.

    Returns:
        The partition.
    """
    broker.stop()  # in order: what it has to recover it would look through, and cut off
    path = max(broker.segments(topic), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    batches = [0]
    while (end := batches[-1] + _BATCH.size + _BATCH.unpack_from(content, batches[-1])[1]) < len(
        content
    ):
        batches.append(end)
    apart = len(batches) // (len(DAMAGES) + 1)
    assert apart > 1, f"{len(batches)} batches"
    for number, (place, flip) in enumerate(DAMAGES.values(), start=1):
        content[batches[number * apart] + place] ^= flip
    path.write_bytes(content)
    broker.start()
    return int(path.parent.name.rpartition("-")[2])


@pytest.mark.parametrize(
    # Where a batch does not say how long it is, those behind it are found by the broker's index.
    "own_broker",
    [{"settings": {"log.index.interval.bytes": "400"}}],
    indirect=True,
)
def test_damaged_batches_are_passed_over_and_told(deployment: Deployment, load: Load) -> None:
    deployment.start(load)
    for worker in deployment.workers:
        worker.kill()
    goal = load.published() + 600
    deployment.until(lambda: load.published() > goal, what="more batches")
    load.stop()
    deployment.until(lambda: not any(map(spooled, deployment.bridges)), what="all is written")
    instances = instances_by_partition(deployment.kafka)
    partition = damage_batches(deployment.broker, deployment.kafka.topics.events.name)
    for worker in deployment.workers:
        worker.start()
    deployment.until(
        lambda: states_of(deployment, load) == {"degraded"}, what="what is missing is told"
    )
    assert {place.partition for place, _ in named(deployment.workers)} == {partition}
    assert {reason for _, reason in named(deployment.workers)} == {"malformed_record"}
    assert degraded(deployment, load) <= instances[partition]
    for engine in load.engines:
        engine.clear()
    # A clear ends what is missing of the GPU, and proves nothing of the blocks offloaded to CPU.
    deployment.until(lambda: states_of(deployment, load) == {"unconfirmed"}, what="it is healed")
    deployment.until(lambda: answers_are_right(deployment, load), what="right answers")


def instances_by_partition(kafka: KafkaSettings) -> dict[int, set[str]]:
    found: defaultdict[int, set[str]] = defaultdict(set)
    for logged in read_events(kafka):
        record = decode_log_record(logged.value)
        if isinstance(record, EventsRecord):
            found[logged.place.partition].add(record.stream.instance_id)
    return found


def degraded(deployment: Deployment, load: Load) -> set[str]:
    """The instances of which some replica says it."""
    found = set()
    for replica in deployment.replicas:
        answer = replica.post("/query?detail=1", query_for(load.prompt(0)))["default"]
        found |= {name for name, one in answer.items() if one["state"] == "degraded"}
    return found


def spooled(bridge: Role) -> bool:
    return bool(bridge.health()["spool_records"] or bridge.health()["queue_bytes"])
