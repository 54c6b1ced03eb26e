"""The consumer that docs/topics.md shows, run as it stands there."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from brokers.settings import KafkaSettings
from brokers.topics import ensure_topics
from tests.integration.test_tail import produce, record

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


def test_the_document_names_the_topics_as_they_are_made() -> None:
    text = DOCUMENT.read_text()
    settings = KafkaSettings(bootstrap="b:1")
    for spec in (*settings.topics, *settings.routing, settings.answers):
        (row,) = re.findall(rf"^\| `{re.escape(spec.name)}` \|.*$", text, re.MULTILINE)
        assert f"| {spec.partitions} | {spec.cleanup}" in row
        # The commands that make them by hand say the same.
        for key, value in spec.configs.items():
            assert f"--config {key}={value}" in text
