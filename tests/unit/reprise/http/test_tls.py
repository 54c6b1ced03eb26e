"""Files of TLS that do not fit keep a service from starting."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme


class Files:
    """What a service is started with, as PEM."""

    def __init__(self, directory: Path) -> None:
        self.authority = trustme.CA()
        self.certificate, self.key = directory / "cert.pem", directory / "key.pem"
        self.authority_file = directory / "ca.pem"
        self.authority.cert_pem.write_to_path(self.authority_file)
        self.serials: list[bytes] = []
        self.issue()

    def issue(self) -> None:
        """Another certificate: its files are replaced one after the other."""
        issued = self.authority.issue_cert("localhost", "127.0.0.1")
        content = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        self.certificate.write_bytes(content)
        self.key.write_bytes(issued.private_key_pem.bytes())
        der = ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
        self.serials.append(der)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--set", f"tls.cert={self.certificate}", "--set", f"tls.key={self.key}")

    def client(self, issued: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority_file))
        if issued is not None:
            issued.configure_cert(context)
        return context


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "tls.cert=cert.pem"), "--tls-cert and --tls-key together"),
        (("--set", "tls.client_ca=ca.pem"), "beside --tls-client-ca"),
        (
            ("--set", "tls.cert=none.pem", "--set", "tls.key=key.pem"),
            "a file of PEM, got none.pem: No such file",
        ),
        (("--set", "tls.cert=ca.pem", "--set", "tls.key=key.pem"), "ca.pem and key.pem"),
        (
            (
                "--set",
                "tls.cert=cert.pem",
                "--set",
                "tls.key=key.pem",
                "--set",
                "tls.client_ca=key.pem",
            ),
            "authorities as PEM in key.pem",
        ),
    ],
)
def test_files_that_do_not_fit_keep_it_from_starting(
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    said: str,
) -> None:
    Files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert said in refused("up", "--port", "0", "--data", "data", *options)
