"""Topics on a real broker: made, made by several at once, checked, and waited for."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # type: ignore[import-untyped]
from aiokafka.admin.config_resource import (  # type: ignore[import-untyped]
    ConfigResource,
    ConfigResourceType,
)

from brokers.broker_settings import KafkaSettings
from brokers.client_types import Partition
from brokers.clients import Clients
from brokers.options import client_options
from brokers.topics import ensure_topics
from devtools.broker import HOST, Broker, free_ports
from schemas.errors import ConfigurationError
from schemas.setting import changed
from tests.kafka_fixtures import settings_for

BOUND_S = 40.0


def ensure(settings: KafkaSettings) -> None:
    asyncio.run(asyncio.wait_for(ensure_topics(settings), BOUND_S))


def ask(settings: KafkaSettings, question: Callable[[Any], Awaitable[Any]]) -> Any:
    async def asked() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
        await admin.start()
        try:
            return await question(admin)
        finally:
            await admin.close()

    return asyncio.run(asked())


def make_topic(settings: KafkaSettings, name: str, partitions: int, **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = NewTopic(name, partitions, 1, topic_configs=named)
    response = ask(settings, lambda admin: admin.create_topics([topic]))
    assert [code for _, code, _ in response.topic_errors] == [0]


def partitions_of(settings: KafkaSettings) -> dict[str, int]:
    topics = ask(settings, lambda admin: admin.describe_topics())
    return {
        topic["topic"].removeprefix(f"{settings.topic_prefix}."): len(topic["partitions"])
        for topic in topics
        if topic["topic"].startswith(f"{settings.topic_prefix}.")
    }


def configs_of(settings: KafkaSettings, name: str) -> dict[str, str]:
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    (response,) = ask(settings, lambda admin: admin.describe_configs([resource]))
    return {entry[0]: entry[1] for entry in response.resources[0][4]}


def test_missing_topics_are_made_once_by_several_as_they_must_be(
    kafka_settings: KafkaSettings,
) -> None:
    """One answering server of several is enough."""
    (port,) = free_ports(1)
    servers = f"{HOST}:{port},{kafka_settings.bootstrap}"
    settings = changed(kafka_settings, events_partitions=3, bootstrap=servers)

    async def together() -> None:
        await asyncio.gather(*(ensure_topics(settings) for _ in range(6)))

    asyncio.run(asyncio.wait_for(together(), BOUND_S))
    settings = changed(settings, bootstrap=kafka_settings.bootstrap)
    assert partitions_of(settings) == {"registry": 2, "cursors": 2, "events": 3, "table": 3}
    for spec in settings.topics:
        got = configs_of(settings, spec.name)
        assert got["cleanup.policy"] == spec.cleanup
        assert {key: got[key] for key in spec.configs} == spec.configs


def test_topics_that_are_there_are_left_as_they_are_or_refused_for_their_shape(
    kafka_settings: KafkaSettings,
) -> None:
    topics = kafka_settings.topics
    name = topics.events.name
    make_topic(kafka_settings, name, 2, retention_ms="1234567", max_message_bytes=str(16 * 2**20))
    ensure(kafka_settings)
    ensure(kafka_settings)
    assert configs_of(kafka_settings, name)["retention.ms"] == "1234567"
    assert len(partitions_of(kafka_settings)) == 4
    other_prefix = changed(kafka_settings, topic_prefix=f"{kafka_settings.topic_prefix}.other")
    make_topic(other_prefix, other_prefix.topics.registry.name, 2, cleanup_policy="delete")
    with pytest.raises(ConfigurationError, match=r"cleanup\.policy `compact`, got `delete`"):
        ensure(other_prefix)
    other = changed(kafka_settings, events_partitions=5)
    with pytest.raises(ConfigurationError, match="Expected `5` partitions, got `2` in topic"):
        ensure(other)


def test_too_few_brokers_for_the_copies_are_waited_for(
    kafka_settings: KafkaSettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings = changed(kafka_settings, replication=3)
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(ensure_topics(settings), 2.0))
    assert "cannot use Kafka" in caplog.text
    assert "replication factor" in caplog.text.lower()
    assert partitions_of(settings) == {}


def test_a_broker_that_comes_later_is_waited_for(
    own_broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    own_broker.kill()
    settings = settings_for(own_broker)
    waiting = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            waiting.set()

    watch = Watch()
    logging.getLogger("brokers.outages").addHandler(watch)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            ensure(settings)
        except BaseException as error:  # noqa: BLE001 -- looked at below
            failures.append(error)

    role = threading.Thread(target=run)
    role.start()
    try:
        assert waiting.wait(BOUND_S)
        own_broker.start()
    finally:
        role.join(BOUND_S)
        logging.getLogger("brokers.outages").removeHandler(watch)
    assert not role.is_alive()
    assert not failures
    assert len(partitions_of(settings)) == 4
    lines = [line for line in caplog.text.splitlines() if "kafka failed" in line]
    assert 1 <= len({line.partition("kafka failed")[2] for line in lines}) == len(lines)
    assert sum("kafka recovered" in line for line in caplog.text.splitlines()) <= 1


@pytest.mark.parametrize(
    "own_broker", [{"settings": {"auto.create.topics.enable": "true"}}], indirect=True
)
def test_a_broker_that_creates_on_demand_makes_no_topic_by_being_asked(own_broker: Broker) -> None:
    """Nor one that is deleted beneath its clients."""
    settings = settings_for(own_broker)
    ensure(settings)
    assert partitions_of(settings) == dict.fromkeys(("registry", "cursors", "events", "table"), 2)
    name = settings.topics.table.name

    async def use_and_delete() -> set[str]:
        clients = Clients(client_options(settings))
        producer: Any = clients.producer()
        reader: Any = clients.reader(committed=True)
        admin: Any = clients.admin()
        try:
            for client in (producer, reader, admin):
                await client.start()
            batch = producer.create_batch()
            batch.append(key=b"k", value=b"v", timestamp=None)
            await (await producer.send_batch(batch, name, partition=0))
            reader.assign([Partition(name, 0)])
            assert await reader.getmany(timeout_ms=10_000)
            await admin.delete_topics([name])
            while name in await admin.list_topics():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for client in (producer.client, reader._client):
                client.add_topic(name)  # as where the next message is sent, or the next read
                await client.force_metadata_update()
            return set(await admin.list_topics())
        finally:
            for stop in (reader.stop, producer.stop, admin.close):
                await stop()

    left = asyncio.run(asyncio.wait_for(use_and_delete(), BOUND_S))
    assert name not in left
    ensure(settings)
    assert partitions_of(settings)["table"] == 2
