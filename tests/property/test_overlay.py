"""A replica's routing state is the fold of the log as far as it was read, and over that its own
records that are not back yet: whatever is decided and reported by whom, however late, twice, or
after an outage it comes back, and whenever a replica is restarted or reads the log again.

Two models: at every step a fold of what was read, to which the own records that are not back are
applied behind it; in the end a fresh fold of the whole log. The seed is in every failure.
"""

import random
from typing import NamedTuple

import pytest

from routing.bounds import EARLY_OUTCOME_S
from routing.decisions.live_load import LiveLoad, ReportKind
from routing.decisions.queue import RoutingQueue
from routing.decisions.unbooked_load import TypicalRequest
from routing.fold.booking import DecisionKey
from routing.fold.fold import RoutingFold
from schemas.codec import decode_routing
from schemas.routing_records import (
    DecisionsRecord,
    LoadRecord,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    OutcomesRecord,
    PrefixMark,
    RoutingRecord,
    Target,
    UnregisteredEngine,
    UnregisteredEngines,
    encode_routing,
)
from tests.unit.routing.sample_decisions import SCOPE, candidate, decision, outcome

SEEDS = range(150)
NAMES = ("a", "b", "c")
TARGETS = [Target("default", name, 0) for name in NAMES]
STEPS = 60
LEAP_S = 1000.0
"""After which what was booked before has expired, and none of it is about to."""

SCRAPED_S = 50.0
"""After which there is another record of load: less than what a fold takes for a wrong clock."""

Shown = tuple[int, int, int, int, int]


class Own(NamedTuple):
    """An own record that is not back.

    Attributes:
        name: by which it is known when it comes back.
        is_early: whether it was told before its decision was known.
    """

    name: object
    record: RoutingRecord
    is_early: bool = False


def names_of(record: RoutingRecord) -> list[object]:
    """Of all that is in it."""
    match record:
        case DecisionsRecord(run=run):
            return [(run, one.number) for one in record.decisions]
        case OutcomesRecord(run=run):
            return [(run, one.number, one.event, one.time) for one in record.outcomes]
        case LoadRecord():
            return [(one.target, one.observed_at) for one in record.samples]
        case UnregisteredEngines():
            return [*record.engines]
    raise AssertionError


