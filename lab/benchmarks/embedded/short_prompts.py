"""Short prompts, none alike, at 60 % of what four engines can compute; then one of the engines
takes five times as long.

Each takes 50 ms and 1/20,000 s a token, one prompt after another, in real time by the model's
clock. The service has its defaults. Each seed has a fresh service and fresh engines, processes of
their own; the first half of the requests is in no figure: the service learns what engines take.
"""

import random
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.routing.choosing import ByRoute
from lab.benchmarks.routing.drive import Events, Load, drive
from lab.benchmarks.routing.outcomes import Drive, note_of
from lab.benchmarks.routing.world import World
from lab.benchmarks.sizes import SEED, KernelName, Sizes
from lab.traffic.conversations import Turn
from lab.whatif.load_view import slowed
from routing.costs import Costs

ENGINES: Final = 4
COSTS: Final = Costs(fixed_s=0.05, prefill_tokens_per_s=20_000.0, token_squared_s=0.0)
SLOWER: Final = 5.0
LOAD: Final = 0.6
TOKENS: Final = (32, 96)
VOCABULARY: Final = 32_000
_PER_CONVERSATION: Final = 2
"""Requests, so that `Sizes` say how many there are."""

ALIKE: Final = "all as fast"
ONE_SLOW: Final = "one five times slower"


def load_of(seed: int, requests: int) -> Load:
    """So many after as many to warm up; Poisson arrivals."""
    chance = random.Random(seed)
    turns = [
        Turn(number, [chance.randrange(VOCABULARY) for _ in range(chance.randint(*TOKENS))], [])
        for number in range(2 * requests)
    ]
    per_s = LOAD * ENGINES / COSTS.prefill_s(sum(TOKENS) // 2, 0)
    return Load(turns, list(accumulate(chance.expovariate(per_s) for _ in turns)), requests)


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    requests = _PER_CONVERSATION * sizes.conversations
    loads = [load_of(SEED + seed, requests) for seed in range(sizes.runs)]
    slow = [slowed(COSTS, SLOWER), *[COSTS] * (ENGINES - 1)]
    changed = Events(costs_after=requests, costs=slow)
    found = []
    for name, events in ((ALIKE, Events()), (ONE_SLOW, changed)):
        found += short_prompt_figures(name, [_drive(kernel, load, events) for load in loads])
    return found


def _drive(kernel: KernelName, load: Load, events: Events) -> Drive:
    with World(kernel, [COSTS] * ENGINES, alike=False) as world:
        return drive(world, load, ByRoute(""), events)


def short_prompt_figures(name: str, drives: Sequence[Drive]) -> list[Figure]:
    """A run of each is a seed."""
    note = "; ".join(note_of(one) for one in drives)
    ttfts_s = [[sent.ttft_s for sent in one.served] for one in drives]
    shares = [
        100 * sum(sent.instance_id == "engine-0" for sent in one.served) / len(one.served)
        for one in drives
    ]
    means = [1000 * sum(one) / len(one) for one in ttfts_s]
    p99 = [1000 * percentile(one, 99) for one in ttfts_s]
    return [
        Figure(name=f"{name}: requests of the first engine", unit="%", runs=shares, note=note),
        Figure(name=f"{name}: TTFT, mean", unit="ms", runs=means),
        Figure(name=f"{name}: TTFT, p99", unit="ms", runs=p99),
    ]
