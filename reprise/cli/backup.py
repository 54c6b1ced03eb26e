"""`reprise backup`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.progress import progress_shown
from console.terminal import printable
from reprise.cli.data_option import existing_data
from streams.index_settings import seed_from

if TYPE_CHECKING:
    from reprise.embedded.backup_manifest import Manifest


@click.command()
@existing_data("The data directory of `reprise up`, which may be running.", default=Path("data"))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    help="The directory to make; it must not exist.",
)
def backup(data: Path, out: Path) -> None:
    """Copy a data directory as it is at one moment, and check that a start could use the copy.

    The digest of each context is printed, and kept in the backup; `reprise restore` must come to
    the same. What a repair has set aside is left out. Ctrl-C leaves nothing.
    """
    from reprise.embedded.backup import back_up

    with progress_shown("Copying", "entries") as tell:
        made = back_up(data, out, seed=seed_from(os.environ), tell=tell)
    say_manifest(made)
    click.echo(printable(f"backup: {out}"))


def say_manifest(manifest: "Manifest") -> None:
    """Prints what is in a backup."""
    size = sum(file.bytes for file in manifest.files.values())
    click.echo(
        f"position 0:{manifest.position}  seed {manifest.seed}  {len(manifest.files)} files,"
        f" {size:,} bytes"
    )
    for context, digest in sorted(manifest.digests.items()):
        click.echo(printable(f"{digest}  {context}"))
