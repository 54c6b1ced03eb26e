"""Advice for a very long prompt: several instances that compute it together (`chunk_plan`)."""

from typing import Final

from routing.costs import Costs
from routing.decisions.candidates import Candidates
from routing.decisions.folded_routing import FoldedRouting
from routing.decisions.interface import RouteRequest
from routing.estimates.links import LinkClass, PathSpeeds, fetch_path
from routing.policies.chunk_plan import TOO_LONG, UNCACHED_LEAST, ChunkPlan, PlanNode, plan
from routing.policies.decide import DecisionResult

ACTIVATIONS_OF_A_TOKEN: Final = 16 * 1024
"""Of a token, from a stage to the next: a hidden size of 8,192, two bytes each."""


def advised_plan(
    asked: RouteRequest,
    decided: DecisionResult,
    candidates: Candidates,
    costs: Costs,
    folded: FoldedRouting,
) -> ChunkPlan | None:
    """The plan for a prompt that takes one instance too long; None for nearly all others. Cost O(1)
    where it does not, else O(candidates).
    """
    if decided.predicted_s <= (asked.ttft_slo_s or TOO_LONG):
        return None
    if asked.prompt_tokens <= UNCACHED_LEAST:
        return None
    able = [
        index for index, one in enumerate(candidates.found) if one.is_allowed and one.is_reachable
    ]
    if not able:
        return None
    found = candidates.found
    first = max(able, key=lambda index: (found[index].cached, -found[index].wait_s, -index))
    others = [index for index in able if index != first]
    nodes = [
        PlanNode(
            found[index].instance_id,
            found[index].dp_rank,
            found[index].wait_s,
            candidates.known[index].labels,
        )
        for index in (first, *others)
    ]
    speeds = folded.read(lambda fold: _speeds(fold.estimates.links(asked.scope.tenant_id)))
    return plan(
        found[first].costs or costs,
        asked.prompt_tokens,
        found[first].cached,
        nodes,
        single_ttft_s=decided.predicted_s,
        ttft_slo_s=asked.ttft_slo_s,
        block=asked.scope.block_size,
        hop=lambda link, tokens: tokens * ACTIVATIONS_OF_A_TOKEN / speeds[link],
    )


def _speeds(links: PathSpeeds) -> dict[LinkClass, float]:
    return {link: links.bytes_per_s(fetch_path(link)) for link in LinkClass}
