"""Plans, sweeps, and what is told of them: the same bytes each time, however many processes."""

import csv
import io
import json
import multiprocessing
import os
import random
import re
import struct
from functools import partial
from typing import NoReturn

import msgspec
import pytest

from lab.whatif.plan import (
    ALL,
    AXES,
    COMPARED,
    IDEAL,
    POOL,
    Sweep,
    parse_sweep,
    parse_sweeps,
    plan,
)
from lab.whatif.policies.table import ALL_POLICIES
from lab.whatif.report.conclusion import concluded, conclusion_of
from lab.whatif.report.document import (
    Document,
    document_of,
    facts_of,
    groups_of,
    to_json,
)
from lab.whatif.report.page import page_of
from lab.whatif.report.plots import pictures_of
from lab.whatif.report.table import rows_of, text_lines, to_csv
from lab.whatif.setup import Setup, parse_capacity
from lab.whatif.sweep import Job, SweepError, run_all
from lab.whatif.workload import Workload
from replay.traces.request import TraceRequest
from routing.policies.table import DEFAULT_POLICY
from schemas.errors import ConfigurationError

SIZE = 512
BASE = Setup(nodes=3, gpu_blocks=40)
SWEEPS = (
    Sweep("capacity", ("4000", "3M", "unbounded")),
    Sweep("delay", ("0", "1")),
    Sweep("weighted.alpha", ("0", "1")),
    Sweep("one-cache", ("20blocks", "unbounded")),
)


def workload(name: str = "small", seed: int = 5) -> Workload:
    chance = random.Random(seed)
    requests = []
    for at in range(80):
        head = chance.randrange(6)
        ids = [head, *range(100 * head, 100 * head + chance.randrange(12)), 10_000 + at]
        requests.append(TraceRequest(at * 500.0, len(ids) * SIZE - 7, 1, ids))
    return Workload(name, SIZE, requests)


def document(processes: int, *, policies: tuple[str, ...] = ()) -> Document:
    workloads = [workload(), workload("<other> & one", 6)]
    jobs = plan(BASE, block_size=SIZE, workloads=2, policies=policies, sweeps=SWEEPS)
    outcomes = run_all(jobs, workloads, processes=processes)
    return document_of(jobs, outcomes, [facts_of(one, ["a <note>"]) for one in workloads])


@pytest.fixture(scope="module")
def reported() -> Document:
    return document(1)


def test_the_same_runs_give_the_same_bytes_with_any_number_of_processes(
    reported: Document,
) -> None:
    once = to_json(reported)
    assert to_json(document(1)) == once
    assert to_json(document(2)) == once
    assert to_csv(document(1)) == to_csv(reported)


def test_another_seed_gives_other_ties() -> None:
    def spread(base: Setup) -> list[int]:
        jobs = plan(base, block_size=SIZE, workloads=1, policies=["random"])
        first, *_ = run_all(jobs, [workload()], processes=1)
        return [node.requests for node in first.nodes]

    assert spread(BASE) != spread(Setup(nodes=3, gpu_blocks=40, seed=4))


def test_progress_is_told_of_each_run() -> None:
    for processes in (1, 2):
        done: list[None] = []
        jobs = plan(BASE, block_size=SIZE, workloads=1, policies=["random", "weighted"])
        run_all(jobs, [workload()], processes=processes, when_done=partial(done.append, None))
        assert len(done) == len(jobs) == 4


def test_progress_within_runs_is_told_in_requests() -> None:
    jobs = plan(BASE, block_size=SIZE, workloads=1, policies=["random", "weighted"])
    for processes in (1, 2):
        taken: list[int] = []
        run_all(jobs, [workload()], processes=processes, when_taken=taken.append)
        assert taken == sorted(taken)
        assert taken[-1] == len(jobs) * 80
        assert processes == 2 or taken[:2] == [64, 80], "within a run"


def test_an_interruption_leaves_no_process_behind() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    jobs = plan(BASE, block_size=SIZE, workloads=1, policies=["random", "weighted"])
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, [workload()], processes=2, when_done=interrupt)
    assert multiprocessing.active_children() == []


def die(job: Job) -> NoReturn:
    os._exit(9)


def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.whatif.sweep._run", die)
    jobs = plan(BASE, block_size=SIZE, workloads=1, policies=["random", "weighted"])
    with pytest.raises(SweepError, match="A process of the sweep has died"):
        run_all(jobs, [workload()], processes=2)


