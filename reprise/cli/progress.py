"""A progress bar on a terminal; nothing where standard error is none.

With `rich` (part of `reprise[analysis]`) it is a bar, without it a line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from replay.capture.progress import Progress, Tell, silent
from schemas.limits import MIB, PROGRESS_LINE_S


@contextmanager
def progress_shown(what: str, unit: str) -> Iterator[Tell]:
    """What to tell the progress to.

    Args:
        what: is under way, as `Capturing`.
        unit: of what is counted, as `records`.
    """
    if not sys.stderr.isatty():
        yield silent
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        yield _line_teller(what, unit)
        return
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
    ]
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, said="")

        def tell(progress: Progress) -> None:
            bar.update(
                task, completed=progress.done, total=progress.total, said=_said(progress, unit)
            )

        yield tell


def _line_teller(what: str, unit: str, *, clock: Callable[[], float] = time.monotonic) -> Tell:
    told_at = clock()

    def tell(progress: Progress) -> None:
        nonlocal told_at
        if clock() - told_at >= PROGRESS_LINE_S:
            told_at = clock()
            click.echo(f"{what}: {_said(progress, unit)}", err=True)

    return tell


def _said(progress: Progress, unit: str) -> str:
    said = f"{progress.entries:,} {unit}"
    if progress.total:
        said = f"{100 * progress.done / progress.total:.0f} %, {said}"
    if progress.size_bytes:
        said += f", {progress.size_bytes / MIB:.1f} MiB"
    return said
