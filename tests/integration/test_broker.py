"""The broker of the tests: what the fault tests rely on."""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import Broker, is_answering
from tests.kafka_fixtures import settings_for

BOUND_S = 40.0


async def append(settings: KafkaSettings, value: bytes) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(settings.topics.events.name, value, partition=0)
    finally:
        await producer.stop()


async def read(settings: KafkaSettings, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        settings.topics.events.name,
        bootstrap_servers=settings.bootstrap,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


def test_a_killed_broker_comes_back_with_what_it_had(own_broker: Broker) -> None:
    settings = settings_for(own_broker, partitions=1)
    asyncio.run(asyncio.wait_for(ensure_topics(settings), BOUND_S))
    asyncio.run(asyncio.wait_for(append(settings, b"before"), BOUND_S))
    own_broker.kill()
    assert not is_answering(settings.bootstrap)
    own_broker.start()
    assert own_broker.bootstrap == settings.bootstrap
    asyncio.run(asyncio.wait_for(append(settings, b"after"), BOUND_S))
    assert asyncio.run(asyncio.wait_for(read(settings, 2), BOUND_S)) == [b"before", b"after"]
    own_broker.stop()
    assert not own_broker.running


@pytest.mark.usefixtures("own_broker")  # skips this one, too, where no broker can run
def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "refused", settings={"log.retention.bytes": "nonsense"})
    with pytest.raises(RuntimeError, match="nonsense"):
        broker.start()
    assert not broker.running