class World:
    """A log of several replicas, and a clock."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.log: list[RoutingRecord] = []
        self.now = 1000.0
        self.runs = 0
        self.decided: dict[DecisionKey, Target] = {}
        self.registered = set(TARGETS)

    def leap(self) -> None:
        """Nothing but scrapes of loads for a long time."""
        until = self.now + LEAP_S
        while self.now < until:
            self.now += SCRAPED_S
            self.log.append(LoadRecord(run=0, time=self.now, samples=()))

    def next_run(self) -> int:
        """A run that began before all that is written by it."""
        self.runs += 1
        return self.runs


class Replica:
    """One that decides and is told what came of it, and reads the log when it does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checkpoint = RoutingFold().dump()
        self.is_new = True
        self.restart()

    def restart(self) -> None:
        """What was not written is lost; it goes on from the checkpoint."""
        self.run, self.number = self.world.next_run(), 0
        self.live, self.queue = LiveLoad(RoutingFold.load(self.checkpoint)), RoutingQueue()
        self.own: list[Own] = []
        self.catches_up_to = self.live.folded.offset

    def keep(self) -> None:
        """A checkpoint."""
        self.checkpoint = self.live.folded.read_all(RoutingFold.dump)

    def read_again(self) -> None:
        """The log did not have what follows: it is read from the checkpoint on."""
        before = self.under_way()
        self.catches_up_to = max(self.live.folded.offset, self.catches_up_to)
        self.live.rebase(RoutingFold.load(self.checkpoint))
        assert self.under_way() == before, f"seed {self.world.seed}: nothing is lost by it"

    # What it tells

    def decide(self) -> None:
        """A request, of a session and of a prompt like others."""
        chance, now = self.world.chance, self.world.now
        candidates = tuple(candidate(name, prefill_s=chance.random()) for name in NAMES)
        made = decision(
            self.number,
            now,
            candidates=candidates,
            chosen=chance.randrange(3),
            decode=chance.choice((-1, -1, -1, 0)),
            predicted_s=0.5,
            request_id=chance.choice(("", f"{self.run}-{self.number}", "twice")),
            session_id=chance.choice(("", "s", "t")),
            marks=(PrefixMark(1, 5), PrefixMark(2, chance.choice((6, 7)))),
        )
        self.number += 1
        self.live.book(self.run, made)
        self.queue.push_decision(self.run, made)
        self.world.decided[self.run, made.number] = made.target(made.chosen)
        record = DecisionsRecord(run=self.run, time=now, decisions=(made,))
        self.own.append(Own((self.run, made.number), record))

    def hear(self, key: DecisionKey, event: OutcomeEvent, at: str | None) -> None:
        """What came of a request that somebody decided; no two clocks are the same."""
        self.world.now += 1e-6
        told = outcome(key[1], event, self.world.now, instance_id=at)
        answer = self.live.report(key[0], told)
        if answer is ReportKind.REPEATED:
            return
        self.queue.push_outcomes([(key[0], told)])
        record = OutcomesRecord(run=key[0], time=self.world.now, outcomes=(told,))
        name = (*key, event, told.time)
        self.own.append(Own(name, record, is_early=answer is ReportKind.EARLY))

    def observe(self) -> None:
        """What an engine carries."""
        target = self.world.chance.choice(TARGETS)
        sample = LoadSample(target, self.world.now, LoadSource.POSTED, waiting=3)
        self.live.note([sample])
        self.queue.push_samples([sample])

    def unregister(self) -> None:
        """An engine is registered no more."""
        target = self.world.chance.choice(TARGETS)
        if target not in self.world.registered or self.world.seed % 3 == 0:
            return  # who says so again, or that it went there before, is not told apart
        self.world.registered.discard(target)
        gone = UnregisteredEngine(target, "m")
        self.live.forget([gone], self.world.now)
        self.queue.push_unregistered([gone])
        record = UnregisteredEngines(run=0, time=self.world.now, engines=(gone,))
        self.own.append(Own(gone, record))

    # The log

    def write(self) -> None:
        """All of it, as others read it; some of it twice."""
        for record in self.queue.take(self.world.now):
            written = decode_routing(encode_routing(record))
            self.world.log += [written] * self.world.chance.choice((1, 1, 1, 2))

    def read(self, most: int) -> None:
        """So many records more."""
        begin = self.live.folded.offset + 1
        for offset, record in enumerate(self.world.log[begin : begin + most], begin):
            if offset <= self.catches_up_to:
                self.live.apply(offset, record)
            else:
                self.live.follow(offset, record, self.world.now)
            back = set(names_of(record))
            self.own = [one for one in self.own if one.name not in back]

    # What is compared

    def leap(self) -> None:
        """So late that a report whose decision never came is forgotten."""
        late = self.world.now - EARLY_OUTCOME_S
        self.own = [one for one in self.own if not (one.is_early and one.record.time < late)]

    def model(self) -> RoutingFold:
        """What was read, and behind it what is not back."""
        fold = RoutingFold.load(self.live.folded.read_all(RoutingFold.dump))
        for offset, (_, record, _) in enumerate(self.own, fold.offset + 1):
            fold.bookings.advance(record.time)  # its own clock is right
            fold.apply(offset, record)
        fold.bookings.advance(self.world.now)
        return fold

    def under_way(self) -> set[DecisionKey]:
        """Decisions whose requests are, as it knows."""
        self.loads()
        return {key for key in self.world.decided if self.live.is_under_way(*key)}

    def loads(self) -> list[tuple[Shown, float]]:
        """Of each target, samples left out."""
        found = self.live._bookings
        self.live.carried(
            TARGETS, self.world.now, TypicalRequest(0.0, 0.0, 0.0), {}
        )  # it is that time
        return shown(found.loads(TARGETS, self.world.now))

    def check(self) -> None:
        """It shows what the model has."""
        if self.live.folded.offset < self.catches_up_to:
            return
        model, where = self.model(), f"seed {self.world.seed}, run {self.run}"
        expected = {one.key for one in model.bookings.all()}
        assert self.under_way() == expected, where
        assert self.live.counts()["under_way"] == len(expected), where
        loads = shown(model.bookings.places.loads(TARGETS, self.world.now))
        for target, mine, theirs in zip(TARGETS, self.loads(), loads, strict=True):
            assert mine[0] == theirs[0], f"{where}, {target}"
            if self.has_order():
                assert mine[1] == pytest.approx(theirs[1], abs=1e-6), f"{where}, {target}"
        if any(one.record.time < self.world.now - LEAP_S / 2 for one in self.own):
            return  # the model takes it to be of now
        for name in ("s", "t"):
            last = model.observations.sessions.last("default", name, self.world.now)
            found = self.live.last_of_session("default", name, self.world.now)
            assert found == (None if last is None else last[1]), f"{where}, session {name}"

    def has_order(self) -> bool:
        """Whether the model knows when prompts are computed: not of those that were told of before
        their decision, and of those that went elsewhere, or were released, it keeps the time.
        """
        early = self.live.folded.fold.bookings.early()
        if self.world.seed % 3 == 0 or any(key[0] == self.run for key, _ in early):
            return False
        return not any(one.is_early or isinstance(one.name, UnregisteredEngine) for one in self.own)


def shown(loads: list) -> list[tuple[Shown, float]]:  # type: ignore[type-arg]
    return [
        ((one.requests, one.pending, one.active, one.decoding, one.kv_tokens), one.wait_s)
        for one in loads
    ]


