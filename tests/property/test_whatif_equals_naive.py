"""The simulator, with its kernel and records, agrees exactly with one of plain dicts."""

import random

import pytest

from lab.whatif.outcome import latency_of
from lab.whatif.policies.table import ALL_POLICIES
from lab.whatif.run import SimulationRun
from lab.whatif.setup import Announcement, Leases, RefusalBasis, Setup
from lab.whatif.workload import Workload
from replay.traces.request import TraceRequest
from routing.costs import Costs
from streams.kernel import native_available
from tests.naive_whatif import NaiveRun

BLOCK_SIZE = 16
KERNELS = ["reference", *(["rust"] if native_available() else [])]
SPECS = (
    *ALL_POLICIES,
    "algorithm-1:fetch=off",
    "algorithm-1:kvcache_balancing_threshold=4",
    "least-delay:others=3,fetch=on",
    "wait-and-work:fetch=on",
    "longest-prefix:overload_s=0.2",
    "weighted:alpha=0.3,beta=2,full_load_s=1,overload_s=0.5",
    "blocks:cpu=0,scale=3",
    "lmetric:guard=off",
    "sticky:share=0.3,max_penalty_s=0.1",
    "two-tier:spread=2,ratio=1",
    "loadaware:beta=0.3",
    "kvaware:threshold=40",
    "aibrix:spread=4,deviations=0.5",
)
SEEDS = range(24)


def requests_of(chance: random.Random) -> list[TraceRequest]:
    """Prompts that share prefixes, at times that are often equal."""
    requests: list[TraceRequest] = []
    prompts: list[list[int]] = [[]]
    now = 0
    for _ in range(chance.randint(1, 120)):
        now += chance.choice((0, 0, 3, 40, 250))
        before = chance.choice(prompts)
        ids = before[: chance.randint(0, len(before))]
        # An id below 6 stands after different blocks, and so for different prefixes.
        ids += [chance.choice((chance.randrange(6), chance.randrange(10**12))) for _ in range(6)]
        ids = ids[: chance.randint(0, 30)]
        prompts.append(ids)
        length = max(len(ids) * BLOCK_SIZE - chance.randrange(BLOCK_SIZE), 0)
        requests.append(TraceRequest(float(now), length, 1, ids))
    return requests


def setup_of(chance: random.Random) -> Setup:
    gpu = chance.choice((0, 3, 20, 60, None))
    return Setup(
        policy=chance.choice(SPECS),
        nodes=chance.choice((1, 2, 3, 11)),
        gpu_blocks=gpu,
        cpu_blocks=chance.choice((0, 0, 5, 40, None)) if gpu else 0,
        pool_blocks=chance.choice((0, 0, 0, 10, 80, None)),
        leases=chance.choice(
            (
                None,
                Leases(lease_s=0.1),
                Leases(lease_s=0.0, share=0.3, watermark=0.5),
                Leases(lease_s=0.3, soft_pin_blocks=2, soft_pin_s=1.0, share=0.2),
                Leases(lease_s=100.0, soft_pin_blocks=50),
            )
        ),
        costs=chance.choice(
            (
                Costs(),
                Costs(prefill_tokens_per_s=300, fetch_tokens_per_s=2000, fixed_s=0.01),
                Costs(load_tokens_per_s=500, pool_tokens_per_s=float("inf")),
            )
        ),
        index_delay_s=chance.choice((0.0, 0.003, 0.5, 1e9)),
        index_loss=chance.choice((0.0, 0.0, 0.1, 0.5, 1.0)),
        announce=chance.choice(tuple(Announcement)),
        rate=chance.choice((1.0, 0.1, 7.0)),
        slo_ttft_s=chance.choice((None, None, 0.05, 0.5)),
        refusal=chance.choice((RefusalBasis.NOW, RefusalBasis.NOW, RefusalBasis.NONE)),
        load_age_s=chance.choice((0.0, 0.0, 0.02, 0.3, 1e9)),
        bookings=chance.choice((True, False)),
        estimate_error=chance.choice((0.0, 0.0, 0.3, 2.0)),
        seed=chance.randrange(2**64),
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_equals_the_naive_one(kernel: str, seed: int) -> None:
    for part in range(6):
        chance = random.Random(seed * 1000 + part)
        requests, setup = requests_of(chance), setup_of(chance)
        workload = Workload("random", BLOCK_SIZE, requests)
        outcome = SimulationRun(setup, workload, kernel=kernel).outcome()
        naive = NaiveRun(setup, requests, BLOCK_SIZE)
        naive.run()
        names = sorted(naive.total)
        assert {name: getattr(outcome, name) for name in names} == naive.total, setup
        assert outcome.ttft == latency_of(naive.ttfts), setup
        nodes = [(node.name, node.requests, node.busy) for node in naive.nodes]
        assert [(one.name, one.requests, one.busy_s) for one in outcome.nodes] == nodes, setup
