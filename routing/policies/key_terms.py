"""What the key of a candidate was made of: the terms of its policy, which add up to it.

They are derived from the record of the candidate, as `ttft`, `inflight`, `prefix` and `load` make
the key of it; a policy that is added there is added here. Pure.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from routing.interface import Parameters
from routing.policies.inflight import BlocksParameters
from routing.policies.prefix import WeightedParameters
from routing.policies.table import POLICIES, PolicyError, parse_policy
from schemas.routing_records import CandidateRecord

Terms = dict[str, float]
"""By name, in the unit of the key. None is negative but `at best`, which is the same for all: where
keys are, the others say by how much each candidate is worse than the best there could be.
"""

_TOLERANCE: Final = 1e-9


def key_unit(policy: str) -> str:
    """Of the keys of a policy: `s`, `tokens`, `blocks`, `turns`, or "" for plain numbers.

    Args:
        policy: with its parameters, as it stands in a decision.
    """
    name = policy.partition(":")[0]
    known = POLICIES.get(name)
    if known is not None and known.in_seconds:
        return "s"
    return _UNITS.get(name, "")


def key_terms(policy: str, one: CandidateRecord, prompt: int) -> Terms:
    """The terms that add up to `one.key`, those first that come first.

    Args:
        policy: with its parameters, as it stands in the decision.
        one: a candidate that the policy has ranked.
        prompt: tokens of the request.

    Returns:
        What is left of the key, where the terms do not add up to it, is `other`: of a policy that
        is not known here, or a key that was not made by it.
    """
    seconds = _seconds(one)
    found = _parsed(policy)
    terms = seconds
    if found is not None:
        name, parameters = found
        terms = _TERMS[name](one, prompt, parameters)
    if _adds_up(terms, one.key):
        return terms
    if _adds_up(seconds, one.key):  # it decodes, and computes what is missing of the prompt itself
        return seconds
    if found is None:
        return {"key": one.key}
    return terms | {"other": one.key - sum(terms.values())}


def _adds_up(terms: Terms, key: float) -> bool:
    return math.isclose(sum(terms.values()), key, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


@lru_cache(maxsize=256)
def _parsed(policy: str) -> tuple[str, Parameters] | None:
    """None: it is not known here, as one of another release."""
    try:
        name, parameters = parse_policy(policy)
    except PolicyError:
        return None
    return (name, parameters) if name in _TERMS else None


def _seconds(one: CandidateRecord) -> Terms:
    return {
        "wait": one.queue_s,
        "load": one.load_s,
        "fetch": one.transfer_s,
        "prefill": one.prefill_s,
    }


def _least_delay(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    terms = _wait_and_work(one, prompt, parameters)
    own = one.work_s
    return terms | {"others": parameters.others * one.others * own * (one.queue_s + own / 2)}


def _wait_and_work(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return _seconds(one) | {"work": parameters.work * one.prefill_s}


def _algorithm_1(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return _seconds(one)


def _least_loaded(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return {"wait": one.queue_s}


def _blocks(one: CandidateRecord, prompt: int, parameters: BlocksParameters) -> Terms:
    gpu = slower = disk = 0
    if one.prefix:  # else it counted as holding nothing
        gpu, slower, disk = one.gpu, one.cpu - one.gpu, one.cached - one.cpu
    credit = gpu * parameters.gpu + slower * parameters.cpu + disk * parameters.disk
    scale = parameters.scale / parameters.block
    return {
        "waiting": scale * one.pending,
        "to compute": scale * max(prompt - credit, 0.0),
        "held": (one.active + prompt - one.shared) / parameters.block,
    }


def _lmetric(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    uncached = max(prompt - one.prefix, 1)
    return {"to compute": float(uncached), "times requests": float(uncached * one.requests)}


def _sticky(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return {"in flight": float(one.pending)}


def _weighted(one: CandidateRecord, prompt: int, parameters: WeightedParameters) -> Terms:
    share = one.prefix / prompt if prompt else 0.0
    load = min(one.queue_s / parameters.full_load_s, 1.0)
    alpha, beta = parameters.alpha, parameters.beta
    return {"at best": -(alpha + beta), "not cached": alpha * (1.0 - share), "busy": beta * load}


def _longest_prefix(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return {"at best": -float(prompt), "not cached": float(prompt - one.prefix)}


def _round_robin(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return {"turns until its own": one.key}


def _random(one: CandidateRecord, prompt: int, parameters: Any) -> Terms:
    return {}


_TERMS: Final[Mapping[str, Callable[[CandidateRecord, int, Any], Terms]]] = {
    "least-delay": _least_delay,
    "wait-and-work": _wait_and_work,
    "algorithm-1": _algorithm_1,
    "least-loaded": _least_loaded,
    "blocks": _blocks,
    "lmetric": _lmetric,
    "sticky": _sticky,
    "weighted": _weighted,
    "longest-prefix": _longest_prefix,
    "round-robin": _round_robin,
    "random": _random,
}
_UNITS: Final[Mapping[str, str]] = {
    "blocks": "blocks",
    "lmetric": "tokens",
    "sticky": "tokens",
    "longest-prefix": "tokens",
    "round-robin": "turns",
}
