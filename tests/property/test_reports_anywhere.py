"""What came of a request may be told to any replica, at once, by any name, and twice: whoever
decided, and whatever the log has brought by then, it counts once, everywhere. The seed is in every
failure.
"""

import random
from typing import NamedTuple

import pytest

from routing.decisions.interface import OfferedCandidate, RouteRequest
from routing.decisions.live_load import LiveLoad
from routing.decisions.queue import RoutingQueue
from routing.decisions.router import ClientReport, FeedbackCounts, Router
from routing.fold.booking import DecisionKey
from schemas.codec import decode_routing
from schemas.identities import PrefixScope
from schemas.routing_records import (
    FeedbackReport,
    OutcomeEvent,
    OutcomesRecord,
    RoutingRecord,
    decision_id,
    encode_routing,
)
from tests.fakes import FakeTable

SEEDS = range(60)
STEPS = 80
TENANTS = ("t", "u")
ENDS = (OutcomeEvent.COMPLETED, OutcomeEvent.FAILED, OutcomeEvent.CANCELLED)
ACCEPTED = FeedbackCounts(accepted=1)
REPEATED = FeedbackCounts(repeated=1)


class Given(NamedTuple):
    """A request that was routed, and what its client has yet to tell."""

    key: DecisionKey
    request_id: str
    tenant_id: str
    left: list[OutcomeEvent]


class World:
    """A log of several replicas, and a clock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 1000.0
        self.log: list[RoutingRecord] = []
        self.given: list[Given] = []
        self.replicas = [Replica(self) for _ in range(3)]

    def route(self) -> None:
        chance = self.chance
        tenant = chance.choice(TENANTS)
        name = f"r-{len(self.given)}"
        asked = RouteRequest(
            name,
            PrefixScope(tenant, "m", "", 16, ""),
            chance.randint(1, 5000),
            [],
            candidates=tuple(OfferedCandidate(one) for one in "abc"),
        )
        routed = chance.choice(self.replicas).router.route(asked)
        left = [*chance.choice(([], [OutcomeEvent.FIRST_TOKEN])), chance.choice(ENDS)]
        key = (routed.run, routed.decision.number)
        self.given.append(Given(key, name, tenant, left))

    def tell(self) -> None:
        """The next report of a request, and perhaps the same once more."""
        open_ones = [one for one in self.given if one.left]
        if not open_ones:
            return
        chance, one = self.chance, self.chance.choice(open_ones)
        outcome = FeedbackReport(0, one.left.pop(0), 0.0)
        told = chance.choice(
            (
                ClientReport(decision_id(*one.key), None, outcome, None),
                ClientReport(None, one.request_id, outcome, None),
                ClientReport(None, one.request_id, outcome, None, one.tenant_id),
                ClientReport(
                    decision_id(*one.key), None, outcome, None, tenants=frozenset({one.tenant_id})
                ),
            )
        )
        router = chance.choice(self.replicas).router
        assert router.take([told]) == ACCEPTED, told
        if chance.random() < 0.5:
            assert router.take([told]) == REPEATED, told


class Replica:
    """One that decides, and reads the log when it does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.live, self.queue = LiveLoad(), RoutingQueue()
        self.router = Router(
            FakeTable(),
            self.queue,
            self.live,
            clock=self._now,
            monotonic=self._now,
            random_bytes=world.chance.randbytes,
            shares_log=True,
        )

    def _now(self) -> float:
        return self.world.now

    def write(self) -> None:
        for record in self.queue.take(self.world.now):
            self.world.log.append(decode_routing(encode_routing(record)))

    def read(self, most: int) -> None:
        begin = self.live.folded.offset + 1
        for offset, record in enumerate(self.world.log[begin : begin + most], begin):
            self.queue.push_outcomes(self.live.follow(offset, record, self.world.now))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_report_finds_its_decision_wherever_it_is_told(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.now += world.chance.choice((0.0, 0.01, 0.2))
        one = world.chance.choice(world.replicas)
        match world.chance.randrange(8):
            case 0 | 1:
                world.route()
            case 2 | 3 | 4:
                world.tell()
            case 5:
                one.write()
            case _:
                one.read(world.chance.randrange(4))
    for _ in range(3):  # what was held is written once its decision is read
        for one in world.replicas:
            one.write()
        for one in world.replicas:
            one.read(len(world.log))
    told = {
        (record.run, outcome.number, outcome.event)
        for record in world.log
        if isinstance(record, OutcomesRecord)
        for outcome in record.outcomes
    }
    for given in world.given:
        has_ended = not given.left
        for one in world.replicas:
            assert one.live.is_under_way(*given.key) != has_ended, f"seed {seed}, {given}"
        assert any((*given.key, end) in told for end in ENDS) == has_ended, f"seed {seed}, {given}"
    assert len({one.live.folded.fold.digest for one in world.replicas}) == 1, f"seed {seed}"
    for one in world.replicas:
        assert one.live.counts()["unknown"] == 0, f"seed {seed}"
        assert not len(one.live._held), f"seed {seed}"
