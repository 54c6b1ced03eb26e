"""Engines that become slower than they were: what waits there is not taken to be gone."""

import random
from collections import Counter

import pytest

from tests.unit.routing.http.conftest import Service
from tests.unit.routing.http.simulated_engines import SimulatedEngines
from tests.unit.routing.http.test_endpoint import register, route

ENGINES = "abcd"
LOAD = 0.6
"""Of what the four can compute while all are as fast as they were."""

REQUESTS = 300
FOREVER_S = 1e6


def compute_s(tokens: int) -> float:
    return 0.01 + tokens / 20_000


def sent(
    service: Service, policy: str, slower: float, event: str = "first_token"
) -> tuple[Counter[str], list[float]]:
    """How many short prompts each engine was sent once `a` took so many times as long as before,
    and the times to their first tokens.
    """
    chance, engines = random.Random(1), SimulatedEngines(service)
    counts: Counter[str] = Counter(dict.fromkeys(ENGINES, 0))
    ttfts_s = []
    for number in range(2 * REQUESTS):
        tokens = chance.randint(20, 80)
        prompt = [number, *(chance.randrange(9999) for _ in range(tokens - 1))]
        answer = route(service, token_ids=prompt, policy=policy)
        instance, is_slow = answer["prefill"]["instance_id"], number >= REQUESTS
        seconds = compute_s(tokens) * (slower if is_slow and instance == "a" else 1.0)
        ttft_s = engines.take(instance, answer["decision_id"], seconds, event)
        if is_slow:
            counts[instance] += 1
            ttfts_s.append(ttft_s)
        engines.pass_time(chance.expovariate(LOAD * len(ENGINES) / compute_s(50)))
    return counts, ttfts_s


@pytest.fixture
def four(service: Service) -> Service:
    for name in ENGINES:
        register(service, name)
    return service


@pytest.mark.parametrize("policy", ["least-delay", "wait-and-work", "least-loaded"])
@pytest.mark.parametrize(("slower", "most"), [(5.0, 30), (20.0, 18), (FOREVER_S, 18)])
def test_short_prompts_go_elsewhere(four: Service, policy: str, slower: float, most: int) -> None:
    """The slow engine's fair share was 75, and with a fifth of the speed it is 15."""
    counts, _ = sent(four, policy, slower)
    assert counts["a"] <= most, counts


@pytest.mark.parametrize("policy", ["least-delay", "wait-and-work", "least-loaded"])
def test_the_mean_time_is_that_of_engines_without_a_slow_one(four: Service, policy: str) -> None:
    _, ttfts_s = sent(four, policy, 5.0)
    assert sum(ttfts_s) / len(ttfts_s) < 4 * compute_s(50)


@pytest.mark.parametrize("event", ["first_token", "completed"])
def test_equals_keep_equal_shares(four: Service, event: str) -> None:
    counts, ttfts_s = sent(four, "least-delay", 1.0, event)
    assert all(abs(count - 75) <= 5 for count in counts.values()), counts
    assert sum(ttfts_s) / len(ttfts_s) < 2 * compute_s(50)
