"""Options of the commands that answer queries."""

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from console.settings import setting
from query_api.http.wire import Wire

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def query_options() -> Callable[[CommandT], CommandT]:
    """The keys `http.wire`, handed over as `default_wire`, `kernel` and `http.only_exact`."""
    options: list[Callable[[CommandT], CommandT]] = [
        _wire_option(),
        setting(
            "--kernel",
            key="kernel",
            is_seldom_set=True,
            type=click.Choice(["rust", "reference"]),
            help="The index to use.  [default: rust where it is built]",
        ),
        setting(
            "--only-exact",
            key="http.only_exact",
            is_seldom_set=True,
            envvar="REPRISE_ONLY_EXACT",
            is_flag=True,
            help="Leave instances out of answers that are not `exact`, unless asked by ?only=all.",
        ),
    ]

    return lambda command: reduce(lambda done, option: option(done), reversed(options), command)


def _wire_option() -> Callable[[CommandT], CommandT]:
    def to_wire(context: click.Context, parameter: click.Parameter, name: str) -> Wire:
        return Wire[name.upper()]

    return setting(
        "--wire",
        "default_wire",
        key="http.wire",
        is_seldom_set=True,
        envvar="REPRISE_WIRE",
        type=click.Choice([wire.name.lower() for wire in Wire]),
        default=Wire.JSON.name.lower(),
        show_default=True,
        callback=to_wire,
        help="The form of requests that name none, and of their answers, as GET /services. msgpack:"
        " as Mooncake Conductor, also for unknown paths and methods.",
    )
