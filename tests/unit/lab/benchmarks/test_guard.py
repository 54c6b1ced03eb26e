"""What the guard of CPU says of figures; how they are measured it shows itself."""

import msgspec
import pytest
from click.testing import CliRunner

from lab.benchmarks.guard import __main__ as guard
from lab.benchmarks.guard.operations import operations
from streams.kernel import native_available

pytestmark = pytest.mark.skipif(not native_available(), reason="the Rust kernel is not built")


def run(monkeypatch: pytest.MonkeyPatch, factor: float, *options: str) -> tuple[int, str]:
    before = msgspec.json.decode(guard.BASELINE.read_bytes(), type=dict[str, float])
    monkeypatch.setattr(guard, "measure", lambda: {name: before[name] * factor for name in before})
    result = CliRunner().invoke(guard.main, options)
    return result.exit_code, result.output


def test_what_costs_as_much_as_before_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, 1.29)
    assert (code, "TOO DEAR" in output) == (0, False)
    assert "1.29 x" in output


def test_what_has_become_too_dear_is_named_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run(monkeypatch, 1.31)
    assert code == 1
    assert "1.31 x  TOO DEAR" in output
    assert "say why in the commit" in output
    assert run(monkeypatch, 1.31, "--limit", "1.4")[0] == 0


def test_an_operation_that_was_not_written_down_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not guard.compare({"new": 1.0}, {"old": 1.0}, 1.3)[0].is_dear
    assert capsys.readouterr().out.split("\n")[:2] == [
        f"{'new':<48} not written down yet",
        f"{'old':<48} not measured any more",
    ]


def test_every_operation_is_written_down() -> None:
    before = msgspec.json.decode(guard.BASELINE.read_bytes(), type=dict[str, float])
    assert [operation.name for operation in operations()] == list(before)
