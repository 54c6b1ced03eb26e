"""The options of the commands that have the gateway."""

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, Final, TypeVar

import click

from bridge.engine_http.address import read_base_url
from console.settings import setting
from gateway.settings import Affinity, GatewaySettings
from query_api.grpc.grpc_settings import read_address

R = TypeVar("R")

LISTEN_OPTION: Final = "gateway.option"
"""Of a context's `meta`: the option that says where it listens, where that is another one."""

_OPTIONS: Final = (
    setting(
        "--gateway",
        key="gateway.listen",
        metavar="[HOST:]PORT",
        envvar="REPRISE_GATEWAY",
        help="Answer OpenAI's API there, by the engines; a port alone is on 127.0.0.1."
        "  [default: off]",
    ),
    setting(
        "--engine",
        "engines",
        key="gateway.engines",
        metavar="URL",
        multiple=True,
        envvar="REPRISE_ENGINES",
        help="An engine's HTTP server, as http://10.0.0.7:8000; once for each. It is asked what it"
        " is, and registered.",
    ),
    setting(
        "--gateway-affinity",
        key="gateway.affinity",
        is_seldom_set=True,
        type=click.Choice([one.value for one in Affinity]),
        default=Affinity.SOFT.value,
        show_default=True,
        envvar="REPRISE_GATEWAY_AFFINITY",
        help="Whether a session stays with the engine of its last request: where that is nearly the"
        " best (soft), or while it works (hard).",
    ),
    setting(
        "--gateway-session-cookie",
        key="gateway.session_cookie",
        is_seldom_set=True,
        metavar="NAME",
        default="",
        envvar="REPRISE_GATEWAY_SESSION_COOKIE",
        help="The cookie that names a session, where no header does.  [default: none]",
    ),
    setting(
        "--gateway-path",
        "gateway_paths",
        key="gateway.paths",
        is_seldom_set=True,
        metavar="PATH",
        multiple=True,
        envvar="REPRISE_GATEWAY_PATHS",
        help="A path of engines that is passed on beside those of inference; once for each.",
    ),
    setting(
        "--gateway-insecure",
        key="gateway.insecure",
        is_seldom_set=True,
        is_flag=True,
        envvar="REPRISE_GATEWAY_INSECURE",
        help="Answer at the gateway without keys, also beyond loopback.",
    ),
    setting(
        "--ext-proc",
        key="gateway.ext_proc",
        metavar="[HOST:]PORT",
        envvar="REPRISE_EXT_PROC",
        help="Pick endpoints for proxies there, as Envoy's external processor; a port alone is on"
        " 127.0.0.1.  [default: off]",
    ),
    setting(
        "--ext-proc-insecure",
        key="gateway.ext_proc_insecure",
        is_seldom_set=True,
        is_flag=True,
        envvar="REPRISE_EXT_PROC_INSECURE",
        help="Pick endpoints without keys, also beyond loopback.",
    ),
)


def gateway_options(command: Callable[..., R]) -> Callable[..., R]:
    """`--gateway`, `--ext-proc` and what belongs to them, as `gateway`: GatewaySettings or None."""

    @wraps(command)
    def run(
        *args: Any,
        gateway: str | None,
        engines: tuple[str, ...],
        gateway_affinity: str,
        gateway_session_cookie: str,
        gateway_paths: tuple[str, ...],
        gateway_insecure: bool,
        ext_proc: str | None,
        ext_proc_insecure: bool,
        **options: Any,
    ) -> R:
        settings = None
        option = click.get_current_context().meta.get(LISTEN_OPTION, "--gateway")
        host, port = _address(gateway, option)
        picker_host, picker_port = _address(ext_proc, "--ext-proc")
        urls = tuple(one for text in engines for one in text.replace(",", " ").split())
        for one in urls:
            read_base_url(one)
        if gateway or urls or ext_proc:
            settings = GatewaySettings(
                host=host,
                port=port,
                engines=tuple(one.rstrip("/") for one in urls),
                affinity=Affinity(gateway_affinity),
                session_cookie=gateway_session_cookie,
                paths=tuple(
                    one for text in gateway_paths for one in text.replace(",", " ").split()
                ),
                option=option,
                is_insecure=gateway_insecure,
                picker_host=picker_host,
                picker_port=picker_port,
                is_picker_insecure=ext_proc_insecure,
            )
        return command(*args, gateway=settings, **options)

    return reduce(lambda done, option: option(done), reversed(_OPTIONS), run)


def _address(text: str | None, option: str) -> tuple[str, int]:
    """Host and port; "" and 0 where none is given."""
    return read_address(text.removeprefix(":"), option=option) if text else ("", 0)
