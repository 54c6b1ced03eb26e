"""TLS, as an operator says it."""

from pathlib import Path
from typing import Final

from schemas.setting import Setting, changed, part, setting

_CERTIFICATE: Final = Setting(
    "tls.cert",
    "PEM of the service's certificate: HTTP and gRPC are encrypted. Read again when it changes, or"
    " on SIGHUP.",
    path="file",
)
_KEY: Final = Setting("tls.key", "PEM of its key, without a password.", path="file")
_AUTHORITY: Final = Setting(
    "tls.client_ca",
    "PEM of the authorities of which every client must have a certificate.  [default: clients need"
    " none]",
    path="file",
    needs_part=True,
)


@part
class TlsSettings:
    """How HTTP and gRPC are encrypted.

    Attributes:
        certificate: PEM, of the server, with those that lead to its authority.
    """

    certificate: Path = setting(_CERTIFICATE)
    key: Path = setting(_KEY)
    client_authority: Path | None = setting(_AUTHORITY, default=None)

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        found = (self.certificate, self.key, self.client_authority)
        return tuple(path for path in found if path is not None)


@part
class MonitorTlsSettings(TlsSettings):
    """The same of /metrics of a role that serves nothing else."""

    certificate: Path = setting(
        changed(
            _CERTIFICATE,
            key="metrics.tls_cert",
            help="PEM of the service's certificate: /health, /ready and /metrics are encrypted."
            " Read again when it changes.",
        )
    )
    key: Path = setting(changed(_KEY, key="metrics.tls_key"))
    client_authority: Path | None = setting(
        changed(_AUTHORITY, key="metrics.tls_client_ca"), default=None
    )
