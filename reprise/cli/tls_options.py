"""The options of the commands that answer by HTTP: encrypted, and to whom."""

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from reprise.http.tls_settings import TlsSettings

R = TypeVar("R")

_FILE: Final = click.Path(path_type=Path, dir_okay=False)
_OPTIONS: Final = (
    click.option(
        "--tls-cert",
        envvar="REPRISE_TLS_CERT",
        show_envvar=True,
        type=_FILE,
        help="PEM of the service's certificate: HTTP and gRPC are encrypted. Read again when it"
        " changes, or on SIGHUP.",
    ),
    click.option(
        "--tls-key",
        envvar="REPRISE_TLS_KEY",
        show_envvar=True,
        type=_FILE,
        help="PEM of its key, without a password.",
    ),
    click.option(
        "--tls-client-ca",
        envvar="REPRISE_TLS_CLIENT_CA",
        show_envvar=True,
        type=_FILE,
        help="PEM of the authorities of which every client must have a certificate.  [default:"
        " clients need none]",
    ),
)


def tls_options(command: Callable[..., R]) -> Callable[..., R]:
    """`--tls-cert` and what belongs to it, handed over as `tls`: TlsSettings or None."""

    @wraps(command)
    def run(
        *args: Any,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_client_ca: Path | None,
        **options: Any,
    ) -> R:
        if (tls_cert is None) != (tls_key is None):
            raise click.UsageError("Expected --tls-cert and --tls-key together")
        if tls_client_ca is not None and tls_cert is None:
            raise click.UsageError("Expected --tls-cert and --tls-key beside --tls-client-ca")
        tls = None
        if tls_cert is not None and tls_key is not None:
            tls = TlsSettings(certificate=tls_cert, key=tls_key, client_authority=tls_client_ca)
        return command(*args, tls=tls, **options)

    return reduce(lambda done, option: option(done), reversed(_OPTIONS), run)
