"""Runs as lines of text, and as CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from lab.whatif.outcome import DecodeOutcome, RunOutcome
from lab.whatif.plan import IDEAL, POLICIES_GROUP
from lab.whatif.report.conclusion import (
    best_of,
    conclusion_of,
    explanations_of,
    is_overloaded,
    spoken,
)
from lab.whatif.report.document import Document, ReportedRun, TraceFacts, groups_of
from lab.whatif.setup import RouterKnowledge, Setup
from replay.traces.counts import counted
from replay.traces.session_hits import session_line

Cell = Callable[[ReportedRun], str]

COLUMNS: Final[Mapping[str, Cell]] = {
    "hit blocks": lambda run: f"{run.block_hit_rate:.1%}",
    "tokens": lambda run: f"{run.token_hit_rate:.1%}",
    "work": lambda run: f"{run.work:.1%}",
    "TTFT mean": lambda run: spoken(run.outcome.ttft.mean),
    "p50": lambda run: spoken(run.outcome.ttft.p50),
    "p90": lambda run: spoken(run.outcome.ttft.p90),
    "p99": lambda run: spoken(run.outcome.ttft.p99),
    "imbalance": lambda run: f"{run.outcome.imbalance:.2f}",
}
"""Of a table for people, besides the label: title, and what stands there."""

TIMES: Final = ("TTFT mean", "p50", "p90", "p99")
OVERLOADED: Final = "overloaded"

DECODE_COLUMNS: Final = ("decoded", "wasted", "both in time", "TBT p90 ms", "swing", "phase")
"""The same, where there are instances that decode."""

COPY_COLUMNS: Final = ("copies", "copied")
"""The same, where advice is carried out."""

LEGEND: Final = (
    "*: the shortest mean TTFT of those that overload no node, a simulated engine; several: a tie.",
    "hit blocks, tokens: shares of the prompts that were not computed, fetched blocks included."
    " of ideal: hit blocks, as a share of those of `ideal`.",
    "work: busy seconds of all nodes, as a share of those without any cache. imbalance: the busiest"
    " node's seconds over the mean.",
    "overloaded: a node was given more seconds of work than the trace lasts: its TTFT says how long"
    " the trace is.",
    "shared pool: one cache of the nodes' total size, read at the pool's speed, so perhaps slower"
    " than caches of their own. ideal: one unbounded cache for all nodes, read at no cost.",
    "rate x1: requests come as in the trace. index delay: from a change of a cache until the router"
    " knows it. index loss: share of the event batches that never come. told at arrival, at finish:"
    " when a node publishes the blocks of a request.",
)


def rows_of(group: str, runs: Sequence[ReportedRun], trace: TraceFacts) -> list[list[str]]:
    """Titles, then a row for each run; with the share of the ideal hit rate where that was run. The
    best policy has a `*`, and one that overloads a node no TTFT.
    """
    ideal = next((run.block_hit_rate for run in runs if run.outcome.label == IDEAL), 0.0)
    refused = any(run.outcome.setup.slo_ttft_s or run.outcome.refused for run in runs)
    head = ["policy" if group == POLICIES_GROUP else f"{group}, policy", *COLUMNS]
    if ideal:
        head.insert(3, "of ideal")
    if refused:
        head += ["refused", "needless", "in time"]
    acting = any(run.outcome.setup.act_s for run in runs)
    if acting:
        head += COPY_COLUMNS
    if any(run.outcome.decode for run in runs):
        head += DECODE_COLUMNS
    best = best_of(runs, trace) if group == POLICIES_GROUP else []
    rows = [head]
    for run in runs:
        label = f"{run.outcome.label} *" if run in best else run.outcome.label
        row = [f"{run.value}  {label}" if run.value else label]
        over = is_overloaded(run.outcome, trace)
        row += [
            OVERLOADED if over and name in TIMES else cell(run) for name, cell in COLUMNS.items()
        ]
        if ideal:
            row.insert(3, f"{run.block_hit_rate / ideal:.0%}")
        if refused:
            row += [f"{count:,}" for count in _refusals(run.outcome)]
        if acting:
            row += _copied(run.outcome)
        if len(head) > len(row):
            row += _decoding(run.outcome.decode)
        rows.append(row)
    return rows


def _refusals(one: RunOutcome) -> tuple[int, int, int]:
    return one.refused, one.needless, one.within


def _copied(one: RunOutcome) -> list[str]:
    return [f"{one.copies:,}", f"{one.copied_blocks / max(one.blocks, 1):.1%}"]


def _decoding(one: DecodeOutcome | None) -> list[str]:
    if one is None:
        return [""] * len(DECODE_COLUMNS)
    counts = [f"{count:,}" for count in (one.requests, one.wasted, one.within)]
    return [*counts, f"{1000 * one.tbt.p90:.1f}", f"{one.swing:.3f}", f"{one.phase:.2f}"]


def text_lines(document: Document) -> Iterator[str]:
    """All of it for a terminal."""
    for trace in document.traces:
        yield from conclusion_of(document, trace)
        yield ""
        yield trace_line(trace)
        if trace.session_hits is not None:
            yield session_line(trace.session_hits)
        for note in trace.notes:
            yield f"  note: {note}"
        for group, runs in groups_of(document, trace.name).items():
            yield ""
            yield setup_line(runs[0], group)
            yield from aligned(rows_of(group, runs, trace))
            if group == POLICIES_GROUP:
                yield from (f"  {line}" for line in explanations_of(runs))
        yield ""
    yield from LEGEND
    yield f"Cost model: {document.cost_model}."
    yield document.model


def trace_line(trace: TraceFacts) -> str:
    """What a trace has, in one line."""
    return (
        f"{trace.name}: {counted(trace.requests, 'request')} in {trace.seconds:,.0f} s,"
        f" {trace.tokens:,} tokens in {trace.blocks:,} blocks of {trace.block_size},"
        f" {trace.distinct_blocks:,} of them distinct"
    )


def setup_line(run: ReportedRun, group: str) -> str:
    """What the runs of a group have in common, but for what is swept."""
    setup = run.outcome.setup
    parts = {
        "nodes": "one node" if setup.nodes == 1 else f"{setup.nodes} nodes",
        "capacity": f"{_blocks(setup.gpu_blocks)} each",
        "cpu-capacity": f"CPU {_blocks(setup.cpu_blocks)}" if setup.cpu_blocks != 0 else "",
        "pool-capacity": f"pool {_blocks(setup.pool_blocks)}" if setup.pool_blocks != 0 else "",
        "rate": f"rate x{setup.rate:g}",
        "delay": f"index delay {setup.index_delay_s:g} s, told at {setup.announce}",
        "loss": f"index loss {setup.index_loss:.1%}",
        "index": "" if setup.index is RouterKnowledge.EVENTS else f"the router knows {setup.index}",
        "decisions": f"for {setup.decisions_s:g} s"
        if setup.index is RouterKnowledge.DECISIONS
        else "",
        "sessions": "sessions preferred" if setup.sessions else "",
        "slo-ttft": f"TTFT objective {setup.slo_ttft_s:g} s" if setup.slo_ttft_s else "",
        "leases": "leases as Mooncake's store" if setup.leases else "",
        "refusal": f"refusal {setup.refusal}" if _has_objective(setup) else "",
        "load-age": _load_age(setup),
        "estimate-error": f"estimates off by {setup.estimate_error:g}"
        if setup.estimate_error
        else "",
        "act": f"advice carried out every {setup.act_s:g} s" if setup.act_s else "",
        "decoders": counted(setup.decoders, "decoder") if setup.decoders else "",
        "slo-tbt": f"TBT objective {1000 * setup.slo_tbt_s:g} ms" if setup.slo_tbt_s else "",
        "seed": f"seed {setup.seed}",
    }
    swept = {"one-cache": "capacity"}.get(group, group)
    return ", ".join(text for name, text in parts.items() if text and name != swept)


def _has_objective(setup: Setup) -> bool:
    return bool(setup.slo_ttft_s or setup.slo_tbt_s)


def _load_age(setup: Setup) -> str:
    if not setup.load_age_s:
        return ""
    bookings = "" if setup.bookings else ", no bookings"
    return f"loads told every {setup.load_age_s:g} s{bookings}"


def _blocks(capacity: int | None) -> str:
    return "unbounded" if capacity is None else counted(capacity, "block")


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns under one another; the first column is text, the others are numbers."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        first, *others = (
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join([first, *others]).rstrip()


def to_csv(document: Document) -> str:
    """One line for each run, with the numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            *("trace", "group", "value", "label", "policy", "nodes", "gpu_blocks", "cpu_blocks"),
            *("pool_blocks", "index_delay_s", "index_loss", "announce", "rate", "seed"),
            *("requests", "refused", "blocks", "hit_blocks", "tokens", "hit_tokens"),
            *("fetched_blocks", "block_hit_rate", "token_hit_rate", "work", "ttft_mean_s"),
            *("ttft_p50_s", "ttft_p90_s", "ttft_p99_s", "ttft_max_s", "imbalance"),
            *("promised_tokens", "over_promised_tokens", "lost_batches", "needless", "within"),
            *("refusal", "load_age_s", "bookings", "estimate_error", "decoders", "slo_tbt_s"),
            *("decoded", "wasted", "within_both", "tbt_p90_s", "decode_swing", "decode_phase"),
            *("index", "decisions_s", "sessions"),
            *("act_s", "copies", "copied_blocks"),
        ]
    )
    for run in document.runs:
        one, setup = run.outcome, run.outcome.setup
        writer.writerow(
            [
                *(one.trace, run.group, run.value, one.label, setup.policy, setup.nodes),
                *(_cell(setup.gpu_blocks), _cell(setup.cpu_blocks), _cell(setup.pool_blocks)),
                *(setup.index_delay_s, setup.index_loss, setup.announce, setup.rate, setup.seed),
                *(one.requests, one.refused, one.blocks, one.hit_blocks, one.tokens),
                *(one.hit_tokens, one.fetched_blocks, run.block_hit_rate, run.token_hit_rate),
                *(run.work, one.ttft.mean, one.ttft.p50, one.ttft.p90, one.ttft.p99),
                *(one.ttft.max, one.imbalance, one.promised_tokens, one.over_promised_tokens),
                *(one.lost_batches, one.needless, one.within, setup.refusal, setup.load_age_s),
                *(setup.bookings, setup.estimate_error, setup.decoders, setup.slo_tbt_s),
                *_decode_cells(one.decode),
                *(setup.index, setup.decisions_s, setup.sessions),
                *(setup.act_s, one.copies, one.copied_blocks),
            ]
        )
    return out.getvalue()


def _decode_cells(one: DecodeOutcome | None) -> list[float | str]:
    if one is None:
        return [""] * len(DECODE_COLUMNS)
    return [one.requests, one.wasted, one.within, one.tbt.p90, one.swing, one.phase]


def _cell(capacity: int | None) -> int | str:
    return "unbounded" if capacity is None else capacity
