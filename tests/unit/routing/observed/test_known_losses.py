"""A world in which faults are put in by hand: each lost token lands where its fault was.

Engines have caches of their own, and the index a copy of them, which faults make wrong. What a
fault costs is counted as it is put in, from the caches and not from the decision.
"""

import random
from collections import Counter
from typing import Final

import pytest

from routing.observed.observations import Observations
from routing.observed.promise_totals import Totals
from schemas.routing_records import CandidateRecord, OutcomeEvent
from tests.unit.routing.observed.records import RUN, SCOPE, a_decision, an_outcome

INSTANCES: Final = "abcd"
BLOCK: Final = SCOPE.block_size
Prompt = tuple[int, ...]
"""The blocks of a prompt, each named by all before it, too."""


class World:
    """Caches, what the index thinks of them, and what faults have cost, in tokens."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.caches: dict[str, set[Prompt]] = {name: set() for name in INSTANCES}
        self.index: dict[str, set[Prompt]] = {name: set() for name in INSTANCES}
        self.cost: Counter[str] = Counter()
        self.seen = Observations()
        self.number = 0

    def depth(self, cache: set[Prompt], prompt: Prompt) -> int:
        """Blocks of the prompt that are there."""
        return next(
            (end for end in range(len(prompt)) if prompt[: end + 1] not in cache), len(prompt)
        )

    def a_prompt(self) -> Prompt:
        """Of twenty beginnings, with a tail of its own."""
        group, blocks = self.random.randrange(20), self.random.randint(4, 12)
        tail = self.random.randint(1, 6)
        own = tuple(10_000 * self.number + place for place in range(tail))
        return tuple(100 * group + place for place in range(blocks)) + own

    def request(self) -> None:
        prompt = self.a_prompt()
        said = {name: self.depth(self.index[name], prompt) for name in INSTANCES}
        best = max(INSTANCES, key=lambda name: said[name])
        fault = self.random.choice(["", "", "", "wiped", "stale", "evicted", "bad_route"])
        target, state = best, "exact"
        if fault == "bad_route":
            target = min(INSTANCES, key=lambda name: said[name])
            self.cost["routing"] += BLOCK * (said[best] - said[target])
        if fault in ("wiped", "stale", "evicted"):
            had = self.depth(self.caches[target], prompt)
            left = 0 if fault == "wiped" else self.random.randint(0, had)
            self.caches[target] = (
                set()
                if fault == "wiped"
                else {one for one in self.caches[target] if one != prompt[: left + 1]}
            )
            state = {"wiped": "degraded", "stale": "stale", "evicted": "exact"}[fault]
            self.cost[state] += BLOCK * (had - left)
        self._route(prompt, said, target, state)
        self._recover(target, prompt)

    def _route(self, prompt: Prompt, said: dict[str, int], target: str, state: str) -> None:
        tokens = BLOCK * len(prompt) + 5
        candidates = [
            CandidateRecord(name, 0, cached=BLOCK * said[name], prefix=BLOCK * said[name])
            for name in INSTANCES
        ]
        held = BLOCK * max(said.values())
        self.seen.decided(
            RUN,
            a_decision(
                self.number,
                prompt=tokens,
                candidates=candidates,
                chosen=INSTANCES.index(target),
                state=state,
                held=held,
            ),
        )
        actual = BLOCK * self.depth(self.caches[target], prompt)
        self.cost["workload"] += tokens - held
        self.seen.reported(
            RUN, an_outcome(self.number, OutcomeEvent.COMPLETED, cached_tokens=actual)
        )
        self.number += 1

    def _recover(self, target: str, prompt: Prompt) -> None:
        """The engine holds the prompt now, and the index has heard of all."""
        for end in range(len(prompt)):
            self.caches[target].add(prompt[: end + 1])
        self.index[target] = set(self.caches[target])


@pytest.mark.parametrize("seed", range(5))
def test_each_fault_lands_in_its_own_share_to_the_token(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.request()
    total = Totals()
    for row in world.seen.totals.rows().values():
        total.add(row)
    found = {
        "workload": total.workload,
        "routing": total.routing,
        "degraded": total.degraded,
        "stale": total.stale,
        "exact": total.evicted,
    }
    assert found == dict(world.cost)
    assert all(world.cost.values()), "each fault was there"
    assert total.unconfirmed == total.unpromised == 0
