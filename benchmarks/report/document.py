"""The report: text for reading, JSON for comparing."""

from collections.abc import Iterator, Sequence
from inspect import getdoc
from itertools import chain
from types import ModuleType
from typing import Final

import msgspec

from benchmarks.report.figures import Figure
from benchmarks.report.machine import Machine
from benchmarks.sizes import KernelName

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


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as it stands in the JSON file."""

    machine: Machine
    quick: bool
    results: list[Result]


def head_lines(machine: Machine, *, quick: bool) -> Iterator[str]:
    """The report's head."""
    packages = ", ".join(f"{name} {number}" for name, number in machine.packages.items())
    yield f"Reprise benchmarks, {machine.date}{', QUICK: rough figures' if quick else ''}"
    yield f"  {machine.processors} x {machine.processor}, {machine.memory_gib} GiB"
    yield f"  {machine.system}"
    yield f"  {machine.python}; {packages}"
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
        if figure is not None and figure.aim is not None and result.kernel == "rust":
            line += _aim_text(figure)
    yield line.rstrip()
    notes = {figure.note for figure in known}
    for figure, result in zip(figures, results, strict=True):
        if figure is not None and figure.note and (len(notes) > 1 or result is results[0]):
            yield f"    {result.kernel + ': ' if len(notes) > 1 else ''}{figure.note}"


def _text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    value = figure.value
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{'~' if figure.is_disturbed else ''}{value:,.{digits}f}"


def _aim_text(figure: Figure) -> str:
    aim = figure.aim
    assert aim is not None
    bound = f">= {aim.at_least:g}" if aim.at_least is not None else f"<= {aim.at_most:g}"
    return f"aim {bound}: {'met' if aim.is_met(figure.value) else 'MISSED'}"
