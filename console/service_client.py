"""A running service of Reprise, as its clients ask it: by a key and certificates that the
environment names.
"""

import os
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec

from bridge.engine_http.client import ask
from console.bounds import ANSWER_S
from schemas.causes import cause_of
from schemas.errors import ConfigurationError
from schemas.limits import MIB, SETTINGS_FILE_BYTES_MAX
from storage.files import read_file

SERVICE_ANSWER_BYTES_MAX: Final = 256 * MIB  # of a service that a command asks, with its head
REFUSAL_CHARS_MAX: Final = 2_000  # of what a service says with an error status

KEY_VARIABLE: Final = "REPRISE_KEY"
"""The key that a service is asked with, where it needs one."""

AUTHORITY_VARIABLE: Final = "REPRISE_CA"
CERTIFICATE_VARIABLE: Final = "REPRISE_CLIENT_CERT"


class RefusedError(Exception):
    """A service answers by a status that is no success."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class ServiceClient:
    """Asks one service, by the key and the certificates that the environment names.

    Args:
        url: of any replica.

    Attributes:
        url: without a slash at its end.

    Raises:
        ConfigurationError: the environment names files that cannot be used.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._tls = _tls_context() if self.url.lower().startswith("https:") else None

    async def ask(self, path: str, body: bytes | None = None, *, wait_s: float = ANSWER_S) -> bytes:
        """What it answers.

        Args:
            path: with a slash before it, and parameters behind it.
            body: of a POST, JSON; None: it is a GET.
            wait_s: for all of the answer.

        Raises:
            RefusedError: it refuses; the text is the answer's.
            NoAnswerError: it does not answer, or with more than SERVICE_ANSWER_BYTES_MAX.
            EndpointError: its URL is none.
        """
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        key = os.environ.get(KEY_VARIABLE, "").strip()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        reply = await ask(
            self.url,
            path,
            headers=headers,
            content=body,
            tls=self._tls,
            wait_s=wait_s,
            bytes_max=SERVICE_ANSWER_BYTES_MAX,
        )
        if reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return reply.body
        text = _refusal_of(reply.body)
        if reply.status < HTTPStatus.BAD_REQUEST:
            where = f" to {reply.location[:REFUSAL_CHARS_MAX]}" if reply.location else ""
            text = f"{self.url}{path} answers {reply.status}, a redirect{where}: ask there"
        elif reply.status == HTTPStatus.UNAUTHORIZED:
            text = f"{self.url} wants a key that it knows: set REPRISE_KEY. It says: {text}"
        raise RefusedError(reply.status, text or f"{self.url}{path} answers {reply.status}")


class _Refusal(msgspec.Struct):
    error: str


def _refusal_of(body: bytes) -> str:
    """What a refusal says: of an envelope its text, else what came."""
    try:
        text = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = body[: 4 * REFUSAL_CHARS_MAX].decode(errors="replace")
    return text[:REFUSAL_CHARS_MAX].strip()


def _tls_context() -> ssl.SSLContext:
    """AUTHORITY_VARIABLE names the PEM of a service's authority, CERTIFICATE_VARIABLE that of our
    certificate with its key, where it asks for one.
    """
    authority = os.environ.get(AUTHORITY_VARIABLE)
    certificate = os.environ.get(CERTIFICATE_VARIABLE)
    try:
        for name in filter(None, (authority, certificate)):
            read_file(Path(name), SETTINGS_FILE_BYTES_MAX)  # OpenSSL would wait for what is no file
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate)
    except (OSError, ValueError) as error:
        given = {AUTHORITY_VARIABLE: authority, CERTIFICATE_VARIABLE: certificate}
        names = " and ".join(f"{name} ({path[:200]})" for name, path in given.items() if path)
        raise ConfigurationError(f"Expected PEM files in {names}: {cause_of(error)}") from error
    return context
