"""The table of aims: each one beside what a run has measured, and what the peers took in it."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lab.benchmarks.report.aims import AIMS, MET, MISSED, PEERS, Aim, FigureOf
from lab.benchmarks.report.document import BenchmarkReport, number_text, value_text
from lab.benchmarks.report.figures import Figure

NOT_MEASURED: Final = "not measured"
UNKNOWN: Final = "no figure of that name: lab/benchmarks/report/aims.py is out of date"
HEADS: Final = ("what", "aim", "measured", *PEERS, "ratio", "")
"""The ratio, or the difference, is what is bounded where there is one of its own."""

_Known = dict[FigureOf, Figure]


class Row(NamedTuple):
    """One aim and what is known of it.

    Attributes:
        figure: that is bounded; None where it was not measured.
        ours: the figure of ours that is shown.
        peers: their figures, in the order of PEERS.
        reason: why it was not measured, or "".
    """

    aim: Aim
    figure: Figure | None
    ours: Figure | None
    peers: list[Figure | None]
    reason: str = ""

    @property
    def verdict(self) -> str:
        """Whether it is met, with what a reader must know to believe it."""
        if self.figure is None:
            return f"{NOT_MEASURED}: {self.reason}"
        said = self.aim.said_of(self.figure.value)
        runs = len(self.figure.runs)
        if self.figure.limited:
            said += f"; the load generator was the limit in {self.figure.limited} of {runs} runs"
        return said


def rows_of(report: BenchmarkReport) -> list[Row]:
    """A row for each aim whose measurement was to be made; what was not asked for has none."""
    results = report.results
    known = {
        FigureOf(result.measurement, figure.name): figure
        for result in results
        for figure in result.figures
    }
    failed = {one.measurement: f"failed: {one.error}" for one in results if one.error}
    reasons = report.skipped | failed
    asked = {one.measurement for one in results} | report.skipped.keys()
    return [_row(aim, known, reasons, report) for aim in AIMS if aim.figure.measurement in asked]


def _row(aim: Aim, known: _Known, reasons: dict[str, str], report: BenchmarkReport) -> Row:
    figure = known.get(aim.figure)
    ours = known.get(aim.ours) if aim.ours is not None else figure
    peers = [known.get(aim.peers[name]) if name in aim.peers else None for name in PEERS]
    reason = "" if figure is not None else _reason(aim, reasons, report)
    return Row(aim, figure, ours, peers, reason)


def _reason(aim: Aim, reasons: dict[str, str], report: BenchmarkReport) -> str:
    said = reasons.get(aim.figure.measurement)
    if said is not None:
        return said
    known = {name.lower() for name in report.missing_peers}
    if aim.ours is not None and aim.peers and {name.lower() for name in aim.peers} <= known:
        return f"{' and '.join(aim.peers)} missing"
    return "not at the sizes of --quick" if report.quick else UNKNOWN


def unknown_of(rows: Sequence[Row]) -> list[Aim]:
    """The aims whose figures a full run has not by that name."""
    return [row.aim for row in rows if row.reason == UNKNOWN]


# As text


def cells_of(row: Row) -> list[str]:
    """The texts of one row, as under HEADS."""
    ratio = ""
    if row.figure is not None and row.aim.ours is not None:
        ratio = _value_text(row.figure)
    return [
        row.aim.what,
        row.aim.bound,
        _value_text(row.ours),
        *(_short_text(figure) for figure in row.peers),
        ratio,
        row.verdict,
    ]


def _value_text(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return f"{value_text(figure)} {figure.unit}{_spread(figure)}"


def _short_text(figure: Figure | None) -> str:
    return "" if figure is None else f"{number_text(figure.value)} {figure.unit}"


def _spread(figure: Figure) -> str:
    if len(figure.runs) < 2:
        return ""
    return f" ({number_text(min(figure.runs))}..{number_text(max(figure.runs))})"


def summary_of(rows: Sequence[Row]) -> str:
    """How many are met."""
    verdicts = [row.verdict for row in rows]
    met, missed = (sum(one.startswith(word) for one in verdicts) for word in (MET, MISSED))
    return f"{met} met, {missed} missed, {len(rows) - met - missed} not measured in this run"


def table_lines(report: BenchmarkReport) -> Iterator[str]:
    """The closing section of a run; nothing where no aim was asked for."""
    rows = rows_of(report)
    if not rows:
        return
    yield ""
    yield "== aims: on two cores; medians, the least and the most of the runs"
    cells = [list(HEADS), *map(cells_of, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for texts in cells:
        padded = (f"{text:{width}}" for text, width in zip(texts, widths, strict=True))
        yield "  ".join(padded).rstrip()
    yield summary_of(rows) + (", QUICK: rough figures" if report.quick else "")
    left_out = len(AIMS) - len(rows)
    if left_out:
        yield f"{left_out} more aims are of measurements that were not asked for"


def markdown_lines(report: BenchmarkReport) -> Iterator[str]:
    """The same as docs/benchmarks.md has it."""
    machine = report.machine
    seconds = sum(result.seconds for result in report.results)
    yield (
        f"{machine.date}, {machine.processors} x {machine.processor}, {machine.memory_gib:g} GiB,"
        f" {machine.python}; load average before the run {machine.load}; it took"
        f" {seconds / 60:.0f} minutes."
    )
    yield (
        f"Peers: {', '.join(report.peers.values()) or 'none'}. Seed {machine.seed}."
        f"{' QUICK: rough figures.' if report.quick else ''}"
    )
    yield ""
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    rows = rows_of(report)
    for row in rows:
        yield f"| {' | '.join(text.replace('|', '/') for text in cells_of(row))} |"
    yield ""
    yield summary_of(rows) + "."