def test_a_comparison_has_five_policies_or_every_one_of_the_table() -> None:
    jobs = plan(BASE, block_size=SIZE, workloads=1)
    assert [job.label for job in jobs] == [*COMPARED, POOL, IDEAL]
    assert len(COMPARED) == 5
    assert DEFAULT_POLICY in COMPARED
    jobs = plan(BASE, block_size=SIZE, workloads=1, every=True)
    assert [job.label for job in jobs] == [*ALL, POOL, IDEAL]
    assert {label.partition(":")[0] for label in ALL} == set(ALL_POLICIES)
    pool, ideal = jobs[-2].setup, jobs[-1].setup
    assert (pool.gpu_blocks, pool.pool_blocks) == (0, 120)
    assert (ideal.gpu_blocks, ideal.pool_blocks) == (0, None)


@pytest.mark.parametrize(
    ("gpu", "cpu", "total"), [(40, 0, 120), (40, 5, 135), (None, 0, None), (40, None, None)]
)
def test_the_pool_is_as_large_as_all_nodes_together(
    gpu: int | None, cpu: int | None, total: int | None
) -> None:
    base = Setup(nodes=3, gpu_blocks=gpu, cpu_blocks=cpu)
    jobs = plan(base, block_size=SIZE, workloads=1, policies=["random"])
    pools = [job.setup.pool_blocks for job in jobs if job.label == POOL]
    assert pools == ([] if total is None else [total])  # where it is unbounded it is the ideal


def test_sweeps_run_the_policies_that_are_named() -> None:
    jobs = plan(
        BASE,
        block_size=SIZE,
        workloads=1,
        policies=("weighted:beta=2", "random"),
        sweeps=[Sweep("delay", ("0", "5")), Sweep("weighted.alpha", ("3",))],
    )
    swept = [(job.group, job.value, job.x, job.setup.policy) for job in jobs[4:]]
    assert swept == [
        ("delay", "0", 0.0, "weighted:beta=2"),
        ("delay", "5", 5.0, "weighted:beta=2"),
        ("delay", "0", 0.0, "random"),
        ("delay", "5", 5.0, "random"),
        ("weighted.alpha", "3", 3.0, "weighted:beta=2,alpha=3"),
    ]
    assert [job.setup.index_delay_s for job in jobs[4:]] == [0.0, 5.0, 0.0, 5.0, 0.0]


def test_what_is_named_in_another_way_than_it_is_meant_is_told() -> None:
    planned = partial(plan, BASE, block_size=SIZE, workloads=1)
    assert planned(policies=["weighted:"])[0].label == "weighted"
    with pytest.raises(ConfigurationError, match="give --policy once for each"):
        planned(policies=["weighted,random"])
    alpha = [Sweep("weighted.alpha", ("3",))]
    with pytest.raises(ConfigurationError, match="Expected --policy weighted beside --sweep"):
        planned(policies=["random"], sweeps=alpha)
    usual = planned(policies=["random"], sweeps=parse_sweeps(["usual"]))
    assert "weighted.alpha" not in {job.group for job in usual}


VALUES = {axis: "0.5,1" for axis in ("rate", "loss", "slo-ttft")} | {
    "index": "events,capacity",
    "sessions": "off,on",
}
"""Of axes that do not go from 1 to 2."""


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_changes_what_is_run(axis: str) -> None:
    sweep = parse_sweep(f"{axis}={VALUES.get(axis, '1,2')}")
    jobs = plan(BASE, block_size=1, workloads=1, policies=["random"], sweeps=[sweep])[3:]
    assert len(jobs) == 2
    assert jobs[0].setup != jobs[1].setup


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("delay", "Expected a sweep as `delay=0,1,120`, got: delay"),
        ("delay=", "Expected a sweep as"),
        ("speed=1", "Expected a sweep of capacity, .* or POLICY.PARAMETER, got: speed"),
        ("weighted.gamma=1", "Expected a parameter of weighted of alpha, .*, got: gamma"),
        ("random.alpha=1", "Expected a parameter of random of none, got: alpha"),
    ],
)
def test_a_wrong_sweep_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_sweep(text)


