"""LMCache's topic in a real broker, read by both forms of the service as processes."""

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]

from tests.kafka_fixtures import Kafka, own_topics, settings_for
from tests.lmcache_service import CHUNK, LmcacheService

pytestmark = pytest.mark.timeout(240)

MODELS = {"models": {"m": {"block_size": CHUNK, "says_all": True}}}


class Served(LmcacheService):
    """A form of the service that reads the topic; the topic is there later than the service."""

    def __init__(self, form: str, directory: Path, kafka: Kafka, prefix: str) -> None:
        self.topic = f"{prefix}.cache-events"
        self._bootstrap = kafka.bootstrap
        models = directory / "models.json"
        models.write_text(json.dumps(MODELS))
        options = [
            *("--set", f"lmcache.kafka={kafka.bootstrap}", "--set", f"lmcache.topic={self.topic}"),
            *("--set", f"lmcache.models={models}"),
        ]
        settings = None if form == "embedded" else settings_for(kafka, prefix)
        super().__init__(directory, settings, *options)

    def make_topic(self) -> None:
        async def make() -> None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(self.topic, 3, 1)])
            finally:
                await admin.close()

        asyncio.run(make())

    def write(self, *values: tuple[str, bytes | None]) -> None:
        """Keys and values, in order."""

        async def send() -> None:
            producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap)
            await producer.start()
            try:
                for key, value in values:
                    await producer.send_and_wait(self.topic, key=key.encode(), value=value)
            finally:
                await producer.stop()

        asyncio.run(send())


class Server:
    """One instance that writes the topic."""

    def __init__(self, served: Served, name: str) -> None:
        self._served = served
        self.name = name
        self.incarnation, self.seq = 100, 0

    def value(self, kind: str, *chunks: int, **fields: object) -> tuple[str, bytes]:
        """The value of one batch more; written or not."""
        self.seq += 1
        entries = [{"key": {"chunk_hash_hex": f"{one:032x}", "model_name": "m"}} for one in chunks]
        batch: dict[str, Any] = {
            "instance_id": self.name,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "event_type": kind,
            "tier": "l1",
            "backend": "dram",
            "entries": entries,
        }
        return self.name, json.dumps({"batches": [batch | fields]}).encode()

    def write(self, kind: str, *chunks: int, **fields: object) -> None:
        self._served.write(self.value(kind, *chunks, **fields))


@pytest.fixture(scope="module")
def served(form: str, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp(f"topic-{form}")
    with own_topics(kafka) as prefix, closing(Served(form, directory, kafka, prefix)) as served:
        served.make_topic()
        yield served


@pytest.fixture
def server(served: Served) -> Server:
    return Server(served, f"mp-{uuid.uuid4().hex[:8]}")


def test_what_a_server_stores_and_deletes_is_answered(served: Served, server: Server) -> None:
    server.write("store", 1, 2, 3)
    served.await_match([1, 2, 3], server.name, 3, 3, 0, "exact")
    server.write("store", 1, 2, tier="l2", backend="fs")
    server.write("delete", 2, 3)
    served.await_match([1, 2, 3], server.name, 2, 1, 2, "exact")
    status, answer = served.deployment.api.get("/services")
    assert status == 200
    [service] = [one for one in answer["services"] if one["InstanceID"] == server.name]
    assert (service["Type"], service["ModelName"]) == ("LMCache-MP", "m")
    assert service["Endpoint"] == f"kafka://{served.topic}/{server.name}"


@pytest.mark.both_forms
def test_after_kill_9_of_all_the_topic_is_read_again(served: Served, server: Server) -> None:
    server.write("store", 1, 2, 3)
    served.await_match([1, 2, 3], server.name, 3, 3, 0, "exact")
    served.deployment.restart()
    server.write("delete", 3)
    served.await_match([1, 2, 3], server.name, 2, 2, 0, "exact")
