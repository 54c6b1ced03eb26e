"""Replicas decide, and hear what came of each other's decisions, while each of them now and then
cannot read the log, or writes late. Once all that they told is in the log and read, every replica
has under way what a fresh fold of the log has, and carries as much.

The seed is in the test's name. Times stay below those after which bookings and early reports go.
"""

import random

import pytest

from routing.decisions.live_load import LiveLoad, ReportKind
from routing.decisions.queue import RoutingQueue
from routing.decisions.unbooked_load import TypicalRequest
from routing.fold.fold import RoutingFold
from schemas.routing_records import OutcomeEvent, RoutingRecord, Target
from tests.unit.routing.sample_decisions import candidate, decision, outcome

SEEDS = range(300)
NAMES = ("a", "b", "c")
STEPS = 80


class Replica:
    """One of several over one log: its reader, its writer and what it decides by."""

    def __init__(self, run: int, log: list[RoutingRecord]) -> None:
        self.run = run
        self.live, self.queue = LiveLoad(), RoutingQueue()
        self.is_following = True
        self._log = log
        self._number = 0

    def decide(self, chance: random.Random, now: float) -> tuple[int, int]:
        candidates = tuple(candidate(name, prefill_s=chance.random()) for name in NAMES)
        made = decision(self._number, now, candidates=candidates, chosen=chance.randrange(3))
        self._number += 1
        self.live.book(self.run, made)
        self.queue.push_decision(self.run, made)
        return self.run, made.number

    def hear(self, key: tuple[int, int], event: OutcomeEvent, at: str | None, now: float) -> None:
        told = outcome(key[1], event, now, instance_id=at)
        if self.live.report(key[0], told) is not ReportKind.REPEATED:
            self.queue.push_outcomes([(key[0], told)])

    def write(self, now: float) -> None:
        self._log += self.queue.take(now)

    def read(self, most: int, now: float) -> None:
        """So many records more; until it is there, it does not follow them."""
        begin = self.live.folded.offset + 1
        for offset, record in enumerate(self._log[begin : begin + most], begin):
            if self.is_following:
                self.live.follow(offset, record, now)
            else:
                self.live.apply(offset, record)
        if not self.is_following and self.live.folded.offset == len(self._log) - 1:
            self.live.note_samples()
            self.is_following = True

    def carried(self, now: float) -> list[tuple[int, ...]]:
        targets = [Target("default", name, 0) for name in NAMES]
        found = self.live.carried(targets, now, TypicalRequest(0.0, 0.0, 0.0), {})
        return [(one.requests, one.pending, one.kv_tokens, one.decoding) for one in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_carry_what_the_log_says(seed: int) -> None:
    chance = random.Random(seed)
    log: list[RoutingRecord] = []
    replicas = [Replica(run, log) for run in (1, 2, 3)]
    made: dict[tuple[int, int], list[tuple[OutcomeEvent, str | None]]] = {}
    now = 1000.0
    for _ in range(STEPS):
        now += chance.choice((0.0, 0.01, 0.2))
        replica = chance.choice(replicas)
        match chance.randrange(6):
            case 0 | 1:
                moved = chance.choice((None, None, None, "c"))
                first = [(OutcomeEvent.FIRST_TOKEN, moved)] * chance.randrange(2)
                ends = [(OutcomeEvent.COMPLETED, moved)] * chance.randrange(2)
                made[replica.decide(chance, now)] = [*first, *ends]
            case 2 | 3:
                key = chance.choice([*made] or [None])
                if key is not None and made[key]:
                    replica.hear(key, *made[key].pop(0), now)
            case 4:
                replica.write(now)
            case _:
                if chance.randrange(4) == 0:
                    replica.is_following = False
                replica.read(chance.randrange(4), now)
    chance.shuffle(replicas)
    for replica in replicas:
        replica.write(now)
    for replica in replicas:
        replica.read(len(log), now)

    fresh = Replica(4, log)
    fold = RoutingFold()
    for offset, record in enumerate(log):
        fold.apply(offset, record)
    fresh.live.rebase(fold)
    expected = {one.key for one in fold.bookings.state().bookings}
    for replica in replicas:
        here = {key for key in made if replica.live.is_under_way(*key)}
        assert here == expected, f"seed {seed}, run {replica.run}"
        assert replica.carried(now) == fresh.carried(now), f"seed {seed}, run {replica.run}"
