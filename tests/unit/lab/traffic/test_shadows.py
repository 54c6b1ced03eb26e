from itertools import islice

import pytest

from lab.engines.cache import CacheSizes, Offload
from lab.traffic.conversations import Conversations, Traffic, Turn
from lab.traffic.shadows import (
    SHADOW_WAITING_MAX,
    Alternatives,
    ShadowOutcome,
    Shadows,
    by_chance,
    by_longest_prefix,
    by_score,
)
from routing.costs import Costs

SIZES = CacheSizes(block_size=4, gpu_blocks=200)
SECOND_A_TOKEN = Costs(prefill_tokens_per_s=1.0, token_squared_s=0.0)
TURN = Turn(0, list(range(10)), [7, 8])


def shadows(count: int) -> Shadows:
    return Shadows(
        count,
        SIZES,
        offload=Offload.WRITE_THROUGH,
        costs=SECOND_A_TOKEN,
        choose=by_longest_prefix(),
    )


def run(engines: Shadows, turn: Turn, now: float) -> ShadowOutcome:
    return engines.run(turn, engines.chain.hashes([*turn.prompt, *turn.answer]), now)


def test_prompts_are_computed_one_after_another_and_reuse_what_the_one_before_left() -> None:
    one = shadows(1)
    assert run(one, TURN, 100.0) == (0, 10.0)
    assert run(one, TURN, 101.0) == (8, 9.0 + 2.0), "waits for the first, computes two tokens"
    assert run(one, TURN, 200.0) == (8, 2.0)


def test_what_would_become_of_a_request_is_what_becomes_of_it() -> None:
    shadow = shadows(1)
    engine = shadow._engines[0]
    hashes = shadow.chain.hashes([*TURN.prompt, *TURN.answer])
    for now in (0.0, 1.0, 2.0):
        expected = engine.expect(TURN, hashes, now)
        assert engine.expect(TURN, hashes, now) == expected, "it changes nothing"
        assert engine.take(TURN, hashes, now) == expected


def test_blocks_are_told_once_they_are_computed() -> None:
    two = shadows(2)
    first = run(two, TURN, 0.0)
    assert first.ttft_s == 10.0
    engines = two._engines
    hashes = two.chain.hashes([*TURN.prompt, *TURN.answer])
    for now, held in ((9.9, [0, 0]), (10.0, [0, 8])):
        for engine in engines:
            engine.advance(now)
        assert sorted(engine.reusable_tokens(TURN, hashes) for engine in engines) == held
    assert run(two, TURN, 11.0) == (8, 2.0), "whoever holds it is found"


def test_what_waits_is_bounded_where_requests_come_faster_than_they_are_computed() -> None:
    one = shadows(1)
    for _ in range(3 * SHADOW_WAITING_MAX):
        last = run(one, TURN, 0.0)
    assert last.ttft_s > SHADOW_WAITING_MAX, "each still waits for all before it"
    assert len(one._engines[0]._computing) <= SHADOW_WAITING_MAX + 1


def test_of_those_that_hold_most_any_is_chosen_and_of_chance_any() -> None:
    choose, chance = by_longest_prefix(), by_chance()
    assert {choose([4, 8, 8, 0], 10) for _ in range(50)} == {1, 2}
    assert {chance([4, 8, 8, 0], 10) for _ in range(50)} == {0, 1, 2, 3}


def test_a_score_sends_no_more_to_whoever_holds_most_but_has_most_to_do() -> None:
    choose = by_score(2)
    chosen = [choose([40, 36], 100) for _ in range(20)]
    assert chosen[0] == 0
    assert 5 < sum(chosen) < 15


@pytest.mark.parametrize("costs", [None, SECOND_A_TOKEN])
def test_the_same_turns_at_the_same_times_give_the_same(costs: Costs | None) -> None:
    traffic = Traffic(system_tokens=(16, 24), open_max=8, prompt_tokens_max=200)
    turns = list(islice(Conversations(5, traffic), 60))
    first, second = (
        Alternatives(3, SIZES, offload=Offload.WRITE_THROUGH, costs=costs) for _ in range(2)
    )
    outcomes = [first.run(turn, now) for now, turn in enumerate(turns)]
    assert outcomes == [second.run(turn, now) for now, turn in enumerate(turns)]
    assert any(one.by_query.cached_tokens for one in outcomes)
    assert any(one.by_query.ttft_s for one in outcomes) is (costs is not None)
