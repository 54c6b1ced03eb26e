"""One run, by hand."""

from typing import Any

import msgspec
import pytest

from lab.whatif.outcome import Latency, RunOutcome, latency_of
from lab.whatif.run import SimulationRun
from lab.whatif.setup import Announcement, Leases, Setup
from lab.whatif.workload import Workload
from replay.traces.request import TraceRequest
from routing.costs import Costs

SIZE = 100
COSTS = Costs(
    prefill_tokens_per_s=1000,
    token_squared_s=0,
    fetch_tokens_per_s=10_000,
    load_tokens_per_s=5_000,
    pool_tokens_per_s=2_000,
)


def run(setup: Setup, *requests: tuple[float, list[int]]) -> RunOutcome:
    """Requests by time in s and blocks, all of them full."""
    lines = [TraceRequest(at * 1000, len(ids) * SIZE, 1, ids) for at, ids in requests]
    return SimulationRun(setup, Workload("by hand", SIZE, lines)).outcome()


def setup(policy: str = "round-robin", **values: Any) -> Setup:
    defaults: dict[str, Any] = {"nodes": 2, "gpu_blocks": None, "costs": COSTS}
    return Setup(policy=policy, **{**defaults, **values})


def test_a_repeated_prompt_is_computed_once_on_each_node() -> None:
    outcome = run(setup(), *[(float(at), [1, 2]) for at in range(4)])
    assert (outcome.blocks, outcome.hit_blocks) == (8, 4)
    assert (outcome.tokens, outcome.hit_tokens) == (800, 400)
    assert msgspec.structs.astuple(outcome.ttft) == pytest.approx((0.1, 0.0, 0.2, 0.2, 0.2))
    assert outcome.busy_s == pytest.approx(0.4)
    assert outcome.full_cost_s == pytest.approx(0.8)
    assert outcome.work == pytest.approx(0.5)


def test_requests_wait_for_those_before_them() -> None:
    outcome = run(setup(nodes=1), (0.0, [1]), (0.0, [2]), (0.15, [3]), (9.0, [4]))
    assert outcome.ttft.max == pytest.approx(0.2)
    assert outcome.ttft.mean == pytest.approx((0.1 + 0.2 + 0.15 + 0.1) / 4)


def test_the_rate_moves_requests_together() -> None:
    outcome = run(setup(nodes=1, rate=10.0), (0.0, [1]), (1.0, [2]))
    assert outcome.ttft.max == pytest.approx(0.1)
    outcome = run(setup(nodes=1, rate=20.0), (0.0, [1]), (1.0, [2]))
    assert outcome.ttft.max == pytest.approx(0.15)


def test_a_partial_last_block_counts_its_own_tokens() -> None:
    lines = [TraceRequest(at, 250, 1, [1, 2, 3]) for at in (0, 1000)]
    outcome = SimulationRun(setup(nodes=1), Workload("partial", SIZE, lines)).outcome()
    assert (outcome.hit_blocks, outcome.hit_tokens, outcome.tokens) == (3, 250, 500)


def test_the_same_id_after_other_blocks_is_another_prefix() -> None:
    workload = Workload("reused", SIZE, [TraceRequest(0, 200, 1, ids) for ids in ([1, 9], [2, 9])])
    assert (workload.distinct, workload.reused_ids) == (4, 1)
    outcome = SimulationRun(setup(nodes=1), workload).outcome()
    assert outcome.hit_blocks == 0


def test_a_session_is_the_one_that_the_trace_names() -> None:
    names = ("a", None, "b", "a", "b")
    chains = ([1, 2], [1, 2], [1, 2, 3], [9], [1, 2, 4])
    lines = [
        TraceRequest(at, len(ids) * SIZE, 1, ids, name)
        for at, (ids, name) in enumerate(zip(chains, names, strict=True))
    ]
    workload = Workload("sessions", SIZE, lines)
    # The second one names none: it goes on where the first has ended.
    assert list(workload.sessions) == [0, 0, 1, 0, 1]
    rates = workload.session_hits
    assert rates is not None
    assert (rates.count, rates.min, rates.max) == (2, 0.0, 4 / 6)
    unnamed = [TraceRequest(at, SIZE, 1, [1]) for at in range(2)]
    assert Workload("none", SIZE, unnamed).session_hits is None


def test_who_asks_the_index_finds_the_holder() -> None:
    requests = [(0.0, [1, 2]), (0.0, [5, 6]), (2.0, [1, 2]), (3.0, [5, 6])]
    assert run(setup("longest-prefix"), *requests).hit_blocks == 4


def test_an_index_that_is_late_does_not_know_yet() -> None:
    def hits(delay: float, announce: Announcement = Announcement.ARRIVAL) -> int:
        late = setup("longest-prefix", nodes=8, index_delay_s=delay, announce=announce)
        return run(late, *[(float(at), [1, 2]) for at in range(8)]).hit_blocks

    assert hits(0.0) == hits(1.0) == 14  # what comes at the same time is known
    assert hits(0.79, Announcement.FINISH) == 14  # 0.2 s to compute it
    assert hits(0.81, Announcement.FINISH) == hits(1.01) < 14
    assert hits(80.0) < hits(1.01)  # by chance alone


def test_batches_that_are_lost_are_gaps_that_the_index_knows_of() -> None:
    requests = [(float(at), [at, 100 + at]) for at in range(50)]
    outcome = run(setup(index_loss=0.3), *requests)
    assert 5 <= outcome.lost_batches <= 25
    assert outcome.index["lost_batches"] == outcome.index["gaps"] == outcome.lost_batches
    assert outcome.index["stored"] == 2 * (50 - outcome.lost_batches)
    assert "log_holes" not in outcome.index


