"""What a group has committed, asked of a client that is not there, or answers with errors."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokers.client_types import Partition
from brokers.clients import Clients
from brokers.errors import KafkaError
from brokers.group_offsets import GroupOffset, GroupOffsets


class FakeAdmin:
    def __init__(self) -> None:
        self.started = self.closed = self.coordinators = 0
        self.asked: list[tuple[str, int, list[Partition]]] = []
        self.failure: Exception | None = None
        self.committed: dict[int, int] = {}
        self.said: dict[int, str | None] = {}

    async def start(self) -> None:
        self.started += 1
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.closed += 1

    async def find_coordinator(self, group: str) -> int:
        self.coordinators += 1
        return 7

    async def list_consumer_group_offsets(
        self, group: str, *, group_coordinator_id: int, partitions: list[Partition]
    ) -> dict[Partition, Any]:
        self.asked.append((group, group_coordinator_id, partitions))
        if self.failure is not None:
            raise self.failure
        return {
            one: SimpleNamespace(
                offset=self.committed.get(one.partition, -1), metadata=self.said.get(one.partition)
            )
            for one in partitions
        }


def offsets_of(admin: FakeAdmin) -> GroupOffsets:
    clients = cast(Clients, SimpleNamespace(admin=lambda: admin))
    return GroupOffsets(clients, "p.streams", "p.events")


def test_it_asks_the_coordinator_for_the_partitions_and_keeps_its_connection() -> None:
    async def run() -> None:
        admin = FakeAdmin()
        offsets = offsets_of(admin)
        admin.committed, admin.said = {0: 5, 2: 0}, {0: "said"}
        found = await offsets.fetch([0, 1, 2])
        assert found == {0: GroupOffset(5, "said"), 2: GroupOffset(0)}, "one has none"
        assert await offsets.fetch([0]) == {0: GroupOffset(5, "said")}
        assert (admin.started, admin.coordinators, admin.closed) == (1, 1, 0)
        assert admin.asked[0] == ("p.streams", 7, [Partition("p.events", n) for n in range(3)])
        await offsets.close()
        assert admin.closed == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (KafkaError("moved"), KafkaError),
        (OSError("away"), OSError),
        # Of the client itself, where the answer has an error for a partition.
        (AttributeError("'OffsetFetchResponse_v1' object has no attribute"), KafkaError),
    ],
)
def test_after_an_error_it_connects_anew_and_asks_who_the_coordinator_is(
    failure: Exception, raised: type[Exception]
) -> None:
    async def run() -> None:
        admin = FakeAdmin()
        offsets = offsets_of(admin)
        await offsets.fetch([0])
        admin.failure = failure
        with pytest.raises(raised):
            await offsets.fetch([0])
        assert admin.closed == 1
        admin.failure = None
        await offsets.fetch([0])
        assert (admin.started, admin.coordinators) == (2, 2)

    asyncio.run(run())


def test_a_client_that_cannot_be_started_is_closed() -> None:
    async def run() -> None:
        admin = FakeAdmin()
        admin.failure = KafkaError("away")
        with pytest.raises(KafkaError):
            await offsets_of(admin).fetch([0])
        assert admin.closed == 1

    asyncio.run(run())
