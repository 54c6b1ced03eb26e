"""What `/events` tells each client, looked at without a network."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from page import events
from page.events import (
    EVENT_STREAMS_MAX,
    EVENT_STREAMS_OF_KEY_MAX,
    EVENTS_DECISIONS_MAX,
    EVENTS_WAITING_MAX,
    EventProducer,
    EventStream,
)
from page.summary import SummarySource
from query_api.access.rights import Access, Right
from query_api.http.errors import RequestError
from query_api.http.metrics import HttpMetrics
from query_api.http.requests.bodies import Bodies
from query_api.ports import Lag
from tests.fakes import FakeTable, registration
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route

EVERYTHING = Access("all", frozenset(Right))
OF_ACME = Access("acme", frozenset(Right), frozenset({"acme"}))


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow at once, and comments too."""
    monkeypatch.setattr(events, "EVENTS_PERIOD_S", 0.01)
    monkeypatch.setattr(events, "EVENTS_CPU_SHARE", 1e9)
    monkeypatch.setattr(events, "EVENTS_COMMENT_S", 0.2)


def producer_of(service: Service) -> EventProducer:
    source = SummarySource(
        service.table, HttpMetrics(CollectorRegistry(), Bodies()), service.router, "1.2.3"
    )
    return EventProducer(source)


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 10.0))


def read(block: bytes) -> tuple[str, str, Any]:
    """Event, id and data of a block."""
    fields = dict(line.split(": ", 1) for line in block.decode().strip().split("\n"))
    return fields["event"], fields["id"], msgspec.json.decode(fields["data"])


async def first(stream: AsyncIterator[bytes], event: str) -> tuple[str, Any]:
    """Id and data of the next one of that name."""
    async for block in stream:
        if block.startswith(b"event: "):
            name, event_id, data = read(block)
            if name == event:
                return event_id, data
    raise AssertionError(f"the stream ended without {event}")


def test_a_client_is_told_everything_at_first_and_then_what_changes(service: Service) -> None:
    register(service, "a")
    producer = producer_of(service)

    async def work() -> None:
        stream = producer.open(EVERYTHING)
        told = stream.events()
        _, summary = await first(told, "summary")
        assert (summary["instances"], summary["health"]["version"]) == (1, "1.2.3")
        assert summary["states"] == {"exact": 1}
        _, rows = await first(told, "instances")
        assert (rows["whole"], [row["instance_id"] for row in rows["rows"]]) == (True, ["a"])
        register(service, "b")
        _, rows = await first(told, "instances")
        assert (rows["whole"], [row["instance_id"] for row in rows["rows"]]) == (False, ["b"])
        service.table.registrations.pop(next(iter(service.table.registrations)))
        _, rows = await first(told, "instances")
        assert rows["gone"] == [["default", "a"]]
        producer.end()

    run(work)


def test_a_client_is_told_what_is_wrong_as_health_has_it(service: Service) -> None:
    service.table.role, service.table.problem = "serve", "cannot use Kafka at k:9092"
    service.table.lag = Lag(3, 4, seconds=12.0, reachable=False)
    producer = producer_of(service)

    async def work() -> None:
        _, summary = await first(producer.open(EVERYTHING).events(), "summary")
        health = summary["health"]
        assert health["role"] == "serve"
        assert [one["message"] for one in health["conditions"]] == [service.table.problem]
        assert (health["lag"]["seconds"], health["lag"]["reachable"]) == (12.0, False)
        producer.end()

    run(work)