def test_what_the_index_promises_and_the_node_no_longer_has_is_counted() -> None:
    stale = setup("longest-prefix", nodes=1, gpu_blocks=2, index_delay_s=5.0)
    outcome = run(stale, (0.0, [1, 2]), (6.0, [3, 4]), (7.0, [1, 2]))
    assert (outcome.promised_tokens, outcome.over_promised_tokens) == (200, 200)
    assert outcome.hit_blocks == 0


def test_a_fetch_moves_what_the_source_has() -> None:
    # Node a holds the prompt and is busy; b fetches it.
    fetching = setup("algorithm-1")
    requests = [(0.0, [1, 2]), (1.0, [1, 2, *range(50, 99)]), (1.0, [1, 2])]
    outcome = run(fetching, *requests)
    assert outcome.fetched_blocks == 2
    assert outcome.hit_blocks == 4
    assert outcome.ttft.p50 == pytest.approx(0.2)
    assert sorted(node.requests for node in outcome.nodes) == [1, 2]


def test_a_fetch_gets_no_more_than_is_there() -> None:
    # One node computes [1, 2], then a prompt that drives them out; the index does not know yet.
    stale = setup("algorithm-1", gpu_blocks=4, index_delay_s=0.5)
    requests = [(0.0, [1, 2]), (1.0, [1, 2]), (1.0, [5, 6, 7, 8]), (1.1, [1, 2, 3])]
    outcome = run(stale, *requests)
    computed = outcome.blocks - outcome.hit_blocks
    assert outcome.fetched_blocks <= outcome.hit_blocks
    assert outcome.promised_tokens == outcome.hit_tokens + outcome.over_promised_tokens
    assert computed == (outcome.tokens - outcome.hit_tokens) // SIZE


def test_what_the_gpu_evicts_is_found_on_the_cpu() -> None:
    tiered = setup(nodes=1, gpu_blocks=2, cpu_blocks=2)
    outcome = run(tiered, (0.0, [1, 2]), (1.0, [3, 4]), (2.0, [1, 2]))
    assert (outcome.gpu_blocks, outcome.cpu_blocks) == (0, 2)
    assert outcome.ttft.p50 == pytest.approx(0.2)
    assert outcome.busy_s == pytest.approx(0.2 + 0.2 + 200 / 5000)
    assert "unresolved" not in outcome.index


def test_a_pool_is_everybodys() -> None:
    pooled = setup("least-loaded", gpu_blocks=0, pool_blocks=None)
    outcome = run(pooled, *[(0.0, [1, 2])] * 4)
    assert (outcome.hit_blocks, outcome.pool_blocks) == (6, 6)
    assert outcome.busy_s == pytest.approx(0.2 + 3 * 200 / 2000)


def test_what_cannot_meet_the_objective_is_refused() -> None:
    strict = setup("algorithm-1", nodes=1, slo_ttft_s=0.25)
    outcome = run(strict, (0.0, [1]), (0.0, [2]), (0.0, [3]), (0.05, [1]))
    assert (outcome.requests, outcome.refused) == (3, 1)
    assert outcome.ttft.max == pytest.approx(0.2)


def test_the_first_that_meets_the_objective_is_taken() -> None:
    # The longest prefix is on the busy node.
    strict = setup("longest-prefix", slo_ttft_s=2.0)
    requests = [(0.0, list(range(15))), (0.0, list(range(20)))]
    assert run(strict, *requests).refused == 0
    assert run(setup("longest-prefix"), *requests).imbalance == 2.0


def test_leases_are_those_of_the_slowest_tier() -> None:
    prompts = [[1, 2, 3], [1, 2, 3], [10, 11, 12], [1, 2, 3]]
    prompts += [[number, number + 1, number + 2] for number in range(20, 80, 3)]
    requests = [(float(at), prompt) for at, prompt in enumerate([*prompts, [1, 2, 3]])]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"gpu_blocks": 4}, "gpu_blocks"),
        ({"gpu_blocks": 3, "cpu_blocks": 4}, "cpu_blocks"),
        ({"gpu_blocks": 0, "pool_blocks": 4}, "pool_blocks"),
    ]
    for tiers, read in cases:
        leased = run(setup(nodes=1, leases=Leases(lease_s=1e9), **tiers), *requests)
        plain = run(setup(nodes=1, **tiers), *requests)
        assert getattr(leased, read) == getattr(plain, read) + (5 if read != "cpu_blocks" else 3)
        assert leased.unstored > plain.unstored == 0


def test_all_that_waits_for_the_index_is_folded_once() -> None:
    requests = [(float(at), [at % 7, 50 + at % 7]) for at in range(300)]
    outcome = run(setup(nodes=3, gpu_blocks=5), *requests)
    assert outcome.index["stored"] == outcome.stored
    assert outcome.index["removed"] == outcome.evicted
    assert "duplicate_records" not in outcome.index


@pytest.mark.parametrize(
    ("count", "p50", "p90", "p99"),
    [(1, 1, 1, 1), (10, 5, 9, 10), (101, 51, 91, 100)],
)
def test_percentiles_are_nearest_ranks(count: int, p50: int, p90: int, p99: int) -> None:
    latency = latency_of([float(one) for one in range(count, 0, -1)])
    assert (latency.p50, latency.p90, latency.p99, latency.max) == (p50, p90, p99, count)


def test_nothing_has_no_percentiles() -> None:
    assert latency_of([]) == Latency()
