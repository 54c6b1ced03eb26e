"""The table of aims names figures that the measurements make."""

from collections import Counter
from collections.abc import Iterator

import pytest

from lab.benchmarks.distributed import latency, pipeline
from lab.benchmarks.distributed.fleet_process import FleetSent
from lab.benchmarks.embedded import audit, fairness, ingest, large, policies, recovery
from lab.benchmarks.embedded.query import FORMS
from lab.benchmarks.index import cores, growth, memory
from lab.benchmarks.peers import beside, queries, removing
from lab.benchmarks.report.aims import AIMS, BY_FIGURE, PEERS, Aim, FigureOf
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.routing.drive import Load
from lab.benchmarks.routing.outcomes import Drive, SentRequest
from lab.benchmarks.sizes import FULL
from lab.benchmarks.worker import MODULES
from lab.traffic.event_load import LoadPlan
from routing.costs import Costs
from streams.kernel import open_kernel

SIZES = FULL["rust"]


def names(measurement: str, figures: list[Figure]) -> set[FigureOf]:
    return {FigureOf(measurement, figure.name) for figure in figures}


def of_peers() -> list[Figure]:
    one = queries.Pass(1.0, 1.0, 1.0, 1.0)
    found = []
    for tokens in SIZES.prompt_tokens:
        ours = {form: [one] for form in FORMS}
        found += queries._figures(tokens, ours | {queries.THEIRS: [one]}, queries.THEIRS)
        by_hash = {queries.BY_HASH: [one], queries.THEIRS_BY_HASH: [one]}
        found += queries._figures(tokens, by_hash, queries.THEIRS_BY_HASH)
    return found


def of_beside() -> list[Figure]:
    passes = {name: [beside.Pass([1.0], [1.0], True)] for name in (beside.OURS, queries.THEIRS)}
    found = [figure for name in passes for figure in beside._figures(name, passes[name])]
    return [*found, beside._against(passes)]


def of_removing() -> list[Figure]:
    one = removing.Pass([1.0], [1.0], 1.0, True)
    return [
        figure
        for name in (beside.OURS, queries.THEIRS)
        for figure in removing._figures(name, [one], LoadPlan())
    ]


def of_ingest() -> list[Figure]:
    run = ingest.IngestRun()
    run.wall = run.cpu = dict.fromkeys(ingest.PHASES, 1.0)
    return [
        figure
        for per_event in (64, 1)
        for phase in ingest.PHASES
        for peer in ("", "Dynamo, ")
        for figure in ingest._figures([run], phase, LoadPlan(blocks_per_event=per_event), peer=peer)
    ]


def of_growth() -> list[Figure]:
    first = dict.fromkeys(growth.PROMPT_TOKENS, 1.0)
    found = []
    for held in SIZES.growth_blocks:
        found += growth._cold_figures(dict(first), held, first, first)
    pauses = growth._Pauses(open_kernel(1337, name="reference"), b"")
    pauses.note([1.0])
    pauses._asked_ms.append(1.0)
    return found + pauses.figures(SIZES.growth_blocks[-1])


def of_fairness() -> list[Figure]:
    return [
        figure
        for name, flood in fairness.floods(SIZES).items()
        if flood is not None
        for figure in (*fairness.figures_of(name, [[1.0]]), fairness.added(name, [[1.0]], 0.0))
    ]


def of_partition() -> list[Figure]:
    return [
        figure
        for name, flood in fairness.floods(SIZES).items()
        if flood is not None and flood.plan.pattern == "stored"
        for figure in (*fairness.figures_of(name, [[1.0]]), fairness.added(name, [[1.0]], 0.0))
    ]


def of_large() -> list[Figure]:
    held = SIZES.resident_blocks // 64 * 64
    return [
        Figure(name=f"{step.name.format(step.blocks(held))}: worst", unit="ms", runs=[1.0])
        for step in large.STEPS
    ]


def of_pipeline() -> list[Figure]:
    run = pipeline._Run(1.0, 1, 1, 1.0, {"bridge": 1.0, "broker": 1.0}, False)
    found = []
    for publishers, partitions in SIZES.pipeline_shapes:
        shape = pipeline.Shape(publishers, partitions)
        found += pipeline._figures(f"{shape}, 64-block events", run)
    return found


def of_latency() -> list[Figure]:
    sent = FleetSent(blocks=1, messages=1, last_sequence=1, started=0.0, seconds=1.0, late_s=0.0)
    return [
        figure
        for window_ms, flush_ms in latency.WINDOWS_MS
        for rate in SIZES.latency_rates
        for figure in latency._figures(
            f"window {window_ms} ms, flush {flush_ms} ms, {rate:,} blocks/s", sent, [1.0]
        )
    ]


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


def made() -> Iterator[set[FigureOf]]:
    yield names("policies", of_policies())
    yield names("peers", of_peers())
    yield names("beside", of_beside())
    kept = [count for count in SIZES.prompt_tokens if count <= audit.TOKENS_MAX]
    for name in ("audit", "audit-replica"):
        yield names(name, [one for n in kept for one in audit.figures_of(n, [[1.0, 1.0]], 1)])
    yield names("removing", of_removing())
    yield names(
        "cores",
        cores._figures({threads: [cores._Pass(1.0, 1.0, False)] for threads in cores.THREADS}),
    )
    yield names("ingest", of_ingest())
    yield names("growth", [*of_growth(), *growth._long_figures("reference")])
    yield {FigureOf("memory", f"{case.name}: resident") for case in memory.CASES}
    cases = ("from the table", "table deleted, whole log folded")
    yield names(
        "recovery",
        [
            figure
            for blocks in SIZES.recovery_blocks
            for case in cases
            for figure in recovery._figures(f"{blocks:,} blocks, {case}", [(1.0, 1.0, 1.0)])
        ],
    )
    yield names("fairness", of_fairness())
    yield names("large", of_large())
    yield names("partition", of_partition())
    yield names("pipeline", of_pipeline())
    yield names("latency", of_latency())


def test_what_is_aimed_at_is_measured_under_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "CHAIN_BLOCKS", 64)
    monkeypatch.setattr(growth, "LONG_TOKENS", growth.LINEAR_FROM)  # as it is named: see below
    known = {of for one in made() for of in one}
    measured = {of.measurement for of in known}
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
    assert [least.is_met(value) for value in (3.99, 4.0, 4.01)] == [False, True, True]
    assert [most.is_met(value) for value in (3.99, 4.0, 4.01)] == [True, True, False]
    assert (least.bound, most.bound) == (">= 4", "<= 4")
