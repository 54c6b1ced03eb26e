"""TLS of the gRPC server, whose certificate may change while it runs."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import grpc

from schemas.errors import ConfigurationError
from schemas.limits import SETTINGS_FILE_BYTES_MAX
from storage.files import read_file


class GrpcTls(NamedTuple):
    """How gRPC is encrypted.

    Attributes:
        certificate, key: PEM, of the server.
        client_authority: PEM, of the certificates that clients must have; None: they need none.
        has_changed: asked at each handshake: whether the files are to be read again, and fit
            together.
    """

    certificate: Path
    key: Path
    client_authority: Path | None
    has_changed: Callable[[], bool]


def server_credentials(tls: GrpcTls) -> grpc.ServerCredentials:
    """As the files are now, and as they are later.

    Raises:
        ConfigurationError: they cannot be read.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        authority = None if tls.client_authority is None else _content(tls.client_authority)
        chain = [(_content(tls.key), _content(tls.certificate))]
        return grpc.ssl_server_certificate_configuration(chain, root_certificates=authority)

    def read_again() -> grpc.ServerCertificateConfiguration | None:
        return read() if tls.has_changed() else None  # None: as before

    needs_client = tls.client_authority is not None
    return grpc.dynamic_ssl_server_credentials(read(), read_again, needs_client)  # type: ignore[arg-type]


def _content(path: Path) -> bytes:
    try:
        return read_file(path, SETTINGS_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror or error}") from error
