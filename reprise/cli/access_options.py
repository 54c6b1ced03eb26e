"""The options of the commands that answer by HTTP: who may ask."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from console.param_types import Amount
from console.settings import setting
from query_api.access.access_settings import AccessSettings
from schemas.limits import KEY_RATE_MAX

R = TypeVar("R")

INSECURE_OPTION: Final = setting(
    "--insecure",
    key="access.insecure",
    envvar="REPRISE_INSECURE",
    is_flag=True,
    help="Listen beyond loopback without keys: all who reach the address may ask, and change what"
    " is followed.",
)
_OPTIONS: Final = (
    setting(
        "--keys",
        key="access.keys",
        envvar="REPRISE_KEYS",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file of keys, of which every request must have one; read again when it changes."
        " `reprise keys add` makes it.  [default: none, and loopback only]",
    ),
    INSECURE_OPTION,
    setting(
        "--rate-per-address",
        key="access.rate_per_address",
        is_seldom_set=True,
        envvar="REPRISE_RATE_PER_ADDRESS",
        type=Amount(0.1, KEY_RATE_MAX),
        help="Requests a second of one address.  [default: as many as there are]",
    ),
    setting(
        "--open-probes",
        key="access.open_probes",
        is_seldom_set=True,
        envvar="REPRISE_OPEN_PROBES",
        is_flag=True,
        help="Say at /health and /ready to callers without a key whether the service is up, and"
        " nothing else; to loopback it always does.",
    ),
)


def access_options(command: Callable[..., R]) -> Callable[..., R]:
    """`--keys` and what belongs to it, handed over as `access`: AccessSettings."""

    @wraps(command)
    def run(
        *args: Any,
        keys: Path | None,
        insecure: bool,
        rate_per_address: float | None,
        open_probes: bool,
        **options: Any,
    ) -> R:
        access = AccessSettings(
            keys=keys,
            address_rate=rate_per_address,
            opens_probes=open_probes,
            is_insecure=insecure,
        )
        return command(*args, access=access, **options)

    return reduce(lambda done, option: option(done), reversed(_OPTIONS), run)
