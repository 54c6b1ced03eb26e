"""Dynamo's select service, as a process answers it, and what stays of it over a kill -9."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from lab.engines.publisher import Publisher, PublisherOptions
from lab.engines.wire import BlockStored
from tests.engine_http import EngineServer, engine_server
from tests.processes import Service, until

pytestmark = pytest.mark.timeout(180)

WHOLE = {"model_name": "m", "routing_group": "g"}
TOKENS = list(range(64))
STORED = BlockStored(block_hashes=[1, 2, 3, 4], token_ids=TOKENS, block_size=16)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "data", "--set", "routing.select_service=true") as running:
        yield running


def call(service: Service, method: str, path: str, status: int, body: object = None) -> Any:
    reply = httpx.request(method, f"{service.base_url}{path}", json=body, timeout=10.0)
    assert reply.status_code == status, reply.text
    return reply.json()


def add(service: Service, number: int, publisher: Publisher, engine: EngineServer) -> None:
    body = {
        "worker_id": number,
        "endpoint": engine.url,
        "block_size": 16,
        "kv_events_endpoint": publisher.endpoint,
    }
    assert call(service, "POST", "/workers", 201, WHOLE | body)["worker_id"] == number


def booked(service: Service) -> list[int]:
    (found,) = call(service, "GET", "/loads?routing_group=g", 200)
    return [one["active_requests"] for one in found["loads"]]


def test_a_reservation_goes_where_the_prefix_is_and_outlives_a_kill(service: Service) -> None:
    with (
        engine_server() as engine,
        engine_server() as other,
        closing(Publisher(PublisherOptions())) as first,
        closing(Publisher(PublisherOptions())) as second,
    ):
        add(service, 1, first, engine)
        add(service, 2, second, other)
        prompt = WHOLE | {"token_ids": TOKENS}

        until(lambda: second.subscribers, what="its subscription")
        second.publish([STORED])

        def holds() -> bool:
            rows = call(service, "POST", "/overlap_scores", 200, prompt)["workers"]
            return [one["device_blocks"] for one in rows] == [0, 4]

        until(holds, what="the blocks of the second worker")
        until(
            lambda: call(service, "POST", "/select", 200, prompt)["worker_id"] == 2,
            what="the second worker is known well enough to be chosen for them",
        )
        body = prompt | {"selection_id": "s"}
        selected = call(service, "POST", "/select_and_reserve", 200, body)
        assert (selected["worker_id"], selected["endpoint"]) == (2, other.url)
        assert selected["overlap"]["longest_matched"] == 64
        assert booked(service) == [0, 1]
        call(service, "POST", "/reservations/s/prefill_complete", 200)

        def is_written() -> bool:
            shown = service.get("/routing")[1]
            return not shown["counts"]["waiting"] and shown["under_way"] == 1

        until(is_written, what="the reservation in the routing log")
        service.restart()
        assert booked(service) == [0, 1]
        call(service, "DELETE", "/reservations/s", 200)
        assert booked(service) == [0, 0]
        assert [one["worker_id"] for one in call(service, "GET", "/workers", 200)] == [1, 2]
