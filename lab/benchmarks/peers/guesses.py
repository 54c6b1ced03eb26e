"""A gateway's approximate tree beside the index: what a query costs in process, and how far its
guesses are from what the engines hold.

Eight workers hold each prompt whole, 20 prompts rotate, and both are asked in turn in one thread:
the tree for a list of tokens, the index (`kernel.query`) for their bytes. The tree is plain Python,
so that its cost is a bound on the idea and not on a router's.

The guesses: conversations go to eight simulated engines, each by the same score of cached share and
load (`lab.traffic.scoring`). What is known of the caches comes from their events, from the
tree of one gateway, from those of four gateways that see a quarter of the requests each, or from
nothing. Trees are as large as the engines' caches.
"""

import gc
import os
import random
from array import array
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from lab.benchmarks.embedded.service import resident_bytes
from lab.benchmarks.index.blocks import (
    SCOPE,
    Chain,
    chains,
    encoded_calls,
    stored_events,
    stream_of,
)
from lab.benchmarks.peers.approximate_tree import PAGE_TOKENS, ApproximateTree
from lab.benchmarks.report.figures import Figure, thread_seconds
from lab.benchmarks.sizes import BLOCK_SIZE, SEED, KernelName, Sizes
from lab.engines.cache import BlockChain, CacheSizes, EngineCache
from lab.engines.wire import BlockRemoved, BlockStored
from lab.traffic.conversations import Conversations, Turn
from lab.traffic.scoring import Scorer, Target
from streams.kernel import Kernel, open_kernel

WORKERS: Final = tuple(f"i{number}" for number in range(8))
CACHE_BLOCKS: Final = 1024
TURNS: Final = 2000
WARM_TURNS: Final = 500
GATEWAYS: Final = 4
MEMORY_BLOCKS: Final = 131_072
MEMORY_CHAIN: Final = 512


