"""Retention takes what no worker has folded, registrations included: the next table knows again who
is registered, and is right once the engine has cleared its cache; what LMCache holds is told again.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.options import client_options
from brokers.reading import log_bounds
from devtools.broker import free_ports
from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import AllBlocksCleared, BlockStored
from tests.contract.deployments import SESSION, Distributed, Tenant, tenant_of
from tests.lmcache import ScriptedWorker
from tests.roles import Role

pytestmark = pytest.mark.timeout(180)

TOKENS = list(range(1000, 1064))
CHUNK = 4
MODELS = {"default": {"modelname": "chunks", "block_size": CHUNK, "tenant_id": "t"}}


def chain(first: int) -> BlockStored:
    return BlockStored(
        block_hashes=[first, first + 1, first + 2, first + 3],
        parent_block_hash=None,
        token_ids=TOKENS,
        block_size=16,
        lora_id=None,
        medium="GPU",
        lora_name=None,
    )


async def drop_all(kafka: KafkaSettings) -> None:
    topic = kafka.topics.events
    bounds = await log_bounds(client_options(kafka), topic.name, range(topic.partitions))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        ends = {number: bounds[number].end for number in bounds}
        await admin.delete_records(
            {Partition(topic.name, number): RecordsToDelete(end) for number, end in ends.items()}
        )
    finally:
        await admin.close()


class Scene(NamedTuple):
    tenant: Tenant
    worker: Role
    ports: list[int]


@contextmanager
def scene(directory: Path, kafka: KafkaSettings) -> Iterator[Scene]:
    ports = free_ports(3)
    models = directory / "models.json"
    models.write_text(json.dumps(MODELS))
    served = (
        "--lmcache",
        f"127.0.0.1:{','.join(map(str, ports))}",
        "--set",
        f"lmcache.models={models}",
    )
    bridge = Role("bridge", directory / "bridge", kafka, *SESSION, *served)
    worker = Role("streams", directory / "streams", kafka, *SESSION)
    replica = Role("serve", directory / "serve", kafka)
    roles = [bridge, worker, replica]
    with (
        closing(Distributed(kafka, bridge=bridge, replica=replica, its=roles)) as deployment,
        tenant_of(deployment, "t") as tenant,
    ):
        yield Scene(tenant, worker, ports)


def test_who_is_registered_is_known_again_after_the_log_has_dropped_it(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    with (
        scene(tmp_path, kafka_settings) as (tenant, worker, ports),
        closing(Publisher(PublisherOptions())) as engine,
        ScriptedWorker(ports, "lmc") as cache,
    ):
        tenant.connect(engine, kv_offloading="none")
        engine.publish([chain(1)])
        tenant.await_longest(TOKENS, 64)
        cache.register()
        cache.heartbeat()
        cache.admit([10, 20, 30])
        chunks = {
            "model": "chunks",
            "block_size": CHUNK,
            "tenant_id": "t",
            "seq_hashes": [10, 20, 30],
        }

        def of_cache() -> tuple[int, str]:
            status, answer, headers = tenant.api.exchange("/query_by_hash", chunks)
            assert status == 200
            found = answer.get("t", {}).get("lmc", {}).get("longest_matched", 0)
            return found, headers["reprise-state"]

        tenant.until(lambda: of_cache() == (3 * CHUNK, "exact"), "chunks of the cache")
        worker.kill()
        engine.publish([chain(5)])
        tenant.until(lambda: _last_sequence(tenant) == 1, "the bridge has written the second batch")
        asyncio.run(drop_all(kafka_settings))
        worker.start()
        engine.publish([AllBlocksCleared()])
        engine.publish([chain(9)])

        def of_engine() -> tuple[int, str]:
            cache.heartbeat()
            return tenant.longest(TOKENS), tenant.state()

        tenant.until(lambda: of_engine() == (64, "exact"), "the engine is followed again")
        tenant.until(lambda: of_cache() == (3 * CHUNK, "exact"), "the cache is followed again")


def _last_sequence(tenant: Tenant) -> int:
    deployment = tenant.deployment
    assert isinstance(deployment, Distributed)
    [found] = [
        one["sequence"]
        for one in deployment._bridge.get("/health")["publishers"]
        if one["registration"]["instance_id"] == "a"
    ]
    return int(found)
