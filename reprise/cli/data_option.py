"""`--data` of the commands that read the data directory of a service."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

R = TypeVar("R")


def existing_data(
    help_text: str, *, default: Path | None = None
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Adds it, handed over as `data`; None without a default."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False, exists=True),
        default=default,
        show_default=default is not None,
        help=help_text,
    )
