"""The options of the commands that connect to engines: to which, and with which keys."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from bridge.engine_http.keys import ENGINE_KEYS
from bridge.sockets.allowed_engines import ALLOWED
from console.settings import setting

R = TypeVar("R")


def engine_options(command: Callable[..., R]) -> Callable[..., R]:
    """The keys `engines.allow` and `engines.keys`; what they say holds for the process."""

    @wraps(command)
    def run(
        *args: Any, allow_engines: tuple[str, ...], engine_keys: str | None, **options: Any
    ) -> R:
        patterns = [one for text in allow_engines for one in text.replace(",", " ").split()]
        ALLOWED.allow(patterns)
        if engine_keys:
            ENGINE_KEYS.follow(engine_keys)
        else:
            ENGINE_KEYS.use(())
        return command(*args, **options)

    keys = setting(
        "--engine-keys",
        key="engines.keys",
        is_seldom_set=True,
        metavar="FILE",
        envvar="REPRISE_ENGINE_KEYS",
        help="API keys of engines: a file, or env:NAME for a variable, with ADDRESS KEY in each"
        " line; a key alone is for the engines of --engine.",
    )
    allow = setting(
        "--allow-engines",
        key="engines.allow",
        is_seldom_set=True,
        metavar="NETWORKS",
        multiple=True,
        envvar="REPRISE_ALLOW_ENGINES",
        help="Connect to engines there alone: networks (10.0.0.0/8) and names (*.engines.svc), with"
        " commas between.  [default: this machine and private networks]",
    )
    return allow(keys(run))
