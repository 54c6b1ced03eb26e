"""All runs of a command together. It has no times of its own: the same runs give the same bytes."""

from collections.abc import Sequence
from typing import Final

import msgspec

from lab.whatif.outcome import RunOutcome
from lab.whatif.sweep import Job
from lab.whatif.workload import Workload
from replay.traces.session_hits import Distribution
from routing.costs import Costs

VERSION: Final = 1


class TraceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace has.

    Attributes:
        name: of its file.
        requests, blocks, distinct_blocks, tokens: of all of it.
        block_size: tokens for each block.
        seconds: from the first request to the last.
        notes: what is wrong with it.
        cut: why only a part was read; "" where all was.
        session_hits: of sessions that the trace names, which share of the blocks of each hits in
            one cache for all requests that never evicts.
    """

    name: str
    requests: int
    blocks: int
    distinct_blocks: int
    tokens: int
    block_size: int
    seconds: float
    notes: list[str] = []
    cut: str = ""
    session_hits: Distribution | None = None


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison on a trace comes to, in sentences; see `conclusion.py`."""

    trace: str
    sentences: list[str]


class ReportedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and where it stands among the others; see `lab.whatif.sweep.Job`."""

    group: str
    value: str
    x: float
    block_hit_rate: float
    token_hit_rate: float
    work: float
    outcome: RunOutcome


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A report.

    Attributes:
        version: of this form.
        cost_model: in words.
        model: what is simulated and what is not, in words.
        traces: what was run on.
        runs: in the order of the plan.
        conclusions: of each trace.
    """

    version: int
    cost_model: str
    model: str
    traces: list[TraceFacts]
    runs: list[ReportedRun]
    conclusions: list[Conclusion] = []


MODEL: Final = (
    "Each node computes one prompt after the other, without batching, and decodes nothing. The"
    " router knows the nodes' waits exactly where nothing else is said. A fetch costs its receiver"
    " time, its source none."
    " Hit rates count what was not computed, fetched blocks included."
)


def describe_costs(costs: Costs) -> str:
    """The cost model in words, with its numbers."""
    fixed = f"{costs.fixed_s:g} + " if costs.fixed_s else ""
    return (
        f"prefill of L tokens, C of them cached = {fixed}(L - C) / {costs.prefill_tokens_per_s:g}"
        f" + {costs.token_squared_s:g} * (L^2 - C^2) s; load from the CPU"
        f" {costs.load_tokens_per_s:,.0f}, fetch from a node {costs.fetch_tokens_per_s:,.0f}, from"
        f" the pool {costs.pool_tokens_per_s:,.0f} tokens/s"
    )


def groups_of(document: Document, trace: str) -> dict[str, list[ReportedRun]]:
    """The runs of one trace by group, in their order."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in document.runs:
        if run.outcome.trace == trace:
            groups.setdefault(run.group, []).append(run)
    return groups


def facts_of(workload: Workload, notes: Sequence[str], cut: str = "") -> TraceFacts:
    """Of one workload."""
    arrivals = workload.arrivals_s
    return TraceFacts(
        name=workload.name,
        requests=len(workload),
        blocks=workload.block_count,
        distinct_blocks=workload.distinct,
        tokens=sum(workload.prompt_tokens),
        block_size=workload.block_size,
        seconds=arrivals[-1] - arrivals[0] if arrivals else 0.0,
        notes=list(notes),
        cut=cut,
        session_hits=workload.session_hits,
    )


def document_of(
    jobs: Sequence[Job], outcomes: Sequence[RunOutcome], traces: Sequence[TraceFacts]
) -> Document:
    """Of what `lab.whatif.sweep.run_all` returned for the jobs."""
    return Document(
        version=VERSION,
        cost_model=describe_costs(jobs[0].setup.costs),
        model=MODEL,
        traces=list(traces),
        runs=[
            ReportedRun(
                group=job.group,
                value=job.value,
                x=job.x,
                block_hit_rate=outcome.block_hit_rate,
                token_hit_rate=outcome.token_hit_rate,
                work=outcome.work,
                outcome=outcome,
            )
            for job, outcome in zip(jobs, outcomes, strict=True)
        ],
    )


def to_json(document: Document) -> bytes:
    """The document, indented; infinite numbers become null."""
    return msgspec.json.format(msgspec.json.encode(document)) + b"\n"
