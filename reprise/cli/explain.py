"""`reprise explain`."""

import json
from typing import IO, TYPE_CHECKING

import click
import msgspec

from console.asking import asked, url_option
from console.terminal import printable, say_json
from schemas.causes import cause_of
from schemas.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from query_api.http.explanation_models import BlockChangeDocument, ExplanationDocument


@click.command()
@url_option("Where the service answers.")
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
    from query_api.http.explanation_models import ExplanationDocument

    try:
        given = query.read(BODY_BYTES_MAX + 1)
        if len(given) > BODY_BYTES_MAX:
            raise ValueError(f"it has more than {BODY_BYTES_MAX} bytes")
        body = json.loads(given)
        if not isinstance(body, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as error:
        raise click.ClickException(
            f"Expected the JSON body of a query in {query.name}: {cause_of(error)}"
        ) from error
    body["instance_id"] = instance
    parameters = {"as_of": as_of}
    encoded = json.dumps(body).encode()
    if as_json:
        say_json(asked(url, "/explain", parameters, msgspec.Raw, body=encoded))
        return
    for line in lines_of(asked(url, "/explain", parameters, ExplanationDocument, body=encoded)):
        click.echo(printable(line))


def lines_of(explained: "ExplanationDocument") -> list[str]:
    """The answer for people."""
    lines = [
        f"{explained.instance_id} held {explained.longest_matched} of {explained.prompt_tokens}"
        f" tokens at position {explained.position}"
    ]
    if explained.match is None:
        lines.append("It took no part in answers then: it was not registered, and held nothing.")
    ended = explained.ended_by
    if ended is None:
        return [*lines, "It held the whole prompt."]
    first, end = ended.tokens
    named = f", hash {ended.prefix_hash}" if ended.prefix_hash else ""
    lines.append(
        f"Block {ended.block} (tokens {first} to {end - 1}{named}) ended it:"
        f" {ended.reason.replace('_', ' ')}"
    )
    lines += [_line(change) for change in ended.changes]
    if ended.later:
        lines.append("since then:")
        lines.append(_line(ended.later))
    return lines


def _line(change: "BlockChangeDocument") -> str:
    tier = ("shared " if change.shared else "") + change.medium
    batch = f"batch {change.incarnation}:{change.sequence}"
    return (
        f"  {change.position}  {change.time:.3f}  {change.what:<9} {tier:<4}"
        f" rank {change.dp_rank}  {batch}  ({change.kind} record)"
    )
