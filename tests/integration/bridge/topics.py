"""The topics of a deployment, seen from outside, and what must hold of them."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from schemas.codec import decode_log_record
from schemas.identities import ModelContext, Offset, PublisherKey
from schemas.records import BridgeRecord, EventsRecord, Record, encode_record
from schemas.registration import Registration
from schemas.topics import encode_publisher, encode_registration
from streams.kernel import open_kernel
from streams.table.fold import DUPLICATE, Fold
from tests.integration.bridge.engine import Engine
from tests.processes import START_S, until
from tests.unit.bridge.publisher.sequencers import Sequencers


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
                    record = decode_log_record(one.value)
                    if isinstance(record, BridgeRecord):
                        continue
                    found.append(Logged(one.partition, one.offset, one.key, record))
    finally:
        await consumer.stop()
    return found


class Deployment:
    """A deployment's topics, seen from outside."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        asyncio.run(ensure_topics(kafka))

    def register(self, *registrations: Registration) -> None:
        asyncio.run(self._write(registrations))

    async def _write(self, registrations: Sequence[Registration]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka.servers, acks="all")
        await producer.start()
        try:
            for one in registrations:
                key, value = encode_publisher(one.publisher), encode_registration(one)
                await producer.send_and_wait(self.kafka.topics.registry.name, value, key=key)
        finally:
            await producer.stop()

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
    sequencer = Sequencers()
    offset = 0
    for engine in engines:
        sequencer.add(engine.registration)
        for record in sequencer.process(engine.messages(), 0.0):
            assert fold.apply(Offset(offset), encode_record(record)) is None
            offset += 1
    return digests(fold)


def assert_exact(deployment: Deployment, *engines: Engine) -> Fold:
    fold = deployment.fold()
    assert (fold.counters["gaps"], fold.counters["log_holes"]) == (0, 0)
    assert digests(fold) == truth(*engines)
    return fold
