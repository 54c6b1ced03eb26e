"""Runs as pictures: policies as bars, each sweep as lines. Needs matplotlib."""

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from lab.whatif.plan import POLICIES_GROUP
from lab.whatif.report.conclusion import is_overloaded, spoken
from lab.whatif.report.document import Document, ReportedRun, TraceFacts, groups_of
from lab.whatif.report.table import OVERLOADED, setup_line
from schemas.extras import need

_COLOURS: Final = ("#1b6ca8", "#d1495b", "#66a182", "#8d6a9f", "#edae49", "#2e4057")
_OVER: Final = "#d9d9d9"
_DPI: Final = 110
_WIDE: Final = 50.0
"""How many times as large as the least value the largest is where an axis becomes logarithmic."""

_AXES: Final = {
    "capacity": "capacity of each node, tokens",
    "cpu-capacity": "CPU tier of each node, tokens",
    "pool-capacity": "shared pool, tokens",
    "one-cache": "capacity of one cache for all requests, tokens",
    "delay": "index delay, s",
    "loss": "share of the batches that the index loses",
    "rate": "rate, times the trace's",
    "slo-ttft": "TTFT objective, s",
}


class Picture(NamedTuple):
    """One PNG.

    Attributes:
        name: of its file, without an ending.
        title: of people.
        caption: what the runs have in common.
        png: the bytes.
    """

    name: str
    title: str
    caption: str
    png: bytes


def pictures_of(document: Document) -> Iterator[Picture]:
    """A picture for each group of runs of each trace.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    need("matplotlib").use("Agg")
    for number, trace in enumerate(document.traces):
        prefix = f"{number + 1}-" if len(document.traces) > 1 else ""
        for group, runs in groups_of(document, trace.name).items():
            drawing = _bars(runs, trace) if group == POLICIES_GROUP else _lines(group, runs, trace)
            title = "policies" if group == POLICIES_GROUP else _AXES.get(group, group)
            yield Picture(
                prefix + group.replace(".", "-"),
                f"{trace.name}: {title}",
                setup_line(runs[0], group),
                _png(drawing, f"{trace.name}: {setup_line(runs[0], group)}"),
            )


def _bars(runs: Sequence[ReportedRun], trace: TraceFacts) -> Any:
    figure, (left, right) = _panels(height=1.2 + 0.34 * len(runs))
    labels = [run.outcome.label for run in runs]
    places = range(len(runs))
    bars = left.barh(places, [100 * run.block_hit_rate for run in runs], color=_COLOURS[0])
    left.bar_label(bars, fmt="%.1f", padding=3)
    left.set_xlabel("hit rate, % of blocks")
    left.set_yticks(places, labels)
    over = [is_overloaded(run.outcome, trace) for run in runs]
    # What grows with the trace is not drawn to scale: it would flatten all others.
    known = [run.outcome.ttft.mean for run, is_over in zip(runs, over, strict=True) if not is_over]
    longest = max(known, default=1.0)
    means = [
        longest if is_over else run.outcome.ttft.mean
        for run, is_over in zip(runs, over, strict=True)
    ]
    colours = [_OVER if is_over else _COLOURS[1] for is_over in over]
    bars = right.barh(places, means, color=colours)
    texts = [
        OVERLOADED
        if is_over
        else f"{spoken(run.outcome.ttft.mean)}, p90 {spoken(run.outcome.ttft.p90)}"
        for run, is_over in zip(runs, over, strict=True)
    ]
    right.bar_label(bars, texts, padding=3)
    right.set_xlabel("mean TTFT, s")
    right.set_yticks(places, [])
    if min(means) > 0 and max(means) > _WIDE * min(means):
        right.set_xscale("log")
    for axes, room in ((left, 0.15), (right, 0.5)):
        axes.invert_yaxis()
        axes.margins(x=room)
    return figure


def _lines(group: str, runs: Sequence[ReportedRun], trace: TraceFacts) -> Any:
    drawn = [run.outcome.ttft.mean for run in runs if not is_overloaded(run.outcome, trace)]
    figure, panels = _panels(height=4.0, columns=2 if drawn else 1)
    left, right = panels[0], panels[-1] if drawn else None
    lines: dict[str, list[ReportedRun]] = {}
    for run in runs:
        label = run.outcome.label.partition(":")[0] if "." in group else run.outcome.label
        lines.setdefault(label, []).append(run)
    finite = [run.x for run in runs if math.isfinite(run.x)]
    last = 3 * max(finite, default=1.0)
    for (label, line), colour in zip(lines.items(), _COLOURS * len(lines), strict=False):
        xs = [min(run.x, last) for run in line]
        hits = [100 * run.block_hit_rate for run in line]
        left.plot(xs, hits, "o-", color=colour, label=label)
        if right is None:
            continue
        ttfts = [
            math.nan if is_overloaded(run.outcome, trace) else run.outcome.ttft.mean for run in line
        ]
        right.plot(xs, ttfts, "o-", color=colour, label=label)
    left.set_ylabel("hit rate, % of blocks")
    left.set_ylim(bottom=0)
    if right is not None:
        right.set_ylabel("mean TTFT, s (none: overloaded)")
        if min(drawn) > 0 and max(drawn) > _WIDE * min(drawn):
            right.set_yscale("log")
    ticks = dict(sorted((min(run.x, last), run.value) for run in runs))
    for axes in panels:
        axes.set_xlabel(_AXES.get(group, group))
        _scale(axes, list(ticks))
        axes.set_xticks(list(ticks), list(ticks.values()), rotation=35)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.legend()
    return figure


def _scale(axes: Any, xs: Sequence[float]) -> None:
    positive = [x for x in xs if x > 0]
    if positive and max(positive) > 20 * min(positive):
        if min(xs) > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=min(positive))
            axes.set_xlim(min(xs) - 0.1 * min(positive), 1.3 * max(positive))


def _panels(height: float, columns: int = 2) -> Any:
    pyplot = need("matplotlib.figure")
    figure = pyplot.Figure(figsize=(11, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _png(figure: Any, title: str) -> bytes:
    figure.suptitle(title, fontsize=9)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI, metadata={"Software": None})
    return out.getvalue()
