"""How much is measured."""

from typing import Final

import msgspec

SEED: Final = 20_240_817
BLOCK_SIZE: Final = 16
CHAIN_BLOCKS: Final = 8192
"""A prompt of 128K tokens."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts of one whole run.

    Attributes:
        runs: repetitions whose median is taken.
        real_time_runs: the same of what takes its time whatever the machine does.
        seeds: of conversations that come in real time.
        wide_blocks: blocks published in 64-block events.
        single_blocks: blocks published one a message; fewer messages than an inbox holds.
        flood_blocks: of one publisher at full speed, beside its neighbour.
        prompt_tokens: lengths of queries.
        query_bodies: different prompts that rotate.
        query_cpu_s: requests go on for about this much CPU of the slowest indexer.
        rate_s: how long a server is asked for its requests/s.
        beside_s: how long it is asked beside events, and without.
        memory_pairs: of a block and an instance that holds it.
        growth_blocks: that a table grows to, one after the other.
        recovery_blocks: in table and log.
        resident_blocks: held before blocks are removed, cleared or moved.
        past_blocks: live ones while a past is made.
        past_s: how long it is, at 20,000 blocks a second.
        pipeline_publishers: of each run of the distributed form.
        pipeline_blocks: published in 64-block events by all publishers together.
        pipeline_single_blocks: published one a message.
        latency_rate: blocks/s, in 64-block events.
        latency_s: how long that rate is kept.
        cold_blocks: of the table that a replica and a worker start on.
        churn_live_blocks: that stay live while others come and go.
        churn_turns: how often all of them are replaced.
        crowd_s: how long many connections ask at once.
        silent_publishers: that are up and send nothing.
        silent_s: how long they have been silent before CPU is taken, for a third of it.
        conversations: of many turns.
        simulated_requests: of the trace that what-if runs.
        routed_requests: under each routing policy, after `routed_warmup` others.
        estimated_requests: of engines whose costs change after the half of them.
    """

    runs: int = 3
    real_time_runs: int = 2
    seeds: int = 1
    wide_blocks: int = 1_500_000
    single_blocks: int = 200_000
    flood_blocks: int = 750_000
    prompt_tokens: tuple[int, ...] = (1024, 8192, 32_768, 131_072)
    query_bodies: int = 20
    query_cpu_s: float = 0.5
    rate_s: float = 1.0
    beside_s: float = 4.0
    memory_pairs: int = 10_000_000
    growth_blocks: tuple[int, ...] = (1_000_000, 10_000_000, 30_000_000)
    recovery_blocks: int = 10_000_000
    resident_blocks: int = 1_000_000
    past_blocks: int = 1_000_000
    past_s: int = 660
    pipeline_publishers: tuple[int, ...] = (10, 100)
    pipeline_blocks: int = 640_000
    pipeline_single_blocks: int = 40_000
    latency_rate: int = 50_000
    latency_s: float = 10.0
    cold_blocks: int = 10_000_000
    churn_live_blocks: int = 1_000_000
    churn_turns: int = 4
    crowd_s: float = 5.0
    silent_publishers: int = 1024
    silent_s: float = 60.0
    conversations: int = 187
    simulated_requests: int = 12_000
    routed_requests: int = 500
    routed_warmup: int = 100
    estimated_requests: int = 1_800


FULL: Final = Sizes()
QUICK: Final = Sizes(
    runs=1,
    real_time_runs=1,
    wide_blocks=200_000,
    single_blocks=40_000,
    flood_blocks=200_000,
    prompt_tokens=(1024, 8192),
    query_cpu_s=0.1,
    beside_s=2.0,
    memory_pairs=500_000,
    growth_blocks=(300_000, 1_000_000),
    recovery_blocks=100_000,
    resident_blocks=100_000,
    past_blocks=200_000,
    past_s=10,
    pipeline_publishers=(10,),
    pipeline_blocks=128_000,
    pipeline_single_blocks=10_000,
    latency_rate=10_000,
    latency_s=4.0,
    cold_blocks=200_000,
    churn_live_blocks=200_000,
    crowd_s=2.0,
    silent_publishers=64,
    silent_s=3.0,
    conversations=24,
    simulated_requests=2_000,
    routed_requests=120,
    routed_warmup=40,
    estimated_requests=200,
)
