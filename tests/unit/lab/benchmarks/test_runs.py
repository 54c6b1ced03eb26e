"""A run of several measurements: what fails, what is left out, and what is said of it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from devtools import routers
from lab.benchmarks import __main__ as run
from lab.benchmarks.report.aims import AIMS, DYNAMO
from lab.benchmarks.report.document import BenchmarkReport, Result
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.worker import BESIDE_DYNAMO, MODULES


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which measurements were made; `large` fails, the others have one figure."""
    made: list[str] = []

    def worker(name: str, *, quick: bool) -> Result:
        made.append(name)
        error = "it broke" if name == "large" else ""
        figures = [] if error else [Figure(name="any", unit="s", runs=[1.0])]
        return Result(measurement=name, seconds=1.0, figures=figures, error=error)

    monkeypatch.setattr(run, "run_worker", worker)
    monkeypatch.setattr(run, "missing_dynamo", lambda: "no such package")
    monkeypatch.setenv(routers.VARIABLE, "/nowhere")
    monkeypatch.setattr(run, "_missing_broker", lambda: "no broker")
    monkeypatch.setattr(run, "native_available", lambda: True)
    return made


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(run.main, arguments, catch_exceptions=False)


def test_a_measurement_that_fails_does_not_end_the_others(asked: list[str], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    said = invoke("--only=large,instances,route", "--quick", f"--json={path}")
    assert asked == ["large", "instances", "route"]
    assert said.exit_code == 1
    assert "failed: it broke" in said.output
    assert "== aims" in said.output
    told = msgspec.json.decode(path.read_bytes(), type=BenchmarkReport)
    assert [one.error for one in told.results] == ["it broke", "", ""]


def test_what_cannot_be_measured_is_named_with_the_reason(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run.EXTRAS, "text", ("tokenizers.none", "pip install -e '.[text]'"))
    said = invoke("--quick")
    assert set(asked) == MODULES.keys() - {*run.DISTRIBUTED, *run.NEED_RIVALS, "text"}
    assert "== text: skipped. no tokenizers.none: pip install" in said.output
    assert "== peers-memory: skipped. no such package" in said.output
    assert "== latency: skipped. no broker" in said.output
    assert f"peer {DYNAMO}: left out, no such package" in said.output
    assert "not measured: no broker" in said.output
    assert sum(" not measured: " in line for line in said.output.splitlines()) == len(AIMS)


def test_without_the_rust_kernel_nothing_is_measured(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "native_available", lambda: False)
    said = CliRunner().invoke(run.main, ["--quick"])
    assert (said.exit_code, asked) == (1, [])
    assert "the Rust kernel is not built" in said.output


def test_what_has_not_begun_in_time_is_left_out_by_name(asked: list[str]) -> None:
    said = invoke("--quick", "--minutes=0")
    assert asked == []
    assert "== ingest: skipped. left out, the 0 minutes of --minutes were over" in said.output


def test_what_would_end_too_late_is_left_out_and_what_would_not_is_made(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SECONDS", dict.fromkeys(MODULES, 61) | {"gateway": 59})
    said = invoke("--minutes=1")
    assert asked == ["gateway"]
    assert "== ingest: skipped. left out, the 1 minutes of --minutes were over" in said.output


def test_a_whole_run_has_time_for_all_of_its_sections() -> None:
    assert run.SECONDS.keys() == MODULES.keys()
    assert sum(run.SECONDS.values()) <= 60 * run.MINUTES


def test_what_is_named_has_all_the_time(asked: list[str]) -> None:
    invoke("--quick", "--only=ingest", "--minutes=0")
    assert asked == ["ingest"]


def test_a_full_run_fails_where_an_aim_has_no_figure(asked: list[str]) -> None:
    assert invoke("--quick", "--only=recovery").exit_code == 0
    assert invoke("--only=recovery").exit_code == 1


def test_each_measurement_can_be_run() -> None:
    for module in MODULES.values():
        assert callable(import_module(f"lab.benchmarks.{module}").measure)
    for names in (run.DISTRIBUTED, run.EXTRAS, run.NEED_RIVALS, run.IN_REAL_TIME, BESIDE_DYNAMO):
        assert set(names) <= MODULES.keys()
    assert {*run.NEED_RIVALS} <= {*BESIDE_DYNAMO}


def test_whatever_a_worker_does_there_is_a_result() -> None:
    made = run.run_worker("no-such", quick=True)
    assert (made.figures, made.error) == ([], "KeyError: 'no-such'")
    assert run._figures_of("", "", -9) == ([], "ended with status -9, and said nothing")
    assert run._figures_of("[", "a warning", 0)[1].startswith("Expected its figures, got '['")
    known = [Figure(name="any", unit="s", runs=[1.0])]
    assert run._figures_of(msgspec.json.encode(known).decode(), "", 0) == (known, "")
