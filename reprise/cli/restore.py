"""`reprise restore`."""

from pathlib import Path

import click

from console.progress import progress_shown
from console.terminal import printable
from reprise.cli.backup import say_manifest


@click.command()
@click.argument("backup_directory", metavar="BACKUP", type=click.Path(path_type=Path, exists=True))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="The data directory to make; it must not exist, or be empty.",
)
def restore(backup_directory: Path, data: Path) -> None:
    """Make a data directory of what `reprise backup` has made, and check it by its digests.

    Every file is compared with the backup's SHA-256, and the table that a start would have with the
    digests that were noted. The backup is only read.
    """
    from reprise.embedded.restoration import restore as restore_backup

    with progress_shown("Restoring", "files") as tell:
        made = restore_backup(backup_directory, data, tell=tell)
    say_manifest(made)
    click.echo(printable(f"restored: {data}; start it with `reprise up --data {data}`"))
