"""A priority below 0 is refused first: some room is for the others."""

import pytest

from routing.policies.decide import DegradedPolicy, Rules
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route


@pytest.mark.parametrize(("kv_usage", "status"), [(0.7, 200), (0.8, 429)])
def test_what_an_engine_carries(service: Service, kv_usage: float, status: int) -> None:
    register(service, "a")
    sample = {"instance_id": "a", "kv_usage": kv_usage}
    assert service.client.post_json("/load", sample).status == 202
    assert route(service, status, priority=-1)
    assert route(service, priority=0)


def test_each_bound_is_four_fifths() -> None:
    rules = Rules(DegradedPolicy.KEEP, 0.5, 30.0, 1024).shed()
    assert rules == (DegradedPolicy.KEEP, 0.4, 24.0, 819)


def test_what_waits_there(service: Service) -> None:
    register(service, "a")
    long = [7] * 207_000  # some 26 s by the costs that are set
    wait_s = route(service, token_ids=long)["prefill"]["ttft_ms"]["expected"] / 1000
    assert 24.0 < wait_s < 60.0
    service.clock.now += wait_s - 25.0
    refused = route(service, 429, priority=-3)
    assert (refused["reason"], refused["candidates"][0]["reasons"]) == (
        "overloaded",
        ["queue_full"],
    )
    assert route(service)["prefill"]["ttft_ms"]["queue"] == pytest.approx(25_000)
    service.clock.now += 2.0
    assert route(service, priority=-3)["prefill"]["instance_id"] == "a"
