"""`reprise verify`."""

import os
from pathlib import Path

import click

from console.terminal import printable
from reprise.cli.data_option import existing_data
from streams.index_settings import seed_from


@click.command()
@existing_data("The data directory; the service that uses it may be running.", default=Path("data"))
def verify(data: Path) -> None:
    """Fold the whole log into an empty table and print the digest of each context.

    Compare with GET /digest of the running service, at the same position; equal digests prove that
    the table is what the log says.
    """
    from streams.table.verification import verify_log

    for line in verify_log(data, seed_from(os.environ)):
        click.echo(printable(line))
