"""`reprise memory`."""

import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from bridge.memory.reading import DEFAULT_PREFIX
from console.asking import asked, url_option
from console.param_types import Amount
from console.terminal import printable, say_json, table_lines
from schemas import limits

MEMORY_ASK_S: Final = 10.0  # that `reprise memory` waits for an answer

Segments = list[dict[str, Any]]
Look = Callable[[], Segments]
"""What there is now, as `GET /memory` has it; raises ClickException."""

_CLEAR: Final = "\x1b[H\x1b[2J"
_HEADER: Final = (
    *("HOST", "SEGMENT", "STATE", "USED", "PREALLOCATED", "LIMIT", "PRESSURE", "READ"),
    "INSTANCES",
)
_NUMBERS: Final = frozenset({"USED", "PREALLOCATED", "LIMIT", "PRESSURE", "READ"})


@click.group()
def memory() -> None:
    """Show what engines' KV caches take of their memory, as kvcached says."""


def _source_options(command: Callable[..., None]) -> Callable[..., None]:
    options = (
        url_option("The service that is asked: of all hosts, with the instances."),
        click.option(
            "--dir",
            "directory",
            type=click.Path(path_type=Path),
            help="In place of --url: look at the segments of this directory, as /dev/shm.",
        ),
        click.option(
            "--prefix",
            default=DEFAULT_PREFIX,
            show_default=True,
            help="With --dir: what the names of segments begin with; empty for any name.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one line of JSON a look."),
        click.argument("names", nargs=-1),
    )
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


@memory.command("list")
@_source_options
def list_(
    url: str, directory: Path | None, prefix: str, as_json: bool, names: tuple[str, ...]
) -> None:
    """Print every segment once.

    NAMES are names of segments or instances, or patterns of them; without any all are shown.

    \b
    reprise memory list
    reprise memory list --dir /dev/shm
    reprise memory list 'engine-*'
    """  # noqa: D301
    look = _look_at(url, directory, prefix)
    _show(look(), names, as_json=as_json)


@memory.command()
@_source_options
@click.option(
    "--interval",
    "-n",
    type=Amount(limits.MEMORY_PERIOD_MIN_S, limits.MEMORY_PERIOD_MAX_S),
    default=limits.MEMORY_PERIOD_S,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--looks", type=click.IntRange(min=1), help="Stop after this many.  [default: none]")
def watch(
    url: str,
    directory: Path | None,
    prefix: str,
    as_json: bool,
    names: tuple[str, ...],
    interval: float,
    looks: int | None,
) -> None:
    """Print every segment again and again, until Ctrl-C.

    A service or a directory that is away is said, and asked again.
    """
    look = _look_at(url, directory, prefix)
    number = 0
    while True:
        number += 1
        try:
            segments = look()
        except click.ClickException as error:
            click.echo(error.format_message(), err=True)
        else:
            if sys.stdout.isatty() and not as_json:
                click.echo(_CLEAR, nl=False)
            _show(segments, names, as_json=as_json)
        if number == looks:
            return
        time.sleep(interval)


def _look_at(url: str, directory: Path | None, prefix: str) -> Look:
    return (lambda: _asked(url)) if directory is None else _directory_look(directory, prefix)


def _asked(url: str) -> Segments:
    from query_api.http.memory_models import MemoryView

    found = asked(url, "/memory", {}, MemoryView, wait_s=MEMORY_ASK_S)
    segments: Segments = msgspec.to_builtins(found)["segments"]
    return segments


def _directory_look(directory: Path, prefix: str) -> Look:
    # Imported here: the documents' types take a moment that `--help` does not need.
    from bridge.memory.poller import SegmentPoller
    from bridge.memory.reading import LOCKED, read_segments
    from bridge.memory.watch import MemorySettings
    from query_api.http.memory_answer import memory_document
    from query_api.segments import segment_views

    settings = MemorySettings(directory=directory, prefix=prefix)
    seen = SegmentPoller(settings.host_name, "reprise-memory")
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told and len(told) < limits.MEMORY_SEGMENTS_READ_MAX:
            told.add(text)
            click.echo(printable(text), err=True)

    def look() -> Segments:
        scan = read_segments(directory, prefix, known=seen.names)
        if scan.error:
            raise click.ClickException(printable(scan.error))
        for name, reason in scan.named:
            if reason != LOCKED:  # it is read at the next look
                tell(f"Left out {name}: {reason}")
        if scan.skipped.total() > len(scan.named):
            counts = (f"{reason} {count}" for reason, count in sorted(scan.skipped.items()))
            tell(f"Left out in all: {', '.join(counts)}")
        now, at = time.monotonic(), time.time()
        seen.note(scan, at=at)
        views = segment_views(seen.states(), (), now=at)
        for key in list(seen.due(now)):
            record = seen.make(key, now=now, at=at)
            if record is not None:
                seen.written(record, now=now)  # what is gone is shown once, and then no more
        segments: Segments = msgspec.to_builtins(memory_document(views))["segments"]
        return segments

    return look


def _wanted(segments: Segments, names: tuple[str, ...]) -> Segments:
    def is_wanted(one: dict[str, Any]) -> bool:
        known = [one["segment"], *(instance["instance_id"] for instance in one["instances"])]
        return any(fnmatchcase(name, pattern) for name in known for pattern in names)

    return [one for one in segments if is_wanted(one)] if names else segments


def _show(known: Segments, names: tuple[str, ...], *, as_json: bool) -> None:
    segments = _wanted(known, names)
    if as_json:
        say_json({"count": len(segments), "segments": segments})
        return
    if not segments:
        which = f"of these names are known, but {len(known)} others" if known else "are known"
        click.echo(f"No memory segments {which}.", err=True)
        return
    for line in lines_of(segments):
        click.echo(printable(line))


def lines_of(segments: Segments) -> Iterator[str]:
    """The segments as a table for people."""
    return table_lines(_HEADER, map(_row, segments), _NUMBERS)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    instances = dict.fromkeys(instance["instance_id"] for instance in one["instances"])
    return (
        one["host"],
        one["segment"],
        one["state"],
        *(size_text(one[name]) for name in ("used", "preallocated", "total")),
        f"{100 * one['pressure']:.1f} %",
        f"{one['age']:.1f} s ago",
        ", ".join(instances) or "-",
    )


def size_text(size_bytes: int) -> str:
    """A size in the largest unit of which there is a whole one."""
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size >= limits.KIB and len(units) > 1:
        size /= limits.KIB
        units.pop(0)
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
