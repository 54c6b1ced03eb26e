"""The table of aims names figures that the measurements make."""

from collections import Counter
from collections.abc import Iterator

import pytest

from lab.benchmarks.distributed import latency, pipeline
from lab.benchmarks.embedded import audit, fairness, ingest, large, policies, recovery
from lab.benchmarks.embedded.http_client import FORMS
from lab.benchmarks.embedded.publishers_process import SentPhase
from lab.benchmarks.index import cores, growth, memory
from lab.benchmarks.peers import beside, queries, removing
from lab.benchmarks.peers.indexers import DynamoIndexer, OurIndexer
from lab.benchmarks.report.aims import AIMS, BY_FIGURE, PEERS, Aim, FigureOf
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.routing.drive import Load
from lab.benchmarks.routing.outcomes import Drive, SentRequest
from lab.benchmarks.sizes import FULL
from lab.benchmarks.worker import MODULES
from routing.costs import Costs
from streams.kernel import open_kernel

PREFIXES = (OurIndexer.prefix, DynamoIndexer.prefix)
SENT = SentPhase(blocks=1, messages=1, last_sequence=1, started=0.0, seconds=1.0, late_s=0.0)


def of_peers() -> Iterator[Figure]:
    peers = {
        **dict.fromkeys(FORMS, queries.THEIRS),
        queries.BY_HASH: queries.THEIRS_BY_HASH,
        queries.THEIRS: "",
        queries.THEIRS_BY_HASH: "",
    }
    one = queries.QueryPass(1.0, 1.0, 1.0, 1.0, 1.0, False)
    for tokens in FULL.prompt_tokens:
        yield from queries.figures_of(tokens, {name: [one] for name in peers}, peers)


def of_beside() -> list[Figure]:
    one = beside.BesidePass([1.0], [1.0], True)
    return beside.figures_of({prefix: [one] for prefix in PREFIXES})


def of_removing() -> list[Figure]:
    one = removing.RemovingPass([1.0], [1.0], 1.0, True)
    return removing.figures_of({prefix: [one] for prefix in PREFIXES}, "")


def of_ingest() -> Iterator[Figure]:
    run = [ingest.IngestPhase(1.0, 1.0, False)] * 2
    for per_event in (64, 1):
        plan = ingest.plan_of(1000, per_event)
        yield from ingest.figures_of(plan, {prefix: [run] for prefix in PREFIXES})


def of_growth() -> list[Figure]:
    first = dict.fromkeys(growth.PROMPT_TOKENS, 1.0)
    found = []
    for held in FULL.growth_blocks:
        found += growth._cold_figures(dict(first), held, first, first)
    pauses = growth._Pauses(open_kernel(1337, name="reference"), b"")
    pauses.note([1.0])
    pauses._asked_ms.append(1.0)
    return [*found, *pauses.figures(FULL.growth_blocks[-1]), *growth._long_figures()]


def of_fairness(*patterns: str) -> Iterator[Figure]:
    for name, flood in fairness.floods(FULL).items():
        if flood is not None and flood.plan.pattern in patterns:
            yield from fairness.figures_of(name, [[1.0]])
            yield fairness.added(name, [[1.0]], 0.0)


def of_large() -> Iterator[Figure]:
    held = FULL.resident_blocks // 64 * 64
    for step in large.STEPS:
        name = f"{step.name.format(step.blocks(held))}: worst"
        yield Figure(name=name, unit="ms", runs=[1.0])


def of_pipeline() -> Iterator[Figure]:
    run = pipeline.PipelineRun(1.0, 1, 1, 1.0, {"bridge": 1.0, "broker": 1.0}, False)
    for publishers in FULL.pipeline_publishers:
        yield from pipeline.figures_of(publishers, 64, run)


def of_latency() -> Iterator[Figure]:
    for window_ms, flush_ms in latency.WINDOWS_MS:
        name = f"window {window_ms} ms, flush {flush_ms} ms, {FULL.latency_rate:,} blocks/s"
        yield from latency.figures_of(name, SENT, [1.0])


