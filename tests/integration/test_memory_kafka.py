"""Segments of memory round Kafka: two bridges of one host see the same, and one of them ends."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brokers.broker_settings import KafkaSettings
from tests.contract.deployments import SESSION, memory_options
from tests.integration.test_tail import source, tail
from tests.memory_segments import Segment
from tests.processes import until
from tests.roles import Role

pytestmark = pytest.mark.timeout(180)

NAMES = [f"kvcached_{number}" for number in range(6)]


class Roles:
    def __init__(self, directory: Path, settings: KafkaSettings) -> None:
        self.shm = directory / "shm"
        options = (*SESSION, *memory_options(self.shm))
        self.bridges = [
            Role("bridge", directory / f"bridge-{number}", settings, *options)
            for number in range(2)
        ]
        self.worker = Role("streams", directory / "streams", settings, *SESSION)
        self.replica = Role("serve", directory / "serve", settings)
        self.all = [*self.bridges, self.worker, self.replica]

    def segments(self) -> dict[str, dict[str, Any]]:
        return {one["segment"]: one for one in self.replica.get("/memory")["segments"]}

    def until_are(self, **fields: object) -> None:
        def are() -> bool:
            found = self.segments()
            return all(fields.items() <= found.get(name, {}).items() for name in NAMES)

        log = "\n".join(role.output()[-2000:] for role in self.all)
        until(are, what=f"all are {fields}:\n{log}", timeout_s=60)


def sees_all(bridge: Role) -> bool:
    found: int = bridge.get("/health")["memory"]["segments"]
    return found == len(NAMES)


@pytest.fixture
def roles(tmp_path: Path, kafka_settings: KafkaSettings) -> Iterator[Roles]:
    made = Roles(tmp_path, kafka_settings)
    for role in made.all:
        role.start()
    yield made
    for role in made.all:
        role.kill()


def test_with_one_of_two_bridges_everything_goes_on(
    roles: Roles, kafka_settings: KafkaSettings
) -> None:
    segments = [Segment(roles.shm / name, 1000, 100) for name in NAMES]
    try:
        roles.until_are(state="live", used=100)
        first, second = roles.bridges
        for bridge in (first, second):
            until(partial(sees_all, bridge), what="both see all of them")
        assert first.get("/health")["memory"]["host"] == "node-1"
        first.kill()
        for segment in segments:
            segment.write(1000, 500, 0)
        roles.until_are(state="live", used=500)
        for segment in segments:
            segment.remove()
        roles.until_are(state="gone")
        assert second.metric("reprise_memory_records_total") >= 3 * len(NAMES)
    finally:
        for segment in segments:
            segment.close()
    lines = [one for one in tail(*source(kafka_settings)) if one["kind"] == "memory"]
    for name in NAMES:
        of_one = [one for one in lines if one["segment"] == name]
        assert len({one["partition"] for one in of_one}) == 1, "so they are in order"
        assert of_one[-1]["change"] == "disappeared"
    assert {one["partition"] for one in lines} == {0, 1}
