"""What a comparison comes to, before its tables: which policy is best, by how much, how sure."""

from collections.abc import Iterator, Sequence
from typing import Final

from lab.whatif.outcome import Outcome
from lab.whatif.plan import IDEAL, NOT_CHOSEN, POLICIES_GROUP
from lab.whatif.policies.table import ALL_POLICIES
from lab.whatif.report.document import Document, ReportedRun, TraceFacts, groups_of

_SURE: Final = 0.9
_LIKELY: Final = 0.7
"""Shares of the trace's parts in which the best has the shorter mean."""


def is_overloaded(outcome: Outcome, trace: TraceFacts) -> bool:
    """Whether a node was given more work than there is time: its queue grows as long as requests
    come, and its TTFT says how long the trace is.
    """
    seconds = trace.seconds / outcome.setup.rate
    return any(node.busy_s > seconds for node in outcome.nodes) and seconds > 0


def best_of(runs: Sequence[ReportedRun], trace: TraceFacts) -> ReportedRun | None:
    """The policy with the shortest mean TTFT of those that overload no node; None where all do, or
    none was compared.
    """
    chosen = [run for run in _chosen(runs) if not is_overloaded(run.outcome, trace)]
    return min(chosen, key=lambda run: run.outcome.ttft.mean, default=None)


def conclusion_of(document: Document, trace: TraceFacts) -> Iterator[str]:
    """Sentences for people."""
    runs = groups_of(document, trace.name).get(POLICIES_GROUP, [])
    overloaded = [run for run in _chosen(runs) if is_overloaded(run.outcome, trace)]
    best = best_of(runs, trace)
    if best is not None:
        yield from _praise(best, runs, trace)
    if overloaded:
        names = ", ".join(run.outcome.label for run in overloaded)
        yield (
            f"Overloaded, so that queues grow until the end: {names}."
            if best is not None
            else f"Each policy overloads a node, so that queues grow until the end: {names}. More"
            " nodes (--nodes) or a lower rate (--rate) can be compared."
        )


def explanations_of(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """A line for each policy that was compared."""
    for run in _chosen(runs):
        name = run.outcome.setup.policy.partition(":")[0]
        yield f"{run.outcome.label}: {ALL_POLICIES[name].summary}"


def _chosen(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if run.outcome.label not in NOT_CHOSEN]


def _praise(best: ReportedRun, runs: Sequence[ReportedRun], trace: TraceFacts) -> Iterator[str]:
    one = best.outcome
    ideal = next((run.block_hit_rate for run in runs if run.outcome.label == IDEAL), 0.0)
    of_ideal = f", {best.block_hit_rate / ideal:.0%} of an unbounded cache's" if ideal else ""
    yield (
        f"Best on {trace.name}: {one.label}, with a mean TTFT of {one.ttft.mean:.2f} s and"
        f" {best.block_hit_rate:.1%} of the blocks from a cache{of_ideal}."
    )
    others = [
        run.outcome
        for run in _chosen(runs)
        if run is not best and not is_overloaded(run.outcome, trace)
    ]
    if not others:
        return
    second = min(others, key=lambda other: other.ttft.mean)
    less = 1 - one.ttft.mean / second.ttft.mean if second.ttft.mean else 0.0
    parts = list(zip(one.ttft_parts, second.ttft_parts, strict=False))
    won = sum(ours < theirs for ours, theirs in parts)
    share = won / len(parts) if parts else 0.0
    if share >= _SURE:
        sure = "so surely better on a trace like this"
    elif share >= _LIKELY:
        sure = "so probably better on a trace like this"
    else:
        sure = "so this trace does not tell them apart"
    yield (
        f"That is {less:.0%} less than {second.label} ({second.ttft.mean:.2f} s), the next best;"
        f" in {won} of {len(parts)} equal parts of the trace its mean is the lower one: {sure}."
    )
