"""A progress bar on a terminal; lines now and then elsewhere, where that is asked for.

With `rich` (part of `reprise[analysis]`) it is a bar, without it a line now and then.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from schemas.clock import REAL_CLOCK, Clock
from schemas.limits import MIB
from schemas.progress import Progress, Tell, silent

PROGRESS_LINE_S: Final = 2.0  # between two lines of progress on a terminal without a bar
PROGRESS_ELSEWHERE_S: Final = 10.0  # between two lines of progress where there is no terminal

_BEGIN: Final = Progress(0, None, 0)


@contextmanager
def progress_shown(
    what: str, unit: str, *, everywhere: bool = False, clock: Clock = REAL_CLOCK
) -> Iterator[Tell]:
    """What to tell the progress to.

    Args:
        what: is under way, as `Capturing`.
        unit: of what is counted, as `records`.
        everywhere: whether lines are written where standard error is no terminal, too: of what
            takes minutes, and ends by itself.
    """
    if not sys.stderr.isatty():
        if not everywhere:
            yield silent
            return
        with _lines(what, unit, PROGRESS_ELSEWHERE_S, clock.monotonic) as tell:
            yield tell
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        with _lines(what, unit, PROGRESS_LINE_S, clock.monotonic) as tell:
            yield tell
        return
    columns: list[Any] = [
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    ]
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, said="")

        def update(progress: Progress) -> None:
            bar.update(
                task, completed=progress.done, total=progress.total, said=_said(progress, unit)
            )

        yield update


@contextmanager
def _lines(what: str, unit: str, every_s: float, monotonic: Callable[[], float]) -> Iterator[Tell]:
    """Writes a line each so many seconds, also while nothing is told."""
    latest = _BEGIN
    ended = threading.Event()
    began = monotonic()

    def tell(progress: Progress) -> None:
        nonlocal latest
        latest = progress

    def write() -> None:
        while not ended.wait(every_s):
            click.echo(line_of(what, unit, latest, monotonic() - began), err=True)

    writer = threading.Thread(target=write, name="progress", daemon=True)
    writer.start()
    try:
        yield tell
    finally:
        ended.set()
        writer.join()


def line_of(what: str, unit: str, progress: Progress, seconds: float) -> str:
    """How far it is after so many seconds, and about how long it takes yet."""
    line = f"{what}: {_said(progress, unit)}, {seconds:.0f} s"
    if progress.total and progress.done:
        left = seconds * (progress.total - progress.done) / progress.done
        line += f", about {left:.0f} s left"
    return line


def _said(progress: Progress, unit: str) -> str:
    said = f"{progress.entries:,} {unit}"
    if progress.total:
        said = f"{100 * progress.done / progress.total:.0f} %, {said}"
    if progress.size_bytes:
        said += f", {progress.size_bytes / MIB:.1f} MiB"
    return said
