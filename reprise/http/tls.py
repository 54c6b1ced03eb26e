"""TLS of a server: its certificate, read again when it changes, and its clients' certificates."""

import logging
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from reprise.http.tls_settings import TlsSettings
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from storage.files import FileVersion, read_file, version_of

TLS_FILES_CHECK_S: Final = 10.0  # between two looks whether a certificate has changed
CERTIFICATE_NAMES_MAX: Final = 32  # of a client that are looked for among the keys

logger = logging.getLogger(__name__)

_NAME_KINDS = ("DNS", "URI", "email")


class Tls:
    """See the module. Connections that are open keep what they were opened with.

    Files that cannot be used, or not together, change nothing: the certificate of before goes on,
    and the log says so. Two files are seldom replaced at once: what does not fit together yet is
    looked at again.

    Attributes:
        context: of the server; connections that begin now get its certificate.
        reloads: how often the files were read anew.
        problem: why they cannot be now, or "".
    """

    def __init__(
        self, settings: TlsSettings, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        monotonic: seconds.

        Raises:
            ConfigurationError: they cannot be used.
        """
        self.reloads = 0
        self.problem = ""
        self._settings = settings
        self._monotonic = monotonic
        self._versions = self._look()
        self._next_look = monotonic() + TLS_FILES_CHECK_S
        self.context = self._make()

    def look(self) -> None:
        """Reads the files again if they have changed; does nothing more often than each
        TLS_FILES_CHECK_S.
        """
        if self._monotonic() < self._next_look:
            return
        self._next_look = self._monotonic() + TLS_FILES_CHECK_S
        versions = self._look()
        if versions != self._versions or self.problem:
            self.reload()

    def reload(self) -> None:
        """Reads the files again, whether they have changed or not."""
        versions = self._look()
        try:
            context = self._make()
        except ConfigurationError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                logger.error("%s. The certificate of before goes on", self.problem.rstrip("."))
            return
        self.context, self.problem, self._versions = context, "", versions
        self.reloads += 1
        logger.info("The certificate was read again from %s", self._settings.certificate)

    def _make(self) -> ssl.SSLContext:
        settings = self._settings
        for path in settings.files:
            try:
                read_file(path, SETTINGS_FILE_BYTES_MAX)  # OpenSSL would wait for what is no file
            except OSError as error:
                raise ConfigurationError(
                    f"Expected a file of PEM, got {path}: {cause_of(error)}"
                ) from error
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            # Without a terminal a password would be asked for without end.
            context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
        except (OSError, ValueError) as error:
            names = f"{settings.certificate} and {settings.key}"
            raise ConfigurationError(
                f"Expected a certificate and its key as PEM in {names}: {cause_of(error)}"
            ) from error
        if settings.client_authority is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(settings.client_authority)
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    "Expected certificates of authorities as PEM in"
                    f" {settings.client_authority}: {cause_of(error)}"
                ) from error
        return context

    def _look(self) -> tuple[FileVersion | None, ...]:
        return tuple(map(version_of, self._settings.files))


def _no_password() -> bytes:
    raise ValueError("the key has a password; write it without one")


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """The names that a client's certificate is for (subjectAltName: DNS, URI, email), at most
    CERTIFICATE_NAMES_MAX; its authority was checked by the handshake.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert` has it; None or {} where there is none.
    """
    found: Iterable[tuple[str, str]] = (certificate or {}).get("subjectAltName", ())
    names = [name for kind, name in found if kind in _NAME_KINDS]
    return tuple(names[:CERTIFICATE_NAMES_MAX])
