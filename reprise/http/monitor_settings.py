"""Where a role that serves nothing else answers /health, /ready and /metrics."""

from query_api.access.access_settings import INSECURE, check_loopback
from reprise.http.tls_settings import MonitorTlsSettings
from schemas.setting import part, setting


@part
class MonitorSettings:
    """What the table `metrics` says.

    Attributes:
        port: None for no monitor, 0 for any.
        tls: how it is encrypted; None: it is not.
    """

    host: str = setting(
        "metrics.host",
        "Address of /health, /ready and /metrics.",
        is_usual=True,
        default="127.0.0.1",
    )
    port: int | None = setting(
        "metrics.port",
        "Port of /health, /ready and /metrics, 0 for any.  [default: none]",
        is_usual=True,
        bounds=(0, 65_535),
        default=None,
    )
    is_insecure: bool = setting(INSECURE, default=False)
    tls: MonitorTlsSettings | None = None

    def check_host(self) -> None:
        """Raises ConfigurationError where that address would answer strangers."""
        # Nobody gets an answer who has no certificate of these authorities.
        is_mutual = self.tls is not None and self.tls.client_authority is not None
        if self.port is not None and not is_mutual:
            check_loopback(self.host, "--metrics-host", self.is_insecure)
