"""`reprise repair`."""

import sys
from pathlib import Path
from typing import Final

import click

from console.terminal import printable
from reprise.cli.data_option import existing_data

_DAMAGED: Final = 3
"""Exit code where something is damaged and nothing was done about it."""


@click.command()
@existing_data(
    "The data directory of `reprise up`, which must not be running.", default=Path("data")
)
@click.option("--yes", is_flag=True, help="Repair what is damaged. Nothing is deleted.")
@click.option(
    "--all-registered",
    is_flag=True,
    help="Say that every engine is registered again, after registrations may have been lost.",
)
def repair(data: Path, yes: bool, all_registered: bool) -> None:
    """Say what is damaged in a data directory and what would be done; with --yes, do it.

    What can be read of a damaged log becomes the log again, and the damaged files stay beside it.
    The routing log likewise, which a start sets aside otherwise.
    A damaged table is moved aside, and made again by the next start. Where records are lost,
    answers are `degraded` until each publisher has sent its next batch.

    \b
    exit code 0   nothing has to be repaired, or all of it has been
              1   it cannot be repaired: the message says why
              3   something is damaged; nothing was changed
    """  # noqa: D301
    from reprise.embedded.repair import DirectoryRepair

    found = DirectoryRepair(data)
    findings = found.examine()
    for finding in findings:
        click.echo(printable(f"{finding.part:<6} {finding.text}"))
        if finding.remedy and not yes:
            click.echo(printable(f"       with --yes: {finding.remedy}"))
    if yes:
        for line in found.carry_out(findings):
            click.echo(printable(line))
    if all_registered:
        found.end_doubt()
    elif found.doubt:
        click.echo(printable(f"note   {found.doubt}"))
    if not yes and any(finding.remedy for finding in findings):
        click.echo("Nothing was changed.")
        sys.exit(_DAMAGED)