def test_a_client_is_first_told_of_the_hour_before_it_came(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HISTORY_PERIOD_S", 0.01)
    register(service, "a")
    producer = producer_of(service)

    async def work() -> None:
        producer.begin()
        await asyncio.sleep(0.1)
        _, history = await first(producer.open(EVERYTHING).events(), "history")
        assert len(history["points"]) > 3
        assert [one["at"] for one in history["counted"]][1:] == [
            one["at"] for one in history["points"]
        ]
        assert {point["answers"] for point in history["points"]} == {0.0}
        first_block = [block async for block in _blocks(producer.open(OF_ACME), 2)][1]
        assert read(first_block)[0] == "summary", "figures of all are not for who sees some"
        producer.end()
        remembering = producer._remembering
        assert remembering is not None
        with pytest.raises(asyncio.CancelledError):
            await remembering

    run(work)


async def _blocks(stream: EventStream, count: int) -> AsyncIterator[bytes]:
    async for block in stream.events():
        yield block
        count -= 1
        if not count:
            return


def test_new_decisions_are_told_and_those_beyond_a_few_are_counted(service: Service) -> None:
    register(service, "a")
    producer = producer_of(service)
    for _ in range(EVENTS_DECISIONS_MAX + 3):
        last = route(service)

    async def work() -> None:
        _, found = await first(producer.open(EVERYTHING).events(), "decisions")
        assert (len(found["decisions"]), found["skipped"]) == (EVENTS_DECISIONS_MAX, 0)
        told = producer.open(EVERYTHING, f"{producer.run:x}-0").events()
        _, found = await first(told, "decisions")
        assert (len(found["decisions"]), found["skipped"]) == (EVENTS_DECISIONS_MAX, 3)
        assert found["decisions"][0]["decision_id"] == last["decision_id"]
        producer.end()

    run(work)


def test_who_comes_back_goes_on_behind_the_last_id(service: Service) -> None:
    register(service, "a")
    producer = producer_of(service)

    async def work() -> None:
        stream = producer.open(EVERYTHING)
        told = stream.events()
        first_id = (await asyncio.to_thread(route, service))["decision_id"]
        event_id, found = await first(told, "decisions")
        assert [one["decision_id"] for one in found["decisions"]] == [first_id]
        producer.close(stream)
        second_id = (await asyncio.to_thread(route, service))["decision_id"]
        _, found = await first(producer.open(EVERYTHING, event_id).events(), "decisions")
        assert [one["decision_id"] for one in found["decisions"]] == [second_id]
        # Of another run of the service, or nonsense: it knows nothing.
        for unknown in ("0-5", "x", "-", "f" * 4000, f"{producer.run:x}--5", ""):
            _, found = await first(producer.open(EVERYTHING, unknown).events(), "decisions")
            assert len(found["decisions"]) == 2, unknown
        producer.end()

    run(work)


def test_a_client_is_told_of_its_tenants_alone(service: Service) -> None:
    for tenant in ("acme", "blue"):
        service.table.add(registration(instance_id=f"of-{tenant}", tenant_id=tenant))
    producer = producer_of(service)
    for tenant in ("acme", "blue"):
        body = {"model": "m", "block_size": 4, "token_ids": [1] * 8, "tenant_id": tenant}
        service.client.post_json("/route", body)

    async def work() -> None:
        told = producer.open(OF_ACME).events()
        _, summary = await first(told, "summary")
        assert (summary["instances"], sum(summary["states"].values())) == (1, 1)
        assert summary["queries"] is summary["routing"] is summary["index"] is None
        _, rows = await first(told, "instances")
        assert [row["tenant_id"] for row in rows["rows"]] == ["acme"]
        _, found = await first(told, "decisions")
        assert {one["tenant_id"] for one in found["decisions"]} == {"acme"}
        assert found["skipped"] == 0, "not even how many others there are"
        producer.end()

    run(work)


def test_who_reads_slowly_loses_the_oldest_and_gets_everything_anew(service: Service) -> None:
    register(service, "a")
    stream = EventStream(EVERYTHING, 0)
    rows = {("default", "a"): events._Row("default", "exact", b'{"instance_id":"a"}')}
    stream.put_rows(1, rows)
    for _ in range(EVENTS_WAITING_MAX):
        stream.put("summary", 1, b"{}")
    assert stream.dropped == EVENTS_WAITING_MAX
    assert len(stream._waiting) <= EVENTS_WAITING_MAX
    stream.put_rows(1, rows)
    _, _, data = read(stream._waiting[-1])
    assert data == {"whole": True, "rows": [{"instance_id": "a"}], "gone": []}


def test_a_client_that_never_reads_costs_others_nothing(service: Service) -> None:
    register(service, "a")
    producer = producer_of(service)

    async def work() -> None:
        silent = producer.open(EVERYTHING)
        told = producer.open(EVERYTHING).events()
        for _ in range(EVENTS_WAITING_MAX + 5):
            await first(told, "summary")
        assert len(silent._waiting) <= EVENTS_WAITING_MAX
        assert producer.dropped > 0
        samples = {one.name: one.samples for one in producer.collect()}
        assert samples["reprise_events_dropped"][0].value == producer.dropped
        assert samples["reprise_event_streams"][0].value == 2
        producer.end()

    run(work)


def test_streams_are_bounded(service: Service) -> None:
    producer = producer_of(service)

    async def work() -> None:
        streams = [producer.open(EVERYTHING) for _ in range(EVENT_STREAMS_MAX)]
        with pytest.raises(RequestError, match=f"at most {EVENT_STREAMS_MAX} streams") as refused:
            producer.open(EVERYTHING)
        assert refused.value.status == 503
        producer.close(streams[0])
        producer.open(EVERYTHING)
        producer.end()
        with pytest.raises(RequestError, match="stops"):
            producer.open(EVERYTHING)

    run(work)


def test_a_key_for_some_tenants_has_a_share_of_them(service: Service) -> None:
    producer = producer_of(service)
    some = Access("a-dashboard", frozenset({Right.READ}), frozenset({"a"}))

    async def work() -> None:
        for _ in range(EVENT_STREAMS_OF_KEY_MAX):
            producer.open(some)
        with pytest.raises(RequestError, match=f"at most {EVENT_STREAMS_OF_KEY_MAX} streams"):
            producer.open(some)
        producer.open(some._replace(key_id="b-dashboard"))
        producer.open(EVERYTHING)
        producer.end()

    run(work)


def test_a_look_that_fails_is_counted_and_ends_no_stream(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = producer_of(service)
    look, failures = SummarySource.summary, iter((True, True))

    def fails_twice(source: SummarySource) -> Any:
        if next(failures, False):
            raise RuntimeError("as a bug would")
        return look(source)

    monkeypatch.setattr(SummarySource, "summary", fails_twice)

    async def work() -> None:
        await first(producer.open(EVERYTHING).events(), "summary")
        assert producer.failed_looks == 2
        producer.end()

    run(work)


def test_a_comment_shows_that_an_idle_stream_lives(service: Service) -> None:
    async def work() -> None:
        stream = EventStream(EVERYTHING, 0)
        told = stream.events()
        assert await anext(told) == b"retry: 2000\n\n"
        assert await anext(told) == b": still here\n\n"
        stream.end()
        with pytest.raises(StopAsyncIteration):
            await anext(told)

    run(work)


def test_a_stream_ends_after_a_while_so_that_its_key_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "EVENTS_STREAM_S", 0.3)

    async def work() -> None:
        told = [one async for one in EventStream(EVERYTHING, 0).events()]
        assert told[0] == b"retry: 2000\n\n"

    run(work)


def test_nobody_looks_while_nobody_listens(service: Service, table: FakeTable) -> None:
    producer = producer_of(service)

    async def work() -> None:
        stream = producer.open(EVERYTHING)
        await first(stream.events(), "summary")
        producer.close(stream)
        looking = producer._looking
        assert looking is not None
        await looking
        assert producer._looking is None
        await first(producer.open(EVERYTHING).events(), "summary")
        producer.end()

    run(work)
