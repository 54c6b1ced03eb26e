"""Policies that estimate the time to the first token of each candidate."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Final

import msgspec

from streams.routing.costs import Costs
from streams.routing.interface import Candidate, Choice, Parameters, Request, Weight
from streams.routing.ranking import ordered

Ratio = Annotated[float, msgspec.Meta(ge=1)]
_CACHED: Final = attrgetter("cached")
_KEY: Final = attrgetter("key")


class Algorithm1Parameters(Parameters, frozen=True):
    """Attributes:
    kvcache_balancing_threshold: how many times as long as its own the best prefix must be before a
        candidate would fetch it.
    fetch: whether candidates fetch at all.
    """

    kvcache_balancing_threshold: Ratio = 1.5
    fetch: bool = True


def algorithm_1(
    request: Request,
    candidates: Sequence[Candidate],
    costs: Costs,
    parameters: Algorithm1Parameters,
) -> list[Choice]:
    """Algorithm 1 of the Mooncake paper (FAST'25): the lowest `T_transfer + T_queue + T_prefill`.

    A candidate whose own prefix is much shorter than the best one would fetch the difference from
    whoever holds it: the threshold is a ratio, and a candidate that holds nothing is always below
    it. One that would not fetch computes what it lacks.
    """
    total = request.prompt_tokens
    best = max(candidates, key=_CACHED)
    threshold = parameters.kvcache_balancing_threshold
    choices = []
    for one in candidates:
        own = one.cached
        if parameters.fetch and best.cached > threshold * own:
            choices.append(_fetching(one, best, total, costs, 0.0))
        else:
            choices.append(_computing(one, total, costs, 0.0))
    return ordered(request, choices)


class WaitAndWorkParameters(Parameters, frozen=True):
    """Attributes:
    work: what a second of computing counts besides the time of this request: it is a second that
        others wait for, too.
    fetch: whether a candidate would fetch a longer prefix where that is cheaper than computing it.
    """

    work: Weight = 1.0
    fetch: bool = False


def wait_and_work(
    request: Request,
    candidates: Sequence[Candidate],
    costs: Costs,
    parameters: WaitAndWorkParameters,
) -> list[Choice]:
    """The lowest `T_queue + T_load + T_transfer + (1 + work) * T_prefill`."""
    total = request.prompt_tokens
    work = parameters.work
    if not parameters.fetch:
        return ordered(request, _all_computing(candidates, total, costs, work))
    best = max(candidates, key=_CACHED)
    choices = []
    for one in candidates:
        choice = _computing(one, total, costs, work)
        if best.cached > one.cached:
            choice = min(choice, _fetching(one, best, total, costs, work), key=_KEY)
        choices.append(choice)
    return ordered(request, choices)


def _all_computing(
    candidates: Sequence[Candidate], total: int, costs: Costs, work: float
) -> list[Choice]:
    """`_computing` of all. Many hold equally much and take equally long, so what was computed for
    the one before mostly holds for the next.
    """
    choices = []
    last: tuple[Costs | None, int, int, int] | None = None
    load = prefill = worked = 0.0
    for one in candidates:
        cached = one.cached
        same = (one.costs, cached, one.gpu, one.disk)
        if same != last:
            last, own = same, one.costs or costs
            load = own.load_s(cached - one.gpu, one.disk)
            prefill = own.prefill_s(total, cached)
            worked = work * prefill
        wait = one.wait_s
        key = wait + load + prefill + worked
        choices.append(Choice(key, one, cached, "", wait, load, 0.0, prefill))
    return choices


def _computing(one: Candidate, total: int, costs: Costs, work: float) -> Choice:
    costs = one.costs or costs
    wait, cached = one.wait_s, one.cached
    load = costs.load_s(cached - one.gpu, one.disk)
    prefill = costs.prefill_s(total, cached)
    key = wait + load + prefill + work * prefill
    return Choice(key, one, cached, "", wait, load, 0.0, prefill)


def _fetching(one: Candidate, best: Candidate, total: int, costs: Costs, work: float) -> Choice:
    costs = one.costs or costs
    load = costs.load_s(one.cached - one.gpu, one.disk)
    transfer = costs.fetch_s(best.cached - one.cached)
    prefill = costs.prefill_s(total, best.cached)
    key = transfer + one.wait_s + load + prefill + work * prefill
    source = best.instance_id
    return Choice(key, one, best.cached, source, one.wait_s, load, transfer, prefill)
