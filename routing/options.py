"""Options of the commands that decide who gets a request."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from console.settings import setting
from routing.costs import Costs
from routing.decisions.router import RouterSettings
from routing.policies.assignments import parse_assignments
from routing.policies.decide import DegradedPolicy, Rules
from routing.policies.table import DEFAULT_POLICY, POLICIES, PolicyError, parse_policy

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def routing_options(command: CommandT) -> CommandT:
    """The table `routing`, handed over as `routing` and `select_service`."""

    @_policy_option
    @_costs_option
    @_degraded_option
    @_select_option
    @wraps(command)
    def with_settings(
        *, policy: str, costs: Costs, degraded: DegradedPolicy, **options: Any
    ) -> Any:
        settings = RouterSettings(policy, costs, Rules(degraded=degraded))
        return command(routing=settings, **options)

    return with_settings  # type: ignore[return-value]


def _to_policy(context: click.Context, parameter: click.Parameter, text: str) -> str:
    try:
        parse_policy(text)
    except PolicyError as error:
        raise click.BadParameter(str(error)) from error
    return text


def _to_costs(context: click.Context, parameter: click.Parameter, text: str) -> Costs:
    try:
        return parse_assignments(text, Costs)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _to_degraded(context: click.Context, parameter: click.Parameter, text: str) -> DegradedPolicy:
    return DegradedPolicy(text)


_policy_option = setting(
    "--policy",
    key="routing.policy",
    is_seldom_set=True,
    envvar="REPRISE_POLICY",
    default=DEFAULT_POLICY,
    show_default=True,
    callback=_to_policy,
    help=f"The policy of POST /route where a request names none: {', '.join(POLICIES)}; with"
    " parameters as NAME:PARAMETER=VALUE,...",
)
_costs_option = setting(
    "--costs",
    key="routing.costs",
    is_seldom_set=True,
    envvar="REPRISE_COSTS",
    default="",
    callback=_to_costs,
    help="What computing and moving take before outcomes have taught it, as"
    " prefill_tokens_per_s=8000,token_squared_s=6e-10,...  [default: a 70B model on eight A800]",
)
_degraded_option = setting(
    "--degraded",
    key="routing.degraded",
    is_seldom_set=True,
    envvar="REPRISE_DEGRADED",
    type=click.Choice([one.value for one in DegradedPolicy]),
    default=DegradedPolicy.ZERO.value,
    show_default=True,
    callback=_to_degraded,
    help="What POST /route makes of an instance of which events were lost: keep it as it is, take"
    " it to hold nothing (zero), or leave it out (drop).",
)
_select_option = setting(
    "--select-service",
    key="routing.select_service",
    is_seldom_set=True,
    envvar="REPRISE_SELECT_SERVICE",
    is_flag=True,
    help="Also answer as Dynamo's standalone select service: POST /select, /reservations, ...",
)
