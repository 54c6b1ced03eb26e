"""An engine with a long queue by its own word, beside an idle one: the idle one gets nearly all."""

import random

import msgspec
import pytest

from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.test_endpoint import register, route

BUSY = {"instance_id": "a", "running": 30, "waiting": 50, "kv_usage": 0.9}
IDLE = {"instance_id": "b", "running": 0, "waiting": 0, "kv_usage": 0.0}
POLICIES = ["wait-and-work", "least-loaded", "blocks", "sticky", "lmetric", "weighted"]


def said(service: Service) -> None:
    reply = service.client.post_json("/load", [BUSY, IDLE])
    assert reply.status == 202


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("reported", [True, False])
def test_with_short_prompts(service: Service, policy: str, reported: bool) -> None:
    register(service, "a")
    register(service, "b")
    chance = random.Random(1)
    sent = {"a": 0, "b": 0}
    for number in range(60):
        if number % 10 == 0:  # each second
            said(service)
        prompt = [chance.randrange(9999) for _ in range(chance.randint(20, 80))]
        answer = route(service, token_ids=prompt, policy=policy)
        sent[answer["prefill"]["instance_id"]] += 1
        service.clock.now += 0.1
        if reported:
            told = {"decision_id": answer["decision_id"], "event": "completed", "ttft_ms": 15.0}
            assert service.client.post_json("/feedback", told).status == 202
    assert sent["a"] <= (2 if reported else 6), sent


@pytest.mark.parametrize("policy", POLICIES)
def test_in_one_burst(service: Service, policy: str) -> None:
    register(service, "a")
    register(service, "b")
    said(service)
    chosen = [
        route(service, token_ids=[number] * 40, policy=policy)["prefill"]["instance_id"]
        for number in range(40)
    ]
    assert chosen.count("a") <= 4


def test_it_is_chosen_again_once_a_sample_says_that_nothing_waits(service: Service) -> None:
    register(service, "a")
    register(service, "b")
    said(service)
    service.clock.now += 1.0
    reply = service.client.post_json("/load", [BUSY | {"running": 0, "waiting": 0}, IDLE])
    assert msgspec.json.decode(reply.body)["accepted"] == 2
    chosen = {
        route(service, token_ids=[number] * 40)["prefill"]["instance_id"] for number in range(10)
    }
    assert chosen == {"a", "b"}
