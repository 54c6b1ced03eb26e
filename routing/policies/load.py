"""Policies that look at load alone, or at nothing: what the others are compared with."""

from collections.abc import Sequence

from routing.costs import Costs
from routing.interface import Candidate, Choice, Parameters, Request
from routing.policies.ranking import ordered


def round_robin(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: Parameters
) -> list[Choice]:
    """One after the other, by the number of the decision."""
    count = len(candidates)
    return ordered(
        request,
        [
            Choice((place - request.decision) % count, candidate, candidate.cached)
            for place, candidate in enumerate(candidates)
        ],
    )


def random(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: Parameters
) -> list[Choice]:
    """All are equal, so that `Request.tie` decides."""
    return ordered(request, [Choice(0.0, one, one.cached) for one in candidates])


def least_loaded(
    request: Request, candidates: Sequence[Candidate], costs: Costs, parameters: Parameters
) -> list[Choice]:
    """Who would begin first."""
    return ordered(
        request, [Choice(one.wait_s, one, one.cached, queue_s=one.wait_s) for one in candidates]
    )
