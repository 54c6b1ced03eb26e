"""Bridges that join, leave in order and come back, under load: of engines that cannot replay,
nothing is lost.

The figures of a run are printed: `pytest -s`, or what a failure shows.
"""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition  # type: ignore[import-untyped]

from brokers.broker_settings import KafkaSettings
from schemas.identities import Offset
from schemas.records import GapRecord
from streams.kernel import open_kernel
from streams.table.fold import Fold
from tests.integration.bridge.engine import Engine, Engines, Load
from tests.integration.bridge.process import BridgeProcess, Bridges
from tests.integration.bridge.topics import Deployment, digests, truth
from tests.kafka_fixtures import Kafka, settings_for
from tests.processes import until

PER_SECOND = 20
"""Messages of each engine."""


@pytest.fixture
def deployment(kafka: Kafka, topic_prefix: str) -> Deployment:
    """Of so many partitions that three bridges have some each."""
    return Deployment(settings_for(kafka, topic_prefix, partitions=6))


class Fleet:
    """Bridges that are changed under load, and what became of the engines' batches meanwhile."""

    def __init__(
        self,
        kafka: KafkaSettings,
        deployment: Deployment,
        make: Callable[..., BridgeProcess],
        engines: Sequence[Engine],
    ) -> None:
        self._kafka, self._deployment, self._make = kafka, deployment, make
        self._names = {one.registration.instance_id for one in engines}
        self._lost: dict[str, int] = {}
        self.sending: list[Engine] = []
        self.bridges: list[BridgeProcess] = []

    def join(self) -> None:
        self.bridges.append(self._make(self._kafka))
        self._settle()

    def come_back(self, number: int) -> None:
        self.bridges[number].start()
        self._settle()

    def leave(self, number: int) -> None:
        """SIGTERM."""
        assert self.bridges[number].stop() == 0
        self._settle()

    def _running(self) -> list[BridgeProcess]:
        return [one for one in self.bridges if one.process is not None]

    def _settle(self) -> None:
        """Waits until each publisher is live with one bridge, and each bridge has some."""

        def holds() -> bool:
            states = [one.states() for one in self._running()]
            live = [name for one in states for name, state in one.items() if state == "live"]
            return all(states) and sorted(live) == sorted(self._names)

        until(holds, what="each publisher is followed by one bridge", timeout_s=60)
        goals = {one: one.published() + PER_SECOND for one in self.sending}
        until(
            lambda: all(one.published() >= goal for one, goal in goals.items()),
            what="a second of load",
        )

    def lost(self) -> dict[str, int]:
        """What the log says is lost of each engine, in batches, since the last call."""
        found: dict[str, int] = {}
        for logged in self._deployment.log():
            if isinstance(logged.record, GapRecord):
                name = logged.record.stream.instance_id
                batches = logged.record.last_sequence - logged.record.first_sequence + 1
                found[name] = found.get(name, 0) + batches
        new = {name: count - self._lost.get(name, 0) for name, count in found.items()}
        self._lost = found
        return {name: count for name, count in new.items() if count}


async def _read_values(kafka: KafkaSettings) -> list[list[bytes]]:
    """Those of each partition: what a bridge says of all its publishers is said of one."""
    topic = kafka.topics.events
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.servers, auto_offset_reset="earliest")
    await consumer.start()
    try:
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        found: list[list[bytes]] = [[] for _ in partitions]
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for part, messages in (await consumer.getmany(timeout_ms=500)).items():
                found[part.partition] += [one.value for one in messages]
        return found
    finally:
        await consumer.stop()


def states(kafka: KafkaSettings) -> dict[str, str]:
    """What the log says of each instance: why it is not confirmed, `degraded`, or ""."""
    found = {}
    for values in asyncio.run(_read_values(kafka)):
        fold = Fold(open_kernel(1337))
        for place, value in enumerate(values):
            fold.apply(Offset(place), value)
        for publisher, state in fold.publishers.items():
            said = "unknown" if state.confirmation is None else str(state.confirmation.reason)
            degraded = state.degraded_since is not None
            found[publisher.stream.instance_id] = "degraded" if degraded else said
    return found


@pytest.mark.timeout(300)
def test_planned_changes_lose_nothing_of_engines_that_cannot_replay(
    deployment: Deployment, engines: Engines, bridges: Bridges
) -> None:
    ones = [engines(f"engine-{number}", replay=False) for number in range(12)]
    deployment.register(*(one.registration for one in ones))
    fleet = Fleet(deployment.kafka, deployment, bridges, ones)
    fleet.bridges.append(bridges(deployment.kafka))
    until(lambda: all(one.publisher.subscribers for one in ones), what="subscribers")
    changes: list[tuple[str, Callable[[], None]]] = [
        ("a second bridge joins", fleet.join),
        ("a third one", fleet.join),
        ("SIGTERM of the first", lambda: fleet.leave(0)),
        ("the first comes back", lambda: fleet.come_back(0)),
    ]
    lost: list[dict[str, int]] = []
    ones[0].publish()  # and nothing more: no number tells what both owners have of it
    fleet.sending = ones[1:]
    with Load(*fleet.sending, pause_s=1 / PER_SECOND):
        for what, change in changes:
            change()
            lost.append(fleet.lost())
            print(f"{what}: {len(lost[-1])} engines lose {sum(lost[-1].values())} batches")
    print(f"{sum(one.published() for one in ones)} batches")
    for one in ones:
        one.publish()
    deployment.until_logged(*ones)
    seen: dict[str, str] = {}

    def are_confirmed() -> bool:
        seen.update(states(deployment.kafka))
        return set(seen.values()) == {""}

    try:
        until(are_confirmed, what="all are confirmed")
    except AssertionError as error:
        pytest.fail(f"{error}: {seen}")
    fold = deployment.fold()
    assert not any(lost)
    assert (fold.counters["gaps"], fold.counters["log_holes"]) == (0, 0)
    assert digests(fold) == truth(*ones)
