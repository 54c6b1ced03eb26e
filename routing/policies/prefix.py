"""Policies that look at the cached prefix."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from routing.costs import UNLIMITED, Costs
from routing.interface import Candidate, Choice, Parameters, Request, Weight
from routing.policies.ranking import not_overloaded, ordered

Duration = Annotated[float, msgspec.Meta(gt=0)]


class LongestPrefixParameters(Parameters, frozen=True):
    """Attributes:
    overload_s: who would begin later than that is left out.
    """

    overload_s: Duration = UNLIMITED


def longest_prefix(
    request: Request,
    candidates: Sequence[Candidate],
    costs: Costs,
    parameters: LongestPrefixParameters,
) -> list[Choice]:
    """Who holds most of the prompt, and nothing else.

    A prefix that all prompts share (a system prompt) sends every request to whoever computed it
    first. That is what it is for: to show why the others look at load.
    """
    kept = not_overloaded(candidates, parameters.overload_s)
    return ordered(request, [Choice(-float(one.cached), one, one.cached) for one in kept])


class WeightedParameters(Parameters, frozen=True):
    """Attributes:
    alpha: weight of the cached share of the prompt.
    beta: weight of being idle.
    full_load_s: a wait of so many seconds, or more, is a load of 1.
    overload_s: who would begin later than that is left out.
    """

    alpha: Weight = 1.0
    beta: Weight = 1.0
    full_load_s: Duration = 10.0
    overload_s: Duration = 30.0


def weighted(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: WeightedParameters
) -> list[Choice]:
    """The highest `alpha * cached / prompt + beta * (1 - load)`, among those not overloaded.

    The score comes from a description of Mooncake that is in circulation, not from the paper, which
    has Algorithm 1 and no weights.
    """
    alpha, beta, full = parameters.alpha, parameters.beta, parameters.full_load_s
    total = request.prompt_tokens
    choices = []
    for one in not_overloaded(candidates, parameters.overload_s):
        share = one.cached / total if total else 0.0
        load = min(one.wait_s / full, 1.0)
        key = -(alpha * share + beta * (1.0 - load))
        choices.append(Choice(key, one, one.cached, queue_s=one.wait_s))
    return ordered(request, choices)
