"""What a comparison comes to, before its tables, in the order in which a planner asks: whether
routing by prefix pays, which policy is best, how large a cache should be, what would change that.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lab.whatif.outcome import PARTS, RunOutcome
from lab.whatif.plan import (
    ALL,
    BLIND,
    CAPACITY_GROUP,
    LOAD_ALONE,
    NOT_CHOSEN,
    POLICIES_GROUP,
    tokens_said,
)
from lab.whatif.policies.table import ALL_POLICIES
from lab.whatif.report.document import (
    Conclusion,
    Document,
    ReportedRun,
    TraceFacts,
    groups_of,
)
from replay.traces.counts import counted
from routing.costs import Costs
from routing.policies.table import DEFAULT_POLICY

_SURE: Final = 9
_LIKELY: Final = 7
"""Of the PARTS of a trace, those in which the best has the shorter mean."""

_REQUESTS_MIN: Final = 100
"""Of a trace that can say anything: ten for each of its parts."""

_ALIKE: Final = 0.02
"""Share of a mean TTFT below which two policies are not worth a choice."""

_SAME: Final = 1e-9
"""Relative difference of equal sums: one request of other length is far more."""

_KNEE: Final = 0.95
"""Share of the hits of the largest caches from which on a size is enough."""


def concluded(document: Document) -> Document:
    """The document with its conclusions."""
    found = [
        Conclusion(trace=trace.name, sentences=list(conclusion_of(document, trace)))
        for trace in document.traces
    ]
    return msgspec.structs.replace(document, conclusions=found)


def spoken(seconds: float) -> str:
    """A time for people: `1.29 s`, `240 ms`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.2f} s" if seconds < 1000 else f"{seconds:,.0f} s"


def is_overloaded(outcome: RunOutcome, trace: TraceFacts) -> bool:
    """Whether a node was given more work than there is time: its queue grows as long as requests
    come, and its TTFT says how long the trace is.
    """
    seconds = trace.seconds / outcome.setup.rate
    return any(node.busy_s > seconds for node in outcome.nodes) and seconds > 0


def best_of(runs: Sequence[ReportedRun], trace: TraceFacts) -> list[ReportedRun]:
    """The policy with the shortest mean TTFT of those that overload no node, and those that are
    exactly as good; none where all overload one, or none was compared.
    """
    able = _able(runs, trace)
    return [run for run in able if _is_same(run, able[0])]


def conclusion_of(document: Document, trace: TraceFacts) -> Iterator[str]:
    """Sentences for people."""
    groups = groups_of(document, trace.name)
    runs = groups.get(POLICIES_GROUP, [])
    overloaded = [run.outcome.label for run in _chosen(runs) if is_overloaded(run.outcome, trace)]
    able = _able(runs, trace)
    if trace.cut:
        yield f"Only a part of {trace.name} was read: {trace.cut}."
    yield _gain(able, overloaded, trace)
    if able:
        yield _winner(able, len(_chosen(runs)), trace)
        yield from _terms(able)
    if overloaded:
        names = ", ".join(overloaded)
        yield (
            f"Overloaded, so that queues grow until the end: {names}."
            if able
            else f"Each policy overloads a node, so that queues grow until the end: {names}. More"
            " nodes (--nodes) or a lower rate (--rate) can be compared."
        )
    if trace.blocks > trace.distinct_blocks:
        yield from _cache(groups, able)
    if runs:
        yield _doubts(able, runs[0].outcome.setup.costs, trace)


def explanations_of(runs: Sequence[ReportedRun]) -> Iterator[str]:
    """A line for each policy that was compared."""
    for run in _chosen(runs):
        name = run.outcome.setup.policy.partition(":")[0]
        fetches = ", engines fetch blocks from one another" if run.outcome.fetched_blocks else ""
        yield f"{run.outcome.label}: {ALL_POLICIES[name].summary}{fetches}"


