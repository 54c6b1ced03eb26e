"""Policies that estimate the time to the first token of each candidate."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Final, NamedTuple

import msgspec

from routing.costs import Costs
from routing.interface import Candidate, Choice, Parameters, Request, Weight
from routing.policies.ranking import ordered

Ratio = Annotated[float, msgspec.Meta(ge=1)]
_CACHED: Final = attrgetter("cached")
_KEY: Final = attrgetter("key")


class _Weights(NamedTuple):
    """What counts besides the time to the first token of this request.

    Attributes:
        work: each second that it computes.
        others: each second that those behind it wait longer.
    """

    work: float = 0.0
    others: float = 0.0

    def of(self, one: Candidate, own_s: float, prefill_s: float) -> float:
        """Seconds, for a request that keeps the candidate busy for `own_s`.

        A queue is a fluid here: until it is empty, all that come wait longer by what this request
        takes, so what they wait is the area between the queue with it and without it.
        """
        return self.work * prefill_s + self.others * (one.others * own_s * (one.wait_s + own_s / 2))


_ALONE: Final = _Weights()


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
            choices.append(_fetching(one, best, total, costs, _ALONE))
        else:
            choices.append(_computing(one, total, costs, _ALONE))
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
    weights = _Weights(work=parameters.work)
    return _lowest(request, candidates, costs, weights, fetch=parameters.fetch)


class LeastDelayParameters(Parameters, frozen=True):
    """Attributes:
    others: what a second that others wait counts beside one that this request does.
    work: what a second of computing counts besides, so that of equals the one that computes less
        wins, and no prefix is held twice for nothing.
    fetch: whether a candidate would fetch a longer prefix where that is cheaper than computing it.
    """

    others: Weight = 1.0
    work: Weight = 0.1
    fetch: bool = False


def least_delay(
    request: Request,
    candidates: Sequence[Candidate],
    costs: Costs,
    parameters: LeastDelayParameters,
) -> list[Choice]:
    """The lowest `T_queue + T_load + T_transfer + (1 + work) * T_prefill + others * T_others`.

    `T_others` is what those that come behind this request wait longer, together, by what was sent
    to the candidate of late (`routing.policies.recent_work`). Where little comes, nothing is lost
    by computing a prefix once more; where much comes, most is. Equals get what the others have
    more.
    """
    weights = _Weights(parameters.work, parameters.others)
    return _lowest(request, candidates, costs, weights, fetch=parameters.fetch)


def _lowest(
    request: Request,
    candidates: Sequence[Candidate],
    costs: Costs,
    weights: _Weights,
    *,
    fetch: bool,
) -> list[Choice]:
    total = request.prompt_tokens
    if not fetch:
        return ordered(request, _all_computing(candidates, total, costs, weights))
    best = max(candidates, key=_CACHED)
    choices = []
    for one in candidates:
        choice = _computing(one, total, costs, weights)
        if best.cached > one.cached:
            choice = min(choice, _fetching(one, best, total, costs, weights), key=_KEY)
        choices.append(choice)
    return ordered(request, choices)


def _all_computing(
    candidates: Sequence[Candidate], total: int, costs: Costs, weights: _Weights
) -> list[Choice]:
    """`_computing` of all. Many hold equally much and take equally long, so what was computed for
    the one before mostly holds for the next.
    """
    choices = []
    last: tuple[Costs | None, int, int, int] | None = None
    load = prefill = 0.0
    for one in candidates:
        cached = one.cached
        same = (one.costs, cached, one.gpu, one.disk)
        if same != last:
            last, own = same, one.costs or costs
            load = own.load_s(cached - one.gpu, one.disk)
            prefill = own.prefill_s(total, cached)
        wait = one.wait_s
        key = wait + load + prefill + weights.of(one, load + prefill, prefill)
        choices.append(Choice(key, one, cached, "", wait, load, 0.0, prefill))
    return choices


def _computing(one: Candidate, total: int, costs: Costs, weights: _Weights) -> Choice:
    costs = one.costs or costs
    wait, cached = one.wait_s, one.cached
    load = costs.load_s(cached - one.gpu, one.disk)
    prefill = costs.prefill_s(total, cached)
    key = wait + load + prefill + weights.of(one, load + prefill, prefill)
    return Choice(key, one, cached, "", wait, load, 0.0, prefill)


def _fetching(
    one: Candidate, best: Candidate, total: int, costs: Costs, weights: _Weights
) -> Choice:
    costs = one.costs or costs
    load = costs.load_s(one.cached - one.gpu, one.disk)
    transfer = costs.fetch_s(best.cached - one.cached)
    prefill = costs.prefill_s(total, best.cached)
    own_s = load + transfer + prefill
    key = transfer + one.wait_s + load + prefill + weights.of(one, own_s, prefill)
    source = best.instance_id
    return Choice(key, one, best.cached, source, one.wait_s, load, transfer, prefill)
