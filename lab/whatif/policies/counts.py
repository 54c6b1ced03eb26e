"""Policies of other routers that look at how many requests are in flight, and at the prefix."""

from collections.abc import Sequence
from math import sqrt
from operator import attrgetter
from typing import Annotated, Final

import msgspec

from routing.costs import Costs
from routing.interface import Candidate, Choice, Parameters, Request, Weight
from routing.policies.ranking import ordered

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]

_MANY: Final = 2**20  # requests, which no instance has: below a token

_CACHED: Final = attrgetter("cached")
_REQUESTS: Final = attrgetter("requests")


class TwoTierParameters(Parameters, frozen=True):
    """Attributes:
    spread: how many more requests the busiest must have than the idlest for load to decide.
    ratio: and so many times as many.
    share: of the prompt, that the best prefix must be above to decide.
    """

    spread: Count = 32
    ratio: Weight = 1.1
    share: Share = 0.5


def two_tier(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: TwoTierParameters
) -> list[Choice]:
    """The fewest requests where they differ by much; else the longest prefix if it is most of the
    prompt; else the fewest requests: `two-tier-cost-fn` of Dynamo, from SGLang's router.
    """
    most = max(candidates, key=_REQUESTS).requests
    least = min(candidates, key=_REQUESTS).requests
    is_uneven = most - least > parameters.spread and most > parameters.ratio * least
    longest = max(candidates, key=_CACHED).cached
    if not is_uneven and longest > parameters.share * request.prompt_tokens:
        return _by_prefix(request, candidates)
    return _by_requests(request, candidates)


class LoadAwareParameters(Parameters, frozen=True):
    """Attributes:
    beta: what being busier than the mean counts beside the cached share of the prompt.
    """

    beta: Weight = 1.0


def loadaware(
    request: Request,
    candidates: Sequence[Candidate],
    costs: Costs,
    parameters: LoadAwareParameters,
) -> list[Choice]:
    """The highest `cached / prompt - beta * (requests - mean) / max(mean, 1)`: `loadaware` of
    vLLM's production-stack.
    """
    total = request.prompt_tokens
    mean = sum(map(_REQUESTS, candidates)) / len(candidates)
    choices = []
    for one in candidates:
        share = one.cached / total if total else 0.0
        busier = (one.requests - mean) / max(mean, 1.0)
        choices.append(Choice(parameters.beta * busier - share, one, one.cached))
    return ordered(request, choices)


class KvAwareParameters(Parameters, frozen=True):
    """Attributes:
    threshold: tokens of the prompt that may be missing.
    """

    threshold: Count = 2000


def kvaware(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: KvAwareParameters
) -> list[Choice]:
    """The longest prefix where little of the prompt is missing, whatever the load; else the fewest
    requests: `kvaware` of vLLM's production-stack, without sessions.
    """
    longest = max(candidates, key=_CACHED).cached
    if longest and longest >= max(request.prompt_tokens - parameters.threshold, 0):
        return ordered(request, [Choice(-float(one.cached), one, one.cached) for one in candidates])
    return _by_requests(request, candidates)


class AibrixParameters(Parameters, frozen=True):
    """Attributes:
    spread: how many more requests the busiest must have than the idlest for load to decide.
    deviations: how far above the mean one may be to be looked at for its prefix.
    """

    spread: Count = 8
    deviations: Weight = 1.0


def aibrix(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: AibrixParameters
) -> list[Choice]:
    """The fewest requests where they differ by much; else the longest prefix among those that are
    not far busier than the mean: `prefix-cache` of AIBrix.
    """
    counts = [one.requests for one in candidates]
    if max(counts) - min(counts) > parameters.spread:
        return _by_requests(request, candidates)
    mean = sum(counts) / len(counts)
    squares = sum(count * count for count in counts) / len(counts)
    most = mean + parameters.deviations * sqrt(max(squares - mean * mean, 0.0))
    kept = [one for one in candidates if one.requests <= most and one.cached]
    return _by_prefix(request, kept) if kept else _by_requests(request, candidates)


def _by_prefix(request: Request, candidates: Sequence[Candidate]) -> list[Choice]:
    """The longest prefix; among equals the fewest requests."""
    return ordered(
        request,
        [Choice(one.requests / _MANY - one.cached, one, one.cached) for one in candidates],
    )


def _by_requests(request: Request, candidates: Sequence[Candidate]) -> list[Choice]:
    return ordered(request, [Choice(float(one.requests), one, one.cached) for one in candidates])
