"""Policies that count what is in flight: blocks, requests or tokens, and no seconds.

They are how other routers choose, so that these can be compared with what is here. Counts know
nothing of how long a long prompt takes, nor of engines that take several prompts at once.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from routing.costs import Costs
from routing.interface import Candidate, Choice, Parameters, Request, Weight
from routing.policies.ranking import ordered

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class BlocksParameters(Parameters, frozen=True):
    """Attributes:
    gpu, cpu, disk: what a cached token on that tier saves, in tokens that need not be computed.
    scale: what a token to compute counts beside one that is held.
    block: tokens for each block; the key is in blocks.
    """

    gpu: Share = 1.0
    cpu: Share = 0.75
    disk: Share = 0.25
    scale: Weight = 1.0
    block: Count = 16


def blocks(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: BlocksParameters
) -> list[Choice]:
    """The lowest `scale * (pending + max(prompt - credit, 0)) + active`, in blocks: the cost of
    Dynamo's router and of the guide for routers of Mooncake's Conductor.

    `active` is what would be held on the GPU after the choice. What is cached lowers the work of
    this request alone, not that which waits.
    """
    total, size = request.prompt_tokens, parameters.block
    choices = []
    for one in candidates:
        slower = one.cached - one.gpu - one.disk
        credit = one.gpu * parameters.gpu + slower * parameters.cpu + one.disk * parameters.disk
        prefill = one.pending + max(total - credit, 0.0)
        active = one.active + total - one.shared
        key = (parameters.scale * prefill + active) / size
        choices.append(Choice(key, one, one.cached, queue_s=one.wait_s))
    return ordered(request, choices)


class StickyParameters(Parameters, frozen=True):
    """Attributes:
    share: of the longest cached prefix, that an instance must hold to be kept to.
    max_penalty_s: how much later than another one these may begin; beyond that all are looked at.
    """

    share: Share = 0.8
    max_penalty_s: Weight = 2.0


def sticky(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: StickyParameters
) -> list[Choice]:
    """The fewest tokens in flight among those that hold about as much of the prompt as any; among
    all where nobody holds anything, or where the first of them would begin much later: llm-d's
    optimized baseline.
    """
    wanted = parameters.share * max(one.cached for one in candidates)
    keepers = [one for one in candidates if one.cached >= wanted > 0]
    if keepers:
        first = min(one.wait_s for one in candidates)
        if min(one.wait_s for one in keepers) - first > parameters.max_penalty_s:
            keepers = []
    return ordered(
        request,
        [
            Choice(float(one.pending), one, one.cached, queue_s=one.wait_s)
            for one in keepers or candidates
        ],
    )


class LmetricParameters(Parameters, frozen=True):
    """Attributes:
    guard: whether those that hold the beginning of a prompt are left out while it comes so often
        that they cannot serve it.
    """

    guard: bool = True


def lmetric(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: LmetricParameters
) -> list[Choice]:
    """The lowest `max(uncached, 1) * (requests + 1)`: no weight to set (arXiv 2603.15202).

    Its guard against hot spots: a class of prompts that begin alike has a share of the last
    arrivals, and holders. Where the share is more than these can take (`HotClasses`), they are left
    out, so that others compute the beginning too.
    """
    total = request.prompt_tokens
    kept = candidates
    if parameters.guard and request.is_hot:
        kept = [one for one in candidates if one.cached < request.class_tokens] or candidates
    return ordered(
        request,
        [
            Choice(
                float(max(total - one.cached, 1) * (one.requests + 1)),
                one,
                one.cached,
                queue_s=one.wait_s,
            )
            for one in kept
        ],
    )
