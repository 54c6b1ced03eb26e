"""Bridges, engines and topics of one test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.broker_settings import KafkaSettings
from tests.integration.bridge.engine import Engine
from tests.integration.bridge.process import BridgeProcess
from tests.integration.bridge.topics import Deployment


@pytest.fixture
def deployment(kafka_settings: KafkaSettings) -> Deployment:
    return Deployment(kafka_settings)


@pytest.fixture
def engines() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(instance_id: str, **options: Any) -> Engine:
        made.append(Engine(instance_id, **options))
        return made[-1]

    yield make
    for one in made:
        one.publisher.close()


@pytest.fixture
def bridges(tmp_path: Path) -> Iterator[Callable[..., BridgeProcess]]:
    made: list[BridgeProcess] = []

    def make(kafka: KafkaSettings, *options: str) -> BridgeProcess:
        made.append(BridgeProcess(tmp_path / f"bridge-{len(made)}", kafka, *options))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.kill()
