"""The report: text for reading, JSON for comparing."""

from collections.abc import Iterator
from typing import Final

import msgspec

from lab.benchmarks.report.aims import BY_FIGURE, FigureOf
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import Machine

_NAME_WIDTH: Final = 60
_VALUE_WIDTH: Final = 11
_LINE_WIDTH: Final = 86


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement; `error` is "" or why it has no figures."""

    measurement: str
    seconds: float
    figures: list[Figure]
    error: str = ""


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as it stands in the JSON file.

    Attributes:
        quick: whether the sizes were small.
        results: of each measurement.
        skipped: why a measurement is not among them, by its name.
        peers: which release, by name.
        missing_peers: why it is not there, by name.
    """

    machine: Machine
    quick: bool
    results: list[Result]
    skipped: dict[str, str] = {}
    peers: dict[str, str] = {}
    missing_peers: dict[str, str] = {}


def head_lines(report: BenchmarkReport) -> Iterator[str]:
    """The report's head."""
    machine, quick = report.machine, report.quick
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
    yield f"Reprise benchmarks, {machine.date}{', QUICK: rough figures' if quick else ''}"
    yield f"  {machine.processors} x {machine.processor}, {machine.memory_gib} GiB"
    yield f"  {machine.system}"
    yield f"  {machine.python}; {packages}"
    for name, said in report.peers.items():
        yield f"  peer {name}: {said}"
    for name, why in report.missing_peers.items():
        yield f"  peer {name}: left out, {why}"
    yield f"  seed {machine.seed}; load average before the run: {machine.load}"
    yield "  Each value is the median of its runs; ~ marks runs that differ by more than a quarter,"
    yield "  so something else used the machine: trust CPU times and ratios, and run it again."


def section_lines(title: str, result: Result) -> Iterator[str]:
    """One measurement: a row for each figure."""
    yield ""
    yield f"== {result.measurement}: {title}"
    for figure in result.figures:
        line = f"{figure.name:{_NAME_WIDTH}}{value_text(figure):>{_VALUE_WIDTH}} {figure.unit}"
        aim = BY_FIGURE.get(FigureOf(result.measurement, figure.name))
        if aim is not None:
            line = f"{line:{_LINE_WIDTH}}aim {aim.bound}: {aim.said_of(figure.value)}"
        yield line
        if note := note_of(figure):
            yield f"    {note}"
    if result.error:
        yield f"  failed: {result.error}"


def note_of(figure: Figure) -> str:
    """What a reader must know of it."""
    if not figure.limited:
        return figure.note
    limit = f"the load generator was the limit in {figure.limited} of {len(figure.runs)} runs"
    return f"{figure.note}; {limit}" if figure.note else limit


def number_text(value: float) -> str:
    """With three digits or so."""
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def value_text(figure: Figure) -> str:
    """The median, marked where it says little."""
    return f"{'~' if figure.is_disturbed else ''}{number_text(figure.value)}"
