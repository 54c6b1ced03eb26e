"""The options of the commands that answer by HTTP: encrypted, and to whom."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from console.settings import setting
from reprise.http.tls_settings import TlsSettings

R = TypeVar("R")

_FILE: Final = click.Path(path_type=Path, dir_okay=False)
_CERT_HELP: Final = (
    "PEM of the service's certificate: {what} encrypted. Read again when it changes{signal}."
)


def _options(prefix: str, what: str, signal: str) -> tuple[Callable[..., Any], ...]:
    """`--PREFIXtls-cert` and those beside it."""
    flag, variable = f"--{prefix}tls", f"REPRISE_{prefix.replace('-', '_').upper()}TLS"
    key = f"{prefix[:-1]}.tls_" if prefix else "tls."
    return (
        setting(
            f"{flag}-cert",
            key=f"{key}cert",
            is_seldom_set=True,
            envvar=f"{variable}_CERT",
            type=_FILE,
            help=_CERT_HELP.format(what=what, signal=signal),
        ),
        setting(
            f"{flag}-key",
            key=f"{key}key",
            is_seldom_set=True,
            envvar=f"{variable}_KEY",
            type=_FILE,
            help="PEM of its key, without a password.",
        ),
        setting(
            f"{flag}-client-ca",
            key=f"{key}client_ca",
            is_seldom_set=True,
            envvar=f"{variable}_CLIENT_CA",
            type=_FILE,
            help="PEM of the authorities of which every client must have a certificate.  [default:"
            " clients need none]",
        ),
    )


def tls_options(command: Callable[..., R]) -> Callable[..., R]:
    """The keys of the table `tls`, handed over as `tls`: TlsSettings or None."""
    return _decorated(command, "", "HTTP and gRPC are", ", or on SIGHUP")


def metrics_tls_options(command: Callable[..., R]) -> Callable[..., R]:
    """The same of /metrics of a role that serves nothing else, as `metrics_tls`."""
    return _decorated(command, "metrics-", "/health, /ready and /metrics are", "")


def _decorated(command: Callable[..., R], prefix: str, what: str, signal: str) -> Callable[..., R]:
    name = f"{prefix}tls".replace("-", "_")

    @wraps(command)
    def run(*args: Any, **options: Any) -> R:
        cert = options.pop(f"{name}_cert")
        key = options.pop(f"{name}_key")
        authority = options.pop(f"{name}_client_ca")
        if (cert is None) != (key is None):
            raise click.UsageError(
                f"Expected --{prefix}tls-cert and --{prefix}tls-key together, got one of them"
            )
        if authority is not None and cert is None:
            raise click.UsageError(
                f"Expected --{prefix}tls-cert and --{prefix}tls-key beside --{prefix}tls-client-ca,"
                " got it alone"
            )
        tls = None
        if cert is not None:
            tls = TlsSettings(certificate=cert, key=key, client_authority=authority)
        return command(*args, **options, **{name: tls})

    options = _options(prefix, what, signal)
    return reduce(lambda done, option: option(done), reversed(options), run)
