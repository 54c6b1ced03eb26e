"""Engines that exist in memory only, and get the same requests at the same time, routed otherwise.

They compute, cache and queue as `lab.engines.rank` does, by the same costs, but without
processes, wires and delays: what they are told of caches is always the truth. So what they say of
another way of routing is the best that it could do.
"""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from lab.engines.cache import BlockChain, CacheSizes, EngineCache, Offload
from lab.traffic.conversations import Turn
from lab.traffic.scoring import Scorer, Target
from routing.costs import UNLIMITED, Costs

# An engine that exists in memory only; a request takes some 30 KB.
SHADOW_WAITING_MAX: Final = 256  # requests of one simulated engine

SHADOW_SEED: Final = 1
NO_TIME: Final = Costs(prefill_tokens_per_s=UNLIMITED, token_squared_s=0.0)


class ShadowOutcome(NamedTuple):
    """What became of a request: tokens of the prompt that were reused, and its TTFT in seconds."""

    cached_tokens: int
    ttft_s: float


class ShadowEngine:
    """A cache and a queue. What becomes of a request is known when it comes; what it leaves in the
    cache is told to others once it is computed, by `advance`.
    """

    def __init__(
        self, sizes: CacheSizes, *, offload: Offload, chain: BlockChain, costs: Costs
    ) -> None:
        # As it is when all that waits is computed, and as it is now.
        self._ahead = EngineCache(sizes, offload=offload, chain=chain)
        self._told = EngineCache(sizes, offload=offload, chain=chain)
        self._costs = costs
        self._free_at = 0.0
        self._computing: deque[tuple[float, Turn, Sequence[int]]] = deque()

    def reusable_tokens(self, turn: Turn, hashes: Sequence[int]) -> int:
        """What it is told to hold of the prompt, as of the last `advance`."""
        return self._told.reusable_tokens(hashes, len(turn.prompt))

    def expect(self, turn: Turn, hashes: Sequence[int], now: float) -> ShadowOutcome:
        """What would become of one more request, behind the others."""
        cached_tokens = self._ahead.reusable_tokens(hashes, len(turn.prompt))
        cost = self._costs.prefill_s(len(turn.prompt), cached_tokens)
        return ShadowOutcome(cached_tokens, max(now, self._free_at) + cost - now)

    def take(self, turn: Turn, hashes: Sequence[int], now: float) -> ShadowOutcome:
        """One more request, behind the others."""
        outcome = self.expect(turn, hashes, now)
        self._ahead.run_hashes(hashes, turn.prompt, turn.answer)
        self._free_at = now + outcome.ttft_s
        self._computing.append((self._free_at, turn, hashes))
        return outcome

    def advance(self, now: float) -> None:
        """Tell what has been computed by `now`, and what is first of more than SHADOW_WAITING_MAX
        that wait: where requests come faster than they are computed, they would take all memory.
        """
        waiting = self._computing
        while waiting and (waiting[0][0] <= now or len(waiting) > SHADOW_WAITING_MAX):
            _, turn, hashes = self._computing.popleft()
            self._told.run_hashes(hashes, turn.prompt, turn.answer)


Choice = Callable[[Sequence[int], int], int]
"""Takes what each engine holds of a prompt, in tokens, and how long that is; returns an engine's
place.
"""


def by_chance(seed: int = SHADOW_SEED) -> Choice:
    """Any engine."""
    chance = random.Random(seed)
    return lambda held, _: chance.randrange(len(held))


def by_score(count: int) -> Choice:
    """What an answer of `/query` says, less what the router itself has sent: `Scorer`."""
    targets = [Target("", place) for place in range(count)]
    scorer = Scorer(targets)

    def choose(held: Sequence[int], prompt_tokens: int) -> int:
        target = scorer.choose(dict(zip(targets, held, strict=True)), prompt_tokens)
        scorer.record(target, prompt_tokens - held[target.dp_rank])
        return target.dp_rank

    return choose


def by_longest_prefix(seed: int = SHADOW_SEED) -> Choice:
    """One of those that hold most: what an answer of `/query` says, and nothing else."""
    chance = random.Random(seed)

    def choose(held: Sequence[int], _: int) -> int:
        most = max(held)
        return chance.choice([place for place, tokens in enumerate(held) if tokens == most])

    return choose


class Shadows:
    """As many engines as there are real ones, under another way of routing."""

    def __init__(
        self, count: int, sizes: CacheSizes, *, offload: Offload, costs: Costs, choose: Choice
    ) -> None:
        self.chain = BlockChain(sizes.block_size, root=b"")
        self._engines = [
            ShadowEngine(sizes, offload=offload, chain=self.chain, costs=costs)
            for _ in range(count)
        ]
        self._choose = choose

    def run(self, turn: Turn, hashes: Sequence[int], now: float) -> ShadowOutcome:
        """What becomes of a request that comes at `now`, in seconds that do not fall."""
        for engine in self._engines:
            engine.advance(now)
        held = [engine.reusable_tokens(turn, hashes) for engine in self._engines]
        return self._engines[self._choose(held, len(turn.prompt))].take(turn, hashes, now)


class Comparison(NamedTuple):
    """What becomes of one request under the other ways."""

    by_score: ShadowOutcome
    by_query: ShadowOutcome
    by_chance: ShadowOutcome


class Alternatives:
    """The ways that routing by `/route` is compared with: by an index that is always right, with a
    score of prefix and load or by the longest prefix alone, and by chance.
    """

    def __init__(
        self, count: int, sizes: CacheSizes, *, offload: Offload, costs: Costs | None
    ) -> None:
        """`costs` as of the engines: None where prompts take no time."""
        costs = NO_TIME if costs is None else costs
        self._ways = [
            Shadows(count, sizes, offload=offload, costs=costs, choose=choose)
            for choose in (by_score(count), by_longest_prefix(), by_chance())
        ]

    def run(self, turn: Turn, now: float) -> Comparison:
        """What becomes of a request that comes at `now`, in seconds that do not fall."""
        hashes = self._ways[0].chain.hashes([*turn.prompt, *turn.answer])
        return Comparison(*(way.run(turn, hashes, now) for way in self._ways))
