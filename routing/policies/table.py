"""The policies by name. One entry adds a policy everywhere: the simulator, and whoever routes."""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from routing.interface import Parameters, Rank
from routing.policies.assignments import parse_assignments
from routing.policies.inflight import (
    BlocksParameters,
    LmetricParameters,
    StickyParameters,
    blocks,
    lmetric,
    sticky,
)
from routing.policies.load import least_loaded, random, round_robin
from routing.policies.prefix import (
    LongestPrefixParameters,
    WeightedParameters,
    longest_prefix,
    weighted,
)
from routing.policies.ttft import (
    Algorithm1Parameters,
    LeastDelayParameters,
    WaitAndWorkParameters,
    algorithm_1,
    least_delay,
    wait_and_work,
)
from schemas.errors import ConfigurationError

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Policy",
    "PolicyError",
    "find_policy",
    "parse_policy",
    "policy_digest",
]


class PolicyError(ConfigurationError):
    """Operator action: name one of the policies that are listed, and parameters that it has."""


class Policy(msgspec.Struct, frozen=True):
    """An entry of the table.

    Attributes:
        rank: the policy itself.
        parameters: their type; its defaults are the policy's.
        summary: one line for people.
        in_seconds: whether its keys are seconds.
    """

    rank: Rank
    parameters: type[Parameters]
    summary: str
    in_seconds: bool = False


POLICIES: Final[Mapping[str, Policy]] = {
    "round-robin": Policy(round_robin, Parameters, "one after the other"),
    "random": Policy(random, Parameters, "any"),
    "least-loaded": Policy(least_loaded, Parameters, "who would begin first", in_seconds=True),
    "longest-prefix": Policy(
        longest_prefix, LongestPrefixParameters, "who holds most of the prompt, whatever its load"
    ),
    "weighted": Policy(weighted, WeightedParameters, "alpha * cached share + beta * (1 - load)"),
    "algorithm-1": Policy(
        algorithm_1,
        Algorithm1Parameters,
        "Algorithm 1 of the Mooncake paper: lowest TTFT",
        in_seconds=True,
    ),
    "least-delay": Policy(
        least_delay,
        LeastDelayParameters,
        "lowest delay of this request and of those behind it",
        in_seconds=True,
    ),
    "wait-and-work": Policy(
        wait_and_work,
        WaitAndWorkParameters,
        "lowest wait + (1 + work) * prefill",
        in_seconds=True,
    ),
    "blocks": Policy(
        blocks, BlocksParameters, "blocks to compute and to hold: Dynamo's and Conductor's guide's"
    ),
    "lmetric": Policy(lmetric, LmetricParameters, "uncached tokens * requests in flight"),
    "sticky": Policy(
        sticky, StickyParameters, "keep to who holds most of the prompt, then tokens in flight"
    ),
}


DEFAULT_POLICY: Final = "least-delay"
"""What decides where nobody has chosen."""


def find_policy(name: str, policies: Mapping[str, Policy] = POLICIES) -> Policy:
    """The policy of that name.

    Raises:
        PolicyError: there is none.
    """
    policy = policies.get(name)
    if policy is None:
        raise PolicyError(f"Expected a policy of {', '.join(policies)}, got: {name}")
    return policy


@lru_cache(maxsize=256)
def policy_digest(policy: str) -> str:
    """Tells policies with other parameters apart."""
    return hashlib.sha256(policy.encode()).hexdigest()[:16]


def parse_policy(text: str, policies: Mapping[str, Policy] = POLICIES) -> tuple[str, Parameters]:
    """`NAME` or `NAME:PARAMETER=VALUE,...`, as in `weighted:alpha=0.5,beta=1`.

    Args:
        text: as it is written.
        policies: those that there are.

    Raises:
        PolicyError: no such policy or parameter, or a value that the parameter may not have.
    """
    name, _, rest = text.partition(":")
    policy = find_policy(name, policies)
    try:
        return name, parse_assignments(rest, policy.parameters)
    except ValueError as error:
        raise PolicyError(f"Policy {name}: {error}") from error
