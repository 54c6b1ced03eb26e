"""All policies that can be simulated: those that the service routes by, and others'."""

from collections.abc import Mapping
from typing import Final

from lab.whatif.policies.counts import (
    AibrixParameters,
    KvAwareParameters,
    LoadAwareParameters,
    TwoTierParameters,
    aibrix,
    kvaware,
    loadaware,
    two_tier,
)
from routing.interface import Parameters
from routing.policies.table import POLICIES, Policy, parse_policy

COMPARED_ONLY: Final[Mapping[str, Policy]] = {
    "two-tier": Policy(
        two_tier, TwoTierParameters, "SGLang's router: even counts, then a long prefix"
    ),
    "loadaware": Policy(
        loadaware, LoadAwareParameters, "production-stack: cached share - beta * load over the mean"
    ),
    "kvaware": Policy(
        kvaware, KvAwareParameters, "production-stack: longest prefix, whatever its load"
    ),
    "aibrix": Policy(
        aibrix, AibrixParameters, "AIBrix prefix-cache: longest prefix of those not far busier"
    ),
}
"""Policies that nobody should route by."""

ALL_POLICIES: Final[Mapping[str, Policy]] = {**POLICIES, **COMPARED_ONLY}


def parse(text: str) -> tuple[Policy, Parameters]:
    """A policy with its parameters, as `routing.policies.table.parse_policy` reads it.

    Raises:
        PolicyError: no such policy or parameter, or a value that the parameter may not have.
    """
    name, parameters = parse_policy(text, ALL_POLICIES)
    return ALL_POLICIES[name], parameters
