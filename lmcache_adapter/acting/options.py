"""Options of the commands that may act on their own advice."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from console.param_types import Amount
from console.settings import setting
from schemas import limits

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def acting_options(command: CommandT) -> CommandT:
    """The keys `acting.on` and `acting.period_s`, handed over as `act_s`: seconds, 0 for never."""

    @_act_option
    @_period_option
    @wraps(command)
    def with_period(*, act: bool, act_period: float, **options: Any) -> Any:
        return command(act_s=act_period if act else 0.0, **options)

    return with_period  # type: ignore[return-value]


_act_option = setting(
    "--act",
    key="acting.on",
    is_seldom_set=True,
    envvar="REPRISE_ACT",
    is_flag=True,
    help="Do what GET /advice says: have LMCache's workers copy and pin hot prefixes. Of several"
    " replicas give it to one.",
)
_period_option = setting(
    "--act-period",
    key="acting.period_s",
    is_seldom_set=True,
    envvar="REPRISE_ACT_PERIOD",
    type=Amount(limits.ACT_PERIOD_MIN_S, limits.ACT_PERIOD_MAX_S),
    default=limits.ACT_PERIOD_S,
    show_default=True,
    metavar="SECONDS",
    help="How often acting looks at what is advised.",
)
