"""What may stand in the events topic besides each batch once: what bridges write that were paused
past their session, and batches that the broker's disk has damaged.
"""

import random
import re
import struct
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker
from schemas.codec import decode_log_record
from schemas.records import EventsRecord
from tests.deployment import (
    Deployment,
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


def publishers_of(bridge: Role) -> set[str]:
    """The instances that it is subscribed to now."""
    found = bridge.health()["publishers"]
    return {one["registration"]["instance_id"] for one in found if one["connected"]}


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


def named(workers: Sequence[Role]) -> set[tuple[Place, str]]:
    """The records that the workers' logs name, with the reasons."""
    found = re.compile(r"Cannot use the record at (\d+):(\d+) \((\w+)\)")
    return {
        (Place(int(partition), int(offset)), reason)
        for worker in workers
        for partition, offset, reason in found.findall(worker.output())
    }


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
