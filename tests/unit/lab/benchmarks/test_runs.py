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
from lab.benchmarks.sizes import KernelName
from lab.benchmarks.worker import BESIDE_DYNAMO, MODULES


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Which measurements were made; `stages` fails, the others have one figure."""
    made: list[tuple[str, str]] = []

    def worker(name: str, kernel: KernelName, *, quick: bool) -> Result:
        made.append((name, kernel))
        error = "it broke" if name == "stages" else ""
        figures = [] if error else [Figure(name="any", unit="s", runs=[1.0])]
        return Result(measurement=name, kernel=kernel, seconds=1.0, figures=figures, error=error)

    monkeypatch.setattr(run, "run_worker", worker)
    monkeypatch.setattr(run, "missing_dynamo", lambda: "no such package")
    monkeypatch.setenv(routers.VARIABLE, "/nowhere")
    monkeypatch.setattr(run, "_missing_broker", lambda: "no broker")
    monkeypatch.setattr(run, "native_available", lambda: True)
    return made


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(run.main, arguments, catch_exceptions=False)


def test_a_measurement_that_fails_does_not_end_the_others(
    asked: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    only = "--only=stages,instances,kernel"
    said = invoke(only, "--quick", f"--json={path}", "--kernel=rust")
    assert asked == [("stages", "rust"), ("instances", "rust"), ("kernel", "rust")]
    assert said.exit_code == 1
    assert "rust failed: it broke" in said.output
    assert "== aims" in said.output
    told = msgspec.json.decode(path.read_bytes(), type=BenchmarkReport)
    assert [one.error for one in told.results] == ["it broke", "", ""]


def test_what_cannot_be_measured_is_named_with_the_reason(asked: list[tuple[str, str]]) -> None:
    said = invoke("--quick")
    made = {name for name, _ in asked}
    left_out = (*run.DISTRIBUTED, *run.NEED_DYNAMO, *run.NEED_ROUTERS)
    assert made == MODULES.keys() - set(left_out)
    assert "== routers: skipped. no vllm-router in /nowhere" in said.output
    assert "== peers: skipped. no such package" in said.output
    assert "== latency: skipped. no broker" in said.output
    assert f"peer {DYNAMO}: left out, no such package" in said.output
    assert "not measured: no broker" in said.output
    assert sum(" not measured: " in line for line in said.output.splitlines()) == len(AIMS)


def test_the_reference_is_measured_where_its_column_says_something(
    asked: list[tuple[str, str]],
) -> None:
    invoke("--quick")
    assert {name for name, kernel in asked if kernel == "reference"} == set(run.BOTH_KERNELS)


def test_without_the_rust_kernel_its_parts_are_left_out(
    asked: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "native_available", lambda: False)
    said = invoke("--quick")
    assert {kernel for _, kernel in asked} == {"reference"}
    assert "== cores: skipped. it is a part of the Rust kernel" in said.output


def test_what_has_not_begun_in_time_is_left_out_by_name(asked: list[tuple[str, str]]) -> None:
    said = invoke("--quick", "--minutes=0")
    assert asked == []
    assert "== ingest: skipped. left out, the 0 minutes of --minutes were over" in said.output


def test_what_is_named_has_all_the_time(asked: list[tuple[str, str]]) -> None:
    invoke("--quick", "--only=ingest", "--minutes=0", "--kernel=rust")
    assert asked == [("ingest", "rust")]


def test_a_full_run_fails_where_an_aim_has_no_figure(asked: list[tuple[str, str]]) -> None:
    assert invoke("--quick", "--only=ingest", "--kernel=rust").exit_code == 0
    assert invoke("--only=ingest", "--kernel=rust").exit_code == 1


def test_each_measurement_can_be_run() -> None:
    for module in MODULES.values():
        assert callable(import_module(f"lab.benchmarks.{module}").measure)
    for names in (run.DISTRIBUTED, run.BOTH_KERNELS, run.NEED_DYNAMO, run.NEED_RUST, BESIDE_DYNAMO):
        assert set(names) <= MODULES.keys()
    assert set(run.NEED_DYNAMO) <= set(BESIDE_DYNAMO)


def test_whatever_a_worker_does_there_is_a_result() -> None:
    made = run.run_worker("no-such", "reference", quick=True)
    assert (made.figures, made.error) == ([], "KeyError: 'no-such'")
    assert run._figures_of("", "", -9) == ([], "ended with status -9, and said nothing")
    assert run._figures_of("[", "a warning", 0)[1].startswith("Expected its figures, got '['")
    known = [Figure(name="any", unit="s", runs=[1.0])]
    assert run._figures_of(msgspec.json.encode(known).decode(), "", 0) == (known, "")
