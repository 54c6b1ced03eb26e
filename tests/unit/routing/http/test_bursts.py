"""Prompts that begin alike, many at once: few engines compute them, as many as it takes."""

from collections import Counter

import pytest

from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.simulated_engines import SimulatedEngines
from tests.unit.routing.http.test_endpoint import register, route

ENGINES = "abcdefgh"


@pytest.fixture
def eight(service: Service) -> Service:
    for name in ENGINES:
        register(service, name)
    return service


@pytest.mark.parametrize("policy", ["least-delay", "wait-and-work"])
@pytest.mark.parametrize("tokens", [320, 3200])
def test_equal_cold_prompts(eight: Service, policy: str, tokens: int) -> None:
    """32 of them in 50 ms, and no event of an engine between."""
    sent: Counter[str] = Counter()
    predicted = []
    for _ in range(32):
        one = route(eight, token_ids=list(range(tokens)), policy=policy)["prefill"]
        sent[one["instance_id"]] += 1
        predicted.append(one["predicted_tokens"])
        eight.clock.now += 0.05 / 32
    assert len(sent) <= 3, sent
    assert predicted.count(0) == len(sent), "each of them computes it once"


@pytest.mark.parametrize("policy", ["least-delay", "wait-and-work"])
def test_a_hot_prefix_under_load(eight: Service, policy: str) -> None:
    """Prompts of 3,200 tokens that all share and 800 of their own, three times as many as one
    engine can compute: once several hold the prefix, none has more to do than others.
    """
    engines = SimulatedEngines(eight)
    held: set[str] = set()
    sent: Counter[str] = Counter()
    ttfts_s = []
    for number in range(300):
        own = [10_000 + 1_000 * number + token for token in range(800)]
        answer = route(eight, token_ids=[*range(3200), *own], policy=policy)
        one = answer["prefill"]
        seconds = (800 if one["instance_id"] in held else 4000) / 8000
        held.add(one["instance_id"])
        sent[one["instance_id"]] += 1
        ttfts_s.append(engines.take(one["instance_id"], answer["decision_id"], seconds))
        engines.pass_time(0.1 / 3)
    late = ttfts_s[100:]
    assert len(held) >= 4
    assert sum(late) / len(late) < 0.15, "each takes 0.1 s at one that holds the prefix"
    assert max(late) < 0.3
