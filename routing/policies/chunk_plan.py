"""A very long prompt computed by several instances, as a pipeline of chunks: advice; pure.

Each of X instances has a part of the layers. The prompt goes through them in chunks of equal work,
so that all are at work on different chunks, and they talk at the boundaries of the stages alone
(Mooncake, FAST'25, section 3.3). With s_k seconds for a chunk on one instance that has all layers,
S their sum and `hop` the time from a stage to the next, which keeps both from other work,

    T = S / X + (X - 1) / X * max(s_k) + (X + K - 2) * hop
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from types import MappingProxyType
from typing import Final, NamedTuple

from routing.costs import Costs
from routing.estimates.links import LinkClass, link_between

PLANNED_CHUNKS_MAX: Final = 1024  # of one prompt; beyond that its chunks grow

STAGES: Final = range(2, 9)
TOO_LONG: Final = 30.0
"""Seconds on one instance, where there is no objective."""

UNCACHED_LEAST: Final = 16_384
CHUNK_TOKENS: Final = 8192

_NEAREST: Final = tuple(LinkClass)  # they are declared so

Hop = Callable[[LinkClass, int], float]
"""Seconds from a stage to the next, by how near they are and the tokens of a chunk."""


class PlanNode(NamedTuple):
    """An instance that computes prompts.

    Attributes:
        dp_rank: of the instance.
        wait_s: until it would begin.
        labels: of its registration: where it is.
    """

    instance_id: str
    dp_rank: int = 0
    wait_s: float = 0.0
    labels: Mapping[str, str] = MappingProxyType({})


class ChunkPlan(NamedTuple):
    """The advice.

    Attributes:
        reason: for people.
        nodes: in the order of the stages.
        chunks: where each ends, in tokens of the prompt.
        expected_ttft_s: with it; `single_ttft_s`: on the one instance that was best.
    """

    reason: str
    nodes: tuple[PlanNode, ...]
    chunks: tuple[int, ...]
    expected_ttft_s: float
    single_ttft_s: float


def chunk_ends(costs: Costs, prompt: int, cached: int, count: int, block: int) -> tuple[int, ...]:
    """Where chunks of equal work end, at blocks; the last at the end of the prompt. There are fewer
    where blocks are too large for so many. Cost O(count).
    """
    per_token, squared = 1.0 / costs.prefill_tokens_per_s, costs.token_squared_s
    first = per_token * cached + squared * cached * cached
    whole = per_token * prompt + squared * prompt * prompt - first
    ends: list[int] = []
    for number in range(1, count):
        work = first + whole * number / count
        if squared:
            end = (sqrt(per_token * per_token + 4.0 * squared * work) - per_token) / (2.0 * squared)
        else:
            end = cached + (prompt - cached) * number / count
        rounded = round(end / block) * block
        if (ends[-1] if ends else cached) < rounded < prompt:
            ends.append(rounded)
    return (*ends, prompt)


def pipeline_s(costs: Costs, cached: int, ends: Sequence[int], stages: int, hop_s: float) -> float:
    """The time to the first token of a pipeline that has nothing else to do.

    Args:
        costs: of one instance that has all layers.
        cached: tokens that need not be computed.
        ends: of the chunks.
        stages: how many instances there are.
        hop_s: from a stage to the next.
    """
    whole = longest = 0.0
    before = cached
    for end in ends:
        seconds = costs.prefill_s(end, before)
        whole += seconds
        longest = max(longest, seconds)
        before = end
    hops = stages + len(ends) - 2
    return whole / stages + (stages - 1) / stages * longest + hops * hop_s


def plan(
    costs: Costs,
    prompt: int,
    cached: int,
    nodes: Sequence[PlanNode],
    *,
    single_ttft_s: float,
    ttft_slo_s: float = 0.0,
    block: int,
    hop: Hop,
) -> ChunkPlan | None:
    """The least number of stages that meets the objective, else the quickest one; None where one
    instance is quick enough, there is little to compute, or others are not idle, or not quicker.

    Args:
        prompt: tokens of the prompt.
        cached: of these, tokens that need not be computed.
        nodes: all that could take part, the one first whose place the others go by.
        single_ttft_s: the time to the first token on the best one alone.
        ttft_slo_s: the objective; 0 for none.
        block: tokens at a multiple of which a chunk may end.
        hop: from a stage to the next.
    """
    limit = ttft_slo_s or TOO_LONG
    if single_ttft_s <= limit or prompt - cached <= UNCACHED_LEAST:
        return None
    idle = _nearest_first([one for one in nodes if one.wait_s <= 0.0])
    best: ChunkPlan | None = None
    for stages in STAGES:
        if stages > len(idle):
            break
        link = idle[stages - 1][0]
        count = max(2 * stages, (prompt - cached) // CHUNK_TOKENS)
        ends = chunk_ends(costs, prompt, cached, min(count, PLANNED_CHUNKS_MAX), block)
        seconds = pipeline_s(costs, cached, ends, stages, hop(link, _largest(cached, ends)))
        if seconds < (best.expected_ttft_s if best else single_ttft_s):
            members = tuple(node for _, node in idle[:stages])
            reason = f"one instance takes {single_ttft_s:.1f} s of {limit:g} s"
            best = ChunkPlan(reason, members, ends, seconds, single_ttft_s)
            if seconds <= limit:
                break
    return best


def _nearest_first(nodes: Sequence[PlanNode]) -> list[tuple[LinkClass, PlanNode]]:
    """With how near each is to the first one; that one is as near to itself as any."""
    if not nodes:
        return []
    first = nodes[0]
    others = [(link_between(first.labels, one.labels), one) for one in nodes[1:]]
    others.sort(key=lambda pair: _NEAREST.index(pair[0]))
    return [(_NEAREST[0], first), *others]


def _largest(cached: int, ends: Sequence[int]) -> int:
    return max(end - before for before, end in zip((cached, *ends), ends, strict=False))
