"""Numbers as large as they come: refused by name, or booked without harm to the next request."""

import math

import msgspec
import pytest

from routing.bounds import LOAD_SUM_MAX
from routing.http.requests import ROUTE_TOKENS_MAX
from schemas.codec import decode_routing
from schemas.routing_records import encode_routing
from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import asked, refused, register, route

HASHES = list(range(1, 41))


def written(service: Service) -> None:
    """Whatever was decided can be read again."""
    for record in service.queue.take(service.clock.now):
        assert decode_routing(encode_routing(record)) == record


def test_blocks_of_more_tokens_than_a_prompt_may_have_are_refused(service: Service) -> None:
    register(service, "a")
    body = asked(block_size=2**40, block_hashes=HASHES)
    del body["token_ids"]
    status, reason, field = refused(service, "/route", body)
    assert (status, reason, field) == (400, "out_of_range", "block_size")
    assert route(service)["prefill"]["instance_id"] == "a"


@pytest.mark.parametrize("field", ["prompt_tokens", "expected_output_tokens"])
def test_more_tokens_than_a_request_may_have_are_refused(service: Service, field: str) -> None:
    assert refused(service, "/route", asked(**{field: ROUTE_TOKENS_MAX + 1}))[::2] == (400, field)


def test_the_longest_prompts_are_summed_within_what_a_record_can_have(service: Service) -> None:
    register(service, "a")
    body = {
        "model": "m",
        "block_size": 16,
        "block_hashes": HASHES,
        "prompt_tokens": ROUTE_TOKENS_MAX,
        "expected_output_tokens": ROUTE_TOKENS_MAX,
        "candidates": [{"instance_id": "a"}],
    }
    answers = {service.client.post_json("/route", body).status for _ in range(1200)}
    assert answers == {200, 429}, "taken while there is room, then refused as full"
    [(_, load)] = service.router.carried()
    assert 0 < load.pending <= LOAD_SUM_MAX
    assert 0 < load.kv_tokens <= LOAD_SUM_MAX
    written(service)


@pytest.mark.parametrize("value", [math.inf, 1e7])
def test_a_weight_without_bound_is_refused(service: Service, value: float) -> None:
    register(service, "a")
    policy = f"weighted:alpha={value}"
    reply = service.client.post_json("/route", asked(policy=policy))
    assert reply.status == 400, msgspec.json.decode(reply.body)
    route(service)
    written(service)


def test_a_decision_of_one_who_only_asks_changes_no_load(service: Service) -> None:
    register(service, "a")
    busy = [{"instance_id": "a", "load": {"waiting": 50}}]
    route(service, candidates=busy, reserve=False)
    assert not any(load.wait_s for _, load in service.router.carried())
