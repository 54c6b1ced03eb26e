"""The options of the commands that connect to engines: encrypted, through `reprise relay`."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from console.settings import setting

R = TypeVar("R")

KEY_FILE = click.Path(path_type=Path, dir_okay=False)


def curve_options(command: Callable[..., R]) -> Callable[..., R]:
    """The keys `engines.curve_key` and `.require_curve`; what they say holds for the process."""

    @wraps(command)
    def run(*args: Any, curve_key: Path | None, require_curve: bool, **options: Any) -> R:
        # Here: `reprise --help` needs no sockets.
        from bridge.sockets.curve import CURVE, read_key_pair

        pair = None if curve_key is None else read_key_pair(curve_key)
        CURVE.use(pair, required=require_curve)
        return command(*args, **options)

    required = setting(
        "--require-curve",
        key="engines.require_curve",
        is_seldom_set=True,
        is_flag=True,
        envvar="REPRISE_REQUIRE_CURVE",
        help="Follow engines through `reprise relay` only: registered with a curve_server_key.",
    )
    key = setting(
        "--curve-key",
        key="engines.curve_key",
        is_seldom_set=True,
        type=KEY_FILE,
        envvar="REPRISE_CURVE_KEY",
        help="Key pair for engines behind `reprise relay`, as `reprise curve-key` makes one.",
    )
    return key(required(run))
