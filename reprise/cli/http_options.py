"""Options of the commands that answer queries."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from query_api.http.wire import Wire

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def wire_option() -> Callable[[CommandT], CommandT]:
    """`--wire`, handed over as `default_wire`."""

    def to_wire(context: click.Context, parameter: click.Parameter, name: str) -> Wire:
        return Wire[name.upper()]

    return click.option(
        "--wire",
        "default_wire",
        envvar="REPRISE_WIRE",
        show_envvar=True,
        type=click.Choice([wire.name.lower() for wire in Wire]),
        default=Wire.JSON.name.lower(),
        show_default=True,
        callback=to_wire,
        help="The form of requests that name none, and of their answers, as GET /services. msgpack:"
        " as Mooncake Conductor, also for unknown paths and methods.",
    )
