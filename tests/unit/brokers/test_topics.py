"""What is said of topics that have another shape than they must have, and of brokers that do not
answer.
"""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.admin import NewTopic  # type: ignore[import-untyped]

from brokers import topics
from brokers.broker_settings import KafkaSettings
from brokers.topics import ensure_topics
from devtools.broker import HOST, free_ports
from schemas.errors import ConfigurationError

SETTINGS = KafkaSettings(
    bootstrap="b:1", topic_prefix="x", events_partitions=2, registry_partitions=2
)


class FakeAdmin:
    """A client of brokers that have these topics; answers have the form of aiokafka's."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.refusal = 0
        self.is_closed = False

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        self.is_closed = True

    async def describe_topics(self) -> list[dict[str, Any]]:
        return [
            {"topic": name, "error_code": 0, "partitions": [{"leader": 1}] * count}
            for name, count in self.partitions.items()
        ]

    async def create_topics(self, asked: list[NewTopic], timeout_ms: int) -> Any:
        for topic in [] if self.refusal else asked:
            self.partitions.setdefault(topic.name, topic.num_partitions)
            self.configs.setdefault(topic.name, topic.topic_configs)
        errors = [(topic.name, self.refusal, None) for topic in asked]
        return SimpleNamespace(topic_errors=errors)

    async def describe_configs(self, asked: list[Any]) -> list[Any]:
        found = [
            (0, "", 2, one.name, list(self.configs.get(one.name, {}).items())) for one in asked
        ]
        return [SimpleNamespace(resources=found)]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    made = FakeAdmin()

    async def let_in(_: object) -> None:
        pass

    monkeypatch.setattr(topics, "check_access", let_in)
    monkeypatch.setattr(topics, "Clients", lambda _: SimpleNamespace(admin=lambda: made))
    return made


def refused(admin: FakeAdmin) -> str:
    with pytest.raises(ConfigurationError) as raised:
        asyncio.run(ensure_topics(SETTINGS))
    assert admin.is_closed
    return str(raised.value)


def test_topics_that_are_made_are_as_they_must_be(admin: FakeAdmin) -> None:
    asyncio.run(ensure_topics(SETTINGS))
    asyncio.run(ensure_topics(SETTINGS))
    assert admin.partitions == {spec.name: spec.partitions for spec in SETTINGS.topics}


@pytest.mark.parametrize(
    ("topic", "key"), [("table", "events_partitions"), ("cursors", "registry_partitions")]
)
def test_a_wrong_partition_count_says_what_to_do(admin: FakeAdmin, topic: str, key: str) -> None:
    admin.partitions[f"x.{topic}"] = 5
    said = refused(admin)
    assert f"Expected `2` partitions, got `5` in topic: x.{topic}." in said
    assert f"kafka.{key} = 5" in said


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_wrong_cleanup_policy_says_what_to_do(admin: FakeAdmin, policy: str) -> None:
    name = SETTINGS.topics.registry.name
    admin.configs[name] = {"cleanup.policy": policy}
    said = refused(admin)
    assert f"Expected cleanup.policy `compact`, got `{policy}`" in said
    assert f"in topic: {name}. Fix it with" in said


def test_a_topic_that_takes_only_small_messages_is_refused(admin: FakeAdmin) -> None:
    events = SETTINGS.topics.events
    small = {"max.message.bytes": "1000000"}
    admin.configs[events.name] = {"cleanup.policy": events.cleanup.value} | small
    assert "max.message.bytes of at least `8388608`, got `1000000`" in refused(admin)


def test_a_topic_that_may_not_be_created_says_what_to_do(admin: FakeAdmin) -> None:
    admin.refusal = 29  # TopicAuthorizationFailed
    assert "Create it beforehand, as docs/topics.md says" in refused(admin)


def test_waiting_ends_when_it_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    settings = KafkaSettings(bootstrap=f"{HOST}:{port}")

    async def give_up() -> None:
        role = asyncio.create_task(ensure_topics(settings))
        while not caplog.records:  # noqa: ASYNC110 -- a log has no event
            await asyncio.sleep(0.01)
        role.cancel()
        with pytest.raises(asyncio.CancelledError):
            await role

    asyncio.run(asyncio.wait_for(give_up(), 40.0))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "brokers.outages"]
    assert line.startswith(f"kafka failed, retrying: cannot use Kafka at {HOST}:{port}: ")
    assert "refused" in line or "Connect call failed" in line
