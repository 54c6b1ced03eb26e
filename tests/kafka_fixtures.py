"""The broker of the tests: a real Apache Kafka, chosen by REPRISE_TEST_KAFKA.

    unset        a broker of the tests' own, from Maven's artifacts (`devtools.broker`)
    docker       a container of the official image, by testcontainers
    HOST:PORT    that one; topics that a test makes there are deleted after it

Where there is none, the tests that ask for one are skipped and say why; with CI=true they fail.
"""

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient  # type: ignore[import-untyped]
from aiokafka.errors import KafkaError  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker, is_answering
from devtools.broker_start import alone
from devtools.class_archive import archive_classes
from devtools.kafka_jars import (
    BrokerUnavailableError,
    fetch_jars,
    find_java,
    have_jars,
    kafka_version,
)
from tests.processes import until

HOW = (
    "the tests on Kafka need Java 17 and Maven on the PATH, or REPRISE_TEST_KAFKA=docker, or"
    " REPRISE_TEST_KAFKA=HOST:PORT of a running broker"
)
_no_broker: list[BrokerUnavailableError] = []  # why, where fetching the jars has failed already
_FIXTURES = {"kafka", "own_broker", "secured"}
_shared: list[Broker] = []  # what `_shared_broker` has started: nothing here ends it


@dataclass(frozen=True)
class Kafka:
    """The session's broker.

    `broker` is the process behind it where it is ours; a test that kills it starts it again.
    """

    bootstrap: str
    broker: Broker | None


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes what every broker needs before the first test, whose time is bounded."""
    wanted = any(_asks_for_broker(item) for item in session.items)
    if not wanted or session.config.getoption("collectonly") or _choice():
        return
    try:
        find_java()
        with alone("jars"):
            if not have_jars():
                print(
                    "==> fetching the jars of Apache Kafka for the tests (54 MB, once)",
                    file=sys.stderr,
                )
                fetch_jars()
        archive_classes()
    except BrokerUnavailableError as error:
        _no_broker.append(error)


def _asks_for_broker(item: pytest.Item) -> bool:
    """By a fixture, or by the name of a parameter, whose fixture asks for the broker then."""
    if _FIXTURES & set(getattr(item, "fixturenames", ())):
        return True
    call = getattr(item, "callspec", None)
    return call is not None and "kafka" in call.params.values()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    choice = _choice()
    if choice == "docker":
        yield from _container()
    elif choice:
        if not is_answering(choice):
            pytest.fail(f"no broker answers at REPRISE_TEST_KAFKA={choice}")
        yield Kafka(choice, None)
    elif "PYTEST_XDIST_WORKER" in os.environ:
        yield _shared_broker(tmp_path_factory.getbasetemp().parent)
    else:
        yield from (
            Kafka(broker.bootstrap, broker)
            for broker in started_broker(tmp_path_factory.mktemp("kafka"))
        )


def _shared_broker(of_run: Path) -> Kafka:
    """The one of all workers of a run, in whose directory it is; `Leftovers` ends it."""
    told = of_run / "kafka.bootstrap"
    with alone("kafka"):
        if not told.exists():
            _shared.append(_start(Broker(of_run / "kafka")))
            told.write_text(_shared[0].bootstrap)
    return Kafka(told.read_text(), None)


@pytest.fixture(scope="session")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of this worker, for the tests that kill theirs: see `own_broker`."""
    yield from started_broker(tmp_path_factory.mktemp("killable"))


@pytest.fixture
def own_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    """A running broker that a test may kill; indirect parameters are `Broker`'s, for one that is
    made for this test. Topics of other tests may be in it: `settings_for` names others.
    """
    options: dict[str, Any] = getattr(request, "param", {})
    if options:
        yield from started_broker(tmp_path / "broker", **options)
        return
    broker: Broker = request.getfixturevalue("killable")
    yield broker
    if broker.running:
        broker.resume()
    else:
        broker.start()


@contextlib.contextmanager
def own_topics(kafka: Kafka) -> Iterator[str]:
    """A prefix that nobody else uses; its topics are deleted at the end."""
    prefix = _new_prefix()
    yield prefix
    with contextlib.suppress(KafkaError, OSError, TimeoutError):
        asyncio.run(delete_topics(kafka.bootstrap, f"{prefix}."))


@pytest.fixture
def topic_prefix(kafka: Kafka) -> Iterator[str]:
    with own_topics(kafka) as prefix:
        yield prefix


@pytest.fixture
def kafka_settings(kafka: Kafka, topic_prefix: str) -> KafkaSettings:
    """Settings for topics of the test's own, of few partitions."""
    return settings_for(kafka, topic_prefix)


def settings_for(
    broker: Kafka | Broker, topic_prefix: str = "", *, partitions: int = 2
) -> KafkaSettings:
    """Settings for topics that begin with the prefix; with one that no other test has, for ""."""
    return KafkaSettings(
        bootstrap=broker.bootstrap,
        topic_prefix=topic_prefix or _new_prefix(),
        events_partitions=partitions,
        registry_partitions=partitions,
    )


def _new_prefix() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


def unavailable(reason: object) -> None:
    """Skips the test, or fails it where it has to run."""
    text = f"{HOW}; {reason}"
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


def _choice() -> str:
    return os.environ.get("REPRISE_TEST_KAFKA", "")


def started_broker(directory: Path, **options: Any) -> Iterator[Broker]:
    """A started broker; skips or fails where none can run here."""
    broker = _start(Broker(directory, **options))
    try:
        yield broker
    finally:
        broker.kill()


def _start(broker: Broker) -> Broker:
    if _no_broker:
        unavailable(_no_broker[0])
    try:
        broker.start()
    except BrokerUnavailableError as error:
        unavailable(error)
    return broker


def _container() -> Iterator[Kafka]:
    # The image must be told what to advertise before Docker would choose a port.
    from testcontainers.core.container import DockerContainer

    from devtools.broker import HOST, free_ports

    (port,) = free_ports(1)
    settings = {
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_NODE_ID": "1",
        "KAFKA_LISTENERS": "PLAINTEXT://:9092,INTERNAL://:9094,CONTROLLER://:9093",
        # A broker asks itself about transactions: not at the port that only the host has.
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{HOST}:{port},INTERNAL://localhost:9094",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "INTERNAL",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
            "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "1000",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }
    container = DockerContainer(f"apache/kafka:{kafka_version()}").with_bind_ports(9092, port)
    for name, value in settings.items():
        container = container.with_env(name, value)
    try:
        container.start()
    except Exception as error:  # noqa: BLE001 -- Docker's client has no one base of its errors
        unavailable(f"Docker cannot run it: {error}")
    try:
        bootstrap = f"{HOST}:{port}"
        until(lambda: is_answering(bootstrap), what=f"an answer of the container at {bootstrap}")
        yield Kafka(bootstrap, None)
    finally:
        container.stop()


async def delete_topics(bootstrap: str, prefix: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5_000)
    try:
        await admin.start()
        names = [name for name in await admin.list_topics() if name.startswith(prefix)]
        if names:
            await admin.delete_topics(names)
            for _ in range(100):  # it goes on after the answer
                if not set(names) & set(await admin.list_topics()):
                    break
                await asyncio.sleep(0.05)
    finally:
        await admin.close()
