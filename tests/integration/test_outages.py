"""What the roles say, and whether they can be stopped, while Kafka is away."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.broker_settings import KafkaSettings
from devtools.broker import Broker
from lab.engines.publisher import Publisher, PublisherOptions
from tests.kafka_fixtures import settings_for
from tests.processes import until
from tests.roles import Role

pytestmark = pytest.mark.timeout(300)

BEGUN = "kafka failed, retrying: cannot use Kafka at"
ENDED = "kafka recovered after"
WAIT_S = 60.0
MEANWHILE = {
    "bridge": "records wait in the spool",
    "streams": "the tables stay as they are",
    "serve": "answers say `stale`",
}
_LOUD = re.compile(r" (WARNING|ERROR|CRITICAL) |Traceback|never retrieved")


@pytest.fixture
def kafka(own_broker: Broker) -> KafkaSettings:
    return settings_for(own_broker)


@pytest.fixture
def roles(kafka: KafkaSettings, tmp_path: Path) -> Iterator[dict[str, Role]]:
    """One of each; not started."""
    session = ("--set", "kafka.session_timeout_s=2")
    roles = {
        "bridge": Role("bridge", tmp_path / "bridge", kafka, *session),
        "streams": Role("streams", tmp_path / "streams", kafka, *session),
        "serve": Role("serve", tmp_path / "serve", kafka),
    }
    yield roles
    for role in roles.values():
        role.kill()


def register(roles: dict[str, Role]) -> Publisher:
    """An engine that all are at work for."""
    engine = Publisher(PublisherOptions())
    fields = {"type": "vLLM", "modelname": "m", "instance_id": "a", "block_size": 16, "dp_rank": 0}
    roles["serve"].post("/register", fields | {"endpoint": engine.endpoint})
    engine.publish([])

    def at_work() -> bool:
        followed = roles["bridge"].get("/health")["publishers"]
        owned = roles["streams"].get("/health")["partitions"]
        return [one["state"] for one in followed] == ["live"] and len(owned) == 2

    until(at_work, what="the roles are at work", timeout_s=WAIT_S)
    return engine


def test_each_role_says_once_that_kafka_is_away_and_once_that_it_is_back_and_ends_without_it(
    own_broker: Broker, roles: dict[str, Role]
) -> None:
    """Before it was ever there, then while all are at work, and at last for good."""
    own_broker.kill()
    for role in roles.values():
        role.start()
    for name, role in roles.items():
        until(lambda role=role: BEGUN in role.output(), what=f"{name} says so")  # type: ignore[misc]
    own_broker.start()
    for name, role in roles.items():
        until(
            lambda role=role: ENDED in role.output(),  # type: ignore[misc]
            what=f"{name} goes on",
            timeout_s=WAIT_S,
        )
        lines = role.output().splitlines()
        assert sum(ENDED in line for line in lines) == 1, role.output()
        reasons = [line.partition(BEGUN)[2] for line in lines if BEGUN in line]
        assert len(reasons) == len(set(reasons)), role.output()  # while it starts it may tell more
    until(roles["serve"].is_ready, what="readiness", timeout_s=WAIT_S)
    engine = register(roles)
    begin = {name: len(role.output()) for name, role in roles.items()}

    def said(name: str) -> str:
        return roles[name].output()[begin[name] :]

    def sending(text: str) -> bool:
        engine.publish([])  # so that there is something that cannot be written
        return all(text in said(name) for name in roles)

    own_broker.kill()
    until(lambda: sending(BEGUN), what=f"each says: {BEGUN}", timeout_s=WAIT_S)
    health = roles["streams"].get("/health")
    assert own_broker.bootstrap in health["problem"]
    assert not health["ready"]
    own_broker.start()
    until(lambda: sending(ENDED), what=f"each says: {ENDED}", timeout_s=WAIT_S)
    until(
        lambda: not any(roles[name].get("/health")["problem"] for name in ("bridge", "streams")),
        what="the spool is drained and the tables go on",
        timeout_s=WAIT_S,
    )
    for name in roles:
        lines = said(name).splitlines()
        loud = [line for line in lines if _LOUD.search(line)]
        assert all(f"{BEGUN} {own_broker.bootstrap}: " in line for line in loud)
        assert all(MEANWHILE[name] in line for line in loud)
        # A cause that changes while it lasts is said, too: a port that is closed refuses.
        causes = [line.partition(own_broker.bootstrap)[2] for line in loud]
        assert 1 <= len(causes) == len(set(causes)) <= 2, causes
        (last,) = [line for line in lines if ENDED in line]
        assert own_broker.bootstrap in last
        assert " INFO " in last
    begin.update({name: len(role.output()) for name, role in roles.items()})
    own_broker.kill()
    until(lambda: all(BEGUN in said(name) for name in roles), what="each knows", timeout_s=WAIT_S)
    for name, role in roles.items():
        assert role.process is not None
        role.process.terminate()
        assert role.process.wait(WAIT_S) == 0, f"{name}:\n{role.output()[-2000:]}"
        assert "Traceback" not in role.output(), name
    engine.close()
