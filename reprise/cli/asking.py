"""A running service that is asked for a document."""

from collections.abc import Mapping
from http.client import HTTPException
from typing import TypeVar
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

DocumentT = TypeVar("DocumentT")


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
        with urlopen(
            Request(address, headers={"Accept": "application/json"}), timeout=EXPLAIN_S
        ) as answer:
            found = answer.read()
    except HTTPError as error:
        raise click.ClickException(printable(error.read().decode(errors="replace"))) from error
    except (URLError, OSError, HTTPException, ValueError) as error:
        message = f"Cannot ask {url}: {str(error) or repr(error)}. Is the service up?"
        raise click.ClickException(printable(message)) from error
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = f"Expected what GET {path} answers of {url}: {error}"
        raise click.ClickException(printable(message)) from error
