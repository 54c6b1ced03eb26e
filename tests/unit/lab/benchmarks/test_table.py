"""The closing table of a run: each aim, what was measured of it, and why not."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from lab.benchmarks.embedded import fairness
from lab.benchmarks.report import __main__ as again
from lab.benchmarks.report.aims import AIMS, DYNAMO
from lab.benchmarks.report.document import BenchmarkReport, Result, section_lines
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.report.markers import DOCUMENT
from lab.benchmarks.report.table import UNKNOWN, rows_of, table_lines, unknown_of

ROW = "stored, 64-block events: per CPU-second"
STORED = f"{ROW}, times Dynamo's"
REMOVED = "removed, 64-block events: per CPU-second, times Dynamo's"
SINGLE = "stored, 1-block events: per CPU-second, times Dynamo's"
SINGLE_REMOVED = "removed, 1-block events: per CPU-second, times Dynamo's"
CPU = "JSON, 1K tokens: CPU, times less than Dynamo"


def figure(name: str, *runs: float, unit: str = "x", limited: int = 0) -> Figure:
    return Figure(name=name, unit=unit, runs=list(runs), limited=limited)


def result(measurement: str, *figures: Figure, error: str = "") -> Result:
    return Result(measurement=measurement, seconds=1.0, figures=list(figures), error=error)


def report(*results: Result, quick: bool = False, **known: dict[str, str]) -> BenchmarkReport:
    return BenchmarkReport(machine=describe_machine(), quick=quick, results=list(results), **known)


def verdicts(told: BenchmarkReport) -> dict[str, str]:
    return {row.aim.figure.name: row.verdict for row in rows_of(told)}


def line_of(told: BenchmarkReport, what: str) -> list[str]:
    [line] = [line for line in table_lines(told) if line.startswith(what)]
    return line.split("  ")


INGEST = result(
    "ingest",
    figure(ROW, 1.0, 0.9, 1.3, unit="M blocks"),
    figure(f"Dynamo, {ROW}", 0.5, unit="M blocks"),
    figure(STORED, 1.9),
    figure(REMOVED, 1.2),
    figure(SINGLE, 2.1, 2.1, limited=1),
    figure(SINGLE_REMOVED, 2.0),
)


def test_an_aim_is_met_or_missed_by_the_median() -> None:
    assert verdicts(report(INGEST)) == {
        STORED: "MISSED",
        REMOVED: "met",
        SINGLE: "met; the load generator was the limit in 1 of 2 runs",
        SINGLE_REMOVED: "met",
    }


def test_a_row_has_the_spread_and_the_peers_value_and_the_ratio() -> None:
    texts = [text.strip() for text in line_of(report(INGEST), "stored, 64-block") if text.strip()]
    assert texts[1:] == [
        ">= 2",
        "~1.00 M blocks (0.900..1.30)",
        "0.500 M blocks",
        "1.90 x",
        "MISSED",
    ]


def test_a_ratio_is_shown_with_what_stands_behind_it() -> None:
    peers = result(
        "peers",
        figure(CPU, 4.0, 5.0, 6.0),
        figure("JSON, 1K tokens: CPU", 20.0, unit="us"),
        figure("Dynamo, JSON, 1K tokens: CPU", 100.0, unit="us"),
    )
    texts = line_of(report(peers, quick=True), "/query, JSON, 1K tokens: CPU")
    assert [text.strip() for text in texts if text.strip()][1:] == [
        ">= 4",
        "20.0 us",
        "100 us",
        "~5.00 x (4.00..6.00)",
        "met",
    ]


def test_there_is_no_ratio_to_what_was_measured_in_another_way() -> None:
    ours = result("memory", figure("one instance: resident", 44.0, unit="B/pair"))
    theirs = result("peers-memory", figure("Dynamo, one instance: resident", 88.0, unit="B/pair"))
    texts = line_of(
        report(ours, theirs, quick=True), "memory of a (block, instance) pair at 10M, one"
    )
    found = [text.strip() for text in texts if text.strip()]
    assert found[1:] == ["<= 45", "44.0 B/pair", "88.0 B/pair", "met"]


def test_what_was_not_measured_says_why() -> None:
    failed = report(result("ingest", error="it broke"))
    assert set(verdicts(failed).values()) == {"not measured: failed: it broke"}
    skipped = report(skipped={"latency": "no broker"})
    assert set(verdicts(skipped).values()) == {"not measured: no broker"}
    quick = report(result("recovery"), quick=True)
    assert set(verdicts(quick).values()) == {"not measured: not at the sizes of --quick"}
    rivals = dict.fromkeys(("vllm-router", "smg"), "no such package")
    routers = verdicts(report(result("routers", error=""), missing_peers=rivals))
    beside = "Reprise: cached, times the best other"
    assert routers[beside] == "not measured: vllm-router and SMG missing"
    alone = report(
        result("beside", figure("JSON, 8K tokens: p99, times alone", 1.0)),
        missing_peers={DYNAMO: "no such package"},
    )
    assert list(verdicts(alone).values()) == ["met", "not measured: Dynamo missing"]


def test_a_figure_that_a_full_run_does_not_find_is_told() -> None:
    told = rows_of(report(result("table-topic", figure("another name", 1.0))))
    assert [row.verdict for row in told] == [f"not measured: {UNKNOWN}"]
    assert [aim.figure.measurement for aim in unknown_of(told)] == ["table-topic"]
    assert unknown_of(rows_of(report(result("table-topic"), quick=True))) == []


def test_what_was_not_asked_for_has_no_row() -> None:
    lines = list(table_lines(report(INGEST)))
    assert lines[-2] == "3 met, 1 missed, 0 not measured in this run"
    assert lines[-1] == f"{len(AIMS) - 4} more aims are of measurements that were not asked for"
    assert list(table_lines(report())) == []


def test_a_section_shows_the_same_aims() -> None:
    lines = list(section_lines("Blocks", INGEST))
    assert lines[1] == "== ingest: Blocks"
    [stored] = [line for line in lines if line.startswith(STORED)]
    assert stored.endswith("aim >= 2: MISSED")
    [theirs] = [line for line in lines if line.startswith("Dynamo")]
    assert "aim" not in theirs
    assert "    the load generator was the limit in 1 of 2 runs" in lines


def write(path: Path, told: BenchmarkReport) -> str:
    path.write_bytes(msgspec.json.encode(told))
    return str(path)


def test_a_report_is_printed_again(tmp_path: Path) -> None:
    path = write(tmp_path / "one.json", report(INGEST))
    shown = CliRunner().invoke(again.main, [path], catch_exceptions=False).output
    assert shown.splitlines() == list(table_lines(report(INGEST)))
    shown = CliRunner().invoke(again.main, [path, "--markdown"], catch_exceptions=False).output
    assert "| what | aim | measured | Dynamo | vllm-router | SMG | ratio |  |" in shown
    assert "| ~1.00 M blocks (0.900..1.30) | 0.500 M blocks |  |  | 1.90 x | MISSED |" in shown


def test_a_run_replaces_the_one_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(DOCUMENT.read_text())
    monkeypatch.setattr(again, "DOCUMENT", document)
    path = write(tmp_path / "one.json", report(INGEST))
    printed = CliRunner().invoke(again.main, [path, "--markdown"], catch_exceptions=False).output
    for _ in range(2):
        CliRunner().invoke(again.main, [path, "--write"], catch_exceptions=False)
        [_, section] = document.read_text().split("<!-- whole run -->\n\n")
        assert section.partition("\n\n<!-- end of whole run -->")[0] == printed.rstrip()


def test_of_several_reports_the_last_one_counts(tmp_path: Path) -> None:
    missing = {DYNAMO: "no such package"}
    first = report(INGEST, skipped={"peers": "no such package"}, missing_peers=missing)
    better = result("ingest", figure(ROW, 2.5, unit="M blocks"), figure(STORED, 2.0))
    now = {DYNAMO: "any 1.0"}
    second = report(better, result("peers", figure(CPU, 4.0)), quick=True, peers=now)
    assert again.merge([first, second]).missing_peers == {}
    paths = [write(tmp_path / "1", first), write(tmp_path / "2", second)]
    shown = CliRunner().invoke(again.main, paths, catch_exceptions=False).output
    assert "2.50 M blocks" in shown
    assert "no such package" not in shown
    assert "QUICK" in shown


def test_reports_of_before_can_be_read(tmp_path: Path) -> None:
    told = msgspec.to_builtins(report(INGEST))
    for name in ("skipped", "peers", "missing_peers"):
        del told[name]
    told["results"][0]["figures"][0]["aim"] = {"at_least": 0.8, "at_most": None}
    path = tmp_path / "old.json"
    path.write_bytes(msgspec.json.encode(told))
    shown = CliRunner().invoke(again.main, [str(path)], catch_exceptions=False).output
    assert "1.00 M blocks" in shown


def test_what_is_no_report_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_text("[]")
    said = CliRunner().invoke(again.main, [str(path)])
    assert said.exit_code == 1
    assert f"got {path}" in said.output


@pytest.mark.parametrize(("runs", "marked"), [((1.0, 1.2), False), ((1.0, 1.3), True)])
def test_runs_that_differ_are_marked(runs: tuple[float, ...], marked: bool) -> None:
    assert figure("any", *runs).is_disturbed == marked


def test_a_busy_machine_is_no_good_figure() -> None:
    def added(alone_ms: float) -> list[float]:
        return fairness.added("any", [[1.0, 70.0], [80.0], [5.0]], alone_ms).runs

    assert added(20.0) == [50.0, 60.0, 0.0]
    assert added(700.0) == [20.0, 30.0, 0.0]
