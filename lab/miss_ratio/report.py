"""Curves and regret as tables, JSON, CSV and a plot."""

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from lab.miss_ratio.miss_ratio import Curve, Point
from lab.miss_ratio.regret import Regret
from replay.traces.counts import counted
from replay.traces.session_hits import Distribution, session_line
from schemas.extras import need

_ROWS: Final = 16
"""Of a table, where no sizes are named."""

_SPAN: Final = 1000
"""Of the largest size of such a table to its least."""

_SAMPLED_MIN: Final = 64
"""Blocks of a sample that can say anything: four for each group by which its error is measured."""

_DPI: Final = 110

_CSV_FIELDS: Final = (
    *("what", "source", "tenant", "model", "block_size", "medium"),
    *("cache_blocks", "cache_tokens", "block_hit_rate", "token_hit_rate", "standard_error"),
    *("seconds", "removed", "stored_again", "open", "share"),
)


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """All that one command found.

    Attributes:
        curves: of each file, tenant, model and block size.
        regrets: of each file, tenant, model and medium; of captures alone.
        sessions: by the file, of traces that name sessions: which share of the blocks of each hits
            in one cache for all requests that never evicts.
        notes: what a reader should know.
    """

    curves: list[Curve]
    regrets: list[Regret]
    notes: list[str]
    sessions: dict[str, Distribution] = {}


def to_json(analysis: Analysis) -> bytes:
    """One object, indented."""
    return msgspec.json.format(msgspec.json.encode(analysis), indent=2) + b"\n"


def to_csv(analysis: Analysis) -> str:
    """A line for each size of each curve (`hit_rate`), and each time of each regret (`regret`)."""
    out = io.StringIO()
    writer = csv.DictWriter(out, _CSV_FIELDS, lineterminator="\n")
    writer.writeheader()
    for curve in analysis.curves:
        for point in curve.points:
            row = {"what": "hit_rate", **asdict(curve.scope)}
            row |= {"cache_blocks": point.blocks, "cache_tokens": point.tokens}
            row |= {"block_hit_rate": f"{point.block_hit_rate:.6f}"}
            row |= {"token_hit_rate": f"{point.token_hit_rate:.6f}"}
            writer.writerow(row | {"standard_error": f"{point.error:.6f}"})
    for regret in analysis.regrets:
        for one in regret.within:
            row = {"what": "regret", **asdict(regret.scope), "medium": regret.scope.medium.value}
            row |= {"seconds": f"{one.seconds:g}", "removed": regret.removed}
            row |= {"stored_again": one.stored_again, "open": one.open}
            writer.writerow(row | {"share": f"{one.share:.6f}"})
    return out.getvalue()


def text_lines(analysis: Analysis, *, all_points: bool) -> Iterator[str]:
    """The tables of a terminal.

    Args:
        analysis: what to show.
        all_points: every size; else so many of each curve as a reader can take in.
    """
    for curve in analysis.curves:
        yield from _curve_lines(curve, all_points=all_points)
        if rates := analysis.sessions.get(curve.scope.source):
            yield session_line(rates)
        yield ""
    for regret in analysis.regrets:
        yield from _regret_lines(regret)
        yield ""


def _curve_lines(curve: Curve, *, all_points: bool) -> Iterator[str]:
    scope = curve.scope
    accesses = counted(curve.accesses, "block")
    yield f"{title_of(curve)}: {accesses} of {scope.block_size} tokens accessed"
    if curve.sample_rate < 1 and curve.sampled_blocks < _SAMPLED_MIN:
        yield (
            f"the sample has {counted(curve.sampled_blocks, 'block')}, too few to say how many hit:"
            " a larger --sample does"
        )
        return
    how = (
        "exact"
        if curve.sample_rate == 1
        else (f"sampled: {counted(curve.sampled_blocks, 'block')}, {100 * curve.sample_rate:.3g} %")
    )
    yield (
        f"{'' if curve.sample_rate == 1 else 'about '}{curve.distinct_blocks:,} different ones;"
        f" at most {100 * curve.block_hit_rate:.1f} % of blocks hit,"
        f" {100 * curve.token_hit_rate:.1f} % of tokens, from"
        f" {counted(curve.full_at_blocks, 'block')} on;"
        f" {how}"
    )
    head = ("blocks", "tokens", "hit % of blocks", "of tokens", "of the most", "+- %")
    yield _row(head)
    for point in curve.points if all_points else _chosen(curve.points):
        most = curve.block_hit_rate
        yield _row(
            (
                f"{point.blocks:,}",
                f"{point.tokens:,}",
                f"{100 * point.block_hit_rate:.1f}",
                f"{100 * point.token_hit_rate:.1f}",
                f"{100 * point.block_hit_rate / most:.1f}" if most else "-",
                f"{100 * point.error:.1f}" if point.error else "-",
            )
        )
    if not scope.model:
        yield (
            "one cache for all requests; of several engines each with its own:"
            " reprise simulate TRACE --sweep capacity=1M,3M,9M,unbounded"
        )


def _row(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>16}" for cell in cells).rstrip()


def _chosen(points: Sequence[Point]) -> list[Point]:
    """So many of them, evenly, of the last three powers of ten: below, curves are flat."""
    points = [point for point in points if point.blocks * _SPAN >= points[-1].blocks]
    if len(points) <= _ROWS:
        return list(points)
    last = len(points) - 1
    return [points[round(step * last / (_ROWS - 1))] for step in range(_ROWS)]


def title_of(curve: Curve) -> str:
    """The file, and of a capture the tenant and the model."""
    scope = curve.scope
    return " / ".join((scope.source, scope.tenant, scope.model) if scope.model else (scope.source,))


def _regret_lines(regret: Regret) -> Iterator[str]:
    scope = regret.scope
    yield (
        f"{scope.source} / {scope.tenant} / {scope.model} / {scope.medium.value}:"
        f" {counted(regret.removed, 'block')} removed, {regret.stored:,} stored"
    )
    yield _row(("within s", "stored again", "% of removed", "open"))
    for one in regret.within:
        share = f"{100 * one.share:.1f}" if regret.removed else "-"
        yield _row((f"{one.seconds:g}", f"{one.stored_again:,}", share, f"{one.open:,}"))


def plot_of(analysis: Analysis) -> bytes:
    """All curves as one PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    need("matplotlib").use("Agg")
    figure = need("matplotlib.figure").Figure(figsize=(8, 5), layout="constrained")
    axes: Any = figure.subplots()
    for curve in analysis.curves:
        sizes = [point.tokens for point in curve.points]
        rates = [100 * point.block_hit_rate for point in curve.points]
        (line,) = axes.plot(sizes, rates, label=title_of(curve))
        if curve.sample_rate < 1:
            errors = [100 * point.error for point in curve.points]
            low = [rate - error for rate, error in zip(rates, errors, strict=True)]
            high = [rate + error for rate, error in zip(rates, errors, strict=True)]
            axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2)
        axes.axhline(100 * curve.block_hit_rate, color=line.get_color(), ls=":", lw=0.8)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size of the cache, tokens")
    axes.set_ylabel("hit rate, % of blocks")
    axes.grid(alpha=0.3)
    if analysis.curves:
        axes.legend(fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI, metadata={"Software": None})
    return out.getvalue()
