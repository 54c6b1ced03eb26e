"""Each command that runs a service gives memory back, and lets no thread wait long."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from reprise.cli import process
from reprise.cli.main import main
from reprise.roles import bridge, serve, streams, up

RUNS = {
    "up": (up, "run_up"),
    "bridge": (bridge, "run_bridge"),
    "streams": (streams, "work"),
    "serve": (serve, "serve_replica"),
}


@pytest.mark.parametrize("command", RUNS)
def test_a_service_begins_with_what_concerns_its_whole_process(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    for name in ("start_logging", "return_memory", "tune_interpreter"):
        monkeypatch.setattr(process, name, lambda *_, name=name: done.append(name))
    module, runs = RUNS[command]
    monkeypatch.setattr(module, runs, lambda *_, **__: done.append("runs"))
    options = {
        "up": ["--data", str(tmp_path)],
        "bridge": ["--kafka", "127.0.0.1:1", "--data", str(tmp_path)],
        "streams": ["--kafka", "127.0.0.1:1", "--data", str(tmp_path)],
        "serve": ["--kafka", "127.0.0.1:1"],
    }
    result = CliRunner().invoke(main, [command, *options[command]])
    assert result.exit_code == 0, result.output
    assert done == ["start_logging", "return_memory", "tune_interpreter", "runs"]
