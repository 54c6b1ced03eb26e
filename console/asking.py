"""A running service that is asked by a command for a document."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import click
import msgspec

from bridge.engine_http.client import NoAnswerError
from console.addresses import DEFAULT_HOST, DEFAULT_PORT
from console.bounds import ANSWER_S
from console.service_client import AUTHORITY_VARIABLE, RefusedError, ServiceClient
from console.terminal import printable
from schemas.causes import cause_of
from schemas.errors import ConfigurationError, EndpointError

DEFAULT_URL = f"http://{DEFAULT_HOST}:{DEFAULT_PORT}"
"""Where a service answers that was given no address."""

URL_VARIABLE: Final = "REPRISE_URL"

DocumentT = TypeVar("DocumentT")
CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def url_option(help: str) -> Callable[[CommandT], CommandT]:
    """`--url`, of a service that a command asks."""
    return click.option(
        "--url",
        envvar=URL_VARIABLE,
        show_envvar=True,
        default=DEFAULT_URL,
        show_default=True,
        help=help,
    )


def asked(
    url: str,
    path: str,
    parameters: Mapping[str, object],
    kind: type[DocumentT],
    *,
    body: bytes | None = None,
    wait_s: float = ANSWER_S,
) -> DocumentT:
    """The document that a service answers.

    Args:
        path: `/gaps`, ...
        parameters: of the URL; empty ones are left out.
        body: of a POST, JSON; None: it is a GET.
        wait_s: for all of the answer.

    Raises:
        click.ClickException: it cannot be asked, it refuses, or answers something else.
    """
    given = {name: value for name, value in parameters.items() if value not in ("", None)}
    asked_for = f"{path}?{urlencode(given)}" if given else path
    try:
        found = asyncio.run(ServiceClient(url).ask(asked_for, body, wait_s=wait_s))
    except (RefusedError, ConfigurationError) as error:
        raise click.ClickException(printable(str(error))) from error
    except EndpointError as error:
        message = f"{error}. Give the service's address as --url or {URL_VARIABLE}"
        raise click.ClickException(printable(message)) from error
    except NoAnswerError as error:
        remedy = f"Is the service up? --url or {URL_VARIABLE} names it"
        if "certificate is not trusted" in str(error):
            remedy = f"{AUTHORITY_VARIABLE} names the PEM of the authority that it is trusted by"
        message = f"Cannot ask {url}: {error}. {remedy}"
        raise click.ClickException(printable(message)) from error
    try:
        return msgspec.json.decode(found, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        method = "GET" if body is None else "POST"
        message = (
            f"Expected what {method} {path} answers of {url}, but {cause_of(error)}. Is a Reprise"
            " there, and of this version?"
        )
        raise click.ClickException(printable(message)) from error
