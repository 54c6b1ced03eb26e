"""Bookings: whatever is reported, repeated, lost or reordered, load is the sum of what is under
way; and a fold that was kept and restored anywhere is the one that went on.
"""

import random
from collections.abc import Iterator

import pytest

from routing.fold.fold import RoutingFold
from routing.fold.target_bookings import NO_LOAD
from schemas.codec import decode_routing
from schemas.routing_records import (
    DecisionsRecord,
    LoadRecord,
    LoadSample,
    LoadSource,
    OutcomeEvent,
    OutcomesRecord,
    RoutingRecord,
    Target,
    UnregisteredEngine,
    UnregisteredEngines,
    encode_routing,
)
from tests.unit.routing.sample_decisions import candidate, decision, outcome

NAMES = ("a", "b", "c")
SEEDS = range(200)


def history(chance: random.Random) -> Iterator[RoutingRecord]:
    """Records of three services, whose clocks differ, and of their clients."""
    numbers = dict.fromkeys((1, 2, 3), 0)
    time = 1000.0
    for _ in range(chance.randint(1, 60)):
        time += chance.choice((0.0, 0.05, 1.0, 70.0, 400.0))
        run = chance.choice(tuple(numbers))
        now = time + chance.choice((0.0, -3.0, 2.0))
        kind = chance.randrange(10)
        if kind < 4:
            made = []
            for _ in range(chance.randint(1, 4)):
                candidates = tuple(
                    candidate(name, prefix=chance.choice((0, 500)), prefill_s=chance.random())
                    for name in NAMES
                )
                made.append(
                    decision(
                        numbers[run],
                        now,
                        candidates=candidates,
                        chosen=chance.randrange(-1, 3),
                        decode=chance.choice((-1, -1, 0, 2)),
                        predicted_s=chance.choice((0.5, 100.0)),
                        decode_s=chance.choice((0.0, 50.0)),
                        request_id=chance.choice(("", f"{run}-{numbers[run]}")),
                    )
                )
                numbers[run] += chance.choice((1, 1, 1, 2))
            yield DecisionsRecord(run=run, time=now, decisions=tuple(made))
        elif kind < 9:
            reports = tuple(
                outcome(
                    max(numbers[run] + chance.randint(-8, 1), 0),
                    chance.choice(tuple(OutcomeEvent)),
                    now,
                    instance_id=chance.choice((None, None, None, *NAMES)),
                )
                for _ in range(chance.randint(1, 6))
            )
            yield OutcomesRecord(run=run, time=now, outcomes=reports)
        elif chance.randrange(4) == 0:
            gone = UnregisteredEngine(Target("default", chance.choice(NAMES), 0), "m")
            yield UnregisteredEngines(run=0, time=now, engines=(gone,))
        else:
            target = Target("default", chance.choice(NAMES), 0)
            sample = LoadSample(target, now, LoadSource.SCRAPED, waiting=chance.randrange(9))
            yield LoadRecord(run=0, time=now, samples=(sample,))


def loads(fold: RoutingFold) -> dict[Target, tuple[int, int, int, int]]:
    """What is under way, added up from the bookings themselves."""
    found: dict[Target, tuple[int, int, int, int]] = {}
    for one in fold.bookings.state().bookings:
        for target in filter(None, (one.target, one.decode)):
            requests, pending, active, tokens = found.get(target, (0, 0, 0, 0))
            computed = target != one.target or one.has(OutcomeEvent.FIRST_TOKEN)
            found[target] = (
                requests + 1,
                pending + (0 if computed else one.uncached),
                active + one.uncached,
                tokens + one.prompt + one.output,
            )
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_load_is_the_sum_of_what_is_under_way(seed: int) -> None:
    fold = RoutingFold()
    for offset, record in enumerate(history(random.Random(seed))):
        fold.apply(offset, record)
        expected = loads(fold)
        for name in NAMES:
            target = Target("default", name, 0)
            load = fold.bookings.load(target, record.time)
            shown = (load.requests, load.pending, load.active, load.kv_tokens)
            assert shown == expected.get(target, (0, 0, 0, 0)), (seed, offset, target)
            assert 0 <= load.decoding <= load.requests, (seed, offset)
        assert sorted(fold.bookings.places.targets()) == sorted(expected), (seed, offset)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restored_fold_is_the_one_that_went_on(seed: int) -> None:
    records = [decode_routing(encode_routing(one)) for one in history(random.Random(seed))]
    cut = random.Random(seed).randint(0, len(records))
    whole, begun = RoutingFold(), RoutingFold()
    for offset, record in enumerate(records):
        whole.apply(offset, record)
        if offset < cut:
            begun.apply(offset, record)
    restored = RoutingFold.load(begun.dump())
    assert restored.digest == begun.digest, seed
    for offset, record in enumerate(records):  # what it has is skipped
        restored.apply(offset, record)
    assert restored.dump() == whole.dump(), seed


@pytest.mark.parametrize("seed", range(50))
def test_all_that_is_under_way_ends(seed: int) -> None:
    fold, last = RoutingFold(), 0
    for offset, record in enumerate(history(random.Random(seed))):
        fold.apply(offset, record)
        last = offset
    time = fold.bookings.clock
    for step in range(1, 40):
        time += 59.0
        fold.apply(last + step, LoadRecord(run=0, time=time, samples=()))
    assert len(fold.bookings) == 0, seed
    for name in NAMES:
        assert fold.bookings.load(Target("default", name, 0), time) == NO_LOAD, seed
