"""`python -m lab.benchmarks.report.plots REPORT.json DIRECTORY`: draws the queries of a report.

What was not measured is not drawn. The pictures of docs/benchmarks.md are made like this.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from lab.benchmarks.report.document import BenchmarkReport
from lab.benchmarks.report.figures import Figure

_COLOURS: Final = ("#1b6ca8", "#d1495b", "#66a182", "#8d6a9f", "#edae49", "#2e4057")
_PEERS: Final = re.compile(r"(?P<line>.+), (?P<x>\d+)K tokens: CPU")
_RATES: Final = re.compile(r"(?P<line>.+), (?P<x>\d+)K tokens: rate")
_GROWTH: Final = re.compile(r"query of (?P<line>\d+K tokens), (?P<x>[\d,]+) blocks held: CPU")
_LENGTH: Final = re.compile(r"query of (?P<x>\d+)K tokens: CPU of a token")


class Plot(NamedTuple):
    """One picture: lines of points, both axes logarithmic.

    Attributes:
        file: its name.
        title, x, y: of people.
        pattern: of the figures' names, whole; `x` is a point's place, `line` which line it is of.
        x_scale: what one of `x` in a name is.
    """

    file: str
    title: str
    x: str
    y: str
    pattern: re.Pattern[str]
    x_scale: float = 1.0


PLOTS: Final = (
    Plot(
        "query-cpu.svg",
        "CPU of a query, eight holders",
        "tokens of the prompt",
        "CPU of the server, us",
        _PEERS,
        1024.0,
    ),
    Plot(
        "query-rate.svg",
        "Requests/s of queries, eight holders, eight connections",
        "tokens of the prompt",
        "requests/s",
        _RATES,
        1024.0,
    ),
    Plot(
        "table-size.svg",
        "CPU of a query as the table grows, out of the caches",
        "blocks held",
        "CPU, us",
        _GROWTH,
    ),
    Plot(
        "prompt-length.svg",
        "CPU of a token as prompts get longer",
        "tokens of the prompt",
        "CPU of a token, ns",
        _LENGTH,
        1024.0,
    ),
)

Lines = dict[str, list[tuple[float, float]]]


def lines_of(plot: Plot, figures: Iterable[Figure]) -> Lines:
    """The points of each line, in the order of their places."""
    lines: Lines = {}
    for figure in figures:
        found = plot.pattern.fullmatch(figure.name)
        if found is not None:
            x = plot.x_scale * float(found["x"].replace(",", ""))
            lines.setdefault(found.groupdict().get("line") or "", []).append((x, figure.value))
    return {name: sorted(points) for name, points in lines.items()}


@click.command()
@click.argument("report", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
def main(report: Path, directory: Path) -> None:
    """Draws what REPORT, which `python -m lab.benchmarks --json REPORT` wrote, has of queries."""
    try:
        from matplotlib.figure import Figure as Picture
    except ImportError as error:
        raise click.ClickException("Expected matplotlib: run `make plots`") from error
    told = msgspec.json.decode(report.read_bytes(), type=BenchmarkReport)
    figures = [
        figure for result in told.results if result.kernel == "rust" for figure in result.figures
    ]
    directory.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        lines = lines_of(plot, figures)
        if lines:
            _draw(plot, lines, directory / plot.file, told, Picture)
            click.echo(f"wrote {directory / plot.file}")


def _draw(
    plot: Plot, lines: Lines, path: Path, told: BenchmarkReport, make_picture: Callable[..., Any]
) -> None:
    picture = make_picture(figsize=(6.4, 4.0), layout="constrained")
    axes = picture.subplots()
    for colour, (name, points) in zip(_COLOURS, lines.items(), strict=False):
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, marker="o", markersize=4, color=colour, label=name or None)
    axes.set_xscale("log", base=10)
    axes.set_yscale("log", base=10)
    axes.set_ylim(bottom=0.5 * min(y for points in lines.values() for _, y in points))
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    axes.grid(visible=True, which="major", alpha=0.3)
    if any(lines):
        axes.legend(frameon=False, fontsize="small")
    machine = told.machine
    picture.supxlabel(
        f"{machine.date}, {machine.processors} x {machine.processor}", fontsize=7, color="#666666"
    )
    picture.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