def _chosen(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    return [run for run in runs if run.outcome.label not in NOT_CHOSEN]


def _able(runs: Sequence[ReportedRun], trace: TraceFacts) -> list[ReportedRun]:
    """The policies that overload no node, the shortest mean TTFT first."""
    able = [run for run in _chosen(runs) if not is_overloaded(run.outcome, trace)]
    return sorted(able, key=_mean)


def _mean(run: ReportedRun) -> float:
    return run.outcome.ttft.mean


def _is_same(one: ReportedRun, other: ReportedRun) -> bool:
    return math.isclose(_mean(one), _mean(other), rel_tol=_SAME)


def _listed(runs: Sequence[ReportedRun]) -> str:
    """Their names, the service's own first."""
    *first, last = sorted((r.outcome.label for r in runs), key=lambda name: name != DEFAULT_POLICY)
    return f"{', '.join(first)} and {last}" if first else last


def _alike(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The best ones, between which a planner has no reason to choose; the service's own first."""
    alike = [run for run in runs if _mean(run) <= _mean(runs[0]) * (1 + _ALIKE / 4)]
    return sorted(alike, key=lambda run: run.outcome.label != DEFAULT_POLICY)


def _is_blind(run: ReportedRun) -> bool:
    return run.outcome.setup.policy.partition(":")[0] in BLIND


def _is_short(trace: TraceFacts) -> bool:
    return trace.requests < _REQUESTS_MIN


def _gain(able: Sequence[ReportedRun], overloaded: Sequence[str], trace: TraceFacts) -> str:
    """Whether routing by prefix pays, against a policy that looks at load alone."""
    if trace.blocks == trace.distinct_blocks:
        return (
            f"No block of {trace.name} repeats: neither routing by prefix nor a cache saves"
            " anything on this trace."
        )
    share = (trace.blocks - trace.distinct_blocks) / trace.blocks
    bound = (
        f"At most {share:.1%} of the blocks can ever be hit, by one unbounded cache of all engines."
    )
    plain = next((run for run in able if run.outcome.label == LOAD_ALONE), None)
    aware = [run for run in able if not _is_blind(run)]
    aware = _alike([run for run in aware if not run.outcome.fetched_blocks] or aware)
    if _is_short(trace):
        requests = counted(trace.requests, "request")
        return f"Too short to say what pays: {trace.name} has {requests}. {bound}"
    if aware and LOAD_ALONE in overloaded:
        name = aware[0].outcome.label
        return f"Routing by prefix pays: {LOAD_ALONE} overloads a node, {name} does not. {bound}"
    if plain is None or not aware:
        return f"{trace.name}: {bound[0].lower()}{bound[1:]}"
    one = aware[0].outcome
    less = 1 - one.ttft.mean / plain.outcome.ttft.mean if plain.outcome.ttft.mean else 0.0
    pays = "pays" if less >= _ALIKE else "does not pay" if less <= -_ALIKE else "changes little"
    return (
        f"Routing by prefix {pays} on {trace.name}: {one.label} has a mean TTFT of"
        f" {spoken(one.ttft.mean)} and hits {one.block_hit_rate:.1%} of the blocks; {LOAD_ALONE},"
        f" which looks at load alone, {spoken(plain.outcome.ttft.mean)} and"
        f" {plain.block_hit_rate:.1%}. {bound}"
    )


def _winner(able: Sequence[ReportedRun], compared: int, trace: TraceFacts) -> str:
    """Which policy is best, of how many, by how much, how sure."""
    best = [run for run in able if _is_same(run, able[0])]
    names = _listed(best)
    one = best[0].outcome
    of = f" (of {len(ALL)}; --all compares all)" if compared < len(ALL) else ""
    what = f"a mean TTFT of {spoken(one.ttft.mean)}, {best[0].block_hit_rate:.1%} of blocks hit"
    if compared == 1:
        return f"Compared with nothing: {names}, {what}."
    if len(best) == compared:
        return f"All {compared} compared{of} are exactly alike, a tie: {names}, {what}."
    said = f"Best of the {compared} compared{of}: {names}, {what}"
    if len(best) > 1:
        said += "; they are exactly alike, a tie"
    others = able[len(best) :]
    if not others:
        return f"{said}."
    second = others[0].outcome
    share = 1 - one.ttft.mean / second.ttft.mean
    less = f"{share:.0%} less" if share >= 0.01 else "less than 1% less"
    return (
        f"{said}. That is {less} than {second.label} ({spoken(second.ttft.mean)}), the next best:"
        f" {_sureness(one, second, trace)}."
    )


def _sureness(one: RunOutcome, second: RunOutcome, trace: TraceFacts) -> str:
    parts = list(zip(one.ttft_parts, second.ttft_parts, strict=False))
    if _is_short(trace) or len(parts) < PARTS:
        return f"too short to say how sure, with {counted(trace.requests, 'request')}"
    won = sum(ours < theirs for ours, theirs in parts)
    if won < _LIKELY:
        return "this trace does not tell the two apart"
    sure, enough = ("surely", _SURE) if won >= _SURE else ("probably", _LIKELY)
    return (
        f"{sure} better on traces like this ({sure}: the lower mean in at least {enough} of {PARTS}"
        f" equal parts of the trace; here in {won})"
    )


def _terms(able: Sequence[ReportedRun]) -> Iterator[str]:
    """What the best policy needs, and where it is worse than the next best."""
    one = able[0].outcome
    second = next((run.outcome for run in able if not _is_same(run, able[0])), None)
    if second is not None and one.ttft.p99 > second.ttft.p99 * (1 + _ALIKE / 2):
        yield (
            f"Its p99 is worse: {spoken(one.ttft.p99)}, and {spoken(second.ttft.p99)} of"
            f" {second.label}."
        )
    alone = [run for run in able if not run.outcome.fetched_blocks]
    if not one.fetched_blocks:
        return
    speed = one.setup.costs.fetch_tokens_per_s
    needs = (
        f"{one.label} needs engines that fetch blocks from one another, at {speed:,.0f} tokens/s"
    )
    if not alone:
        yield f"{needs}; no policy that fetches nothing was compared."
        return
    names = _listed(_alike(alone))
    yield f"{needs}; without that the best is {names} ({spoken(_mean(alone[0]))})."


def _cache(groups: dict[str, list[ReportedRun]], able: Sequence[ReportedRun]) -> Iterator[str]:
    """How many tokens an engine's cache should hold, of the best policy and the service's."""
    swept = groups.get(CAPACITY_GROUP, [])
    wanted = [DEFAULT_POLICY, *(run.outcome.label for run in able[:1])]
    labels = list(dict.fromkeys(run.outcome.label for run in swept))
    for label in [one for one in labels if one in wanted] or labels[:1]:
        sizes = sorted((run for run in swept if run.outcome.label == label), key=_x)
        if len(sizes) > 1:
            yield _knee(label, sizes)
    setup = groups[POLICIES_GROUP][0].outcome.setup if groups.get(POLICIES_GROUP) else None
    if not swept and setup is not None and setup.gpu_blocks:
        yield (
            "Cache: no sizes were tried; `--sweep capacity=1M,3M,9M,unbounded` says what each is"
            " worth."
        )


def _x(run: ReportedRun) -> float:
    return run.x


def _knee(label: str, runs: Sequence[ReportedRun]) -> str:
    top = runs[-1]
    most = top.block_hit_rate
    largest = "unbounded ones" if math.isinf(top.x) else f"{tokens_said(top.x)} tokens"
    if not most:
        return f"Cache ({label}): no size that was tried hits anything."

    def share(run: ReportedRun) -> str:
        return f"{run.block_hit_rate / most:.0%}"

    if runs[0].block_hit_rate >= _KNEE * most:
        return (
            f"Cache ({label}): {tokens_said(runs[0].x)} tokens an engine already give"
            f" {share(runs[0])} of the hits of {largest}."
        )
    below, knee = next(pair for pair in pairwise(runs) if pair[1].block_hit_rate >= _KNEE * most)
    if knee is top:
        return (
            f"Cache ({label}): larger is better: {tokens_said(below.x)} tokens an engine give"
            f" {share(below)} of the hits of {largest} (mean TTFT {spoken(_mean(below))} and"
            f" {spoken(_mean(top))})."
        )
    return (
        f"Cache ({label}): {tokens_said(knee.x)} tokens an engine give {share(knee)} of the hits of"
        f" {largest}, {tokens_said(below.x)} give {share(below)} (mean TTFT"
        f" {spoken(_mean(knee))}, {spoken(_mean(below))})."
    )


def _doubts(able: Sequence[ReportedRun], costs: Costs, trace: TraceFacts) -> str:
    """What would change the verdict."""
    reasons = []
    if _is_short(trace):
        reasons.append(f"more requests than {trace.requests:,}")
    default = ", here of a 70B model on eight A800" if costs == Costs() else ""
    reasons.append(f"the cost model{default} (`--costs prefill_tokens_per_s=...`)")
    if able and able[0].outcome.fetched_blocks:
        slower = f"fetch_tokens_per_s={costs.fetch_tokens_per_s / 10:g}"
        reasons.append(f"slow fetches, which cost their source nothing here (`--costs {slower}`)")
    reasons.append("the load (`--rate 1.5`, `--nodes`)")
    return f"What would change this: {'; '.join(reasons)}."
