"""How much is measured, for each kernel: the reference kernel is some 50 times slower."""

from typing import Final, Literal

import msgspec

KernelName = Literal["rust", "reference"]
KERNELS: Final[tuple[KernelName, ...]] = ("rust", "reference")

SEED: Final = 20_240_817
BLOCK_SIZE: Final = 16
CHAIN_BLOCKS: Final = 8192
"""A prompt of 128K tokens."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of one whole run over one kernel.

    Attributes:
        runs: repetitions whose median is taken.
        wide_blocks: blocks published in 64-block events.
        single_blocks: blocks published one a message; fewer messages than an inbox holds.
        prompt_tokens: lengths of queries.
        query_bodies: different prompts that rotate.
        query_cpu_s: requests go on for about this much CPU of the service.
        rate_s: how long a server is asked for its requests/s.
        memory_pairs: of a block and an instance that holds it.
        growth_blocks: that a table grows to, one after the other.
        recovery_blocks: in table and log, of one service after the other.
        resident_blocks: in the kernel before its calls are timed.
        apply_blocks: stored and removed on top of them, in each timed pass.
        past_blocks: live ones while a past is made.
        past_s: how long it is, at 20,000 blocks a second.
        pipeline_shapes: publishers and partitions of each run of the distributed form.
        pipeline_blocks: published in 64-block events by all publishers together.
        pipeline_single_blocks: published one a message.
        latency_rates: blocks/s, in 64-block events.
        latency_s: how long each rate is kept.
        cold_blocks: tables that a replica and a worker start on.
        churn_live_blocks: that stay live while others come and go.
        churn_turns: how often all of them are replaced.
        crowd_s: how long many connections ask at once.
        conversations: of many turns.
        simulated_requests: of the trace that what-if runs.
        routed_requests: under each routing policy, after `routed_warmup` others.
        estimated_requests: of engines whose costs change after the half of them.
    """

    runs: int = 3
    wide_blocks: int = 1_500_000
    single_blocks: int = 200_000
    prompt_tokens: tuple[int, ...] = (1024, 8192, 32_768, 131_072)
    query_bodies: int = 20
    query_cpu_s: float = 0.5
    rate_s: float = 2.0
    memory_pairs: int = 10_000_000
    growth_blocks: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000, 30_000_000)
    recovery_blocks: tuple[int, ...] = (1_000_000, 10_000_000)
    resident_blocks: int = 1_000_000
    apply_blocks: int = 262_144
    past_blocks: int = 1_000_000
    past_s: int = 660
    pipeline_shapes: tuple[tuple[int, int], ...] = (
        (1, 4),
        (10, 4),
        (100, 4),
        (1000, 4),
        (10, 1),
        (10, 16),
    )
    pipeline_blocks: int = 640_000
    pipeline_single_blocks: int = 40_000
    latency_rates: tuple[int, ...] = (1_000, 10_000, 50_000)
    latency_s: float = 15.0
    cold_blocks: tuple[int, ...] = (1_000_000, 10_000_000)
    churn_live_blocks: int = 1_000_000
    churn_turns: int = 6
    crowd_s: float = 8.0
    conversations: int = 187
    simulated_requests: int = 12_000
    routed_requests: int = 1_500
    routed_warmup: int = 200
    estimated_requests: int = 3_600


FULL: Final[dict[KernelName, Sizes]] = {
    "rust": Sizes(),
    "reference": Sizes(
        wide_blocks=200_000,
        single_blocks=50_000,
        memory_pairs=300_000,
        growth_blocks=(300_000,),
        recovery_blocks=(200_000,),
        resident_blocks=200_000,
        apply_blocks=65_536,
        simulated_requests=4_000,
    ),
}

_QUICK: Final = Sizes(
    runs=1,
    wide_blocks=200_000,
    single_blocks=40_000,
    prompt_tokens=(1024, 8192),
    query_cpu_s=0.1,
    rate_s=1.0,
    memory_pairs=500_000,
    growth_blocks=(300_000, 1_000_000),
    recovery_blocks=(100_000,),
    resident_blocks=100_000,
    apply_blocks=65_536,
    past_blocks=200_000,
    past_s=65,
    pipeline_shapes=((1, 1), (10, 4)),
    pipeline_blocks=128_000,
    pipeline_single_blocks=10_000,
    latency_rates=(1_000, 10_000),
    latency_s=4.0,
    cold_blocks=(200_000,),
    churn_live_blocks=200_000,
    churn_turns=4,
    crowd_s=2.0,
    conversations=24,
    simulated_requests=2_000,
    routed_requests=120,
    routed_warmup=40,
    estimated_requests=200,
)

QUICK: Final[dict[KernelName, Sizes]] = {
    "rust": _QUICK,
    "reference": msgspec.structs.replace(
        _QUICK,
        wide_blocks=20_000,
        single_blocks=10_000,
        memory_pairs=60_000,
        growth_blocks=(300_000,),
        recovery_blocks=(20_000,),
        resident_blocks=20_000,
        apply_blocks=16_384,
    ),
}


def sizes_of(kernel: KernelName, *, quick: bool) -> Sizes:
    """The amounts for one kernel."""
    return (QUICK if quick else FULL)[kernel]
