"""Conversations of many turns, that together are more than the engines' caches have room for.

187 conversations of 8 turns, of which 64 are open at once, begin with one of 8 system prompts and
come at 40 requests/s to four engines of 3,500 blocks of 16 tokens, which evict what was used least
recently and take 5 ms and 1/20,000 s for each token that is not cached. The service has its
defaults: it is not told what engines take, nor that they are alike. Each seed has a fresh service
and fresh engines, processes of their own; prompts are computed in real time by the model's clock.

The same requests at the same times go to engines in memory by other ways, which know at once what
each engine holds: at random, by the longest prefix, by prefix and what the router itself has sent
(`lab.traffic.shadows`).
"""

import random
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Final

from lab.benchmarks.report.figures import Figure, percentile
from lab.benchmarks.routing.choosing import ByRoute
from lab.benchmarks.routing.drive import Load, drive
from lab.benchmarks.routing.outcomes import Drive, note_of
from lab.benchmarks.routing.world import World
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, Sizes
from lab.engines.cache import CacheSizes, Offload
from lab.traffic.conversations import Conversations, Traffic
from lab.traffic.shadows import Alternatives, Comparison, ShadowOutcome
from routing.costs import Costs

ENGINES: Final = 4
CACHE: Final = CacheSizes(block_size=BLOCK_SIZE, gpu_blocks=3_500, cpu_blocks=0)
COSTS: Final = Costs(fixed_s=0.005, prefill_tokens_per_s=20_000.0, token_squared_s=0.0)
PER_S: Final = 40.0
TURNS: Final = 8
TRAFFIC: Final = Traffic(
    system_tokens=(1_800,) * 8,
    user_tokens=(200, 300),
    answer_tokens=(150, 250),
    turns=(TURNS, TURNS),
    open_max=64,
    prompt_tokens_max=8_192,
    zipf=0.0,
    rest=16,
)
ROUTE: Final = "/route"
WAYS: Final = ("prefix and own load", "the longest prefix", "at random")
"""As a `Comparison` has them."""


def load_of(seed: int, conversations: int) -> Load:
    """All turns of so many conversations; Poisson arrivals."""
    chance = random.Random(seed)
    known = (one for one in Conversations(seed, TRAFFIC) if one.conversation < conversations)
    turns = list(islice(known, TURNS * conversations))
    return Load(turns, list(accumulate(chance.expovariate(PER_S) for _ in turns)), 0)


def measure(sizes: Sizes) -> list[Figure]:
    loads = [load_of(SEED + seed, sizes.conversations) for seed in range(sizes.seeds)]
    drives = [_drive(load) for load in loads]
    compared = [_compared(load) for load in loads]
    others = {
        name: [[one[place] for one in seed] for seed in compared] for place, name in enumerate(WAYS)
    }
    return conversation_figures(drives, others)


def _drive(load: Load) -> Drive:
    with World([COSTS] * ENGINES, sizes=CACHE, alike=False) as world:
        return drive(world, load, ByRoute(""))


def _compared(load: Load) -> list[Comparison]:
    """What becomes of the requests in memory."""
    ways = Alternatives(ENGINES, CACHE, offload=Offload.ON_EVICTION, costs=COSTS)
    return [ways.run(turn, at_s) for turn, at_s in zip(load.turns, load.at_s, strict=True)]


def conversation_figures(
    drives: Sequence[Drive], others: dict[str, list[list[ShadowOutcome]]]
) -> list[Figure]:
    """A run of each is a seed."""
    found = _figures(
        ROUTE,
        [100 * one.hit_rate for one in drives],
        [[sent.ttft_s for sent in one.served] for one in drives],
        "; ".join(note_of(one) for one in drives),
    )
    tokens = [sum(sent.prompt_tokens for sent in one.sent) for one in drives]
    for name, seeds in others.items():
        hits = [
            100 * sum(one.cached_tokens for one in seed) / whole
            for seed, whole in zip(seeds, tokens, strict=True)
        ]
        found += _figures(name, hits, [[one.ttft_s for one in seed] for seed in seeds])
    means = {figure.name: figure.value for figure in found}
    best = min(means[f"{name}: TTFT, mean"] for name in others)
    ratio = means[f"{ROUTE}: TTFT, mean"] / best
    shares = [_most_over_fair(one) for one in drives]
    return [
        *found,
        Figure(name=f"{ROUTE}: TTFT, mean, times the best other way", unit="x", runs=[ratio]),
        Figure(
            name=f"{ROUTE}: requests of the busiest engine, times a fair share",
            unit="x",
            runs=shares,
        ),
    ]


def _most_over_fair(driven: Drive) -> float:
    names = [sent.instance_id for sent in driven.served]
    return max(map(names.count, set(names))) * ENGINES / len(names)


def _figures(
    name: str, hits: list[float], ttfts_s: list[list[float]], note: str = ""
) -> list[Figure]:
    mean = [1000 * sum(one) / len(one) for one in ttfts_s]
    p99 = [1000 * percentile(one, 99) for one in ttfts_s]
    return [
        Figure(name=f"{name}: cached", unit="%", runs=hits, note=note),
        Figure(name=f"{name}: TTFT, mean", unit="ms", runs=mean),
        Figure(name=f"{name}: TTFT, p99", unit="ms", runs=p99),
    ]