def of_recovery() -> Iterator[Figure]:
    held = f"{FULL.recovery_blocks:,} blocks"
    for case in ("empty", f"{held}, from the table", f"{held}, table deleted, whole log folded"):
        yield from recovery.figures_of(case, [(1.0, 1.0, 1.0)])


def of_audit() -> Iterator[Figure]:
    for tokens in (count for count in FULL.prompt_tokens if count <= audit.TOKENS_MAX):
        yield from audit.figures_of(tokens, [[1.0, 1.0]], 1)


def of_policies() -> list[Figure]:
    sent = [
        SentRequest(number=n, prompt_tokens=10, at=0.0, instance_id="a", promised_s=1.0, ttft_s=1.0)
        for n in range(1000)
    ]
    for one in sent:
        one.is_done = True
    drive = Drive(sent, [0.1], 0.0)
    load = Load([], [0.0, 1.0, 2.0], 1)
    rows = [policies.ModelRow("a", 1, 0.1, 0.1, 0.9)]
    return [
        *policies.comparison_figures(
            dict.fromkeys((*policies.POLICIES, policies.QUERY), drive), load, [Costs()]
        ),
        *policies.herd_figures(
            dict.fromkeys((policies.EXACT, policies.BOOKED, policies.UNBOOKED), drive)
        ),
        *policies.refusal_figures(drive),
        *policies.estimate_figures(drive, rows, 500),
    ]


def made() -> dict[str, list[Figure]]:
    threads = {threads: [cores._Pass(1.0, 1.0, False)] for threads in cores.THREADS}
    resident = [f"{case.name}: resident" for case in memory.CASES]
    return {
        "policies": of_policies(),
        "peers": [*of_peers()],
        "beside": of_beside(),
        "audit": [*of_audit()],
        "audit-replica": [*of_audit()],
        "removing": of_removing(),
        "cores": cores._figures(threads),
        "ingest": [*of_ingest()],
        "growth": of_growth(),
        "memory": [Figure(name=name, unit="B", runs=[1.0]) for name in resident],
        "recovery": [*of_recovery()],
        "fairness": [*of_fairness("stored", "removed", "cleared")],
        "large": [*of_large()],
        "partition": [*of_fairness("stored")],
        "pipeline": [*of_pipeline()],
        "latency": [*of_latency()],
    }


def test_what_is_aimed_at_is_measured_under_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "CHAIN_BLOCKS", 64)
    monkeypatch.setattr(growth, "LONG_TOKENS", growth.LINEAR_FROM)  # as it is named: see below
    measured = made()
    known = {FigureOf(name, figure.name) for name in measured for figure in measured[name]}
    wanted = {
        of
        for aim in AIMS
        for of in (aim.figure, *([aim.ours] if aim.ours else []), *aim.peers.values())
        if of.measurement in measured and "1024K tokens" not in of.name
    }
    assert wanted - known == set()


def test_each_aim_has_one_bound_and_one_measurement() -> None:
    assert Counter(aim.figure for aim in AIMS).most_common(1)[0][1] == 1
    assert len(BY_FIGURE) == len(AIMS)
    assert [aim.what for aim in AIMS if (aim.at_least is None) == (aim.at_most is None)] == []
    assert {aim.figure.measurement for aim in AIMS} <= MODULES.keys()
    assert {name for aim in AIMS for name in aim.peers} <= set(PEERS)


def test_a_bound_is_reached_where_it_is_touched() -> None:
    least = Aim(what="", figure=FigureOf("", ""), at_least=4.0)
    most = Aim(what="", figure=FigureOf("", ""), at_most=4.0)
    assert [least.said_of(value) for value in (3.99, 4.0, 4.01)] == ["MISSED", "met", "met"]
    assert [most.said_of(value) for value in (3.99, 4.0, 4.01)] == ["met", "met", "MISSED"]
    assert (least.bound, most.bound) == (">= 4", "<= 4")
