"""TLS, as an operator says it."""

from pathlib import Path

import msgspec


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What `tls.cert` and the keys beside it say.

    Attributes:
        certificate: PEM, of the server, with those that lead to its authority.
        key: PEM, of it; without a password.
        client_authority: PEM, of the certificates that every client must have; None: needs none.
    """

    certificate: Path
    key: Path
    client_authority: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All of them."""
        found = (self.certificate, self.key, self.client_authority)
        return tuple(path for path in found if path is not None)
