"""The client's own fetcher, as we check what it is given, on answers made here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiokafka.consumer.consumer  # type: ignore[import-untyped]
import pytest
from aiokafka.consumer.subscription_state import (  # type: ignore[import-untyped]
    SubscriptionState,
)
from aiokafka.protocol.fetch import FetchResponse_v11  # type: ignore[import-untyped]

from brokers import client_internals
from brokers.client_internals import _CheckedFetcher
from brokers.client_types import Partition
from brokers.errors import DamagedPartitionError
from tests.unit.brokers.test_record_batches import Log

FIRST, SECOND = Partition("t", 0), Partition("t", 1)
LOG = Log([4, 4, 4])
DAMAGED = bytes([*LOG.bytes[:70], LOG.bytes[70] ^ 1, *LOG.bytes[71:]])

Answer = Callable[[Partition, int], tuple[int, bytes]]
"""By partition and offset: a code of an error, and what is fetched."""


class FakeClient:
    """A broker that answers each fetch as it is told."""

    def __init__(self, answer: Answer) -> None:
        self.cluster = SimpleNamespace(
            leader_for_partition=lambda _: 0, broker_metadata=lambda _: None
        )
        self._loop = asyncio.get_running_loop()
        self._metadata_max_age_ms = 1000
        self.asked = 0
        self._answer = answer

    def force_metadata_update(self) -> "asyncio.Future[bool]":
        return asyncio.get_running_loop().create_future()

    async def send(self, node_id: int, request: Any) -> Any:
        assert request.API_KEY == FetchResponse_v11.API_KEY
        self.asked += 1
        topics = []
        nothing = True
        for topic, partitions in request.topics:
            answers: list[tuple[object, ...]] = []
            for number, offset, _ in partitions:
                code, fetched = self._answer(Partition(topic, number), offset)
                nothing = nothing and not fetched and not code
                end = -1 if code else LOG.end
                answers.append((number, code, end, end, 0, [], -1, fetched))
            topics.append((topic, answers))
        await asyncio.sleep(0.02 if nothing else 0)
        return FetchResponse_v11(0, 0, 0, topics)


@asynccontextmanager
async def fetching(
    answer: Answer, **attributes: object
) -> AsyncIterator[tuple[_CheckedFetcher, Any, FakeClient]]:
    client = FakeClient(answer)
    for name, value in attributes.items():
        setattr(client, name, value)
    subscriptions = SubscriptionState()
    subscriptions.assign_from_user([FIRST, SECOND])
    state = subscriptions.subscription.assignment.state_value
    for part in (FIRST, SECOND):
        state(part).seek(0)
    fetcher = _CheckedFetcher(client, subscriptions, isolation_level="read_committed")
    try:
        yield fetcher, state, client
    finally:
        await fetcher.close()


def offsets(found: dict[Partition, list[Any]]) -> dict[Partition, list[int]]:
    return {part: [record.offset for record in records] for part, records in found.items()}


def test_every_consumer_of_the_process_has_it() -> None:
    assert aiokafka.consumer.consumer.Fetcher is _CheckedFetcher


@pytest.mark.parametrize(("small_bytes", "is_asked_again"), [(1, True), (2**20, False)])
def test_after_a_small_answer_the_next_fetch_waits_for_more_to_come(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, *, is_asked_again: bool
) -> None:
    monkeypatch.setattr(client_internals, "FETCH_GATHER_BYTES", small_bytes)
    monkeypatch.setattr(client_internals, "FETCH_GATHER_S", 3600.0)

    def answer(_: Partition, offset: int) -> tuple[int, bytes]:
        return 0, b"" if offset == LOG.end else LOG.bytes

    async def scenario() -> None:
        async with fetching(answer) as (fetcher, _, client):
            taken = await fetcher.fetched_records([FIRST, SECOND], timeout=1)
            assert offsets(taken) == {FIRST: [*range(12)], SECOND: [*range(12)]}
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert (client.asked > 1) == is_asked_again

    asyncio.run(scenario())


def test_damage_in_one_partition_loses_nothing_of_the_others() -> None:
    """As aiokafka has it, what was taken of the others is dropped when a checksum fails."""

    def answer(part: Partition, offset: int) -> tuple[int, bytes]:
        if offset == LOG.end:
            return 0, b""
        if part == FIRST:
            return 0, DAMAGED if offset < 4 else LOG.bytes[LOG.places[1] :]
        return 0, LOG.bytes

    async def scenario() -> None:
        async with fetching(answer) as (fetcher, state, _):
            found: dict[Partition, list[int]] = {FIRST: [], SECOND: []}
            raised: list[DamagedPartitionError] = []
            while len(found[FIRST]) < 8 or len(found[SECOND]) < 12:
                try:
                    taken = await fetcher.fetched_records([FIRST, SECOND], timeout=1)
                except DamagedPartitionError as error:
                    raised.append(error)
                    state(FIRST).seek(error.readable_from)
                    continue
                for part, each in offsets(taken).items():
                    found[part] += each
            assert found == {FIRST: list(range(4, 12)), SECOND: list(range(12))}
            assert [(one.partition, one.offset, one.readable_from) for one in raised] == [
                (FIRST, 0, 4)
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [(-1, b""), (2, b""), (87, b""), (0, b"")], ids=str)
def test_a_broker_that_gives_nothing_is_asked_at_a_bounded_rate_and_then_told(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes]
) -> None:
    monkeypatch.setattr(client_internals, "FETCH_ERROR_PAUSE_S", 0.02)

    async def scenario() -> None:
        async with fetching(lambda *_: answer) as (fetcher, state, client):
            fetcher.patience_s = 0.2
            for _ in range(2):  # and again, for as long as the consumer stays there
                with pytest.raises(DamagedPartitionError) as raised:
                    await fetcher.fetched_records([FIRST], timeout=5)
                assert (raised.value.offset, raised.value.readable_from) == (0, None)
            assert client.asked < 200
            assert state(FIRST).position == 0

    asyncio.run(scenario())


def test_a_partition_that_others_leave_no_room_for_is_not_damaged() -> None:
    """A broker serves them in the order of the request until its answer is full."""
    full: tuple[object, ...] = (0, 0, LOG.end, LOG.end, 0, [], -1, LOG.bytes)
    empty: tuple[object, ...] = (1, 0, LOG.end, LOG.end, 0, [], -1, b"")

    async def scenario() -> None:
        async with fetching(lambda *_: (0, LOG.bytes)) as (fetcher, _, _):
            fetcher.patience_s = -1.0
            request = SimpleNamespace(topics=[("t", [(0, 0, 0), (1, 0, 0)])])
            fetcher._nothing.clear()
            for behind in range(10):
                await fetcher._checked(request, FetchResponse_v11(0, 0, 0, [("t", [full, empty])]))
                assert SECOND not in fetcher._nothing, behind
            for before in range(3):
                assert SECOND not in fetcher._damaged, before
                await fetcher._checked(request, FetchResponse_v11(0, 0, 0, [("t", [empty, full])]))
            assert not fetcher._damaged[SECOND].is_proven

    asyncio.run(scenario())


def test_what_was_found_where_a_consumer_stood_before_is_not_raised() -> None:
    def answer(part: Partition, offset: int) -> tuple[int, bytes]:
        if part == SECOND or offset == LOG.end:
            return 0, b""
        return 0, DAMAGED if offset == 0 else LOG.bytes[LOG.places[1] :]

    async def scenario() -> None:
        async with fetching(answer) as (fetcher, state, _):
            async with asyncio.timeout(10):
                while FIRST not in fetcher._records:  # noqa: ASYNC110 -- the client's own
                    await asyncio.sleep(0.01)
            state(FIRST).seek(4)
            found = await fetcher.fetched_records([FIRST], timeout=5)
            assert offsets(found) == {FIRST: list(range(4, 12))}

    asyncio.run(scenario())


def test_a_missing_offset_is_damage_where_every_one_is_expected() -> None:
    def answer(part: Partition, offset: int) -> tuple[int, bytes]:
        return 0, LOG.bytes[LOG.places[1] :] if part == FIRST and offset < LOG.end else b""

    async def scenario(**attributes: object) -> dict[Partition, list[int]]:
        async with fetching(answer, **attributes) as (fetcher, _, _):
            return offsets(await fetcher.fetched_records([FIRST], timeout=5))

    assert asyncio.run(scenario()) == {FIRST: list(range(4, 12))}
    with pytest.raises(DamagedPartitionError) as raised:
        asyncio.run(scenario(expects_every_offset=True))
    assert raised.value.readable_from == 4
