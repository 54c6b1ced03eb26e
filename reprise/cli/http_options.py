"""Options of the commands that answer queries."""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, Final, TypeVar

import click

from console.addresses import DEFAULT_HOST
from console.settings import setting
from query_api.http.wire import Wire
from reprise.cli.access_options import access_options
from reprise.cli.engine_options import engine_options
from reprise.cli.grpc_options import grpc_options
from reprise.cli.service_command import log_level_option, seed_option
from reprise.cli.tls_options import tls_options
from reprise.rooms import acting_options, gateway_options
from routing.options import routing_options
from tokens.settings import tokens_option

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
R = TypeVar("R")

_HANDED_OVER: Final = (
    *("host", "seed", "kernel", "default_wire", "only_exact", "routing", "select_service"),
    *("grpc", "gateway", "act_s", "access", "tls", "token_files"),
)
"""Of `AnsweringSettings`: what both roles take as it is given."""


_QUERY_OPTIONS: Final[tuple[Callable[[Any], Any], ...]] = (
    setting(
        "--only-exact",
        key="http.only_exact",
        is_seldom_set=True,
        envvar="REPRISE_ONLY_EXACT",
        is_flag=True,
        help="Leave instances out of answers that are not `exact`, unless asked by ?only=all.",
    ),
    setting(
        "--kernel",
        key="kernel",
        is_seldom_set=True,
        type=click.Choice(["rust", "reference"]),
        help="The index to use.  [default: rust where it is built]",
    ),
    setting(
        "--wire",
        "default_wire",
        key="http.wire",
        is_seldom_set=True,
        envvar="REPRISE_WIRE",
        type=click.Choice([wire.name.lower() for wire in Wire]),
        default=Wire.JSON.name.lower(),
        show_default=True,
        callback=lambda context, parameter, name: Wire[name.upper()],
        help="The form of requests that name none, and of their answers, as GET /services. msgpack:"
        " as Mooncake Conductor, also for unknown paths and methods.",
    ),
)
"""The keys `http.wire`, `kernel` and `http.only_exact`; the last is shown first."""


def answering_options(*, in_environment: bool) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """What both roles have that answer queries, handed over as `answering`: arguments of
    `AnsweringSettings`, but for what each of them has its own words for; with `port`, `log_level`.

    Args:
        in_environment: whether the address is taken from variables, too.
    """

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        @wraps(command)
        def with_settings(**options: Any) -> R:
            answering = {name: options.pop(name) for name in _HANDED_OVER}
            return command(answering=answering, **options)

        options: list[Callable[[Any], Any]] = [
            *(log_level_option, seed_option, engine_options, tls_options, access_options),
            *(*_QUERY_OPTIONS, tokens_option, grpc_options, gateway_options),
            *(acting_options, routing_options, *_address_options(in_environment)),
        ]
        return reduce(lambda done, option: option(done), options, with_settings)

    return decorate


def _address_options(
    in_environment: bool,
) -> tuple[Callable[[CommandT], CommandT], Callable[[CommandT], CommandT]]:
    return (
        setting(
            "--port",
            key="port",
            envvar="REPRISE_PORT" if in_environment else None,
            type=click.IntRange(0, 65_535),
            help="Port to listen on, 0 for any.  [default: the configuration file's, or 13333]",
        ),
        setting(
            "--host",
            key="host",
            envvar="REPRISE_HOST" if in_environment else None,
            default=DEFAULT_HOST,
            show_default=True,
            help="Address to listen on.",
        ),
    )
