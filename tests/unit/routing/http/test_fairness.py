"""Equal engines get equally much, from the first request on, by the defaults."""

import random
from collections import Counter

import pytest

from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.simulated_engines import SimulatedEngines
from tests.unit.routing.http.test_endpoint import register, route

ENGINES = "abcd"
REQUESTS = 400
TOKENS_PER_S = 20_000.0
"""Faster than what a service takes them for that has learned nothing."""


def chosen(service: Service, load: float, seed: int) -> Counter[str]:
    """How many cold prompts each engine is sent, at a share of what all can compute."""
    chance, engines = random.Random(seed), SimulatedEngines(service)
    sent: Counter[str] = Counter(dict.fromkeys(ENGINES, 0))
    for number in range(REQUESTS):
        tokens = chance.randint(500, 1500)
        prompt = [number, *(chance.randrange(9999) for _ in range(tokens - 1))]
        answer = route(service, token_ids=prompt)
        instance = answer["prefill"]["instance_id"]
        sent[instance] += 1
        engines.take(instance, answer["decision_id"], tokens / TOKENS_PER_S)
        engines.pass_time(chance.expovariate(load * len(ENGINES) * TOKENS_PER_S / 1000))
    return sent


@pytest.mark.parametrize("load", [0.02, 0.8])
def test_cold_prompts_are_spread_within_15_percent(service: Service, load: float) -> None:
    for name in ENGINES:
        register(service, name)
    sent = chosen(service, load, seed=1)
    assert set(sent) == set(ENGINES)
    fair = REQUESTS / len(ENGINES)
    assert all(abs(count - fair) <= 0.15 * fair for count in sent.values()), sent


def test_the_first_ones_go_to_each_in_turn(service: Service) -> None:
    for name in ENGINES:
        register(service, name)
    first = [route(service, token_ids=[number] * 64)["prefill"] for number in range(8)]
    assert Counter(one["instance_id"] for one in first) == Counter(ENGINES * 2)
