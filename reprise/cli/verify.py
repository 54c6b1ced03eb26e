"""`reprise verify`."""

import os
from pathlib import Path

import click

from console.terminal import printable
from reprise.settings import seed_from
from schemas.errors import RepriseError


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("data"),
    show_default=True,
    help="The data directory; the service that uses it may be running.",
)
def verify(data: Path) -> None:
    """Fold the whole log into an empty table and print the digest of each context.

    Compare with GET /digest of the running service, at the same position; equal digests prove that
    the table is what the log says.
    """
    from streams.table.verification import verify_log

    try:
        for line in verify_log(data, seed_from(os.environ)):
            click.echo(printable(line))
    except RepriseError as error:
        raise click.ClickException(str(error)) from error
