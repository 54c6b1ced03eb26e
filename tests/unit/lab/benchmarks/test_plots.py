"""What is drawn of a report."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from lab.benchmarks.index import growth
from lab.benchmarks.report import plots
from lab.benchmarks.report.document import BenchmarkReport, Result
from lab.benchmarks.report.figures import Figure
from lab.benchmarks.report.machine import describe_machine
from lab.benchmarks.report.plots import PLOTS, lines_of
from lab.benchmarks.sizes import QUICK
from streams.kernel import native_available

QUERY, RATE, TABLE, LENGTH = PLOTS


def figure(name: str, value: float) -> Figure:
    return Figure(name=name, unit="us", runs=[value])


FIGURES = [
    figure("JSON, 8K tokens: CPU", 60.0),
    figure("JSON, 1K tokens: CPU", 20.0),
    figure("JSON, 1K tokens: CPU, times less than Dynamo", 6.0),
    figure("Dynamo, JSON, 1K tokens: CPU", 120.0),
    figure("query of 8K tokens, 1,000,000 blocks held: CPU", 11.0),
    figure("query of 8K tokens, 1,000,000 blocks held: times the hashing alone", 2.5),
    figure("query of 4K tokens: CPU of a token", 1.4),
]


def test_each_line_has_its_points_in_order() -> None:
    assert lines_of(QUERY, FIGURES) == {
        "JSON": [(1024.0, 20.0), (8192.0, 60.0)],
        "Dynamo, JSON": [(1024.0, 120.0)],
    }
    assert lines_of(RATE, [*FIGURES, figure("JSON, 1K tokens: rate", 9.0)]) == {
        "JSON": [(1024.0, 9.0)]
    }
    assert lines_of(TABLE, FIGURES) == {"8K tokens": [(1_000_000.0, 11.0)]}
    assert lines_of(LENGTH, FIGURES) == {"": [(4096.0, 1.4)]}


@pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")
def test_what_a_growing_table_costs_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "COLD_PROMPTS", 3)
    monkeypatch.setattr(growth, "TIMES", 2)
    sizes = msgspec.structs.replace(QUICK["reference"], growth_blocks=(24_576, 32_768))
    figures = growth.measure("rust", sizes)
    assert set(lines_of(TABLE, figures)) == {"1K tokens", "8K tokens", "128K tokens"}
    assert len(lines_of(LENGTH, figures)[""]) == 6


def test_a_report_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = Result(measurement="peers", kernel="rust", seconds=1.0, figures=FIGURES[:4])
    report = BenchmarkReport(machine=describe_machine(), quick=True, results=[result])
    (tmp_path / "report.json").write_bytes(msgspec.json.encode(report))
    arguments = [str(tmp_path / "report.json"), str(tmp_path / "plots")]
    done = CliRunner().invoke(plots.main, arguments, catch_exceptions=False)
    assert done.output == f"wrote {tmp_path / 'plots' / 'query-cpu.svg'}\n"
    drawn = (tmp_path / "plots" / "query-cpu.svg").read_text()
    assert "<svg" in drawn
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["query-cpu.svg"]
