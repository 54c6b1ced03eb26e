"""What a table is made of lost under load: a worker's RocksDB, and the table topic.

Neither is the truth: a worker has its disk again from the topic, and both from the events.
"""

import asyncio
import random
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]

from tests.deployment import SESSION_S, Deployment, answers_are_right, check_once_quiet, states_of
from tests.load import Load
from tests.roles import Role

pytestmark = pytest.mark.timeout(600)

CREATES_ON_DEMAND = {"settings": {"auto.create.topics.enable": "true"}}
"""Kafka's default: a topic that somebody asks for is made, as the broker has it."""


def lose_disk(worker: Role) -> None:
    """Deletes every table of the worker, open or not."""
    found = list(worker.data.glob("table-*"))
    assert found, f"{worker.name} has tables in {worker.data}"
    for path in found:
        _remove(path)


def _remove(path: Path) -> None:
    """All of it, of a RocksDB too that writes one more file meanwhile."""
    for _ in range(50):
        with suppress(OSError):
            shutil.rmtree(path)
        if not path.exists():
            return
    shutil.rmtree(path)


def until_shared(deployment: Deployment) -> None:
    """Waits until each worker has partitions and none of them is missing."""

    def is_shared() -> bool:
        shares = [set(worker.health()["partitions"]) for worker in deployment.workers]
        everything = {str(number) for number in range(deployment.kafka.events_partitions)}
        return all(shares) and set.union(*shares) == everything

    deployment.until(is_shared, what="the workers share the partitions")


def pause_past_session(deployment: Deployment, worker: Role) -> None:
    """The other worker has to open what this one had, and this one to open it again."""
    (other,) = [one for one in deployment.workers if one is not worker]
    worker.pause()
    try:
        deployment.until(
            lambda: len(other.health()["partitions"]) == deployment.kafka.events_partitions,
            what=f"{other.name} takes over from {worker.name}",
        )
    finally:
        worker.resume()


def test_a_rocksdb_deleted_beneath_a_dead_or_a_running_worker_costs_nothing(
    deployment: Deployment, load: Load, seed: int
) -> None:
    rng = random.Random(seed)
    deployment.start(load)
    until_shared(deployment)
    for worker in rng.sample(deployment.workers, 2):
        worker.kill()
        lose_disk(worker)
        time.sleep(rng.random() * SESSION_S)
        worker.start()
        deployment.until_moving()
    until_shared(deployment)
    for worker in rng.sample(deployment.workers, 2):
        lose_disk(worker)
        deployment.until_moving()  # its open files serve it on
        pause_past_session(deployment, worker)
        deployment.until_moving()
        until_shared(deployment)
    check_once_quiet(deployment, load, seed=seed)
    for worker in deployment.workers:
        assert worker.process is not None
        assert worker.process.poll() is None


async def delete_topic(deployment: Deployment, name: str) -> None:
    """Returns once it is gone, or was made anew meanwhile by a role."""
    admin = AIOKafkaAdminClient(bootstrap_servers=deployment.kafka.bootstrap)
    await admin.start()
    try:
        response = await admin.delete_topics([name])
        assert [code for _, code in response.topic_error_codes] == [0]
    finally:
        await admin.close()


@pytest.mark.parametrize("own_broker", [CREATES_ON_DEMAND], indirect=True)
def test_an_events_topic_lost_beneath_running_roles_ends_none_of_them(
    deployment: Deployment, load: Load, seed: int
) -> None:
    """What was in it is lost: the answers need not be right, and say so."""
    deployment.start(load)
    until_shared(deployment)
    deployment.until_moving()
    asyncio.run(delete_topic(deployment, deployment.kafka.topics.events.name))
    deployment.until_moving()
    load.stop()
    until_shared(deployment)
    deployment.until(
        lambda: states_of(deployment, load) == {"degraded"} or answers_are_right(deployment, load),
        what=f"answers are right, or say that they may not be, seed {seed}",
    )
    for role in (*deployment.bridges, *deployment.workers, *deployment.replicas):
        assert role.process is not None
        assert role.process.poll() is None, deployment.report()
