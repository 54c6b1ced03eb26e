"""The option of the commands that connect to engines: to which."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from bridge.sockets.allowed_engines import ALLOWED
from console.settings import setting
from schemas.errors import ConfigurationError

R = TypeVar("R")


def engine_options(command: Callable[..., R]) -> Callable[..., R]:
    """The key `engines.allow`; what it says holds for the process."""

    @wraps(command)
    def run(*args: Any, allow_engines: tuple[str, ...], **options: Any) -> R:
        patterns = [one for text in allow_engines for one in text.replace(",", " ").split()]
        try:
            ALLOWED.allow(patterns)
        except ConfigurationError as error:
            raise click.ClickException(str(error)) from error
        return command(*args, **options)

    return setting(
        "--allow-engines",
        key="engines.allow",
        is_seldom_set=True,
        metavar="NETWORKS",
        multiple=True,
        envvar="REPRISE_ALLOW_ENGINES",
        help="Connect to engines there alone: networks (10.0.0.0/8) and names (*.engines.svc), with"
        " commas between.  [default: this machine and private networks]",
    )(run)