@pytest.mark.parametrize(
    "text",
    ["delay=-1", "delay=soon", "capacity=much", "nodes=0", "nodes=1.5", "loss=2", "rate=0"],
)
def test_a_value_that_cannot_be_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected a "):
        plan(BASE, block_size=SIZE, workloads=1, sweeps=[parse_sweep(text)])


def test_a_plan_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.whatif.plan.WHATIF_RUNS_MAX", 5)
    with pytest.raises(ConfigurationError, match="Expected at most 5 runs, got: 7"):
        plan(BASE, block_size=SIZE, workloads=1)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        *(
            ("3M", 5859),
            ("3000000", 5859),
            ("3,000,000", 5859),
            ("3_000k", 5859),
            ("1.5k", 2),
            ("511", 0),
        ),
        *(("5859blocks", 5859), ("1block", 1), ("2Kblocks", 2000), ("unbounded", None)),
    ],
)
def test_capacities(text: str, blocks: int | None) -> None:
    assert parse_capacity(text, 512) == blocks


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("24GB", "2 x layers x kv_heads x head_dim x bytes"),
        ("3M,50M", "give the option once for each"),
        ("300000,3000000", "give the option once for each"),
        ("9999999G", "at most 1,000G tokens or blocks"),
    ],
)
def test_what_a_capacity_is_mistaken_for_says_what_to_do(text: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        parse_capacity(text, 512)


@pytest.mark.parametrize("text", ["", "_", "much", "-3", "3T", "3Mtokens", "1e6"])
def test_what_is_no_capacity_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Expected a capacity in tokens as `3M`"):
        parse_capacity(text, 512)


def test_the_table_has_each_run_with_its_cost_model(reported: Document) -> None:
    text = "\n".join(text_lines(reported))
    assert text.count("\nround-robin  ") == 2
    assert "L - C) / 8000 + 6e-10 * (L^2 - C^2) s" in text
    assert "small: 80 requests in 40 s" in text
    assert text.count("  note: a <note>") == 2
    run = next(run for run in reported.runs if run.outcome.label == IDEAL)
    assert re.search(rf"\nideal +{run.block_hit_rate:.1%} +{run.token_hit_rate:.1%} +100%", text)


def compared(reported: Document, **means: float) -> Document:
    """The comparison of these alone, with these means; they grow from part to part of the trace."""
    trace = reported.traces[0]
    runs = []
    for run in reported.runs:
        one = run.outcome
        if one.trace != trace.name or run.group != "policies":
            continue
        mean = means.get(one.label.replace("-", "_"))
        if mean is None and one.label not in (POOL, IDEAL):
            continue
        if mean is not None:
            parts = [mean * (1 + number / 10) for number in range(10)]
            ttft = msgspec.structs.replace(one.ttft, mean=mean)
            one = msgspec.structs.replace(one, ttft=ttft, ttft_parts=parts)
        runs.append(msgspec.structs.replace(run, outcome=one))
    assert len(runs) == len(means) + 2
    return msgspec.structs.replace(reported, traces=[trace], runs=runs)


def long(document: Document) -> Document:
    """The same, as of a trace that is long enough to say anything."""
    traces = [msgspec.structs.replace(one, requests=1000) for one in document.traces]
    return msgspec.structs.replace(document, traces=traces)


def test_the_conclusion_answers_in_the_order_in_which_a_planner_asks(reported: Document) -> None:
    document = long(compared(reported, least_loaded=2.0, least_delay=1.0))
    gain, winner, cache, doubts = conclusion_of(document, document.traces[0])
    assert gain.startswith("Routing by prefix pays on small: least-delay has a mean TTFT of 1.00 s")
    assert "least-loaded, which looks at load alone, 2.00 s" in gain
    assert re.search(r"At most \d+\.\d% of the blocks can ever be hit", gain)
    assert re.fullmatch(
        r"Best of the 2 compared \(of 16; --all compares all\): least-delay, a mean TTFT of"
        r" 1\.00 s, \d+\.\d% of blocks hit\. That is 50% less than least-loaded \(2\.00 s\),"
        r" the next best: surely better on traces like this \(surely: the lower mean in at least 9"
        r" of 10 equal parts of the trace; here in 10\)\.",
        winner,
    )
    assert cache.startswith("Cache: no sizes were tried; `--sweep capacity=")
    assert doubts.startswith("What would change this: the cost model")
    assert "\nleast-delay *  " in "\n".join(text_lines(document))
    decoded = json.loads(to_json(concluded(document)))
    (said,) = decoded["conclusions"]
    assert said == {"trace": "small", "sentences": [gain, winner, cache, doubts]}


def test_policies_that_are_exactly_alike_tie_and_times_below_a_second_are_in_ms(
    reported: Document,
) -> None:
    document = long(compared(reported, least_loaded=0.67, least_delay=0.24, round_robin=0.24))
    gain, winner, *_ = conclusion_of(document, document.traces[0])
    assert "least-delay has a mean TTFT of 240 ms" in gain
    assert "least-delay and round-robin, a mean TTFT of 240 ms" in winner
    assert "they are exactly alike, a tie" in winner
    assert "64% less than least-loaded (670 ms), the next best" in winner
    assert "\n".join(text_lines(document)).count(" *  ") == 2
    equal = long(compared(reported, round_robin=1.001, least_delay=1.0))
    parts = {"round-robin": [1.0] * 10, "least-delay": [2.0] * 10}
    equal = msgspec.structs.replace(
        equal,
        runs=[
            msgspec.structs.replace(
                run,
                outcome=msgspec.structs.replace(
                    run.outcome, ttft_parts=parts.get(run.outcome.label, [])
                ),
            )
            for run in equal.runs
        ],
    )
    _, winner, *_ = conclusion_of(equal, equal.traces[0])
    assert "less than 1% less than round-robin" in winner
    assert winner.endswith("this trace does not tell the two apart.")


def test_a_short_trace_and_one_without_repeats_say_so(reported: Document) -> None:
    document = compared(reported, least_loaded=2.0, least_delay=1.0)
    said = list(conclusion_of(document, document.traces[0]))
    assert said[0].startswith("Too short to say what pays: small has 80 requests. At most ")
    assert "too short to say how sure, with 80 requests" in said[1]
    assert "What would change this: more requests than 80; " in said[-1]
    trace = msgspec.structs.replace(document.traces[0], distinct_blocks=document.traces[0].blocks)
    first = next(conclusion_of(document, trace))
    assert first.startswith("No block of small repeats: neither routing by prefix nor a cache ")
    part = msgspec.structs.replace(trace, cut="line 9: broken")
    assert next(conclusion_of(document, part)) == "Only a part of small was read: line 9: broken."


def test_a_winner_that_fetches_says_what_it_needs_and_a_worse_p99(reported: Document) -> None:
    document = long(compared(reported, least_loaded=2.0, least_delay=1.0))
    runs = []
    for run in document.runs:
        one = run.outcome
        if one.label == "least-delay":
            late = msgspec.structs.replace(one.ttft, p99=90.0)
            one = msgspec.structs.replace(one, fetched_blocks=5, ttft=late)
        runs.append(msgspec.structs.replace(run, outcome=one))
    document = msgspec.structs.replace(document, runs=runs)
    _, _, late_said, needs, _, doubts = conclusion_of(document, document.traces[0])
    assert late_said.startswith("Its p99 is worse: 90.00 s, and ")
    assert needs == (
        "least-delay needs engines that fetch blocks from one another, at 60,000 tokens/s; without"
        " that the best is least-loaded (2.00 s)."
    )
    assert "`--costs fetch_tokens_per_s=6000`" in doubts


def test_a_look_at_the_cache_says_the_knee() -> None:
    jobs = plan(BASE, block_size=SIZE, workloads=1, look_at=[0])
    looks = [job for job in jobs if job.group == "capacity"]
    assert [job.value for job in looks] == ["2.05k", "6.66k", "20.5k", "61.4k", "unbounded"]
    assert {job.label for job in looks} == {DEFAULT_POLICY}
    outcomes = run_all(jobs, [workload()], processes=1)
    document = document_of(jobs, outcomes, [facts_of(workload(), [])])
    (said,) = [one for one in conclusion_of(document, document.traces[0]) if "Cache" in one]
    assert re.fullmatch(
        r"Cache \(least-delay\): \S+k tokens an engine give \d+% of the hits of unbounded ones,"
        r" \S+k give \d+% \(mean TTFT .*\)\.",
        said,
    )
    named = plan(
        BASE, block_size=SIZE, workloads=1, look_at=[0], sweeps=[Sweep("capacity", ("3M",))]
    )
    assert [job.value for job in named if job.group == "capacity"] == ["3M"] * 3, "in its place"


def test_nothing_is_faster_than_the_ideal(reported: Document) -> None:
    for trace in reported.traces:
        runs = groups_of(reported, trace.name)["policies"]
        means = {run.outcome.label: run.outcome.ttft.mean for run in runs}
        assert means[IDEAL] == min(means.values())


def test_a_policy_that_overloads_a_node_is_told_apart_and_never_the_best(
    reported: Document,
) -> None:
    document = compared(reported, round_robin=2.0, least_delay=1.0)
    trace = document.traces[0]
    runs = []
    for run in document.runs:
        one = run.outcome
        if one.label == "least-delay":
            busy = msgspec.structs.replace(one.nodes[0], busy_s=trace.seconds + 1)
            one = msgspec.structs.replace(one, nodes=[busy, *one.nodes[1:]])
        runs.append(msgspec.structs.replace(run, outcome=one))
    document = msgspec.structs.replace(document, runs=runs)
    said = list(conclusion_of(document, trace))
    assert said[1].startswith("Best of the 2 compared (of 16; --all compares all): round-robin, ")
    assert said[2] == "Overloaded, so that queues grow until the end: least-delay."
    (row,) = [row for row in rows_of("policies", runs, trace) if row[0] == "least-delay"]
    assert row.count("overloaded") == 4
    assert '<tr class="over"><td>least-delay</td>' in page_of(document, [])
    alone = msgspec.structs.replace(
        document, runs=[run for run in runs if run.outcome.label != "round-robin"]
    )
    _, said_alone, *_ = conclusion_of(alone, trace)
    assert said_alone.startswith("Each policy overloads a node")


def test_json_and_csv_have_every_run(reported: Document) -> None:
    decoded = json.loads(to_json(reported))
    assert (decoded["version"], len(decoded["runs"])) == (1, len(reported.runs))
    rows = list(csv.DictReader(io.StringIO(to_csv(reported))))
    assert [row["label"] for row in rows] == [run.outcome.label for run in reported.runs]
    for row, run in zip(rows, reported.runs, strict=True):
        assert float(row["block_hit_rate"]) == run.block_hit_rate
        assert float(row["ttft_p99_s"]) == run.outcome.ttft.p99


def test_the_page_has_all_pictures_and_loads_nothing(reported: Document) -> None:
    kept = [run for run in reported.runs if run.group in ("policies", "capacity")]
    shown = msgspec.structs.replace(reported, runs=kept)
    pictures = list(pictures_of(shown))
    assert [picture.name for picture in pictures] == [
        *("1-policies", "1-capacity", "2-policies", "2-capacity")
    ]
    for picture in pictures:
        assert picture.png.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", picture.png[16:24])
        assert width > 1000
        assert height > 300
    page = page_of(shown, pictures)
    assert page.count("<img ") == 4
    assert "http" not in page
    assert "<script" not in page
    assert "&lt;other&gt; &amp; one" in page
    assert "<other>" not in page
    assert "<note>" not in page
    assert next(pictures_of(shown)).png == pictures[0].png


def test_what_is_refused_and_decoded_has_columns_where_it_is_asked_for() -> None:
    base = Setup(
        nodes=2, slo_ttft_s=5.0, decoders=1, slo_tbt_s=0.05, load_age_s=1.0, bookings=False
    )
    requests = [TraceRequest(10.0 * number, 512, 20, [number]) for number in range(30)]
    workload = Workload("apart", SIZE, requests)
    jobs = plan(base, block_size=SIZE, workloads=1, policies=["weighted"])
    outcomes = run_all(jobs, [workload], processes=1)
    document = document_of(jobs, outcomes, [facts_of(workload, [])])
    text = "\n".join(text_lines(document))
    for title in ("refused", "needless", "in time", "both in time", "swing", "phase"):
        assert title in text
    assert "loads told every 1 s, no bookings" in text
    assert "1 decoder, TBT objective 50 ms" in text
    row = next(csv.DictReader(io.StringIO(to_csv(document))))
    assert (row["decoded"], row["within"], row["needless"]) == ("30", "30", "0")
    assert (row["refusal"], row["load_age_s"], row["bookings"]) == ("now", "1.0", "False")
