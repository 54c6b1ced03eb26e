"""What came out of a run."""

import itertools
import math
from collections.abc import Sequence
from typing import Final

import msgspec

from lab.whatif.setup import Setup

PARTS: Final = 10


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: the mean, and nearest-rank percentiles."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0


class NodeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one node did."""

    name: str
    requests: int
    busy_s: float


class DecodeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the instances that decode did.

    Attributes:
        requests: that they have decoded.
        wasted: that were refused when their prompts had been computed.
        within: that met both objectives.
        tbt: of each request, the mean of the longest tenth of its intervals.
        running: mean of how many were decoded, sampled each second while requests came, but for the
            first 100 s.
        swing: standard deviation of that over its mean.
        phase: correlation of that with how many prompts were given and not computed; below 0 where
            one side is busy when the other is not.
    """

    requests: int
    wasted: int
    within: int
    tbt: Latency
    running: float
    swing: float
    phase: float


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run.

    Attributes:
        label: of people.
        trace: its name.
        setup: what was run.
        requests, refused: how many were served, and how many were turned away by the objective.
        needless: of the refused, those that would have met the objective for the first token.
        within: of the served, those that met it; all where there is none.
        blocks, hit_blocks: of the prompts that were served; those that were not computed.
        tokens, hit_tokens: the same in tokens.
        gpu_blocks, cpu_blocks, pool_blocks, fetched_blocks: where the hits were.
        promised_tokens: what the index said that the chosen nodes had; `over_promised_tokens`: of
            these, those that were not there.
        ttft: of what was served.
        ttft_parts: means, of PARTS parts of the requests that were served, in their order.
        busy_s: of all nodes together.
        imbalance: the busiest node's seconds, in those of the mean.
        full_cost_s: what all prompts would have taken without any cache.
        stored, evicted, unstored: blocks that came into caches, went, and found no room.
        copies, copied_blocks: made by advice, and the blocks that they brought.
        lost_batches: that the index never had.
        index: what the fold and the kernel have counted.
        nodes: each of them.
        decode: where they do not decode themselves.
    """

    label: str
    trace: str
    setup: Setup
    requests: int
    refused: int
    needless: int
    within: int
    blocks: int
    hit_blocks: int
    tokens: int
    hit_tokens: int
    gpu_blocks: int
    cpu_blocks: int
    pool_blocks: int
    fetched_blocks: int
    promised_tokens: int
    over_promised_tokens: int
    ttft: Latency
    busy_s: float
    imbalance: float
    full_cost_s: float
    stored: int
    evicted: int
    unstored: int
    lost_batches: int
    index: dict[str, int]
    nodes: list[NodeOutcome]
    decode: DecodeOutcome | None = None
    copies: int = 0
    copied_blocks: int = 0
    ttft_parts: list[float] = []

    @property
    def block_hit_rate(self) -> float:
        """Share of the blocks that were not computed."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Share of the tokens that were not computed."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    @property
    def work(self) -> float:
        """Busy seconds as a share of what they would be without any cache."""
        return self.busy_s / self.full_cost_s if self.full_cost_s else 0.0


def parts_of(seconds: Sequence[float]) -> list[float]:
    """The means of PARTS parts, one after the other; none of fewer seconds."""
    if len(seconds) < PARTS:
        return []
    ends = [len(seconds) * number // PARTS for number in range(PARTS + 1)]
    return [
        math.fsum(seconds[begin:end]) / (end - begin) for begin, end in itertools.pairwise(ends)
    ]


def latency_of(seconds: Sequence[float]) -> Latency:
    """Of any number of them, in any order."""
    if not seconds:
        return Latency()
    ranked = sorted(seconds)

    def percentile(percent: int) -> float:
        return ranked[max(math.ceil(len(ranked) * percent / 100), 1) - 1]

    return Latency(
        mean=math.fsum(ranked) / len(ranked),
        p50=percentile(50),
        p90=percentile(90),
        p99=percentile(99),
        max=ranked[-1],
    )