def measure(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    assert PAGE_TOKENS == BLOCK_SIZE
    turns = list(islice(Conversations(SEED), TURNS))
    return [*_memory_figures(), *_cost_figures(kernel, sizes), *_guess_figures(turns)]


# What it costs


def _memory_figures() -> list[Figure]:
    tree = ApproximateTree(WORKERS[:1], pages_max=2 * MEMORY_BLOCKS)
    before = resident_bytes(os.getpid())
    for chain in chains(MEMORY_BLOCKS, SEED, MEMORY_CHAIN):
        tree.insert(tokens_of(chain), WORKERS[0])
    gc.collect()
    used = (resident_bytes(os.getpid()) - before) / tree.pages[WORKERS[0]]
    note = f"{MEMORY_BLOCKS:,} blocks, the tokens of each with it, as objects of Python"
    name = "approximate tree, one worker: memory of a block"
    return [Figure(name=name, unit="B", runs=[used], note=note)]


def tokens_of(chain: Chain) -> list[int]:
    """Its tokens, as numbers."""
    return array("I", chain.tokens).tolist()


def _cost_figures(kernel: KernelName, sizes: Sizes) -> list[Figure]:
    longest = max(sizes.prompt_tokens) // BLOCK_SIZE
    prompts = list(chains(sizes.query_bodies * longest, SEED, longest))
    tree = ApproximateTree(WORKERS, pages_max=2 * len(prompts) * longest)
    index = open_kernel(1337, name=kernel)
    for worker in WORKERS:
        publisher = index.open_publisher(stream_of(worker), 0)
        for chain in prompts:
            tree.insert(tokens_of(chain), worker)
            for call in encoded_calls(stored_events(chain, 64), 64):
                index.apply(publisher, call, -1)
            index.take_changes()
    figures: list[Figure] = []
    for tokens in sizes.prompt_tokens:
        lists = [tokens_of(chain)[:tokens] for chain in prompts]
        packed = [chain.prompt(tokens) for chain in prompts]
        _check(tree, index, lists[0], packed[0])
        runs: dict[str, list[float]] = {"approximate tree": [], "index": []}
        index.query(SCOPE, packed[-1], b"", None)  # the first one after a store costs more
        for _ in range(sizes.runs):
            for name, ask in (
                ("approximate tree", lambda: [tree.match(one) for one in lists]),  # noqa: B023
                ("index", lambda: [index.query(SCOPE, one, b"", None) for one in packed]),  # noqa: B023
            ):
                runs[name].append(1e6 * thread_seconds(ask) / len(prompts))
        figures += [
            Figure(name=f"{name}, {tokens // 1024}K tokens: query", unit="us", runs=values)
            for name, values in runs.items()
        ]
    return figures


def _check(tree: ApproximateTree, index: Kernel, tokens: Sequence[int], packed: bytes) -> None:
    told = tree.match(tokens)
    known = {match.instance_id: match.longest for match in index.query(SCOPE, packed, b"", None)}
    if told != known or set(told.values()) != {len(tokens)}:
        raise RuntimeError(f"Expected {len(tokens)} tokens of each worker, got: {told}, {known}")


# How far it is off


class GuessTotals(NamedTuple):
    """Tokens of the prompts, those that were found where they went, and how guesses compare with
    the caches: how many there were, how many were wrong, how many tokens they claimed, and how many
    of these were not held.
    """

    prompt: int
    cached: int
    guesses: int
    wrong: int
    claimed: int
    unheld: int


class Fleet:
    """Simulated engines, and what their events tell of them."""

    def __init__(self) -> None:
        self.chain = BlockChain(BLOCK_SIZE, root=b"root")
        sizes = CacheSizes(BLOCK_SIZE, CACHE_BLOCKS)
        self._caches = {worker: EngineCache(sizes, chain=self.chain) for worker in WORKERS}
        self._held: dict[str, set[int]] = {worker: set() for worker in WORKERS}

    def held(self, hashes: Sequence[int]) -> dict[str, int]:
        """The leading tokens that each worker holds."""
        found = {}
        for worker, blocks in self._held.items():
            length = next((at for at, one in enumerate(hashes) if one not in blocks), len(hashes))
            if length:
                found[worker] = length * BLOCK_SIZE
        return found

    def run(self, worker: str, turn: Turn, hashes: Sequence[int]) -> int:
        """Serves a request there; the tokens that were cached."""
        ran = self._caches[worker].run_hashes(hashes, turn.prompt, turn.answer)
        for event in ran.events:
            if isinstance(event, BlockStored):
                self._held[worker].update(map(int, event.block_hashes))
            elif isinstance(event, BlockRemoved):
                self._held[worker].difference_update(map(int, event.block_hashes))
        return ran.cached_tokens


def route(turns: Sequence[Turn], source: str, *, warm_turns: int = WARM_TURNS) -> GuessTotals:
    """Sends all of them, by what that source knows.

    Args:
        turns: in order.
        source: `events`, `tree`, `trees` (of several gateways) or `nothing`.
        warm_turns: so many only fill the caches.
    """
    fleet = Fleet()
    gateways = GATEWAYS if source == "trees" else 1
    trees = [ApproximateTree(WORKERS, pages_max=CACHE_BLOCKS) for _ in range(gateways)]
    scorers = [Scorer([Target(worker, 0) for worker in WORKERS]) for _ in range(gateways)]
    gateway_of = random.Random(SEED)
    total = GuessTotals(0, 0, 0, 0, 0, 0)
    for number, turn in enumerate(turns):
        at = gateway_of.randrange(gateways)
        tree, scorer = trees[at], scorers[at]
        hashes = fleet.chain.hashes([*turn.prompt, *turn.answer])
        truth = fleet.held(hashes[: len(turn.prompt) // BLOCK_SIZE])
        told = truth if source == "events" else {}
        if source in ("tree", "trees"):
            told = tree.match(turn.prompt)
        cached = {Target(worker, 0): tokens for worker, tokens in told.items()}
        target = scorer.choose(cached, len(turn.prompt))
        reused = fleet.run(target.instance_id, turn, hashes)
        scorer.record(target, len(turn.prompt) - reused)
        tree.insert(turn.prompt, target.instance_id)
        if number >= warm_turns:
            total = _add(total, told, truth, len(turn.prompt), reused)
    return total


def _add(
    total: GuessTotals, told: Mapping[str, int], truth: Mapping[str, int], prompt: int, cached: int
) -> GuessTotals:
    differences = [(told.get(worker, 0), truth.get(worker, 0)) for worker in WORKERS]
    return GuessTotals(
        total.prompt + prompt,
        total.cached + cached,
        total.guesses + len(differences),
        total.wrong + sum(guess != held for guess, held in differences),
        total.claimed + sum(guess for guess, _ in differences),
        total.unheld + sum(max(0, guess - held) for guess, held in differences),
    )


_SOURCES: Final = {
    "events": "events",
    "tree": "the tree of one gateway",
    "trees": f"the trees of {GATEWAYS} gateways",
    "nothing": "load alone",
}


def _guess_figures(turns: Sequence[Turn]) -> list[Figure]:
    figures = []
    note = f"{len(WORKERS)} engines of {CACHE_BLOCKS:,} blocks; {TURNS - WARM_TURNS:,} requests"
    for source, name in _SOURCES.items():
        found = route(turns, source)
        share = 100 * found.cached / found.prompt
        figures.append(
            Figure(name=f"routed by {name}: cached", unit="% of tokens", runs=[share], note=note)
        )
        note = ""
        if source in ("tree", "trees"):
            wrong = 100 * found.wrong / found.guesses
            unheld = 100 * found.unheld / max(1, found.claimed)
            figures += [
                Figure(name=f"{name}: wrong answers", unit="%", runs=[wrong]),
                Figure(name=f"{name}: claimed and not held", unit="% of tokens", runs=[unheld]),
            ]
    return figures
