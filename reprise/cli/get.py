"""`reprise get`."""

import json
import sys
import time
from typing import IO, Any, Final

import click

from console.asking import asked, url_option
from console.documents import chosen_of, document_lines, terminal_width
from console.param_types import Amount
from console.terminal import say_json
from schemas.causes import cause_of
from schemas.limits import BODY_BYTES_MAX

GET_PERIOD_MIN_S: Final = 0.25  # the shortest period of `reprise get --every`
GET_PERIOD_MAX_S: Final = 3600.0  # the longest one

_CLEAR: Final = "\x1b[H\x1b[2J"


@click.command()
@url_option("Where the service answers.")
@click.option(
    "--column", "-c", "columns", multiple=True, help="Only columns of this name; may be repeated."
)
@click.option("--filter", "wanted", default="", help="Only rows that have this text in them.")
@click.option("--sort", default="", help="Rows by this column: the largest numbers first.")
@click.option(
    "--body",
    type=click.File("rb"),
    help="POST the JSON of this file, as /query or /explain need one; - is the standard input.",
)
@click.option(
    "--every",
    type=Amount(GET_PERIOD_MIN_S, GET_PERIOD_MAX_S),
    help="Ask again after this time, in seconds, until Ctrl-C.",
)
@click.option("--looks", type=click.IntRange(min=1), help="With --every: stop after this many.")
@click.option("--json", "as_json", is_flag=True, help="Print the document, one line a look.")
@click.argument("path")
def get(
    url: str,
    columns: tuple[str, ...],
    wanted: str,
    sort: str,
    body: IO[bytes] | None,
    every: float | None,
    looks: int | None,
    as_json: bool,
    path: str,
) -> None:
    """Print what a running service answers of PATH, which may have parameters, as a table.

    A row of a table that is wider than the terminal is a block of lines: choose columns.
    The page GET /docs of a service lists the paths.

    \b
    reprise get /ui/instances --every 2 --sort lost_batches
    reprise get '/promises?by=policy' -c name -c decisions -c tokens.promised -c tokens.actual
    reprise get '/explain?as_of=0:592' --body query.json
    reprise get /memory --filter engine-1 --json
    """  # noqa: D301
    if not path.startswith("/"):
        raise click.UsageError(f"Expected a path as /promises, got: {path}")
    content = None if body is None else _content_of(body)

    def look() -> None:
        document = chosen_of(asked(url, path, {}, Any, body=content), wanted=wanted, sort=sort)
        if as_json:
            say_json(document)
            return
        try:
            lines = list(document_lines(document, columns=columns, width=terminal_width()))
        except RecursionError:
            raise click.ClickException(
                f"{path} answers what is nested too deep for lines"
            ) from None
        if every is not None and sys.stdout.isatty():
            click.echo(_CLEAR, nl=False)
        click.echo("\n".join(lines))

    if every is None:
        look()
        return
    number = 0
    while True:
        number += 1
        try:
            look()
        except click.ClickException as error:
            if number == looks:
                raise
            click.echo(error.format_message(), err=True)  # it may come back
        if number == looks:
            return
        time.sleep(every)


def _content_of(body: IO[bytes]) -> bytes:
    try:
        given = body.read(BODY_BYTES_MAX + 1)
        if len(given) > BODY_BYTES_MAX:
            raise ValueError(f"it has more than {BODY_BYTES_MAX} bytes")
        json.loads(given)
    except (ValueError, RecursionError) as error:
        raise click.ClickException(
            f"Expected the JSON body of a request in {body.name}: {cause_of(error)}"
        ) from error
    return given
