"""`reprise explain`."""

import json
import sys
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import click

from reprise.cli.asking import refusal, request_headers, tls_context
from reprise.cli.terminal import printable
from reprise.settings import DEFAULT_HOST, DEFAULT_PORT
from schemas.limits import EXPLAIN_S


@click.command()
@click.option(
    "--url",
    default=f"http://{DEFAULT_HOST}:{DEFAULT_PORT}",
    show_default=True,
    help="Where the service answers.",
)
@click.option("--instance", required=True, help="Whose answer is to be explained.")
@click.option(
    "--as-of",
    default="",
    help="A position as the header Reprise-Position has it, Unix seconds or a time in ISO 8601."
    "  [default: now]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as it came.")
@click.argument("query", type=click.File("rb"), default="-")
def explain(url: str, instance: str, as_of: str, as_json: bool, query: IO[bytes]) -> None:
    """Say how far an instance held a prompt at a past moment, and what ended it.

    QUERY is a file with the JSON body of a `POST /query`; `-`, or none, is the standard input.

    \b
    reprise explain --instance engine-1 --as-of 2026-11-24T21:00:00Z query.json
    """  # noqa: D301
    try:
        body = json.loads(query.read())
        if not isinstance(body, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise click.ClickException(
            f"Expected the JSON body of a query in {query.name}: {error}"
        ) from error
    body["instance_id"] = instance
    address = f"{url.rstrip('/')}/explain?{urlencode({'as_of': as_of} if as_of else {})}"
    request = Request(
        address, json.dumps(body).encode(), request_headers() | {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=EXPLAIN_S, context=tls_context(url)) as answer:
            found = answer.read()
    except HTTPError as error:
        raise refusal(error, url) from error
    except (URLError, OSError, ValueError) as error:
        raise click.ClickException(f"Cannot ask {url}: {error}. Is the service up?") from error
    if as_json:
        sys.stdout.buffer.write(found + b"\n")
        return
    for line in lines_of(json.loads(found)):
        click.echo(printable(line))


def lines_of(explained: dict[str, Any]) -> list[str]:
    """The answer for people."""
    held, asked = explained["longest_matched"], explained["prompt_tokens"]
    lines = [
        f"{explained['instance_id']} held {held} of {asked} tokens at position"
        f" {explained['position']}"
    ]
    if explained["match"] is None:
        lines.append("It took no part in answers then: it was not registered, and held nothing.")
    ended = explained["ended_by"]
    if ended is None:
        return [*lines, "It held the whole prompt."]
    first, end = ended["tokens"]
    lines.append(
        f"Block {ended['block']} (tokens {first} to {end - 1}, hash {ended['prefix_hash']}) ended"
        f" it: {ended['reason'].replace('_', ' ')}"
    )
    lines += [_line(change) for change in ended["changes"]]
    if ended["later"]:
        lines.append("since then:")
        lines.append(_line(ended["later"]))
    return lines


def _line(change: dict[str, Any]) -> str:
    tier = ("shared " if change["shared"] else "") + change["medium"]
    batch = f"batch {change['incarnation']}:{change['sequence']}"
    return (
        f"  {change['position']}  {change['time']:.3f}  {change['what']:<9} {tier:<4}"
        f" rank {change['dp_rank']}  {batch}  ({change['kind']} record)"
    )
