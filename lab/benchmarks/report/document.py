"""The report: text for reading, JSON for comparing."""

from collections.abc import Iterator, Sequence
from inspect import getdoc
from itertools import chain
from types import ModuleType
from typing import Final

import msgspec

from lab.benchmarks.report.aims import BY_FIGURE, FigureOf
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import Machine
from lab.benchmarks.sizes import KernelName

_NAME_WIDTH: Final = 60
_VALUE_WIDTH: Final = 11
_UNIT_WIDTH: Final = 13


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement of one kernel; `error` is "" or why it has no figures."""

    measurement: str
    kernel: KernelName
    seconds: float
    figures: list[Figure]
    error: str = ""


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as it stands in the JSON file.

    Attributes:
        quick: whether the sizes were small.
        results: of each measurement and kernel.
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


def section_lines(module: ModuleType, results: Sequence[Result]) -> Iterator[str]:
    """One measurement: a row for each figure, a column for each kernel."""
    name = results[0].measurement
    yield ""
    yield f"== {name}: {(getdoc(module) or '').partition('.')[0].replace(chr(10), ' ')}"
    header = "".join(f"{result.kernel:>{_VALUE_WIDTH}}" for result in results)
    yield f"{'':{_NAME_WIDTH}}{header}"
    by_kernel = [{figure.name: figure for figure in result.figures} for result in results]
    for row in dict.fromkeys(chain.from_iterable(by_kernel)):
        figures = [known.get(row) for known in by_kernel]
        yield from _row_lines(row, figures, results)
    for result in results:
        if result.error:
            yield f"  {result.kernel} failed: {result.error}"


def _row_lines(
    row: str, figures: Sequence[Figure | None], results: Sequence[Result]
) -> Iterator[str]:
    known = [figure for figure in figures if figure is not None]
    values = "".join(f"{_text(figure):>{_VALUE_WIDTH}}" for figure in figures)
    line = f"{row:{_NAME_WIDTH}}{values} {known[0].unit:{_UNIT_WIDTH}}"
    for figure, result in zip(figures, results, strict=True):
        aim = BY_FIGURE.get(FigureOf(result.measurement, row))
        if figure is not None and aim is not None and result.kernel == "rust":
            line += f"aim {aim.bound}: {'met' if aim.is_met(figure.value) else 'MISSED'}"
    yield line.rstrip()
    notes = {note_of(figure) for figure in known}
    for figure, result in zip(figures, results, strict=True):
        note = note_of(figure) if figure is not None else ""
        if note and (len(notes) > 1 or result is results[0]):
            yield f"    {result.kernel + ': ' if len(notes) > 1 else ''}{note}"


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


def _text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{'~' if figure.is_disturbed else ''}{number_text(figure.value)}"
