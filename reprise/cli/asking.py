"""A running service that is asked for a document."""

import os
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Final, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import click
import msgspec

from reprise.cli.terminal import printable
from reprise.settings import DEFAULT_HOST, DEFAULT_PORT
from schemas.limits import EXPLAIN_S

DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
"""Where a service answers that was given no address."""

KEY_VARIABLE: Final = "REPRISE_KEY"
"""The key that a service is asked with, where it needs one."""

AUTHORITY_VARIABLE: Final = "REPRISE_CA"
CERTIFICATE_VARIABLE: Final = "REPRISE_CLIENT_CERT"

DocumentT = TypeVar("DocumentT")


def request_headers() -> dict[str, str]:
    """Of every request: what is to come, and the key of KEY_VARIABLE, if there is one."""
    headers = {"Accept": "application/json"}
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def tls_context(url: str) -> ssl.SSLContext | None:
    """For a service that is asked by `https`: AUTHORITY_VARIABLE names the PEM of its authority,
    CERTIFICATE_VARIABLE that of our certificate with its key, where it asks for one.

    Raises:
        click.ClickException: one of them cannot be used.
    """
    if not url.lower().startswith("https:"):
        return None
    authority = os.environ.get(AUTHORITY_VARIABLE) or None
    certificate = os.environ.get(CERTIFICATE_VARIABLE)
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate)
    except (OSError, ValueError) as error:
        names = f"{AUTHORITY_VARIABLE} and {CERTIFICATE_VARIABLE}"
        raise click.ClickException(f"Expected PEM files in {names}: {error}") from error
    return context


def refusal(error: HTTPError, url: str) -> click.ClickException:
    """What a command ends with where a service has answered by an error status: in its words, and
    those of the command line where it wants a key.
    """
    text = error.read().decode(errors="replace")
    if error.code == HTTPStatus.UNAUTHORIZED:
        text = f"{url} wants a key that it knows: set REPRISE_KEY. It says: {text}"
    return click.ClickException(printable(text))


def asked(
    url: str, path: str, parameters: Mapping[str, object], kind: type[DocumentT]
) -> DocumentT:
    """The document that a service answers.

    Args:
        url: of the service.
        path: `/gaps`, ...
        parameters: of the URL; empty ones are left out.
        kind: of the document.

    Raises:
        click.ClickException: it cannot be asked, it refuses, or answers something else.
    """
    given = {name: value for name, value in parameters.items() if value not in ("", None)}
    address = f"{url.rstrip('/')}{path}" + (f"?{urlencode(given)}" if given else "")
    try:
        request = Request(address, headers=request_headers())
        with urlopen(request, timeout=EXPLAIN_S, context=tls_context(url)) as answer:
            found = answer.read()
    except HTTPError as error:
        raise refusal(error, url) from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        message = f"Cannot ask {url}: {str(error) or repr(error)}. Is the service up?"
        raise click.ClickException(printable(message)) from error
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"Expected what GET {path} answers of {url}: {error}"
        raise click.ClickException(printable(message)) from error
