"""The programs that docs/topics.md shows, run as they stand there."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import msgspec
from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from routing.log.topics import ROUTING_TOPIC, RoutingTopics
from schemas.routing_records import OutcomesRecord, encode_routing
from schemas.topics import encode_run
from tests.building import gap_record
from tests.integration.test_tail import produce, record
from tests.routing import RUN, decisions, outcome

DOCUMENT = Path(__file__).parents[2] / "docs" / "topics.md"
BOUND_S = 40.0


def test_the_consumer_of_the_document_prints_what_was_written(
    kafka_settings: KafkaSettings,
) -> None:
    asyncio.run(asyncio.wait_for(ensure_topics(kafka_settings), BOUND_S))
    produce(kafka_settings, [record(7, "worker-1")], partition=1)
    found = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    code = found[1].replace("127.0.0.1:9092", kafka_settings.bootstrap)
    code = code.replace("reprise.events", kafka_settings.topics.events.name)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True
    ) as consumer:
        try:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == "1 0 events worker-1\n"
            assert consumer.stdout.readline() == "    stored [7]\n"
        finally:
            consumer.kill()


def routed(settings: KafkaSettings) -> None:
    """A decision of which half the prompt was found in the cache."""
    reply = msgspec.structs.replace(outcome(0), cached_tokens=400)
    told = OutcomesRecord(run=RUN, time=0.0, outcomes=(reply,))

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, acks="all")
        await producer.start()
        try:
            for one in (decisions(0), told):
                await producer.send_and_wait(
                    settings.topic(ROUTING_TOPIC).name, encode_routing(one), key=encode_run(RUN)
                )
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), BOUND_S))


def test_the_recipes_print_what_is_in_the_topics(kafka_settings: KafkaSettings) -> None:
    specs = (*kafka_settings.topics, *RoutingTopics.of(kafka_settings))
    asyncio.run(asyncio.wait_for(ensure_topics(kafka_settings, specs=specs), BOUND_S))
    produce(kafka_settings, [record(7, "worker-1"), record(7, "worker-1")], partition=1)
    produce(kafka_settings, [(b"w-1", gap_record(1, 4))])
    routed(kafka_settings)
    for name, printed in (
        ("stored.py", "m  00:00  1\n"),
        ("losses.py", "default  a  lost  missed  4\n"),
        ("hits.py", "default  50.0%\n"),
    ):
        block = rf"```python {re.escape(name)}\n(.*?)```"
        found = re.search(block, DOCUMENT.read_text(), re.DOTALL)
        assert found is not None
        code = found[1].replace("127.0.0.1:9092", kafka_settings.bootstrap)
        code = code.replace('"reprise.', f'"{kafka_settings.topic_prefix}.')
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=BOUND_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
