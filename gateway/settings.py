"""Where the gateway listens, and for which engines."""

from enum import StrEnum

from bridge.engine_http.address import read_base_url
from query_api.grpc.grpc_settings import ListenAddress, read_address
from schemas.setting import part, setting


class Affinity(StrEnum):
    """Whether the requests of a session go to one engine."""

    OFF = "off"
    SOFT = "soft"
    """Where that engine is nearly the best, as the policy says: `routing`."""
    HARD = "hard"
    """As long as it is there, and its requests do not fail."""


def read_listen(text: str, option: str) -> ListenAddress:
    """Where it listens, by `[HOST]:PORT` or `PORT`; see `read_address`."""
    return read_address(text.removeprefix(":"), option=option)


def _read_engines(urls: tuple[str, ...]) -> tuple[str, ...]:
    for one in urls:
        read_base_url(one)
    return tuple(one.rstrip("/") for one in urls)


@part
class GatewaySettings:
    """What `--gateway`, `--engine`, `--ext-proc` and the keys beside them say.

    Attributes:
        listen: None for nowhere: engines are registered alone.
        option: that says where it listens, as errors name it.
        picker: where the endpoint picker listens; None for nowhere.
    """

    listen: ListenAddress | None = setting(
        "gateway.listen",
        "Answer OpenAI's API there, by the engines; a port alone is on 127.0.0.1.  [default: off]",
        flag="--gateway",
        is_usual=True,
        metavar="[HOST:]PORT",
        read=lambda text: read_listen(text, "--gateway") if text else None,
        default=None,
    )
    option: str = "--gateway"
    engines: tuple[str, ...] = setting(
        "gateway.engines",
        "An engine's HTTP server, as http://10.0.0.7:8000; once for each. It is asked what it"
        " is, and registered.",
        flag="--engine",
        is_usual=True,
        variable="REPRISE_ENGINES",
        metavar="URL",
        read=_read_engines,
        default=(),
    )
    affinity: Affinity = setting(
        "gateway.affinity",
        "Whether a session stays with the engine of its last request: where that is nearly the"
        " best (soft), or while it works (hard).",
        default=Affinity.SOFT,
    )
    session_cookie: str = setting(
        "gateway.session_cookie",
        "The cookie that names a session, where no header does.  [default: none]",
        metavar="NAME",
        default="",
    )
    paths: tuple[str, ...] = setting(
        "gateway.paths",
        "A path of engines that is passed on beside those of inference; once for each.",
        flag="--gateway-path",
        variable="REPRISE_GATEWAY_PATHS",
        metavar="PATH",
        default=(),
    )
    is_insecure: bool = setting(
        "gateway.insecure",
        "Answer at the gateway without keys, also beyond loopback.",
        default=False,
    )
    picker: ListenAddress | None = setting(
        "gateway.ext_proc",
        "Pick endpoints for proxies there, as Envoy's external processor; a port alone is on"
        " 127.0.0.1.  [default: off]",
        flag="--ext-proc",
        is_usual=True,
        metavar="[HOST:]PORT",
        read=lambda text: read_listen(text, "--ext-proc") if text else None,
        default=None,
    )
    is_picker_insecure: bool = setting(
        "gateway.ext_proc_insecure",
        "Pick endpoints without keys, also beyond loopback.",
        flag="--ext-proc-insecure",
        default=False,
    )

    @property
    def is_on(self) -> bool:
        """Whether there is a gateway."""
        return bool(self.listen or self.engines or self.picker)
