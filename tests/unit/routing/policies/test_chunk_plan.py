"""Plans for long prompts, by hand and against a pipeline that is simulated event by event."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.costs import Costs
from routing.estimates.links import LinkClass
from routing.policies.chunk_plan import (
    PlanNode,
    chunk_ends,
    pipeline_s,
    plan,
)

LINEAR = Costs(prefill_tokens_per_s=1_000, token_squared_s=0.0)
LONG = 128_000
RACK = {"zone": "z", "rack": "1"}
OTHER_RACK = {"zone": "z", "rack": "2"}


def no_time(link: LinkClass, tokens: int) -> float:
    return 0.0


def simulated(costs: Costs, cached: int, ends: tuple[int, ...], stages: int, hop_s: float) -> float:
    """A stage takes a chunk when it is free and has been given it, and is busy until it has handed
    it on.
    """
    free = [0.0] * stages
    done = 0.0
    for before, end in zip((cached, *ends), ends, strict=False):
        ready = 0.0
        for stage in range(stages):
            done = max(free[stage], ready) + costs.prefill_s(end, before) / stages
            free[stage] = ready = done + (hop_s if stage < stages - 1 else 0.0)
    return done


def test_one_instance_takes_the_single_time() -> None:
    ends = chunk_ends(Costs(), LONG, 0, 1, 512)
    assert ends == (LONG,)
    assert pipeline_s(Costs(), 0, ends, 1, 0.5) == Costs().prefill_s(LONG, 0)


def test_four_stages_and_sixteen_chunks_take_three_tenths() -> None:
    ends = chunk_ends(LINEAR, 16_000, 0, 16, 1)
    assert len(ends) == 16
    assert pipeline_s(LINEAR, 0, ends, 4, 0.0) / 16.0 == pytest.approx(0.297, abs=0.001)
    squared = chunk_ends(Costs(), LONG, 0, 16, 1)
    assert pipeline_s(Costs(), 0, squared, 4, 0.0) / Costs().prefill_s(LONG, 0) == pytest.approx(
        0.297, abs=0.001
    )


def test_hops_are_between_stages_and_between_chunks() -> None:
    ends = (1000, 2000, 3000)
    assert pipeline_s(LINEAR, 0, ends, 2, 0.1) == pytest.approx(1.5 + 0.5 + 3 * 0.1)


@given(
    prompt=st.integers(2, 2**20),
    share=st.floats(0, 0.99),
    count=st.integers(1, 128),
    block=st.sampled_from((1, 16, 512, 65_536)),
    squared=st.sampled_from((0.0, 6e-10, 1e-6)),
)
def test_chunks_rise_to_the_end_of_the_prompt_at_blocks(
    prompt: int, share: float, count: int, block: int, squared: float
) -> None:
    cached = int(prompt * share)
    costs = Costs(token_squared_s=squared)
    ends = chunk_ends(costs, prompt, cached, count, block)
    assert list(ends) == sorted(set(ends))
    assert cached < ends[0]
    assert ends[-1] == prompt
    assert len(ends) <= count
    assert all(end % block == 0 for end in ends[:-1])


def test_chunks_have_equal_work() -> None:
    ends = chunk_ends(Costs(), LONG, 30_000, 16, 1)
    seconds = [
        Costs().prefill_s(end, before) for before, end in zip((30_000, *ends), ends, strict=False)
    ]
    assert max(seconds) / min(seconds) < 1.001
    assert ends[0] - 30_000 > 1.5 * (ends[-1] - ends[-2])


def test_a_plan_takes_what_a_simulated_pipeline_takes() -> None:
    chance = random.Random(1)
    for _ in range(1_000):
        prompt = chance.randint(20_000, 400_000)
        cached = int(prompt * chance.choice((0.0, 0.0, 0.3)))
        costs = Costs(
            prefill_tokens_per_s=chance.uniform(2_000, 20_000),
            token_squared_s=chance.choice((0.0, 6e-10, 5e-9)),
            fixed_s=chance.choice((0.0, 0.02)),
        )
        stages, hop_s = chance.randint(2, 8), chance.uniform(0.0, 0.05)
        count = max(2 * stages, (prompt - cached) // 8192)
        ends = chunk_ends(costs, prompt, cached, count, chance.choice((16, 128)))
        foretold = pipeline_s(costs, cached, ends, stages, hop_s)
        assert foretold == pytest.approx(simulated(costs, cached, ends, stages, hop_s), rel=0.05)


def advised(nodes: list[PlanNode], **changed: float) -> str | None:
    arguments = {"prompt": LONG, "cached": 0, "single_ttft_s": 26.0, "ttft_slo_s": 10.0} | changed
    found = plan(Costs(), nodes=nodes, block=512, hop=no_time, **arguments)  # type: ignore[arg-type]
    return None if found is None else "".join(node.instance_id for node in found.nodes)


FOUR = [PlanNode(name, labels=RACK) for name in "abcd"]


def test_the_least_number_of_stages_that_meets_the_objective() -> None:
    single = Costs().prefill_s(LONG, 0)
    found = plan(
        Costs(), LONG, 0, FOUR, single_ttft_s=single, ttft_slo_s=10.0, block=512, hop=no_time
    )
    assert found is not None
    assert len(found.nodes) == 3
    assert found.expected_ttft_s == pytest.approx(single * (1 / 3 + 2 / 3 / 15), rel=0.02)
    assert found.single_ttft_s == single
    assert len(found.chunks) == 15
    assert found.chunks[-1] == LONG


def test_where_none_meets_it_the_quickest() -> None:
    assert advised(FOUR, ttft_slo_s=1.0) == "abcd"


def test_it_is_not_advised_where_one_instance_is_enough() -> None:
    assert advised(FOUR, single_ttft_s=10.0) is None
    assert advised(FOUR, single_ttft_s=10.1) is not None
    assert advised(FOUR, ttft_slo_s=0.0, single_ttft_s=29.0) is None
    assert advised(FOUR, ttft_slo_s=0.0, single_ttft_s=31.0) is not None


def test_it_is_not_advised_for_little_work_or_where_all_are_busy() -> None:
    assert advised(FOUR, cached=LONG - 16_384) is None
    assert advised([one._replace(wait_s=0.1) for one in FOUR]) is None
    assert advised(FOUR[:1]) is None
    assert advised([FOUR[0], FOUR[1]._replace(wait_s=0.1)]) is None


def test_it_is_not_advised_where_hops_eat_the_gain() -> None:
    slow = plan(
        Costs(),
        LONG,
        0,
        FOUR,
        single_ttft_s=26.0,
        ttft_slo_s=10.0,
        block=512,
        hop=lambda link, tokens: 5.0,
    )
    assert slow is None


def test_the_nearest_come_first() -> None:
    far = [PlanNode("a", labels=RACK), PlanNode("b"), PlanNode("c", labels=OTHER_RACK)]
    near = PlanNode("d", labels=RACK)
    assert advised([*far, near], ttft_slo_s=1.0) == "adcb"
    asked: list[LinkClass] = []

    def hop(link: LinkClass, tokens: int) -> float:
        assert 0 < tokens <= LONG
        asked.append(link)
        return 0.0

    nodes = [*far, near]
    plan(Costs(), LONG, 0, nodes, single_ttft_s=26.0, ttft_slo_s=1.0, block=512, hop=hop)
    assert asked == [LinkClass.RACK, LinkClass.ZONE, LinkClass.OTHER]