def step(world: World, replica: Replica) -> None:
    chance = world.chance
    match chance.randrange(14):
        case 0 | 1 | 2:
            replica.decide()
        case 3 | 4 | 5:
            if world.decided:
                key = chance.choice([*world.decided][-12:])
                moved = chance.choice((None, None, "c")) if world.seed % 3 == 0 else None
                replica.hear(key, chance.choice(tuple(OutcomeEvent)), moved)
        case 6:
            replica.observe()
        case 7 | 8 | 9:
            replica.write()
        case 10 | 11 | 12:
            replica.read(chance.randrange(6))
        case _:
            match chance.randrange(6):
                case 0 | 1:
                    replica.keep()
                case 2:
                    replica.read_again()
                case 3:
                    replica.restart()
                case 4:
                    replica.unregister()
                case _:
                    world.leap()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_decision_reads_what_was_read_and_what_is_not_back(seed: int) -> None:
    world = World(seed)
    replicas = [Replica(world) for _ in range(3)]
    for _ in range(STEPS):
        world.now += world.chance.choice((0.0, 0.01, 0.2))
        before = world.now
        one = world.chance.choice(replicas)
        step(world, one)
        if world.now - before >= LEAP_S:
            for replica in replicas:
                replica.leap()
        one.check()
    for replica in replicas:
        replica.write()
    world.log.append(LoadRecord(run=0, time=world.now, samples=()))
    whole = RoutingFold()
    for offset, record in enumerate(world.log):
        whole.apply(offset, record)
    for replica in replicas:
        where = f"seed {seed}, run {replica.run}"
        replica.read(len(world.log))
        replica.check()
        fold = replica.live.folded.fold
        assert fold.digest == whole.digest, where
        assert replica.loads() == shown(whole.bookings.places.loads(TARGETS, world.now)), where
        assert replica.own == [], where
        assert not replica.live._bookings._hidden, where
        assert not len(replica.live._bookings._here), where
        assert replica.live.failing(world.now) == whole.failures.failing(world.now), where
        prefixes = (5).to_bytes(8, "little") + (6).to_bytes(8, "little")
        held = whole.observations.predicted.longest(SCOPE, prefixes, world.now)
        assert replica.live.predicted(SCOPE, prefixes, world.now) == held, where


class Losing(Replica):
    """One whose records are lost now and then: nobody else knows of them, and this one does."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.lost: set[DecisionKey] = set()

    def lose(self) -> None:
        """What waits is never written."""
        for record in self.queue.take(self.world.now):
            if isinstance(record, DecisionsRecord):
                self.lost.update((record.run, one.number) for one in record.decisions)

    def read(self, most: int) -> None:
        """So many records more; what is told of those that were lost, the log passes over."""
        begin, own = self.live.folded.offset + 1, self.own
        super().read(most)
        self.own = [one for one in own if one in self.own or self.is_of_lost(one.record)]
        for record in self.world.log[begin : begin + most]:
            if self.is_of_lost(record) and all(record != one.record for one in self.own):
                self.own.append(Own(None, record))

    def is_of_lost(self, record: RoutingRecord) -> bool:
        """Whether it says something of a decision that was lost."""
        return isinstance(record, OutcomesRecord) and any(
            (record.run, one.number) in self.lost for one in record.outcomes
        )

    def expected(self) -> set[DecisionKey]:
        """What was read, and behind it what is not back, or lost: as of a run that is not read."""
        fold = RoutingFold.load(self.live.folded.read_all(RoutingFold.dump))
        for _, record, _ in self.own:
            fold.bookings.advance(record.time)
            for decided in record.decisions if isinstance(record, DecisionsRecord) else ():
                key = (record.run, decided.number)
                fold.bookings.book(key[0] + LOST * (key in self.lost), decided)
            for told in record.outcomes if isinstance(record, OutcomesRecord) else ():
                key = (record.run, told.number)
                fold.bookings.report(key[0] + LOST * (key in self.lost), told)
        fold.bookings.advance(self.world.now)
        return {(one.run % LOST, one.number) for one in fold.bookings.all()}


LOST = 1000
"""Added to the run of a decision that was lost."""


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_log_loses_stays_here_until_its_end(seed: int) -> None:
    world = World(seed)
    replicas = [Losing(world) for _ in range(3)]
    for _ in range(STEPS):
        world.now += world.chance.choice((0.0, 0.01, 0.2))
        one = world.chance.choice(replicas)
        match world.chance.randrange(10):
            case 0 | 1 | 2:
                one.decide()
            case 3 | 4 | 5:
                known = [key for key in world.decided if one.live.is_under_way(*key)]
                if known:
                    event = world.chance.choice(tuple(OutcomeEvent))
                    one.hear(world.chance.choice(known), event, None)
            case 6:
                one.lose()
            case 7 | 8:
                one.write()
            case _:
                one.read(world.chance.randrange(6))
        assert one.under_way() == one.expected(), f"seed {seed}, run {one.run}"
    for replica in replicas:
        replica.write()
    world.leap()
    world.leap()
    for replica in replicas:
        replica.read(len(world.log))
        assert replica.under_way() == set(), f"seed {seed}: all of it has expired"
    for replica in replicas:
        replica.decide()
        replica.write()
    for replica in replicas:
        replica.read(len(world.log))
        assert replica.live.counts()["under_way"] == len(replicas), f"seed {seed}"
        assert not replica.live._bookings._told, f"seed {seed}: what it lost is given up"
        assert not len(replica.live._own._numbers), f"seed {seed}"
