"""Which engines are connected to, and how: what these say holds for the process."""

from pathlib import Path

from bridge.engine_http.keys import ENGINE_KEYS
from bridge.sockets.allowed_engines import ALLOWED
from schemas.setting import part, setting


@part
class EngineSettings:
    """Of every role that connects to engines."""

    allow: tuple[str, ...] = setting(
        "engines.allow",
        "Connect to engines there alone: networks (10.0.0.0/8) and names (*.engines.svc), with"
        " commas between.  [default: this machine and private networks]",
        flag="--allow-engines",
        metavar="NETWORKS",
        default=(),
    )
    keys: str = setting(
        "engines.keys",
        "API keys of engines: a file, or env:NAME for a variable, with ADDRESS KEY in each"
        " line; a key alone is for the engines of --engine.",
        flag="--engine-keys",
        metavar="FILE",
        default="",
    )

    def use(self) -> None:
        """Raises ConfigurationError where they cannot be used."""
        ALLOWED.allow(self.allow)
        if self.keys:
            ENGINE_KEYS.follow(self.keys)
        else:
            ENGINE_KEYS.use(())


@part
class CurveSettings:
    """Of every role that follows engines: encrypted, through `reprise relay`."""

    key: Path | None = setting(
        "engines.curve_key",
        "Key pair for engines behind `reprise relay`, as `reprise curve-key` makes one.",
        flag="--curve-key",
        path="file",
        default=None,
    )
    is_required: bool = setting(
        "engines.require_curve",
        "Follow engines through `reprise relay` only: registered with a curve_server_key.",
        flag="--require-curve",
        default=False,
    )

    def use(self) -> None:
        """Raises ConfigurationError where the key pair cannot be used."""
        # Here: `reprise --help` needs no sockets.
        from bridge.sockets.curve import CURVE, read_key_pair

        pair = None if self.key is None else read_key_pair(self.key)
        CURVE.use(pair, required=self.is_required)
