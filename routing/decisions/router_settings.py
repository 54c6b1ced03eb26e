"""What a router goes by where a request does not say otherwise."""

from routing.costs import Costs
from routing.policies.assignments import parse_assignments
from routing.policies.decide import DegradedPolicy
from routing.policies.table import DEFAULT_POLICY, POLICIES, PolicyError, parse_policy
from schemas.setting import part, setting


def _read_policy(text: str) -> str:
    try:
        parse_policy(text)
    except PolicyError as error:
        raise ValueError(str(error)) from error
    return text


def _read_costs(text: str) -> Costs:
    return parse_assignments(text, Costs)


@part
class RouterSettings:
    """What the table `routing` says.

    Attributes:
        policy: with its parameters.
    """

    policy: str = setting(
        "routing.policy",
        f"The policy of POST /route where a request names none: {', '.join(POLICIES)}; with"
        " parameters as NAME:PARAMETER=VALUE,...",
        flag="--policy",
        read=_read_policy,
        default=DEFAULT_POLICY,
    )
    costs: Costs = setting(
        "routing.costs",
        "What computing and moving take before outcomes have taught it, as"
        " prefill_tokens_per_s=8000,token_squared_s=6e-10,...  [default: a 70B model on eight"
        " A800]",
        flag="--costs",
        read=_read_costs,
        default=Costs(),
    )
    degraded: DegradedPolicy = setting(
        "routing.degraded",
        "What POST /route makes of an instance of which events were lost: keep it as it is,"
        " take it to hold nothing (zero), or leave it out (drop).",
        flag="--degraded",
        default=DegradedPolicy.ZERO,
    )
    select_service: bool = setting(
        "routing.select_service",
        "Also answer as Dynamo's standalone select service: POST /select, /reservations, ...",
        flag="--select-service",
        default=False,
    )
